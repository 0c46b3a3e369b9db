"""Makes incidents of this node's workers, out of exit codes, error files, stderr and signals that monitors sent.

Also makes the events that people read of workers.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import signal
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
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
from elastic_core.agent.worker import Node, Worker
from elastic_core.agent.worker_channels import LINGERING
from elastic_core.assignment import Assignment
from elastic_core.errors import ElasticError
from elastic_core.events import Event, Field, Level
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
    has_wrong_arguments,
)
from elastic_core.monitors import Signal
from elastic_core.protocol.entries import Round
from elastic_core.protocol.ranks import place
from elastic_core.protocol.roster import NodeInfo
from elastic_core.threads import bounded
from elastic_core.warden import messages
from elastic_core.worker.failure_recorder import EXCEPTION, EXIT, MEMBER

MASTER_PORT_MAX_SECONDS = 30.0  # after its start, in which rank 0 can fail because its port is taken
CLOCK_STEP_SECONDS = 2.0  # by which the times of files can be behind the clock
OUT_OF_MEMORY = "HostOutOfMemory"  # the exception of a worker that the kernel killed for want of memory
CORE_DUMP_MAX_SECONDS = 0.2  # for the search for a core dump, on another thread
_UNREACHED_STORE = re.compile(r"client socket has timed out .{0,80}connect to \(([^,()\s]{1,255}), (\d{1,5})\)")
_OPENS_STORE = "_create_c10d_store"  # torch's function for init_method="env://" and "tcp://", in the traceback
_UNREACHED_PEER = re.compile(r"connectFullMesh failed .{0,400}remote=\[((?:::ffff:)?127\.[\d.]{1,12}|::1)\]")

FAILURE_PATH = ("agent.launcher_error_file", "plugins.verdicts")
"""The modules that only a failure needs. An upgrade may have replaced or removed them until then."""


def import_failure_path() -> None:
    """Import what only a failure needs: a recovery would wait 20 ms of CPU for that."""
    for name in FAILURE_PATH:
        import_module(f"elastic_core.{name}")


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
        detail=cause.detail[-DETAIL_MAX_CHARACTERS:],
        log=worker.streams.stderr_path or "",
        where=cause.where,
    )


def exit_incident(
    node: Node, worker: Worker, after: float, exit_code: int, sent: Signal | None, *, oom: OomCounter | None = None
) -> tuple[Incident, str]:
    """Return the incident of a worker that ended with an exit code, and the text that says why (:class:`Cause`).

    Args:
        after: Seconds since the start of the round.
        exit_code: As of :class:`subprocess.Popen`.
        sent: The signal that a monitor has sent it, if one did.
        oom: The counter of the kernel, if that has killed processes for want of memory since the round began.
    """
    cause = cause_of(worker, exit_code)
    if line := wrong_address(f"{cause.text}\n{cause.detail}", worker.assignment):
        detail = f"{cause.detail.rstrip()}\n{line}"
        cause = replace(cause, text=f"{line}\n{cause.text}", detail=detail, follows_peer=False)
    if oom is not None and exit_code == -signal.SIGKILL:
        detail = f"{cause.detail.rstrip()}\nmemory.events: oom_kill 1".lstrip("\n")
        cause = Cause(message=describe_oom(oom.limit_bytes()), exception=OUT_OF_MEMORY, detail=detail)
    if worker.pid is not None and -exit_code in CORE_SIGNALS:
        began = time.time() - after - CLOCK_STEP_SECONDS
        with contextlib.suppress(TimeoutError):  # a large directory on a slow disk: recovery does not wait for it
            if dump := bounded(partial(describe_core_dump, worker.pid, ".", began), CORE_DUMP_MAX_SECONDS):
                cause = replace(cause, detail=f"{cause.detail.rstrip()}\n{dump}".lstrip("\n"))
    if sent is not None and exit_code == -sent.signum:
        message = f"was sent {signal_name(sent.signum)} because {sent.why}"
        ended = replace(cause, message=message, exception="")
        return worker_incident(node.info, worker, after, cause=ended), cause.text
    kind = IncidentKind.WORKER_FAILED
    if worker.assignment.rank == 0 and after < MASTER_PORT_MAX_SECONDS:
        port = re.compile(rf"\b{worker.assignment.master_port}\b")
        lines = [line for text in (cause.text, worker.streams.tail()) for line in text.splitlines()]
        in_use = [line for line in lines if "EADDRINUSE" in line or "already in use" in line]  # torch's, the system's
        kind = IncidentKind.PORT_TAKEN if any(map(port.search, in_use)) else kind
    incident = worker_incident(node.info, worker, after, kind, cause=cause, exit_code=exit_code)
    return replace(incident, checkpoint=named_checkpoint(cause.paths, node.config.checkpoint_path)), cause.text


def cause_of(worker: Worker, exit_code: int) -> Cause:
    """Return why a worker failed, with an exit code as of :class:`subprocess.Popen`."""
    recorded = error_file_data(Path(worker.assignment.error_file))
    return find_cause(exit_code, recorded, worker.streams.tail(), worker.reported)


def has_raised(worker: Worker) -> bool:
    """Whether a living worker is ending: it has recorded why, or records nothing and has printed an exception last."""
    if worker.reported.records:
        member = error_file_data(Path(worker.assignment.error_file)).get(MEMBER)
        return isinstance(member, dict) and member.get("by") in (EXCEPTION, EXIT)
    return bool(cause_of(worker, EXCEPTION_EXIT_CODE).exception)


def early_exit_incident(
    info: NodeInfo, workers: Sequence[Worker], failure: Incident | None, started_at: float
) -> Incident | None:
    """Return the incident of the first worker that has left early, if that explains ``failure``.

    Args:
        failure: The failure that ended the round; it follows from the loss of a peer.
        started_at: When the round began, on the clock of :attr:`Worker.ended_at`.
    """
    first = min((worker for worker in workers if worker.has_left_early), key=lambda it: it.ended_at, default=None)
    if first is None or failure is None or not failure.follows_peer:
        return None
    kind = IncidentKind.WORKER_FAILED if first.terminated else IncidentKind.EXITED_EARLY
    message = "" if first.terminated else describe_early_exit(failure)
    cause = Cause(message=message, detail=first.streams.tail())
    code = None if first.exit_code else 0  # one whose program had ended was killed before it exited
    return worker_incident(info, first, round(first.ended_at - started_at, 6), kind, cause=cause, exit_code=code)


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


def failed_alike(worker: Worker, failure: Incident) -> bool:
    """Whether a worker that has ended failed with the exception of ``failure``, or else with its message."""
    if not (code := worker.exit_code):
        return False
    if has_wrong_arguments(failure):
        usage = has_wrong_arguments(replace(failure, detail=worker.streams.tail()))
        return usage and code == failure.exit_code
    if not failure.message:
        return False
    cause = cause_of(worker, code)
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


def store_incident(info: NodeInfo, current: Round, after: float, ended: messages.ServiceEnded | None) -> Incident:
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


def start_incident(info: NodeInfo, current: Round, error: ElasticError | OSError) -> Incident:
    """Return the incident of a round whose start failed: no descriptors, a full disk, a plugin that raised."""
    return Incident(
        kind=IncidentKind.START_FAILED,
        round=current.number,
        node_id=info.node_id,
        host=str(info),
        rank=place(current.members, info.node_id).first_rank,
        message=f"the workers could not be started: {getattr(error, 'message', error)}"[:500],
    )


def worker_stuck(stuck: messages.Stuck) -> Event:
    """Return the event of a process that cannot be killed."""
    where = stuck.wchan or "an unknown place"
    message = f"process {stuck.pid} ({stuck.name}) does not die: it waits in the kernel, in {where}"
    return Event("worker_stuck", message, Level.ERROR, {"pid": stuck.pid, "wchan": stuck.wchan})


def workers_signalled(sent: messages.Signalled, workers: Collection[int | None]) -> Event:
    """Return the event of a signal that the warden has sent to processes, perhaps to some of the ``workers``."""
    name, named = signal_name(sent.signum), itertools.zip_longest(sent.pids, sent.names)
    pids = ", ".join(f"{pid} ({program})" if program else str(pid) for pid, program in named)
    level = Level.DEBUG if sent.signum == signal.SIGTERM else Level.INFO
    own = not sent.names or any(pid in workers for pid in sent.pids)
    started = "" if own else ", which the workers had started"
    return Event("workers_signalled", f"sent {name} to {pids}{started}", level, {"signal": name, "pids": pids})


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
