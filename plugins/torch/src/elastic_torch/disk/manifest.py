"""A checkpoint's list of contents: every file with its size and SHA-256, and a checksum of the list itself.

It is JSON, so that any program can read it, and the last file of a checkpoint to be written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field

from elastic_torch.version import Position

NAME = "manifest.json"
METADATA = ".metadata"  # the file that ``torch.distributed.checkpoint`` reads first
FORMAT = 2
LIMIT = 256 << 20  # bytes beyond which a manifest is not believed


class DamagedError(Exception):
    """Something on disk is not what was written; the message says what, as the end of a sentence."""


class UnknownFormatError(Exception):
    """A manifest is intact, and of another release; the message says so, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class FileSum:
    """The sum of a file when it was written: its size in bytes, and its SHA-256 in hexadecimal."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters that go from checkpoint to checkpoint, to measure how often the job fails."""

    failures: int = 0  # the number of times that training had to go on from a checkpoint
    seconds: float = 0.0  # the time that it has trained, in all processes before, in seconds


@dataclass(frozen=True, slots=True)
class Manifest:
    """One checkpoint's contents."""

    position: Position  # its place in the order of checkpoints
    run_uid: str  # the run that saved it
    save_id: str  # random; the same in every directory that has a part of the same save
    who: str  # who saved it, for people
    lineage: str
    """Random; of the training that it belongs to. A run that goes on from a checkpoint continues its lineage; one
    that begins anew, or goes back behind checkpoints that stay where they are, begins another one.
    """
    scattered: bool  # whether each of several directories has only its ranks' files
    files: Mapping[str, FileSum]  # all files but the manifest, by name
    counters: Counters = field(default_factory=Counters)  # failures and training time up to here

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())


def encode(manifest: Manifest) -> bytes:
    """Return the manifest as its file's contents."""
    body = {
        "format": FORMAT,
        **asdict(manifest.position),
        "run_uid": manifest.run_uid,
        "save_id": manifest.save_id,
        "saved_by": manifest.who,
        "lineage": manifest.lineage,
        "scattered": manifest.scattered,
        **asdict(manifest.counters),
        "files": {name: astuple(file) for name, file in sorted(manifest.files.items())},
    }
    return (json.dumps(body | {"sha256": _digest(body)}, indent=1) + "\n").encode()


def decode(data: bytes) -> Manifest:
    """Return the manifest that a file holds; raise DamagedError, or UnknownFormatError if another release wrote it."""
    try:
        body = json.loads(data)
        digest = body.pop("sha256")
        if digest != _digest(body):
            raise DamagedError("its manifest is not as it was written")
        if body["format"] != FORMAT:
            raise UnknownFormatError(f"its manifest is of format {body['format']!r}, and this release reads {FORMAT}")
        files = {_plain(name): FileSum(int(size), str(sha256)) for name, (size, sha256) in body["files"].items()}
        manifest = Manifest(
            position=Position(int(body["run"]), int(body["round"]), int(body["step"])),
            run_uid=str(body["run_uid"]),
            save_id=str(body["save_id"]),
            who=str(body["saved_by"]),
            lineage=str(body["lineage"]),
            scattered=bool(body["scattered"]),
            files=files,
            counters=Counters(int(body["failures"]), float(body["seconds"])),
        )
        if encode(manifest) != data:  # to the byte: what is cut off or added counts, too
            raise DamagedError("its manifest is not as it was written")
        return manifest
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError("its manifest cannot be read") from error


def _plain(name: str) -> str:
    """Check that a listed name is one of a file in the checkpoint's folder, as manifests may be forged."""
    if "/" in name or name in ("", ".", "..", NAME):
        raise DamagedError(f"its manifest lists {name!r}")
    return name


def _digest(body: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
