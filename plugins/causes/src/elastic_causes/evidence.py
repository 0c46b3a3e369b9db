"""The end of a worker beyond its own report: addresses that no peer can have, a port that is taken, memory, core dumps.

Each function takes what :mod:`~elastic_causes.find` has found, and returns it with what it adds or knows better.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from dataclasses import replace
from functools import partial

from elastic_causes.core_dump import CORE_SIGNALS, describe_core_dump
from elastic_causes.find import Found
from elastic_core import Assignment
from elastic_core.causes import EndedWorker
from elastic_core.host import OomCounter, says_loopback
from elastic_core.incidents import IncidentKind
from elastic_core.threads import bounded

MASTER_PORT_MAX_SECONDS = 30.0  # after its start, in which rank 0 can fail because its port is taken
CLOCK_STEP_SECONDS = 2.0  # by which the times of files can be behind the clock
OUT_OF_MEMORY = "HostOutOfMemory"  # the exception of a worker that the kernel killed for want of memory
CORE_DUMP_MAX_SECONDS = 0.2  # for the search for a core dump, on another thread
OTHER_STORE = "is not the launcher's store"
OWN_HOST = "is the worker's own host, not a peer's"
"""Of an address that a worker did not reach, and at which no peer can be; they are added to the texts."""
_UNREACHED_STORE = re.compile(r"client socket has timed out .{0,80}connect to \(([^,()\s]{1,255}), (\d{1,5})\)")
_OPENS_STORE = "_create_c10d_store"  # torch's function for init_method="env://" and "tcp://", in the traceback
_UNREACHED_PEER = re.compile(r"connectFullMesh failed .{0,400}remote=\[((?:::ffff:)?127\.[\d.]{1,12}|::1)\]")


def with_wrong_address(found: Found, worker: EndedWorker) -> Found:
    """Name an address that no peer can have."""
    if line := wrong_address(f"{found.text}\n{found.detail}", worker.assignment):
        return replace(_with_line(found, line), text=f"{line}\n{found.text}", follows_peer=False)
    return found


def with_memory(found: Found, worker: EndedWorker, counter: OomCounter, kills: int) -> Found:
    """Explain SIGKILL by the kernel's kills for want of memory: ``kills`` when the round began, and those of now."""
    if worker.exit_code != -signal.SIGKILL or worker.sent == signal.SIGKILL or counter.read() <= kills:
        return found
    found = Found(message=describe_oom(counter.limit_bytes()), exception=OUT_OF_MEMORY, detail=found.detail)
    return _with_line(found, "memory.events: oom_kill 1")


def with_core_dump(found: Found, worker: EndedWorker) -> Found:
    """Name the core dump of a process that a signal has ended."""
    if worker.pid is None or worker.exit_code is None or -worker.exit_code not in CORE_SIGNALS:
        return found
    began = time.time() - worker.seconds - CLOCK_STEP_SECONDS
    with contextlib.suppress(TimeoutError):  # a large directory on a slow disk: recovery does not wait for it
        if dump := bounded(partial(describe_core_dump, worker.pid, ".", began), CORE_DUMP_MAX_SECONDS):
            return _with_line(found, dump)
    return found


def with_taken_port(found: Found, worker: EndedWorker, stderr: str) -> Found:
    """Recognize that rank 0 could not listen on the port that it was given."""
    if worker.assignment.rank == 0 and worker.seconds < MASTER_PORT_MAX_SECONDS:
        port = re.compile(rf"\b{worker.assignment.master_port}\b")
        lines = f"{found.text}\n{stderr}".splitlines()
        in_use = [line for line in lines if "EADDRINUSE" in line or "already in use" in line]  # torch's, Linux's
        if any(map(port.search, in_use)):
            return replace(found, kind=IncidentKind.PORT_TAKEN)
    return found


def _with_line(found: Found, line: str) -> Found:
    """Return it with another line at the end of its details."""
    return replace(found, detail=f"{found.detail.rstrip()}\n{line}".lstrip("\n"))


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
