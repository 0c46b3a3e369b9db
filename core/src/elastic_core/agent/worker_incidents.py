"""Makes incidents of this node's workers, out of exit codes, error files, stderr and expired timers."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from elastic_core.agent.error_files import last_abort_line, last_exception_line, read_error_file
from elastic_core.agent.python_traceback import user_line
from elastic_core.agent.watchdog import Timer
from elastic_core.agent.worker import Worker
from elastic_core.assignment import Assignment
from elastic_core.errors import ElasticError
from elastic_core.exit_codes import describe_exit, signal_name
from elastic_core.host.addresses import says_loopback
from elastic_core.host.core_dump import CORE_SIGNALS, describe_core_dump
from elastic_core.host.oom import OomCounter
from elastic_core.incidents import (
    OTHER_STORE,
    OWN_HOST,
    Incident,
    IncidentKind,
    describe_early_exit,
    follows_peer_loss,
    has_wrong_arguments,
    repeats_at_once,
)
from elastic_core.protocol.entries import Round
from elastic_core.protocol.node_events import WorkerFailed
from elastic_core.protocol.ranks import place
from elastic_core.protocol.roster import NodeInfo
from elastic_core.threads import bounded
from elastic_core.warden.messages import ServiceEnded

MASTER_PORT_MAX_SECONDS = 30.0  # after its start, in which rank 0 can fail because its port is taken
CLOCK_STEP_SECONDS = 2.0  # by which the times of files can be behind the clock
MESSAGE_MAX_CHARACTERS = 500  # of the message of an incident
CORE_DUMP_MAX_SECONDS = 0.2  # for the search for a core dump, on another thread
DETAIL_MAX_CHARACTERS = 4096  # of the detail of an incident
_UNREACHED_STORE = re.compile(r"client socket has timed out .{0,80}connect to \(([^,()\s]{1,255}), (\d{1,5})\)")
_OPENS_STORE = "_create_c10d_store"  # torch's function for init_method="env://" and "tcp://", in the traceback
_UNREACHED_PEER = re.compile(r"connectFullMesh failed .{0,400}remote=\[((?:::ffff:)?127\.[\d.]{1,12}|::1)\]")


def worker_incident(
    info: NodeInfo,
    worker: Worker,
    after: float,
    kind: IncidentKind = IncidentKind.WORKER_FAILED,
    *,
    message: str,
    detail: str = "",
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
        message=message[:MESSAGE_MAX_CHARACTERS],
        detail=detail[-DETAIL_MAX_CHARACTERS:],
        log=worker.streams.stderr_path or "",
        step=worker.step,
        where="" if (line := user_line(detail)) is None else str(line),
    )


def exit_incident(
    info: NodeInfo, worker: Worker, after: float, exit_code: int, timer: Timer | None, *, oom: OomCounter | None = None
) -> Incident:
    """Return the incident of a worker that ended with an exit code.

    Args:
        info: This node.
        worker: The worker.
        after: Seconds since the start of the round.
        exit_code: As of :class:`subprocess.Popen`.
        timer: The timer that expired in it, if one did.
        oom: The counter of the kernel, if that has killed processes for want of memory since the round began.
    """
    message, detail = failure_of(worker, exit_code)
    if line := wrong_address(f"{message}\n{detail}", worker.assignment):
        detail = f"{detail.rstrip()}\n{line}"
    if oom is not None and exit_code == -signal.SIGKILL:
        message = describe_oom(oom.limit_bytes())
        detail = f"{detail.rstrip()}\nmemory.events: oom_kill 1".lstrip("\n")
        return worker_incident(info, worker, after, message=message, detail=detail, exit_code=exit_code)
    if worker.pid is not None and -exit_code in CORE_SIGNALS:
        began = time.time() - after - CLOCK_STEP_SECONDS
        with contextlib.suppress(TimeoutError):  # a large directory on a slow disk: recovery does not wait for it
            if dump := bounded(partial(describe_core_dump, worker.pid, ".", began), CORE_DUMP_MAX_SECONDS):
                detail = f"{detail.rstrip()}\n{dump}".lstrip("\n")
    if timer is not None and exit_code == -timer.signum:
        message = f"was sent {signal_name(timer.signum)} because its timer {timer.scope[:200]!r} expired"
        return worker_incident(info, worker, after, message=message, detail=detail)
    port = re.compile(rf"\b{worker.assignment.master_port}\b")
    lines = [line for text in (message, worker.streams.tail()) for line in text.splitlines()]
    in_use = [line for line in lines if "EADDRINUSE" in line or "already in use" in line]  # torch's words, the system's
    early = worker.assignment.rank == 0 and after < MASTER_PORT_MAX_SECONDS
    kind = IncidentKind.PORT_TAKEN if early and any(map(port.search, in_use)) else IncidentKind.WORKER_FAILED
    return worker_incident(info, worker, after, kind, message=message, detail=detail, exit_code=exit_code)


def early_exit_incident(
    info: NodeInfo, workers: Sequence[Worker], failure: Incident | None, started_at: float
) -> Incident | None:
    """Return the incident of the first worker that has left early, if that explains ``failure``.

    Args:
        info: This node.
        workers: Its workers.
        failure: The failure that ended the round; it follows from the loss of a peer.
        started_at: When the round began, on the clock of :attr:`Worker.ended_at`.
    """
    first = min((worker for worker in workers if worker.has_left_early), key=lambda it: it.ended_at, default=None)
    if first is None or failure is None or not follows_peer_loss(failure):
        return None
    return worker_incident(
        info,
        first,
        round(first.ended_at - started_at, 6),
        IncidentKind.EXITED_EARLY,
        message=describe_early_exit(failure),
        exit_code=None if first.exit_code else 0,  # one whose program had ended was killed before it exited
    )


def failure_of(worker: Worker, exit_code: int) -> tuple[str, str]:
    """Return why a worker failed, in one line, and the details: its exception, or what native code wrote."""
    message, detail = exception_of(worker)
    if exit_code == -signal.SIGABRT:
        message = last_abort_line(worker.streams.tail()) or message
    return message, detail


def wrong_address(text: str, place: Assignment) -> str:
    """Return why no peer can be at the address that a worker did not reach, in one line; '' if one can.

    Where the launcher has the store, torch makes every rank a client of any store that it opens from an address, so
    nothing listens at a port of the script's own. And gloo takes a loopback address where a host's name leads to it.
    """
    store = _UNREACHED_STORE.search(text)
    if store is not None and place.use_agent_store and _OPENS_STORE in text and int(store[2]) != place.master_port:
        return f"{store[1]}:{store[2]} {OTHER_STORE}, which is at {place.master_addr}:{place.master_port}"
    peer = _UNREACHED_PEER.search(text)
    if peer is not None and place.group_world_size > 1 and not says_loopback(place.master_addr):
        return f"{peer[1]} {OWN_HOST}"
    return ""


def failed_alike(worker: Worker, failure: Incident) -> bool:
    """Whether a worker that has ended failed with the message of ``failure``, or over its arguments as that did."""
    code = worker.exit_code or 0
    if not (code > 0 or code == -signal.SIGABRT):
        return False  # most workers are ended by SIGTERM: what they had printed did not end them
    if not failure.message:
        usage = has_wrong_arguments(failure) and has_wrong_arguments(replace(failure, detail=worker.streams.tail()))
        return usage and code == failure.exit_code
    return failure_of(worker, code)[0][:MESSAGE_MAX_CHARACTERS] == failure.message


def may_fail_alike(workers: Sequence[Worker], failure: Incident) -> bool:
    """Whether workers may be about to fail as one has whose program could not begin: none is known to be further."""
    return repeats_at_once(failure) is not None and not any(it.initialized or it.step is not None for it in workers)


def describe_oom(limit: int | None) -> str:
    """Return the message of a worker that the kernel killed for want of memory; ``limit`` is its cgroup's, in bytes."""
    used_up = "the host has no memory left" if limit is None else f"its cgroup has used up {describe_size(limit)}"
    return f"HostOutOfMemory: the kernel killed the worker, because {used_up}"


def describe_size(size: int) -> str:
    """Return a number of bytes for people: ``1.5 GiB``, ``300 MiB``."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def exception_of(worker: Worker) -> tuple[str, str]:
    """Return the exception that a worker has recorded or printed, in one line, and its details."""
    if (recorded := read_error_file(Path(worker.assignment.error_file))) is not None:
        return recorded
    tail = worker.streams.tail()
    return last_exception_line(tail), tail


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
