"""The checks of the host itself: room on its disks, memory, shared memory.

Without a value they refuse only what is certain to fail: a directory in which no file can be written, and a host
without the memory for one interpreter. Source of the files: Linux, Documentation/filesystems/proc.rst (``meminfo``) and
Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

from elastic_causes.oom import OomCounter, find_counter
from elastic_core.config import RunConfig
from elastic_health.checks import Finding
from elastic_health.sizes import format_size, parse_size

MEMORY_LEAST = 64 << 20  # bytes: an interpreter with torch takes three times as much
SHM_LEAST = 64 << 10  # bytes: a DataLoader's worker that finds less is killed by SIGBUS
INODES_LEAST = 100  # where a size is asked for: checkpoints are made of several files
BLOCK_BYTES = 4096
SHM = Path("/dev/shm")
MEMINFO = Path("/proc/meminfo")
_GLOB = frozenset("*?[")
_CACHES = ("active_file", "inactive_file", "slab_reclaimable")  # what the kernel takes back before it ends a process
_CACHES_V1 = ("total_active_file", "total_inactive_file")  # there kernel memory is not in memory.stat


def directories(config: RunConfig, least: str = "") -> dict[str, Path]:
    """Return the directories that a run writes to, each by what it is for; only those that exist.

    The agent only reads the one of ``--checkpoint_path``, and not every node needs to write there, so it counts only
    where ``least`` asks for room.
    """
    found = {"temporary files": _temporary()}
    if config.log_dir is not None:
        found["--log_dir"] = config.log_dir
    if least and config.checkpoint_path is not None:
        parts = Path(config.checkpoint_path).parts
        fixed = [part for index, part in enumerate(parts) if not any(_GLOB & set(one) for one in parts[: index + 1])]
        found["--checkpoint_path"] = Path(*fixed)
    return {use: path for use, path in found.items() if path.is_dir()}


def _temporary() -> Path:
    """Return the directory that Python takes: of $TMPDIR, /tmp and others, the first that can be written."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:  # there is none
        return Path("/tmp")


def check_disk(places: Mapping[str, Path], least: str = "") -> Finding | None:
    """Check that a file can be written in each directory, and that ``least`` is free on its disk."""
    for use, path in places.items():
        try:
            _write_a_block(path)
            disk = os.statvfs(path)
        except OSError as exc:
            full = exc.errno in (errno.ENOSPC, errno.EDQUOT)
            advice = "Make room there, or name another directory." if full else "Mount it for writing, or name another."
            return Finding(f"cannot write to {path} ({use}): {exc.strerror}", advice)
        if not least:
            continue
        free = disk.f_bavail * disk.f_frsize
        if free < parse_size(least):
            what = f"found {format_size(free)} free on the disk of {path} ({use}), less than {least}"
            return Finding(what, "Make room there, or ask for less: --health_check=disk=SIZE.")
        if disk.f_files and disk.f_favail < INODES_LEAST:
            what = f"found room for {disk.f_favail} more files on the disk of {path} ({use}), less than {INODES_LEAST}"
            return Finding(what, "Remove files there: its disk has no inodes left.")
    return None


def _write_a_block(directory: Path) -> None:
    """Write a file of one block, which is gone afterwards; raise OSError if no file can be made or written there."""
    name = None
    try:
        descriptor = os.open(directory, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        if exc.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):  # NFS and others
            raise
        name = directory / f".elastic-health-{uuid.uuid4().hex}"
        descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        if os.write(descriptor, bytes(BLOCK_BYTES)) < BLOCK_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)
        if name is not None:
            with contextlib.suppress(OSError):
                name.unlink()


def check_memory(least: str = "", *, meminfo: Path = MEMINFO, counter: OomCounter | None = None) -> Finding | None:
    """Check that this host, and each of this agent's control groups, has ``least`` of memory available."""
    wanted = parse_size(least) if least else MEMORY_LEAST
    rooms = [("this host", _available(meminfo)), *_cgroup_rooms(counter or find_counter())]
    for where, room in rooms:
        if room is not None and room < wanted:
            what = f"found {format_size(max(0, room))} of memory available to {where}, less than {format_size(wanted)}"
            return Finding(what, "End what else runs here, or raise the limit of the job or container.")
    return None


def _available(meminfo: Path) -> int | None:
    """Return the memory that can be had without swapping others out, and the free swap; None if it is not known."""
    found = {}
    with contextlib.suppress(OSError, ValueError):
        for line in meminfo.read_text(encoding="ascii").splitlines():
            name, _, rest = line.partition(":")
            if name in ("MemAvailable", "SwapFree"):
                found[name] = int(rest.split()[0]) << 10
    return sum(found.values()) if "MemAvailable" in found else None


def _cgroup_rooms(counter: OomCounter) -> Iterable[tuple[str, int | None]]:
    """Return what is left of the limit of the control group and of each above it that has one."""
    if counter.limit is None:
        return
    second = counter.limit.name == "memory.max"
    usage, caches = ("memory.current", _CACHES) if second else ("memory.usage_in_bytes", _CACHES_V1)
    for directory in (counter.limit.parent, *counter.limit.parent.parents):
        if not (directory / usage).is_file():
            return
        limit = OomCounter(None, directory / counter.limit.name).limit_bytes()
        if limit is not None:
            used = _number(directory / usage) - sum(_number(directory / "memory.stat", cache) for cache in caches)
            yield f"its control group {directory}, whose limit is {format_size(limit)}", limit - max(0, used)


def _number(file: Path, key: str = "") -> int:
    """Return the number in a file, or after a key in it; 0 if there is none."""
    with contextlib.suppress(OSError, ValueError):
        text = file.read_text(encoding="ascii")
        if not key:
            return int(text)
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{key} "))
    return 0


def check_shm(least: str = "", *, directory: Path = SHM) -> Finding | None:
    """Check that ``least`` is free in /dev/shm, if there is one."""
    try:
        shm = os.statvfs(directory)
    except OSError as exc:
        if not least:
            return None  # a program may do without it
        return Finding(f"cannot look at {directory}: {exc.strerror}", "Mount a tmpfs there.")
    free, wanted = shm.f_bavail * shm.f_frsize, parse_size(least) if least else SHM_LEAST
    if free >= wanted or (not shm.f_blocks and not least):
        return None
    whole = shm.f_blocks * shm.f_frsize
    what = f"found {format_size(free)} of {format_size(whole)} free in {directory}, less than {format_size(wanted)}"
    return Finding(
        what, f"Remove what ended programs have left in {directory}, or give the container more: --shm-size."
    )
