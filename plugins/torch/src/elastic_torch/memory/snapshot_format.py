"""The format of what workers leave in memory files: snapshots, and the request to write them out if the job fails.

The agent reads them too, so nothing here imports torch. The agent's names are ``NAME/…`` for the snapshots of the state
``NAME``, and ``NAME/rescue`` for the request.
"""

from __future__ import annotations

import json
import os
import re
import stat
import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from elastic_torch.version import Stamp

HEADER = struct.Struct("<8sQQQQ")
"""The beginning of a snapshot: the magic word, the phase, and the place, length and CRC-32 of a JSON text: a list that
begins with the round and the step, followed by ``{"rank": 1, "world": 4, `` in a part of a sharded state."""
MAGIC = b"elastic1"  # the last byte is the format's number
WRITING, COMPLETE = 0, 1  # the phases
RESCUE = "rescue"
_TEXT = re.compile(rb'\[(\d+), (\d+), (?:\{"rank": (\d+), "world": (\d+), )?')
_NAME = re.compile(r"[\w.:-]{1,128}", re.ASCII)
NOTE_MAX_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class KeptSnapshot:
    """A complete snapshot in a memory file, of which ``size`` bytes are used."""

    fd: int
    size: int
    stamp: Stamp
    rank: int | None = None  # the rank whose part of a sharded state it is; None if it is a whole state
    world: int | None = None  # the number of ranks that the state was sharded over


class Target(NamedTuple):
    """A directory for snapshots."""

    path: str
    spare: bool = False
    """True if it is a default: then only this user may have access to it, and a part of its disk stays free."""

    def is_own(self) -> bool:
        """Return whether the user has named it, or no other user can write to it."""
        if not self.spare:
            return True
        try:
            parent = os.lstat(os.path.dirname(self.path))
        except OSError:
            return False
        return parent.st_uid == os.geteuid() and stat.S_ISDIR(parent.st_mode) and not parent.st_mode & 0o022


@dataclass(frozen=True, slots=True)
class Request:
    """A worker's request to its agent to write the snapshots of a state to disk."""

    name: str  # of the training state
    run: str  # the run's uid
    whole: bool  # whether each snapshot is all of the state, so that the newest one is enough
    base: Any = None  # run, round and step of the newest checkpoint on disk when the run began
    saved: Stamp | None = None  # of the newest checkpoint of this run
    targets: tuple[Target, ...] = ()  # the first of them that has room is written to

    def packed(self) -> bytes:
        """Return it as :func:`request_in` reads it."""
        return json.dumps(asdict(self)).encode()


def request_in(name: str, text: bytes) -> Request | None:
    """Return the request for the snapshots of a state; None if it is not valid."""
    try:
        body = json.loads(text.rstrip(b"\0"))
        run, whole, saved = str(body["run"]), bool(body["whole"]), body["saved"]
        targets = tuple(Target(str(path), bool(spare)) for path, spare in body["targets"])
        stamp = None if saved is None else Stamp(int(saved["round"]), int(saved["step"]))
    except (ValueError, TypeError, LookupError):
        return None
    if not (_NAME.fullmatch(name) and _NAME.fullmatch(run) and run.strip(".")):
        return None  # they name a file and a folder
    return Request(name, run, whole, body.get("base"), stamp, targets)


def note_in(fd: int) -> bytes:
    """Return the text of a note in a memory file; b"" if it cannot be read."""
    try:
        return os.pread(fd, NOTE_MAX_BYTES, 0)
    except OSError:
        return b""


def snapshot_in(fd: int) -> KeptSnapshot | None:
    """Return the snapshot in a memory file; None if there is no complete one."""
    header = os.pread(fd, HEADER.size, 0)
    if len(header) < HEADER.size:
        return None
    magic, phase, start, length, _ = HEADER.unpack(header)
    if (magic, phase) != (MAGIC, COMPLETE) or start + length > os.fstat(fd).st_size:
        return None
    if (text := _TEXT.match(os.pread(fd, 256, start))) is None:
        return None
    round_, step, rank, world = (None if group is None else int(group) for group in text.groups())
    return KeptSnapshot(fd, start + length, Stamp(round_ or 0, step or 0), rank, world)


def snapshots_in(descriptors: Iterable[int]) -> list[KeptSnapshot]:
    """Return the complete snapshots in memory files, the newest first."""
    return sorted(filter(None, map(snapshot_in, descriptors)), key=lambda kept: kept.stamp, reverse=True)


def is_of_other_release(fd: int) -> bool:
    """Return whether a memory file is a snapshot in the format of another release."""
    magic = os.pread(fd, len(MAGIC), 0)
    return magic != MAGIC and magic[:-1] == MAGIC[:-1]
