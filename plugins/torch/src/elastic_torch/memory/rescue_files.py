"""The rescue of snapshots: which ones an agent writes to disk when the job has failed for good, and their files.

An agent writes files whole or not at all, and the next run reads them. Each file is written under a temporary name,
synced and renamed. It is valid once a JSON file with its size and SHA-256 is beside it, which is written last. Nodes
that share a directory have the same snapshots: a lock lets one write them, and tells the next run what a killed agent
has left unfinished. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core.events import Event, Level
from elastic_torch.memory.snapshot_format import (
    RESCUE,
    KeptSnapshot,
    Request,
    Target,
    is_of_other_release,
    note_in,
    request_in,
    snapshot_in,
    snapshots_in,
)

if TYPE_CHECKING:
    from elastic_core import AgentEnd

logger = logging.getLogger("elastic_torch.memory")
BLOCK = 8 << 20
OTHER_RELEASE = "to go on from it, start the job with the release that wrote it"
_FORMAT = 1
_SPARE_SHARE = 0.05  # the share of a file system that stays free, unless the user has named the directory
_ABANDONED_SECONDS = 86400.0  # after which an unfinished file counts as abandoned, where files cannot be locked
PATIENCE_SECONDS = 300.0  # at most, for the writing


def rescue(held: Mapping[str, int], end: AgentEnd) -> None:
    """Write the snapshots in these memory files, by name, to disk, and publish the result of each."""
    if names := unreadable(held):
        what = f"what workers have left in memory as {', '.join(names)} is lost: this agent's release does not read it"
        message = f"{what}. Use one release of Elastic for agents and workers"
        end.publish(Event("rescue_failed", message, Level.ERROR))
    for lost in unclaimed(held):
        message = (
            f"step {lost.stamp.step} was only in memory, and is lost with the job: the next run begins without it. "
            "Save checkpoints, with TrainState(disk=...), or set ELASTIC_RESCUE_DIR"
        )
        end.publish(Event("rescue_failed", message, Level.WARNING, {"step": lost.stamp.step}))
    every = [(request, worth_writing(request, snapshots(held, request.name))) for request in requests(held)]
    wanted = [(request, kept) for request, kept in every if kept]
    if not wanted:
        return
    size = sum(each.size for _, kept in wanted for each in kept)
    steps = ", ".join(str(kept[0].stamp.step) for _, kept in wanted)
    message = f"step {steps} is only in memory: writing {size / 2**20:.0f} MiB of snapshots"
    end.publish(Event("rescuing", f"{message}, {PATIENCE_SECONDS:.0f} s at most", fields={"bytes": size}))

    def write_all(stop: threading.Event) -> list[Written]:
        return [write(request, each, end.node, stop) for request, kept in wanted for each in kept]

    results, why = end.run(write_all, PATIENCE_SECONDS)
    for result in results:
        end.publish(result_event(result, why))


def requests(held: Mapping[str, int]) -> list[Request]:
    """Return the requests of workers, without invalid ones."""
    texts = {name: note_in(held[name]) for name in sorted(held) if name.endswith(f"/{RESCUE}")}
    found = (request_in(name.removesuffix(f"/{RESCUE}"), text) for name, text in texts.items())
    return [request for request in found if request is not None]


def unclaimed(held: Mapping[str, int]) -> list[KeptSnapshot]:
    """Return the newest snapshot of each state that no worker has asked to write."""
    names = {name.partition("/")[0] for name in held if f"{name.partition('/')[0]}/{RESCUE}" not in held}
    return [kept[0] for name in sorted(names) if (kept := snapshots(held, name))]


def unreadable(held: Mapping[str, int]) -> list[str]:
    """Return the names of invalid requests, and of snapshots in another release's format."""
    understood = {f"{request.name}/{RESCUE}" for request in requests(held)}
    asked_for = {name for name in held if name.endswith(f"/{RESCUE}")}
    return sorted({*(asked_for - understood), *(name for name, fd in held.items() if is_of_other_release(fd))})


def snapshots(held: Mapping[str, int], name: str) -> list[KeptSnapshot]:
    """Return the complete snapshots of a state, the newest first."""
    return snapshots_in(fd for key, fd in held.items() if key.startswith(f"{name}/"))


def worth_writing(request: Request, kept: Sequence[KeptSnapshot]) -> list[KeptSnapshot]:
    """Return the snapshots to write, the newest first: none if the disk has one that is as new. Pure.

    Of a sharded state, other nodes may only have parts of an older step, so all parts here are written, each once. A
    snapshot of round 0 was itself read from such a directory, where it still is.
    """
    fresh = [each for each in kept if each.stamp.round > 0 and (request.saved is None or each.stamp > request.saved)]
    if request.whole:
        return fresh[:1]
    return list({(each.stamp, each.rank, each.world): each for each in fresh}.values())


def result_event(result: Written, why: str) -> Event:
    """Return the event about a snapshot; ``why`` says why the writing was told to stop, '' if it was not."""
    kept, step = result.kept, result.kept.stamp.step
    part = "" if kept.rank is None else f" of rank {kept.rank} of {kept.world}"
    if result.path is None:
        message = f"the snapshot of step {step}{part} is lost: {result.why}" + (f" ({why})" if why else "")
        return Event("rescue_failed", message, Level.ERROR, {"step": step})
    message = (
        f"the snapshot of step {step}{part} is in {result.path} now; "
        "the next run of the same command goes on from there, if nothing newer is on disk"
    )
    return Event("rescued", message, fields={"step": step, "path": str(result.path), "bytes": kept.size})


@dataclass(frozen=True, slots=True)
class Written:
    """A snapshot that is on disk now; without a path, one that is not, and why."""

    kept: KeptSnapshot
    path: Path | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Rescued:
    """A snapshot that an agent has written."""

    path: str
    run: str  # the uid of the run that failed
    round: int
    step: int
    rank: int | None  # whose part of a sharded state it is; None if it is all of a state
    world: int | None
    size: int
    sha256: str
    base: tuple[str, int, int] | None  # run, round and step of the newest checkpoint on disk when that run began
    modified: float  # when it was written, by the clock of the file's host

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Rescued:
        """Return one from its fields; ``base`` may be a list."""
        base = entry["base"]
        return cls(**{**entry, "base": None if base is None else (str(base[0]), int(base[1]), int(base[2]))})


class _Stopped(Exception):
    """There is no more time."""


def write(request: Request, kept: KeptSnapshot, node: str, stop: threading.Event) -> Written:
    """Write one snapshot into the first directory that takes it, until ``stop`` is set. No partial file stays.

    ``node`` describes this node, for the reader of the JSON file.
    """
    reasons = []
    for target in request.targets:
        try:
            return Written(kept, _write_to(target, request, kept, node, stop))
        except OSError as error:
            reasons.append(f"{target.path}: {error.strerror or error}")
        except _Stopped:
            reasons.append(f"{target.path}: there was no more time")
            break
    return Written(kept, why="; ".join(reasons) or "there is no directory to write to")


def _write_to(target: Target, request: Request, kept: KeptSnapshot, node: str, stop: threading.Event) -> Path:
    """Write a snapshot to a directory, unless another node has; return the file's path. An OSError leaves no part."""
    if stop.is_set():
        raise _Stopped
    folder = Path(target.path) / request.run
    _make(target, folder, kept.size)
    part = "" if kept.rank is None else f"_rank-{kept.rank:05}-of-{kept.world:05}"
    stem = f"{request.name}_round-{kept.stamp.round:05}_step-{kept.stamp.step:09}{part}"
    with _alone(folder / f"{stem}.partial", stop) as (temporary, fd):
        final, described = temporary.with_suffix(".snapshot"), temporary.with_suffix(".json")
        if described.exists():  # another node has the same
            temporary.unlink()
            return final
        with _removed_on_error(temporary):
            sha256 = _copy(kept, fd, stop)
            if snapshot_in(kept.fd) != kept:
                raise OSError(errno.EBUSY, "it was written to meanwhile")
            os.rename(temporary, final)
        run = {"name": request.name, "run": request.run, "base": request.base, "whole": request.whole}
        part_of = {**asdict(kept.stamp), "rank": kept.rank, "world": kept.world}
        body = {"format": _FORMAT, **run, **part_of, "size": kept.size, "sha256": sha256, "node": node}
        with _removed_on_error(final), _removed_on_error(described):
            _describe(described, body)
    return final


def _make(target: Target, folder: Path, size: int) -> None:
    """Make the folder, unless it is there.

    Raises:
        OSError: It cannot be made; or it is in a default directory, to which other users have access or whose disk has
            too little room.
    """
    if target.spare:
        parent = Path(target.path).parent
        parent.mkdir(mode=0o700, exist_ok=True)
        if not target.is_own():
            raise OSError(errno.EPERM, f"{parent} is not this user's alone")
        system = os.statvfs(parent)
        if system.f_bavail * system.f_frsize - size < _SPARE_SHARE * system.f_blocks * system.f_frsize:
            raise OSError(errno.ENOSPC, f"less than {_SPARE_SHARE:.0%} of its disk would stay free")
    folder.mkdir(mode=0o700 if target.spare else 0o777, parents=True, exist_ok=True)


@contextlib.contextmanager
def _removed_on_error(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _alone(path: Path, stop: threading.Event) -> Iterator[tuple[Path, int]]:
    """Yield a temporary file that no other process writes to: nodes that share a directory have the same snapshots.

    What a killed process has left there is overwritten. If files cannot be locked, each process uses another name.
    Raises _Stopped where another process still writes to it.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while (locked := _lock(fd)) is False:
                if stop.wait(0.2):
                    raise _Stopped
            if locked is None:
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
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(fd), path.stat())
    return False


def _lock(fd: int) -> bool | None:
    """Lock a file; return False if another process has locked it, None if files cannot be locked here."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _copy(kept: KeptSnapshot, fd: int, stop: threading.Event) -> str:
    """Copy the bytes of a snapshot to ``fd`` and sync them; return their SHA-256."""
    digest, at = hashlib.sha256(), 0
    while at < kept.size:
        if stop.is_set():
            raise _Stopped
        block = memoryview(os.pread(kept.fd, min(BLOCK, kept.size - at), at))
        if not block:
            raise OSError(errno.EBUSY, "it was written to meanwhile")
        digest.update(block)
        at += len(block)
        while block:
            block = block[os.write(fd, block) :]
    os.fsync(fd)
    return digest.hexdigest()


def _describe(path: Path, body: Mapping[str, Any]) -> None:
    """Write the JSON file that makes a snapshot valid, and sync the folder."""
    temporary = path.with_suffix(".json.partial")
    with _removed_on_error(temporary):
        with open(temporary, "w") as file:
            json.dump(body, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def listed(directory: str, name: str) -> Iterator[Rescued]:
    """Yield the snapshots of a state in a directory; invalid entries are skipped with a warning."""
    for path in sorted(Path(directory).glob(f"*/{name}_round-*.json")):
        try:
            body = json.loads(path.read_bytes())
            snapshot = path.with_suffix(".snapshot")
            if body["format"] != _FORMAT:
                text = "%s is of format %s, and this release reads format %s, so it is passed over: %s."
                logger.warning(text, path, body["format"], _FORMAT, OTHER_RELEASE)
            elif body["name"] == name and body["run"] == path.parent.name:
                fields = {key: body[key] for key in ("run", "round", "step", "rank", "world", "size", "sha256", "base")}
                yield Rescued.of({**fields, "path": str(snapshot), "modified": snapshot.stat().st_mtime})
        except (OSError, ValueError, LookupError, TypeError) as error:
            logger.warning("%s cannot be read, and is passed over: %s", path, error)


def remove_abandoned(directory: str, name: str) -> None:
    """Remove what agents that were killed have left unfinished. An agent holds a lock on a snapshot until it counts."""
    partial, whole = (Path(directory).glob(f"*/{name}_round-*{end}") for end in ("[0-9a-f].partial", ".snapshot"))
    for path in (*partial, *whole):
        with contextlib.suppress(OSError), open(path, "r+b") as file:
            locked = _lock(file.fileno())
            recent = time.time() - path.stat().st_mtime < _ABANDONED_SECONDS
            if locked is False or (locked is None and recent) or not _is_at(path, file.fileno()):
                continue  # an agent writes it; or it was finished, or removed, meanwhile
            if path.suffix == ".snapshot":
                if any(path.with_suffix(suffix).exists() for suffix in (".json", ".partial")):
                    continue  # it counts, as may be only now that the lock is free; or an agent writes it anew
                path.with_suffix(".json.partial").unlink(missing_ok=True)
            path.unlink()
            logger.info("%s was removed: an agent that was killed had left it unfinished.", path)
