"""The end of a worker beyond its own report: addresses that no peer can have, a port that is taken, memory, core dumps.

Each function takes what :mod:`~elastic_causes.find` has found, and returns it with what it adds or knows better.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import signal
import stat
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from elastic_causes.find import Found
from elastic_causes.oom import OomCounter
from elastic_core import Assignment
from elastic_core.causes import EndedWorker
from elastic_core.host import says_loopback
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
_SETTINGS = Path("/proc/sys/kernel")
_SPECIFIER = re.compile(r"%(.?)", re.DOTALL)
_MOST_MATCHES = 64  # files of a pattern that are looked at
_NAMES = "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGQUIT", "SIGSEGV", "SIGSYS", "SIGTRAP", "SIGXCPU", "SIGXFSZ"
CORE_SIGNALS = frozenset(signal.Signals[name] for name in _NAMES)
"""Signals whose default action is a core dump (signal(7))."""


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


def core_file_glob(pattern: str, pid: int, *, uses_pid: bool = False) -> str | None:
    """Return a glob pattern for the core file of a process; None where the kernel writes no file.

    Source: Linux, core(5), "Naming of core dump files" and "Piping core dumps to a program".

    Args:
        pattern: The contents of ``core_pattern``.
        pid: The process id. What else a pattern names, such as the time, can be anything.
        uses_pid: Whether ``core_uses_pid`` is set, so that the process id follows a pattern that does not name it.
    """
    if not pattern or pattern.startswith("|"):
        return None
    parts = _SPECIFIER.split(pattern)  # literal, specifier, literal, specifier, ...
    expanded = [_expand_specifier(part, pid) if number % 2 else glob.escape(part) for number, part in enumerate(parts)]
    suffix = f".{pid}" if uses_pid and "p" not in parts[1::2] else ""
    return "".join(expanded) + suffix


def _expand_specifier(name: str, pid: int) -> str:
    if name in ("%", ""):  # a percent sign; a single one at the end of the pattern is dropped
        return name
    return str(pid) if name == "p" else "*"


def describe_core_dump(pid: int, directory: str, since: float, settings: Path = _SETTINGS) -> str:
    """Return where the core dump of a process is, in one line; '' where there is none, or it is not known.

    Args:
        pid: The process, which a signal of :data:`CORE_SIGNALS` has ended.
        directory: Its working directory, to which a relative pattern belongs; ``.`` for this process's own.
        since: When it began, in seconds since 1970. A file that is older is not its own.
        settings: The directory of ``core_pattern`` and ``core_uses_pid``.
    """
    with contextlib.suppress(OSError):
        pattern = os.fsdecode((settings / "core_pattern").read_bytes()).removesuffix("\n")
        if pattern.startswith("|") and "systemd-coredump" in pattern:
            return f"core dump: coredumpctl info {pid}"
        uses_pid = (settings / "core_uses_pid").read_text(encoding="ascii").strip() not in ("", "0")
        wanted = core_file_glob(pattern, pid, uses_pid=uses_pid)
        if wanted is None:
            return ""
        base = glob.escape(os.path.abspath(directory))  # it fails where this process's own directory is gone
        if (path := _find_newest(os.path.join(base, wanted), since)) is not None:
            return f"core dump: {path}"
    return ""


def _find_newest(wanted: str, since: float) -> str | None:
    """Return the newest file that matches and was written after ``since``; None if there is none."""
    found: list[tuple[float, str]] = []
    for path, _ in zip(glob.iglob(wanted), range(_MOST_MATCHES), strict=False):
        with contextlib.suppress(OSError):
            status = os.stat(path, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and status.st_mtime >= since:
                found.append((status.st_mtime, path))
    return max(found)[1] if found else None
