"""A node in its run, and one local rank of a round: its assignment, the state of its process, and why it failed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from elastic_core.agent.failure_cause import (
    DETAIL_MAX_CHARACTERS,
    EXCEPTION_EXIT_CODE,
    MESSAGE_MAX_CHARACTERS,
    Cause,
    Reported,
    error_file_data,
    find_cause,
    named_checkpoint,
)
from elastic_core.agent.output import WorkerStreams
from elastic_core.agent.worker_channels import LINGERING
from elastic_core.assignment import Assignment
from elastic_core.config.environment import inheritable
from elastic_core.config.program import ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.events import Event, Field, Level
from elastic_core.exit_codes import signal_name
from elastic_core.host.addresses import collective_interfaces, says_loopback
from elastic_core.host.core_dump import CORE_SIGNALS, describe_core_dump
from elastic_core.host.oom import OomCounter
from elastic_core.incidents import (
    OTHER_STORE,
    OWN_HOST,
    Incident,
    IncidentKind,
    has_wrong_arguments,
)
from elastic_core.monitors import Signal, WorkerView
from elastic_core.plugins.manager import Plugins
from elastic_core.protocol.entries import Round, place
from elastic_core.protocol.roster import NodeInfo
from elastic_core.session.runtime import RUNTIME, Runtime
from elastic_core.threads import bounded
from elastic_core.worker.failure_recorder import EXCEPTION, EXIT, MEMBER

MASTER_PORT_MAX_SECONDS = 30.0  # after its start, in which rank 0 can fail because its port is taken
CLOCK_STEP_SECONDS = 2.0  # by which the times of files can be behind the clock
OUT_OF_MEMORY = "HostOutOfMemory"  # the exception of a worker that the kernel killed for want of memory
CORE_DUMP_MAX_SECONDS = 0.2  # for the search for a core dump, on another thread
_UNREACHED_STORE = re.compile(r"client socket has timed out .{0,80}connect to \(([^,()\s]{1,255}), (\d{1,5})\)")
_OPENS_STORE = "_create_c10d_store"  # torch's function for init_method="env://" and "tcp://", in the traceback
_UNREACHED_PEER = re.compile(r"connectFullMesh failed .{0,400}remote=\[((?:::ffff:)?127\.[\d.]{1,12}|::1)\]")


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
                place=mine,
                local_rank=local_rank,
                master_addr=current.offer.address,
                master_port=current.offer.port,
                use_agent_store=current.offer.hosted,
                error_file=str(error_file(self.directory, current.number, mine.first_rank + local_rank)),
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
        )

    def incident(self, node: Node, after: float, cause: Cause) -> Incident:
        """Return the incident of this worker, which failed ``after`` seconds in its round."""
        return node.incident(
            cause.kind,
            self.assignment.round,
            after,
            rank=self.assignment.rank,
            local_rank=self.assignment.local_rank,
            pid=self.pid,
            exit_code=cause.exit_code,
            message=cause.message[:MESSAGE_MAX_CHARACTERS],
            exception=cause.exception,
            follows_peer=cause.follows_peer,
            detail=cause.detail[-DETAIL_MAX_CHARACTERS:],
            log=self.streams.stderr_path or "",
            where=cause.where,
            checkpoint=named_checkpoint(cause.paths, node.config.checkpoint_path),
        )

    def cause(self, exit_code: int) -> Cause:
        """Return why it failed, as far as its error file and stderr tell; ``exit_code`` as of subprocess.Popen."""
        return find_cause(exit_code, self._error_file(), self.streams.tail(), self.reported)

    def exit_cause(self, after: float, exit_code: int, sent: Signal | None, oom: OomCounter | None) -> Cause:
        """Return why it ended, as far as anything on this host tells.

        Args:
            after: Seconds since the start of the round.
            exit_code: As of :class:`subprocess.Popen`.
            sent: The signal that a monitor has sent it, if one did.
            oom: The counter of the kernel, if that has killed processes for want of memory since the round began.
        """
        cause = self.cause(exit_code)
        if line := wrong_address(f"{cause.text}\n{cause.detail}", self.assignment):
            cause = replace(cause.with_line(line), text=f"{line}\n{cause.text}", follows_peer=False)
        if oom is not None and exit_code == -signal.SIGKILL:
            cause = Cause(message=describe_oom(oom.limit_bytes()), exception=OUT_OF_MEMORY, detail=cause.detail)
            cause = cause.with_line("memory.events: oom_kill 1")
        if self.pid is not None and -exit_code in CORE_SIGNALS:
            began = time.time() - after - CLOCK_STEP_SECONDS
            with contextlib.suppress(TimeoutError):  # a large directory on a slow disk: recovery does not wait for it
                if dump := bounded(partial(describe_core_dump, self.pid, ".", began), CORE_DUMP_MAX_SECONDS):
                    cause = cause.with_line(dump)
        if sent is not None and exit_code == -sent.signum:
            message = f"was sent {signal_name(sent.signum)} because {sent.why}"
            return replace(cause, message=message, exception="", paths=())
        if self.assignment.rank == 0 and after < MASTER_PORT_MAX_SECONDS:
            port = re.compile(rf"\b{self.assignment.master_port}\b")
            lines = f"{cause.text}\n{self.streams.tail()}".splitlines()
            in_use = [line for line in lines if "EADDRINUSE" in line or "already in use" in line]  # torch's, Linux's
            if any(map(port.search, in_use)):
                cause = replace(cause, kind=IncidentKind.PORT_TAKEN)
        return replace(cause, exit_code=exit_code)

    def is_ending(self) -> bool:
        """Return True if it has recorded what ends it, or records nothing and has printed an exception last."""
        if self.reported.records:
            member = self._error_file().get(MEMBER)
            return isinstance(member, dict) and member.get("by") in (EXCEPTION, EXIT)
        return bool(self.cause(EXCEPTION_EXIT_CODE).exception)

    def failed_alike(self, failure: Incident) -> bool:
        """Return True if it has failed, with the exception of ``failure``, or else with its message."""
        if not (code := self.exit_code):
            return False
        if has_wrong_arguments(failure):
            usage = has_wrong_arguments(replace(failure, detail=self.streams.tail()))
            return usage and code == failure.exit_code
        if not failure.message:
            return False
        cause = self.cause(code)
        if failure.exception:
            return (cause.exception, cause.where) == (failure.exception, failure.where)
        return cause.message[:MESSAGE_MAX_CHARACTERS] == failure.message

    def _error_file(self) -> dict[str, Any]:
        return error_file_data(Path(self.assignment.error_file))


def error_file(directory: Path, number: int, rank: int) -> Path:
    """Return the error file of a rank in round ``number``."""
    return directory / f"round_{number}" / f"rank_{rank}" / "error.json"


def ignored_signals(config: RunConfig) -> list[int]:
    """Return the signals that workers ignore until they set a handler.

    If SIGUSR1 and SIGUSR2 are notices to the agent, a scheduler sends them to its workers too. A shell cannot trap a
    signal that was ignored when it started, so an executable keeps the default disposition.
    """
    python = config.program.kind is not ProgramKind.EXECUTABLE
    return sorted({signal.SIGUSR1, signal.SIGUSR2}.intersection(config.signals_to_handle or ())) if python else []


def wrong_address(text: str, assignment: Assignment) -> str:
    """Return why no peer can be at the address that a worker did not reach, in one line; '' if one can.

    Where the launcher has the store, torch makes every rank a client of any store that it opens from an address, so
    nothing listens at a port of the script's own. And gloo takes a loopback address where a host's name leads to it.
    """
    address, port = assignment.master_addr, assignment.master_port
    store = _UNREACHED_STORE.search(text)
    if store is not None and assignment.use_agent_store and _OPENS_STORE in text and int(store[2]) != port:
        return f"{store[1]}:{store[2]} {OTHER_STORE}, which is at {address}:{port}"
    peer = _UNREACHED_PEER.search(text)
    if peer is not None and assignment.place.group_world_size > 1 and not says_loopback(address):
        return f"{peer[1]} {OWN_HOST}"
    return ""


def describe_oom(limit: int | None) -> str:
    """Return the message of a worker that the kernel killed for want of memory; ``limit`` is its cgroup's, in bytes."""
    used_up = "the host has no memory left"
    if limit is not None:
        size = f"{limit / 2**30:.1f} GiB" if limit >= 2**30 else f"{limit / 2**20:.0f} MiB"
        used_up = f"its cgroup has used up {size}"
    return f"{OUT_OF_MEMORY}: the kernel killed the worker, because {used_up}"


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
