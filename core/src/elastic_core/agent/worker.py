"""A node in its run, and one local rank of a round: its assignment, and the state of its process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastic_core.agent.failure_cause import Reported
from elastic_core.agent.output import WorkerStreams
from elastic_core.assignment import Assignment
from elastic_core.config.environment import inheritable
from elastic_core.config.program import ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.events import Event
from elastic_core.host.addresses import collective_interfaces
from elastic_core.incidents import Incident, IncidentKind
from elastic_core.monitors import WorkerView
from elastic_core.plugins.manager import Plugins
from elastic_core.protocol.entries import Round
from elastic_core.protocol.ranks import place
from elastic_core.protocol.roster import NodeInfo
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

    def incident(self, kind: IncidentKind, number: int, after: float = 0.0, **facts: Any) -> Incident:
        """Return an incident of this node, ``after`` seconds in round ``number``; ``facts`` are its other fields."""
        host = str(self.info)
        return Incident(kind=kind, round=number, node_id=self.info.node_id, host=host, after=round(after, 6), **facts)

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
                rank=mine.first_rank + local_rank,
                local_rank=local_rank,
                group_rank=mine.group_rank,
                role_rank=mine.first_role_rank + local_rank,
                world_size=mine.world_size,
                local_world_size=mine.local_world_size,
                group_world_size=mine.group_world_size,
                role_world_size=mine.role_world_size,
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
        defaults = collective_interfaces(self.info.address) if assignment.group_world_size > 1 else {}
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

    @property
    def is_running(self) -> bool:
        """Whether its process has started and has not ended."""
        return self.pid is not None and self.exit_code is None

    @property
    def has_reported_failure(self) -> bool:
        """Whether it lives and has reported that an exception has ended its program."""
        return self.is_running and self.reported.over and not self.reported.records

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


def ignored_signals(config: RunConfig) -> frozenset[int]:
    """Return the signals that workers ignore until they set a handler.

    If SIGUSR1 and SIGUSR2 are notices to the agent, a scheduler sends them to its workers too. A shell cannot trap a
    signal that was ignored when it started, so an executable keeps the default disposition.
    """
    python = config.program.kind is not ProgramKind.EXECUTABLE
    return frozenset({signal.SIGUSR1, signal.SIGUSR2}.intersection(config.signals_to_handle or ()) if python else ())
