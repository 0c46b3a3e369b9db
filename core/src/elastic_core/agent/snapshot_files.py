"""Writes snapshots out of memory files to a directory, whole or not at all.

Each file is written under a temporary name, synced and renamed. It is valid once a JSON file with its size and SHA-256
is beside it, which is written last. Nodes that share a directory have the same snapshots: a lock lets one write them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic_core.agent.console import write_all
from elastic_core.worker.fd_store import SNAPSHOT_COMPLETE, SNAPSHOT_HEADER, SNAPSHOT_MAGIC

_BLOCK = 8 << 20
_SPARE_SHARE = 0.05  # the share of a file system that stays free, unless the user has named the directory
_TEXT = re.compile(rb'\[(\d+), (\d+), (?:\{"rank": (\d+), "world": (\d+), )?')
"""How the text of a snapshot begins: round and step; and whose part of a sharded state it is, of how many."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A complete snapshot in a memory file."""

    fd: int  # of the memory file
    size: int  # the bytes of the file that are used
    round: int  # the round in which it was made
    step: int  # the step after which it was made
    rank: int | None = None  # the rank whose part of a sharded state it is; None if it is a whole state
    world: int | None = None  # the number of ranks that the state was sharded over

    @property
    def stamp(self) -> tuple[int, int]:
        """The round and step, by which the snapshots of one run are ordered."""
        return (self.round, self.step)


@dataclass(frozen=True, slots=True)
class Target:
    """A directory to write to."""

    path: Path  # absolute
    spare: bool = False
    """Whether it is a default: then only this user may have access to it, and a part of its disk stays free."""


@dataclass(frozen=True, slots=True)
class Request:
    """A worker's request to write snapshots to disk."""

    name: str  # of the training state
    run: str  # the run's uid
    whole: bool  # whether each snapshot is all of the state, so that the newest one is enough
    base: Any  # the newest checkpoint on disk when the run began, for the reader of the snapshot
    saved: tuple[int, int] | None  # round and step of the newest checkpoint of this run
    targets: tuple[Target, ...]  # the first of them that has room is written to


@dataclass(frozen=True, slots=True)
class Written:
    """A snapshot that is on disk."""

    path: Path
    kept: Kept


@dataclass(frozen=True, slots=True)
class Unwritten:
    """A snapshot that is not on disk, and why."""

    kept: Kept
    why: str


class _Stopped(Exception):
    """There is no more time."""


def kept_in(fd: int) -> Kept | None:
    """Return the snapshot in a memory file; None where there is no complete one."""
    header = os.pread(fd, SNAPSHOT_HEADER.size, 0)
    if len(header) < SNAPSHOT_HEADER.size:
        return None
    magic, phase, start, length, _ = SNAPSHOT_HEADER.unpack(header)
    if (magic, phase) != (SNAPSHOT_MAGIC, SNAPSHOT_COMPLETE) or start + length > os.fstat(fd).st_size:
        return None
    if (text := _TEXT.match(os.pread(fd, 256, start))) is None:
        return None
    rank, world = (None if group is None else int(group) for group in text.groups()[2:])
    return Kept(fd, start + length, int(text[1]), int(text[2]), rank, world)


def newest_kept(descriptors: Iterable[int]) -> Kept | None:
    """Return the newest snapshot in these memory files; None where there is none."""
    found = (kept for fd in descriptors if (kept := kept_in(fd)) is not None)
    return max(found, key=lambda kept: kept.stamp, default=None)


def write(request: Request, kept: Kept, node: str, stop: threading.Event) -> Written | Unwritten:
    """Write one snapshot into the first directory that takes it, until ``stop`` is set. No partial file stays.

    ``node`` describes this node, for the reader of the JSON file.
    """
    reasons = []
    for target in request.targets:
        try:
            return Written(_write_to(target, request, kept, node, stop), kept)
        except OSError as error:
            reasons.append(f"{target.path}: {error.strerror or error}")
        except _Stopped:
            reasons.append(f"{target.path}: there was no more time")
            break
    return Unwritten(kept, "; ".join(reasons) or "there is no directory to write to")


def _write_to(target: Target, request: Request, kept: Kept, node: str, stop: threading.Event) -> Path:
    """Write a snapshot to a directory, unless another node has; return the path of the file.

    Raises:
        OSError: It cannot be written. No part of it is left.
    """
    folder = target.path / request.run
    _make(target, folder, kept.size)
    part = "" if kept.rank is None else f"_rank-{kept.rank:05}-of-{kept.world:05}"
    stem = f"{request.name}_round-{kept.round:05}_step-{kept.step:09}{part}"
    with _alone(folder / f"{stem}.partial", stop) as (temporary, fd):
        final, described = temporary.with_suffix(".snapshot"), temporary.with_suffix(".json")
        if described.exists():  # another node has the same
            temporary.unlink()
            return final
        try:
            sha256 = _copy(kept, fd, stop)
            if kept_in(kept.fd) != kept:
                raise OSError(errno.EBUSY, "it was written to meanwhile")
            os.rename(temporary, final)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        body = {
            "format": 1,
            "name": request.name,
            "run": request.run,
            "base": request.base,
            "whole": request.whole,
            "round": kept.round,
            "step": kept.step,
            "rank": kept.rank,
            "world": kept.world,
            "size": kept.size,
            "sha256": sha256,
            "node": node,
        }
        try:
            _describe(described, body)
        except BaseException:
            final.unlink(missing_ok=True)
            raise
    return final


def _make(target: Target, folder: Path, size: int) -> None:
    """Make the folder, unless it is there.

    Raises:
        OSError: It cannot be made; or it is in a default directory, to which other users have access or whose disk has
            too little room.
    """
    if not target.spare:
        folder.mkdir(parents=True, exist_ok=True)
        return
    target.path.parent.mkdir(mode=0o700, exist_ok=True)
    owner = target.path.parent.lstat()
    if owner.st_uid != os.geteuid() or not stat.S_ISDIR(owner.st_mode) or owner.st_mode & 0o022:
        raise OSError(errno.EPERM, f"{target.path.parent} is not this user's alone")
    system = os.statvfs(target.path.parent)
    if system.f_bavail * system.f_frsize - size < _SPARE_SHARE * system.f_blocks * system.f_frsize:
        raise OSError(errno.ENOSPC, f"less than {_SPARE_SHARE:.0%} of its disk would stay free")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


@contextlib.contextmanager
def _alone(path: Path, stop: threading.Event) -> Iterator[tuple[Path, int]]:
    """Yield a temporary file that no other process writes to: nodes that share a directory have the same snapshots.

    What a killed process has left there is overwritten. If files cannot be locked, each process uses another name.

    Raises:
        _Stopped: Another process still writes to it.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _lock(fd, stop):
                path.unlink(missing_ok=True)
                path = path.with_stem(f"{path.stem}_{os.urandom(4).hex()}")
                shared, fd = fd, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                os.close(shared)
            elif not _is_at(path, fd):
                continue
            os.ftruncate(fd, 0)
            yield path, fd
            return
        finally:
            os.close(fd)


def _is_at(path: Path, fd: int) -> bool:
    """Whether a file still has its name."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(fd), path.stat())
    return False


def _lock(fd: int, stop: threading.Event) -> bool:
    """Lock a file; False where files cannot be locked.

    Raises:
        _Stopped: Another process has locked it.
    """
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if stop.wait(0.2):
                raise _Stopped from None
        except OSError:
            return False


def _copy(kept: Kept, fd: int, stop: threading.Event) -> str:
    """Copy the bytes of a snapshot to ``fd`` and sync them; return their SHA-256."""
    import hashlib  # takes 3.5 MB, and few jobs have a snapshot to write

    digest, at = hashlib.sha256(), 0
    while at < kept.size:
        if stop.is_set():
            raise _Stopped
        block = os.pread(kept.fd, min(_BLOCK, kept.size - at), at)
        if not block:
            raise OSError(errno.EBUSY, "it was written to meanwhile")
        digest.update(block)
        at += len(block)
        write_all(fd, block)
    os.fsync(fd)
    return digest.hexdigest()


def _describe(path: Path, body: Mapping[str, Any]) -> None:
    """Write the JSON file that makes a snapshot valid, and sync the folder."""
    temporary = path.with_suffix(".json.partial")
    try:
        with open(temporary, "w") as file:
            json.dump(body, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
