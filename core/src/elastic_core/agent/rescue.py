"""Writes snapshots that are only in memory to a directory, when a job fails for good.

Workers leave snapshots with their agent as memory files (``vault.py``), and these are gone with the agent. A worker
that wants them to outlive a failed job leaves one more memory file beside them, ``NAME/rescue``, with JSON in it: which
run this is, the directories to try in turn, and what is on disk already. The agent writes the bytes as they are, each
file under a temporary name, synced, renamed, and described by a JSON file that comes last, with size and SHA-256. A
directory that is full or away is left as it was, and the next one is tried. ``elastic_core.holding`` says how a
snapshot begins; what else is in it only the library knows that wrote it and reads it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import stat
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from elastic_core.agent.inbox import Inbox, SignalReceived
from elastic_core.agent.outcome import Ending, Publish
from elastic_core.events import Event, Level
from elastic_core.exit_codes import ExitCode, signal_name
from elastic_core.holding import RESCUE, SNAPSHOT_COMPLETE, SNAPSHOT_HEADER, SNAPSHOT_MAGIC
from elastic_core.questions import asked
from elastic_core.rendezvous.ledger import Closed, Round

PATIENCE = 300.0
"""Most seconds that an agent spends on writing snapshots."""
_ABORTING = 5.0
"""Seconds that the writer gets to remove what is half-written, once it was told to stop."""
_LARGEST_REQUEST = 1 << 16
_BLOCK = 8 << 20
_SPARE_SHARE = 0.05
"""Of a file system that nobody has named: the share that stays free."""
_NAME = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_TEXT = re.compile(rb'\[(\d+), (\d+), (?:\{"rank": (\d+), "world": (\d+), )?')
"""How the text of a snapshot begins: round and step; and whose part of a sharded state it is, of how many."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A complete snapshot in a memory file.

    Attributes:
        fd: Of the memory file.
        size: Bytes of it that matter.
        round: In which round it was made.
        step: After which step.
        rank: Whose part of a sharded state it is; None where it is all of a state.
        world: Of how many.
    """

    fd: int
    size: int
    round: int
    step: int
    rank: int | None = None
    world: int | None = None

    @property
    def stamp(self) -> tuple[int, int]:
        """What snapshots of one run are ordered by."""
        return (self.round, self.step)


@dataclass(frozen=True, slots=True)
class Target:
    """A directory to write to.

    Attributes:
        path: Absolute.
        spare: Whether nobody has named it: then it must be this user's alone, and a part of its disk stays free.
    """

    path: Path
    spare: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """What the worker has asked for.

    Attributes:
        name: Of the training state.
        run: The run's uid.
        whole: Whether each snapshot is all of the state, so that the newest one is enough.
        base: What the newest checkpoint on disk was when the run began, for whoever reads the snapshot.
        saved: Round and step of the newest checkpoint of this run.
        targets: Where to write, the first that has room.
    """

    name: str
    run: str
    whole: bool
    base: Any
    saved: tuple[int, int] | None
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """A snapshot that is on disk."""

    path: Path
    kept: Kept


@dataclass(frozen=True, slots=True)
class Unwritten:
    """A snapshot that is not, and why."""

    kept: Kept
    why: str


class _Stopped(Exception):
    """There is no more time."""


@dataclass(frozen=True, slots=True)
class _Finished:
    """The writer's thread is done."""


@dataclass(frozen=True, slots=True)
class _Overdue:
    """It has taken too long."""


def rescue(held: Mapping[str, int], inbox: Inbox, publish: Publish, node: str, patience: float = PATIENCE) -> None:
    """Write what is only in memory, and say what came of it. For the end of the agent's loop, with no worker left.

    Args:
        held: The descriptors that workers have left, by name.
        inbox: The loop's; a signal ends the writing, and whatever else comes is dropped.
        publish: Tells the observers.
        node: This node, for people.
        patience: Most seconds that it may take.
    """
    wanted = [(request, kept) for request in requests(held) if (kept := worth(request, snapshots(held, request.name)))]
    if not wanted:
        return
    size = sum(each.size for _, kept in wanted for each in kept)
    steps = ", ".join(str(kept[0].step) for _, kept in wanted)
    message = f"step {steps} is only in memory: writing {size / 2**20:.0f} MiB of snapshots, {patience:.0f} s at most"
    publish(Event("rescuing", message, fields={"bytes": size}))
    stop = threading.Event()
    outcome = asked(partial(_write_all, wanted, node, stop), name="elastic-rescue")
    why = _await(outcome, inbox, stop, patience)
    if not outcome.done():
        publish(Event("rescue_failed", f"the snapshots are lost: {why}, and the disk does not answer", Level.ERROR))
        return
    if (error := outcome.exception()) is not None:
        publish(Event("rescue_failed", f"the snapshots are lost: {error!r}", Level.ERROR))
        return
    for result in outcome.result():
        publish(_told(result, why))


def is_needed(ending: Ending, closed: Closed | None, current: Round | None) -> bool:
    """Whether nobody goes on from what workers have left on this node. Pure.

    A node that leaves others behind writes nothing: they have the state, and go on.

    Args:
        ending: How the agent ended.
        closed: The verdict on the job, where there is one.
        current: The newest round.
    """
    if ending.rejoin:
        return False
    if closed is not None:
        return not closed.success
    alone = current is not None and len(current.members) == 1
    return alone or ending.exit_code == ExitCode.STORE_LOST


def requests(held: Mapping[str, int]) -> list[Request]:
    """What workers have asked for; what makes no sense is left out."""
    found = []
    for name, fd in sorted(held.items()):
        if name.endswith(f"/{RESCUE}"):
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                found.append(_request(name.removesuffix(f"/{RESCUE}"), os.pread(fd, _LARGEST_REQUEST, 0)))
    return found


def snapshots(held: Mapping[str, int], name: str) -> list[Kept]:
    """The complete snapshots of a state, the newest first."""
    fds = [fd for key, fd in held.items() if key.startswith(f"{name}/")]
    return sorted(filter(None, map(_kept, fds)), key=lambda kept: kept.stamp, reverse=True)


def worth(request: Request, kept: Sequence[Kept]) -> list[Kept]:
    """Which snapshots are to be written, the newest first: none where the disk has something as new. Pure.

    Of a sharded state other nodes may have parts of an older step only, so all that is here counts, each part once. A
    snapshot of round 0 is one that was itself read from such a directory, where it still is.
    """
    fresh = [each for each in kept if each.round > 0 and (request.saved is None or each.stamp > request.saved)]
    if request.whole:
        return fresh[:1]
    return list({(each.stamp, each.rank, each.world): each for each in fresh}.values())


def write(request: Request, kept: Kept, node: str, stop: threading.Event) -> Written | Unwritten:
    """Write one snapshot into the first directory that takes it. Nothing half-written stays.

    Args:
        request: Where to, and what is written beside it.
        kept: The snapshot.
        node: Who writes it, for people.
        stop: Set when there is no more time.
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


def _write_all(
    wanted: Sequence[tuple[Request, Sequence[Kept]]], node: str, stop: threading.Event
) -> list[Written | Unwritten]:
    return [write(request, each, node, stop) for request, kept in wanted for each in kept]


def _await(outcome: Future[Any], inbox: Inbox, stop: threading.Event, patience: float) -> str:
    """Wait for the writer; why it was told to stop, '' if it was not."""
    outcome.add_done_callback(lambda _: inbox.post(_Finished()))
    inbox.at(time.monotonic() + patience, _Overdue())
    why = ""
    while not outcome.done():
        for event in inbox.take():
            if isinstance(event, _Overdue) and why:
                return why
            if isinstance(event, _Overdue):
                why = f"writing them has taken {patience:.0f} s"
            elif isinstance(event, SignalReceived) and not why:
                why = f"the agent received {signal_name(event.signum)}"
            else:
                continue
            stop.set()
            inbox.at(time.monotonic() + _ABORTING, _Overdue())
    return why


def _told(result: Written | Unwritten, why: str) -> Event:
    kept = result.kept
    part = "" if kept.rank is None else f" of rank {kept.rank} of {kept.world}"
    if isinstance(result, Written):
        message = (
            f"the snapshot of step {kept.step}{part} is in {result.path} now; "
            "the next run of the same command goes on from there, if nothing newer is on disk"
        )
        return Event("rescued", message, fields={"step": kept.step, "path": str(result.path), "bytes": kept.size})
    message = f"the snapshot of step {kept.step}{part} is lost: {result.why}" + (f" ({why})" if why else "")
    return Event("rescue_failed", message, Level.ERROR, {"step": kept.step})


def _request(name: str, data: bytes) -> Request:
    body = json.loads(data.rstrip(b"\0"))
    run = str(body["run"])
    if not (_NAME.fullmatch(name) and _NAME.fullmatch(run) and run.strip(".")):
        raise ValueError("it is to name a file and a folder")
    targets = tuple(Target(Path(entry["path"]), bool(entry["spare"])) for entry in body["directories"])
    saved = None
    if body["saved"] is not None:
        round_, step = map(int, body["saved"])
        saved = (round_, step)
    return Request(name, run, bool(body["whole"]), body["base"], saved, targets)


def _kept(fd: int) -> Kept | None:
    """The snapshot in a memory file; None where there is no complete one."""
    header = os.pread(fd, SNAPSHOT_HEADER.size, 0)
    if len(header) < SNAPSHOT_HEADER.size:
        return None
    magic, phase, start, length, _ = SNAPSHOT_HEADER.unpack(header)
    text = _TEXT.match(os.pread(fd, 256, start)) if magic == SNAPSHOT_MAGIC and phase == SNAPSHOT_COMPLETE else None
    if text is None:
        return None
    rank, world = (None if group is None else int(group) for group in text.groups()[2:])
    return Kept(fd, start + length, int(text[1]), int(text[2]), rank, world)


def _write_to(target: Target, request: Request, kept: Kept, node: str, stop: threading.Event) -> Path:
    """Write it there, unless another node has; where it is.

    Raises:
        OSError: It cannot be written. Nothing of it is left.
    """
    folder = target.path / request.run
    _make(target, folder, kept.size)
    part = "" if kept.rank is None else f"_rank-{kept.rank:05}-of-{kept.world:05}"
    final = folder / f"{request.name}_round-{kept.round:05}_step-{kept.step:09}{part}.snapshot"
    described = final.with_suffix(".json")
    with _alone(final.with_suffix(".partial"), stop) as (temporary, fd):
        if described.exists():  # another node has the same
            temporary.unlink()
            return final
        try:
            sha256 = _copy(kept, fd, stop)
            if _kept(kept.fd) != kept:
                raise OSError(errno.EBUSY, "it was written to meanwhile")
            os.rename(temporary, final)
        except BaseException:
            temporary.unlink()
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
            final.unlink()
            raise
    return final


def _make(target: Target, folder: Path, size: int) -> None:
    """Have the folder there.

    Raises:
        OSError: It cannot be made; or nobody has named it, and it is another user's, or its disk has too little room.
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
    """A temporary file that no other process writes to: nodes that share a directory have the same to write.

    What a process has left there that was killed is written over.

    Raises:
        _Stopped: Another process writes to it, and goes on doing so.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(fd, stop)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), path.stat()):
                    os.ftruncate(fd, 0)
                    yield path, fd
                    return
        finally:
            os.close(fd)


def _lock(fd: int, stop: threading.Event) -> None:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if stop.wait(0.2):
                raise _Stopped from None
        except OSError:  # there are no locks here: then each writes, and the last one's is as good
            return


def _copy(kept: Kept, fd: int, stop: threading.Event) -> str:
    """Copy the bytes, and sync them; their SHA-256."""
    digest, at = hashlib.sha256(), 0
    while at < kept.size:
        if stop.is_set():
            raise _Stopped
        block = memoryview(os.pread(kept.fd, min(_BLOCK, kept.size - at), at))
        digest.update(block)
        at += len(block)
        while block:
            block = block[os.write(fd, block) :]
    os.fsync(fd)
    return digest.hexdigest()


def _describe(path: Path, body: Mapping[str, Any]) -> None:
    """Write the JSON file by which a snapshot counts, and sync the folder."""
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
