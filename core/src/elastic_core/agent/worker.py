"""One local rank of a round: its assignment, the state of its process, and what the node's row says of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

from elastic_core.agent.failure_cause import Reported
from elastic_core.agent.output import WorkerStreams
from elastic_core.assignment import Assignment
from elastic_core.config.environment import inheritable
from elastic_core.config.program import ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.events import Event
from elastic_core.host.addresses import collective_interfaces
from elastic_core.monitors import RunningRound, WorkerView
from elastic_core.plugins.manager import Plugins
from elastic_core.progress import Progress
from elastic_core.protocol.entries import Round
from elastic_core.protocol.ranks import place
from elastic_core.protocol.roster import LocalWorkers, NodeInfo, SavedStep
from elastic_core.session.runtime import RUNTIME, Runtime


@dataclass(frozen=True)
class Node:
    """A node in its run.

    Attributes:
        directory: The one of the run on this node, for logs and error files.
        temporary: Whether that is removed at the end, because no logs were requested.
        cpus: The CPUs of each local rank; empty if workers are not bound.
    """

    config: RunConfig
    plugins: Plugins
    publish: Callable[[Event], None]
    info: NodeInfo
    run_uid: str
    directory: Path
    temporary: bool = False
    cpus: Sequence[frozenset[int]] = ()
    runtime: Runtime = RUNTIME

    def now(self) -> float:
        """Return the instant of the monotonic clock, in seconds."""
        return self.runtime.now()

    def assignments(self, current: Round, restart_count: int) -> list[Assignment]:
        """Return the assignments of this node's local ranks in a round."""
        mine, config = place(current.members, self.info.node_id), self.config
        return [
            Assignment(
                run_id=config.rdzv_id,
                run_uid=self.run_uid,
                round=current.number,
                restart_count=restart_count,
                max_restarts=config.max_restarts,
                role=config.role,
                place=mine,
                local_rank=local_rank,
                master_addr=current.offer.address,
                master_port=current.offer.port,
                use_agent_store=current.offer.hosted,
                error_file=str(error_file(self.directory, current.number, mine.first_rank + local_rank)),
            )
            for local_rank in range(mine.local_world_size)
        ]

    def environment(self, assignment: Assignment) -> Mapping[str, str]:
        """Return the environment of a worker: the defaults for collectives, the agent's own, and that of plugins."""
        environment = self.plugins.worker_environment(self.config.program, assignment)
        defaults = collective_interfaces(self.info.address) if assignment.place.group_world_size > 1 else {}
        return {**defaults, **inheritable(os.environ), **environment}


@dataclass(slots=True)
class Worker:
    """One local rank of the current round."""

    assignment: Assignment
    streams: WorkerStreams
    pid: int | None = None
    exit_code: int | None = None
    ended_at: float = 0.0  # when it was reaped, if it has an exit code
    initialized: bool = False
    step: int | None = None  # the last step that it can take without another report
    leaves: bool = False  # whether it has reported that it stops, after a notice
    terminated: bool = False  # whether it has exited with 0 because of SIGTERM by an unknown hand
    tag: int = 0  # its name in events
    reported: Reported = field(default_factory=Reported)  # kept up to date by its channel
    raised: bool = False  # whether an exception was ending it when the stop of a broken round began
    over: bool = False  # whether it had reported the end of its program when the stop of a broken round began
    told_to_end: bool = False  # whether the warden has sent it SIGTERM or SIGKILL
    failed_early: bool = False  # whether it has reported a failure before the warden has reported its start

    @property
    def is_running(self) -> bool:
        """Whether its process has started and has not ended."""
        return self.pid is not None and self.exit_code is None

    @property
    def has_left_early(self) -> bool:
        """Whether it has ended by itself and without a failure, while its node goes on; not because of a notice.

        A worker whose program was over may have been killed before it exited.
        """
        if self.leaves or self.exit_code is None:
            return False
        return self.exit_code <= 0 if self.over else self.exit_code == 0 and not self.told_to_end

    def view(self) -> WorkerView:
        """Return the worker as monitors see it."""
        return WorkerView(
            self.assignment.rank,
            self.assignment.local_rank,
            self.pid,
            self.exit_code,
            self.reported.over,
            tuple(pump.tail for pump in self.streams.pumps.values()),
            self.streams.has_own_stdout,
        )


def error_file(directory: Path, number: int, rank: int) -> Path:
    """Return the error file of a rank in round ``number``."""
    return directory / f"round_{number}" / f"rank_{rank}" / "error.json"


def line_prefix(template: str, assignment: Assignment) -> str:
    """Return the prefix of each line of a worker on the console; unknown names in ``template`` stay as they are."""
    names = {"role_name": assignment.role, "rank": assignment.rank, "local_rank": assignment.local_rank}
    return Template(template).safe_substitute(names)


def ignored_signals(config: RunConfig) -> frozenset[int]:
    """Return the signals that workers ignore until they set a handler.

    If SIGUSR1 and SIGUSR2 are notices to the agent, a scheduler sends them to its workers too. A shell cannot trap a
    signal that was ignored when it started, so an executable keeps the default disposition.
    """
    python = config.program.kind is not ProgramKind.EXECUTABLE
    return frozenset({signal.SIGUSR1, signal.SIGUSR2}.intersection(config.signals_to_handle or ()) if python else ())


@dataclass(slots=True)
class WorkerRows:
    """Makes the part of the row. Instants are the agent's monotonic clock, in seconds."""

    _told: object = None  # what was told last, with instants in place of ages
    _snapshot: tuple[tuple[int, int], float] | None = None  # the newest, and when it was noticed

    def look(
        self,
        workers: Sequence[Worker],
        running: RunningRound,
        snapshot: tuple[int, int] | None,
        *,
        now: float,
        heartbeat: int,
        store: float,
    ) -> LocalWorkers | None:
        """Return what there is to say; None if that is what was said last.

        Args:
            running: Their round, with its progress and the notes of monitors.
            snapshot: The round and step of the newest that workers keep in memory.
            store: The seconds that the store took to answer it.
        """
        progress, checkpoint = running.progress.newest(), running.progress.last_checkpoint()
        known = [progress.get(worker.assignment.rank, (Progress(), None)) for worker in workers]
        if snapshot is None or self._snapshot is None or self._snapshot[0] != snapshot:
            self._snapshot = None if snapshot is None else (snapshot, now)
        found = LocalWorkers(
            heartbeat=heartbeat,
            pids=tuple(worker.pid for worker in workers),
            steps=tuple(reached.step for reached, _ in known),
            seconds=tuple(None if ago is None else round(ago, 1) for _, ago in known),
            snapshot=None
            if self._snapshot is None
            else SavedStep(self._snapshot[0][1], round(now - self._snapshot[1], 1)),
            checkpoint=None if checkpoint is None else SavedStep(checkpoint[0], round(checkpoint[1], 1)),
            store=round(store, 4),
            notes={**running.notes},
        )
        moved = [None if ago is None else round(now - ago) for _, ago in known]
        saved = None if checkpoint is None else round(now - checkpoint[1])
        told = (found.pids, found.steps, moved, self._snapshot, saved, found.notes)
        if told == self._told:
            return None
        self._told = told
        return found
