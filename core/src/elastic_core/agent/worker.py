"""A node in its run, and one local rank of a round: its assignment, the state of its process, and why it failed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from elastic_core.agent.output import REMEMBERED, WorkerStreams
from elastic_core.agent.worker_channels import LINGERING, Reported
from elastic_core.causes import (
    DETAIL_MAX_CHARACTERS,
    MESSAGE_MAX_CHARACTERS,
    TEXT_MAX_CHARACTERS,
    Cause,
    EndedWorker,
    headline,
    last_line,
    last_lines,
)
from elastic_core.config.environment import inheritable
from elastic_core.config.program import ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.events import Event, Field, Level
from elastic_core.exit_codes import signal_name
from elastic_core.host.addresses import collective_interfaces
from elastic_core.incidents import Incident, IncidentKind, has_wrong_arguments
from elastic_core.monitors import Assignment, Signal, WorkerView
from elastic_core.plugins.manager import Plugins
from elastic_core.protocol.entries import Round, place
from elastic_core.protocol.roster import NodeInfo
from elastic_core.session.runtime import RUNTIME, Runtime
from elastic_core.worker.error_file import as_torchs, message_of, read_error_file


@dataclass(frozen=True)
class Node:
    """A node in its run."""

    config: RunConfig
    plugins: Plugins
    publish: Callable[[Event], None]
    info: NodeInfo
    run_uid: str
    directory: Path  # of the run on this node, for logs and error files
    temporary: bool = False  # whether that is removed at the end, because no logs were requested
    runtime: Runtime = RUNTIME

    def now(self) -> float:
        """Return the instant of the monotonic clock, in seconds."""
        return self.runtime.now()

    def incident(self, kind: IncidentKind, number: int, after: float = 0.0, **facts: Any) -> Incident:
        """Return an incident of this node, ``after`` seconds in round ``number``; ``facts`` are its other fields."""
        host = str(self.info)
        return Incident(kind=kind, round=number, node_id=self.info.node_id, host=host, after=round(after, 6), **facts)

    def round_directory(self, number: int) -> Path:
        """Return the directory of a round."""
        return self.directory / f"round_{number}"

    def assignments(self, current: Round, restart_count: int) -> list[Assignment]:
        """Return the assignments of this node's local ranks in a round."""
        mine, config = place(current.members, self.info.node_id), self.config
        directory = self.round_directory(current.number)
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
                error_file=str(directory / f"rank_{mine.first_rank + local_rank}" / "error.json"),
            )
            for local_rank in range(mine.local_world_size)
        ]

    def environment(self, assignment: Assignment) -> dict[str, str]:
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
    steps: bool = False  # whether it reports steps, and so reads notices
    terminated: bool = False  # whether it has exited with 0 because of SIGTERM by an unknown hand
    tag: int = 0  # its name in events
    reported: Reported = field(default_factory=Reported)  # kept up to date by its channel
    raised: bool = False  # whether an exception was ending it when the stop of a broken round began
    over: bool = False  # whether it had reported the end of its program when the stop of a broken round began
    sent: int = 0  # the last signal that the warden has sent it to end it
    failed_early: bool = False  # whether it has reported a failure before the warden has reported its start
    found: tuple[int, Cause, Mapping[str, Any]] | None = None  # the result of :meth:`cause`, after its exit code

    @property
    def is_running(self) -> bool:
        """True if its process has started and has not ended."""
        return self.pid is not None and self.exit_code is None

    @property
    def has_left_early(self) -> bool:
        """True if it has ended by itself and without a failure, while its node goes on; not because of a notice.

        A worker whose program was over may have been killed before it exited.
        """
        if self.reported.leaves or self.exit_code is None:
            return False
        return self.exit_code <= 0 if self.over else self.exit_code == 0 and not self.sent

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
            self.initialized,
            self.ended_at,
        )

    def ended(self, node: Node, exit_code: int | None, after: float) -> EndedWorker:
        """Return the worker, ``after`` seconds in its round, as a plugin gets it that finds causes."""
        return EndedWorker(
            assignment=self.assignment,
            config=node.config,
            exit_code=exit_code,
            error_file=self.assignment.error_file,
            stderr=self.streams.tail(REMEMBERED),
            pid=self.pid,
            seconds=after,
            sent=self.sent,
            records=self.reported.records,
            over=self.reported.over,
        )

    def cause(self, node: Node, exit_code: int, after: float) -> tuple[Cause, Mapping[str, Any]]:
        """Return why it failed with ``exit_code``, and its error file in torch's form if that explains it, else {}."""
        if self.found is None or self.found[0] != exit_code:
            ended = self.ended(node, exit_code, after)
            record = as_torchs(read_error_file(Path(ended.error_file)), exit_code)
            plain = plain_cause(exit_code, record, ended.stderr)
            found = node.plugins.find_cause(ended) or plain
            self.found = exit_code, replace(found, detail=found.detail or plain.detail), record
        return self.found[1:]

    def failed_alike(self, node: Node, failure: Incident, after: float) -> bool:
        """Return True if it has failed, with the exception of ``failure``, or else with its message."""
        if not (code := self.exit_code):
            return False
        if has_wrong_arguments(failure):
            usage = has_wrong_arguments(replace(failure, detail=self.streams.tail()))
            return usage and code == failure.exit_code
        if not failure.message:
            return False
        cause, _ = self.cause(node, code, after)
        if failure.exception:
            return (cause.exception, cause.where) == (failure.exception, failure.where)
        return cause.message[:MESSAGE_MAX_CHARACTERS] == failure.message


def plain_cause(exit_code: int, record: Mapping[str, Any], stderr: str) -> Cause:
    """Return the cause that needs no plugin: what a script wrote with ``@record``, or else the last line of stderr.

    A program may have survived what ``@record`` wrote, if a signal has ended it.
    """
    said = headline(message_of(record) if exit_code >= 0 else "") or last_line(stderr)
    detail = last_lines(stderr.encode(), DETAIL_MAX_CHARACTERS)
    return Cause(message=said, text=detail[-TEXT_MAX_CHARACTERS:], detail=detail)


def killed_by(sent: Signal, cause: Cause) -> Cause:
    """Return the cause of a worker that a signal has ended which a monitor had sent it."""
    message = f"was sent {signal_name(sent.signum)} because {sent.why}"
    return replace(cause, message=message, exception="", checkpoint="", kind=IncidentKind.WORKER_FAILED)


def ignored_signals(config: RunConfig) -> list[int]:
    """Return the signals that workers ignore until they set a handler.

    If SIGUSR1 and SIGUSR2 are notices to the agent, a scheduler sends them to its workers too. A shell cannot trap a
    signal that was ignored when it started, so an executable keeps the default disposition.
    """
    python = config.program.kind is not ProgramKind.EXECUTABLE
    return sorted({signal.SIGUSR1, signal.SIGUSR2}.intersection(config.signals_to_handle or ())) if python else []


def worker_failed(incident: Incident) -> Event:
    """Return the event of a worker's failure."""
    where = f"rank {incident.rank} (pid {incident.pid})" if incident.pid else f"rank {incident.rank}"
    consequence = " (which follows from the loss of a peer)" if incident.follows_peer else ""
    fields: dict[str, Field] = {
        "rank": incident.rank,
        "pid": incident.pid,
        "exit_code": incident.exit_code,
        "round": incident.round,
        "exception": incident.exception,
        "step": incident.step,
        "message": incident.message,
        "where": incident.where,
        "log": incident.log,
    }
    return Event("worker_failed", f"{where} {incident.describe()}{consequence}", Level.WARNING, fields)


def worker_lingers(rank: int, pid: int | None) -> Event:
    """Return the event of a worker whose program is over and whose interpreter does not end."""
    message = (
        f"rank {rank} (pid {pid}) has finished its program and does not exit: its interpreter has been ending for "
        f"{LINGERING:.0f} s, and the job waits for it. py-spy dump --native --pid {pid} shows where it hangs; "
        "a script whose last line is os._exit(0) does not come there"
    )
    return Event("worker_lingers", message, Level.WARNING, {"rank": rank, "pid": pid})
