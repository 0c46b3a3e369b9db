"""Makes incidents of this node's workers, out of exit codes, error files, stderr and expired timers."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from elastic_core.agent.error_files import error_file_data
from elastic_core.agent.failure_cause import (
    DETAIL_MAX_CHARACTERS,
    EXCEPTION_EXIT_CODE,
    MESSAGE_MAX_CHARACTERS,
    Cause,
    find_cause,
    named_checkpoint,
)
from elastic_core.agent.watchdog import Timer
from elastic_core.agent.worker import Worker
from elastic_core.errors import ElasticError
from elastic_core.exit_codes import describe_exit, signal_name
from elastic_core.host.core_dump import CORE_SIGNALS, describe_core_dump
from elastic_core.host.oom import OomCounter
from elastic_core.incidents import Incident, IncidentKind
from elastic_core.protocol.entries import Round
from elastic_core.protocol.node_events import WorkerFailed
from elastic_core.protocol.ranks import place
from elastic_core.protocol.roster import NodeInfo
from elastic_core.threads import bounded
from elastic_core.warden.messages import ServiceEnded
from elastic_core.worker.failure_recorder import EXCEPTION, EXIT, MEMBER

MASTER_PORT_MAX_SECONDS = 30.0  # after its start, in which rank 0 can fail because its port is taken
CLOCK_STEP_SECONDS = 2.0  # by which the times of files can be behind the clock
OUT_OF_MEMORY = "HostOutOfMemory"  # the exception of a worker that the kernel killed for want of memory
CORE_DUMP_MAX_SECONDS = 0.2  # for the search for a core dump, on another thread


def worker_incident(
    info: NodeInfo,
    worker: Worker,
    after: float,
    kind: IncidentKind = IncidentKind.WORKER_FAILED,
    *,
    cause: Cause,
    exit_code: int | None = None,
) -> Incident:
    """Return the incident of a worker that failed ``after`` seconds in its round."""
    return Incident(
        kind=kind,
        round=worker.assignment.round,
        node_id=info.node_id,
        host=str(info),
        after=after,
        rank=worker.assignment.rank,
        local_rank=worker.assignment.local_rank,
        pid=worker.pid,
        exit_code=exit_code,
        message=cause.message[:MESSAGE_MAX_CHARACTERS],
        exception=cause.exception,
        follows_peer=cause.follows_peer,
        text=cause.text,
        detail=cause.detail[-DETAIL_MAX_CHARACTERS:],
        log=worker.streams.stderr_path or "",
        step=worker.step,
        where=cause.where,
    )


def exit_incident(
    info: NodeInfo,
    worker: Worker,
    after: float,
    exit_code: int,
    timer: Timer | None,
    *,
    oom: OomCounter | None = None,
    records: bool = False,
    over: bool = False,
    checkpoint_path: str | None = None,
) -> Incident:
    """Return the incident of a worker that ended with an exit code.

    Args:
        info: This node.
        worker: The worker.
        after: Seconds since the start of the round.
        exit_code: As of :class:`subprocess.Popen`.
        timer: The timer that expired in it, if one did.
        oom: The counter of the kernel, if that has killed processes for want of memory since the round began.
        records: Whether the worker records the exception that ends it.
        over: Whether it has reported that its program has ended.
        checkpoint_path: ``--checkpoint_path``.
    """
    cause = cause_of(worker, exit_code, records=records, over=over)
    if oom is not None and exit_code == -signal.SIGKILL:
        detail = f"{cause.detail.rstrip()}\nmemory.events: oom_kill 1".lstrip("\n")
        cause = Cause(message=describe_oom(oom.limit_bytes()), exception=OUT_OF_MEMORY, detail=detail)
    if worker.pid is not None and -exit_code in CORE_SIGNALS:
        began = time.time() - after - CLOCK_STEP_SECONDS
        with contextlib.suppress(TimeoutError):  # a large directory on a slow disk: recovery does not wait for it
            if dump := bounded(partial(describe_core_dump, worker.pid, ".", began), CORE_DUMP_MAX_SECONDS):
                cause = replace(cause, detail=f"{cause.detail.rstrip()}\n{dump}".lstrip("\n"))
    if timer is not None and exit_code == -timer.signum:
        message = f"was sent {signal_name(timer.signum)} because its timer {timer.scope[:200]!r} expired"
        return worker_incident(info, worker, after, cause=replace(cause, message=message, exception=""))
    kind = IncidentKind.WORKER_FAILED
    if worker.assignment.rank == 0 and after < MASTER_PORT_MAX_SECONDS:
        port = re.compile(rf"\b{worker.assignment.master_port}\b")
        lines = [line for text in (cause.text, worker.streams.tail()) for line in text.splitlines()]
        in_use = [line for line in lines if "EADDRINUSE" in line or "already in use" in line]  # torch's, the system's
        kind = IncidentKind.PORT_TAKEN if any(map(port.search, in_use)) else kind
    incident = worker_incident(info, worker, after, kind, cause=cause, exit_code=exit_code)
    return replace(incident, checkpoint=named_checkpoint(cause.paths, checkpoint_path))


def cause_of(worker: Worker, exit_code: int, *, records: bool = False, over: bool = False) -> Cause:
    """Return why a worker failed; arguments as of :func:`exit_incident`."""
    recorded = error_file_data(Path(worker.assignment.error_file))
    return find_cause(exit_code, recorded, worker.streams.tail(), records=records, over=over)


def has_raised(worker: Worker, *, records: bool) -> bool:
    """Whether a living worker is ending: it has recorded why, or records nothing and has printed an exception last."""
    if records:
        member = error_file_data(Path(worker.assignment.error_file)).get(MEMBER)
        return isinstance(member, dict) and member.get("by") in (EXCEPTION, EXIT)
    return bool(cause_of(worker, EXCEPTION_EXIT_CODE).exception)


def failed_alike(worker: Worker, failure: Incident, *, records: bool, over: bool) -> bool:
    """Whether a worker that has ended failed with the exception of ``failure``, or else with its message."""
    code = worker.exit_code or 0
    if not failure.message or not (code > 0 or code == -signal.SIGABRT):
        return False  # most workers are ended by SIGTERM: what they had printed did not end them
    cause = cause_of(worker, code, records=records, over=over)
    if failure.exception:
        return (cause.exception, cause.where) == (failure.exception, failure.where)
    return cause.message[:MESSAGE_MAX_CHARACTERS] == failure.message


def describe_oom(limit: int | None) -> str:
    """Return the message of a worker that the kernel killed for want of memory; ``limit`` is its cgroup's, in bytes."""
    used_up = "the host has no memory left" if limit is None else f"its cgroup has used up {describe_size(limit)}"
    return f"{OUT_OF_MEMORY}: the kernel killed the worker, because {used_up}"


def describe_size(size: int) -> str:
    """Return a number of bytes for people: ``1.5 GiB``, ``300 MiB``."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def store_incident(info: NodeInfo, current: Round, after: float, ended: ServiceEnded | None) -> Incident:
    """Return the incident of the workers' store on this node, which has ended, or was not there."""
    how = "was not there" if ended is None else describe_exit(ended.returncode)
    return Incident(
        kind=IncidentKind.STORE_DIED,
        round=current.number,
        node_id=info.node_id,
        host=str(info),
        after=after,
        message=f"the process that holds the workers' store {how}",
    )


def start_failure(info: NodeInfo, current: Round, error: ElasticError | OSError) -> WorkerFailed:
    """Return the event of a round whose start failed: no descriptors, a full disk, a plugin that raised."""
    return WorkerFailed(
        Incident(
            kind=IncidentKind.START_FAILED,
            round=current.number,
            node_id=info.node_id,
            host=str(info),
            rank=place(current.members, info.node_id).first_rank,
            message=f"the workers could not be started: {getattr(error, 'message', error)}"[:500],
        )
    )
