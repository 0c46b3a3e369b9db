"""What is in a checkpoint directory: which checkpoints there are, whether they are whole, and which may go."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elastic_torch.disk import manifest as manifests
from elastic_torch.disk.manifest import DamagedError, FileSum, Manifest
from elastic_torch.disk.position import Checkpoint, Position, parse
from elastic_torch.disk.storage import BLOCK, LATEST, REMOVING, STAGING, Storage

logger = logging.getLogger("elastic_torch.disk")


@dataclass(frozen=True, slots=True)
class Entry:
    """One folder that is named as a checkpoint is.

    Attributes:
        folder: Its name.
        position: What the name says.
        manifest: Its list of contents; None where that cannot be read.
        damage: What is wrong with it at first sight, by file; '' is the whole.
    """

    folder: str
    position: Position
    manifest: Manifest | None
    damage: tuple[tuple[str, str], ...] = ()

    @property
    def here(self) -> frozenset[str]:
        """The files that are there, and of the right size."""
        if self.manifest is None:
            return frozenset()
        return frozenset(self.manifest.files) - {name for name, _ in self.damage}

    @property
    def good(self) -> bool:
        """Whether it is whole at first sight; of a scattered one, whether what should be here is."""
        return self.manifest is not None and not self.damage


def positions(storage: Storage) -> list[tuple[Position, str]]:
    """Every checkpoint's position and folder, newest first; those of one position in the order of their names."""
    found = [(position, folder) for folder in storage.folders() if (position := parse(folder)) is not None]
    return sorted(sorted(found, key=lambda item: item[1]), key=lambda item: item[0], reverse=True)


def point(storage: Storage) -> None:
    """Let ``latest`` name the newest one. That this cannot be done is no harm: nothing that we read relies on it."""
    try:
        storage.point(positions(storage)[0][1])
    except OSError as error:
        logger.warning("%s could not be moved: %s. The checkpoint is there all the same.", storage.path(LATEST), error)


def entries(storage: Storage) -> list[Entry]:
    """Every checkpoint, newest first, looked at without reading its data."""
    return [entry(storage, folder, position) for position, folder in positions(storage)]


def entry(storage: Storage, folder: str, position: Position) -> Entry:
    """One checkpoint at first sight: its manifest and the sizes of its files."""
    try:
        manifest = read_manifest(storage, folder)
        if manifest.position != position:
            raise DamagedError(f"its manifest is that of {manifest.position}")
    except DamagedError as error:
        return Entry(folder, position, None, (("", str(error)),))
    damage = []
    present = {*storage.names(folder)}
    for name, expected in manifest.files.items():
        if name not in present:
            if not manifest.scattered:
                damage.append((name, f"{name} is missing"))
        elif (size := storage.size(f"{folder}/{name}")) != expected.size:
            damage.append((name, f"{name} has {size} bytes instead of {expected.size}"))
    return Entry(folder, position, manifest, tuple(damage))


def read_manifest(storage: Storage, folder: str) -> Manifest:
    """A checkpoint's list of contents.

    Raises:
        DamagedError: It is missing, or not as it was written.
    """
    try:
        with storage.read(f"{folder}/{manifests.NAME}") as file:
            return manifests.decode(file.read(manifests.LIMIT))
    except OSError as error:
        reason = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error}"
        raise DamagedError(f"its manifest {reason}") from error


def check(storage: Storage, path: str, expected: FileSum) -> str | None:
    """Read a whole file; what is wrong with it, or None."""
    name = path.rsplit("/", 1)[-1]
    digest, size = hashlib.sha256(), 0
    try:
        with storage.read(path) as file:
            while block := file.read(BLOCK):
                digest.update(block)
                size += len(block)
    except OSError as error:
        return f"{name} {'is missing' if isinstance(error, FileNotFoundError) else f'cannot be read: {error}'}"
    if size != expected.size:
        return f"{name} has {size} bytes instead of {expected.size}"
    return None if digest.hexdigest() == expected.sha256 else f"the checksum of {name} is wrong"


def as_checkpoint(storage: Storage, folder: str, manifest: Manifest) -> Checkpoint:
    """What users are told of it."""
    return Checkpoint(manifest.position, manifest.run_uid, folder, storage.path(folder), manifest.size)


def superfluous(found: Sequence[Entry], keep: int) -> list[str]:
    """The folders that may go: all that are older than the ``keep`` newest good ones. Pure.

    Damaged ones do not count, so that they never push out a good one, and go when they are that old.
    """
    good = [entry.position for entry in found if entry.good]
    if len(good) <= keep:
        return []
    oldest_kept = sorted(good, reverse=True)[keep - 1]
    return [entry.folder for entry in found if entry.position < oldest_kept]


def prune(storage: Storage, keep: int) -> None:
    """Remove what :func:`superfluous` says."""
    for folder in superfluous(entries(storage), keep):
        _remove(storage, folder, "old")


def _remove(storage: Storage, folder: str, which: str) -> None:
    """Failing to is no harm: the next one tries again."""
    try:
        storage.remove(folder)
    except OSError as error:
        logger.warning("The %s checkpoint %s could not be removed: %s", which, storage.path(folder), error)


def sweep(storage: Storage, turn: tuple[int, int]) -> None:
    """Remove what earlier turns left half-written; who still writes there would be refused anyway."""
    for folder in stale(storage.unfinished(), turn):
        _remove(storage, folder, "unfinished")


def stale(folders: Iterable[str], turn: tuple[int, int]) -> list[str]:
    """Of unfinished folders those of turns before this one, and what was being removed. Pure."""
    found = []
    for folder in folders:
        removing = folder.startswith(REMOVING)
        position = parse(folder.removeprefix(REMOVING if removing else STAGING))  # at a URL there is no prefix
        if position is not None and (removing or position.turn < turn):
            found.append(folder)
    return found
