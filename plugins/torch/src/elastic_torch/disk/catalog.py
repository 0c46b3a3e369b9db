"""The contents of a checkpoint directory: its checkpoints, whether they are whole, and which may go."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from elastic_torch.disk import manifest as manifests
from elastic_torch.disk.manifest import DamagedError, FileSum, Manifest, UnknownFormatError
from elastic_torch.disk.retry import ONCE, Retry, opened
from elastic_torch.disk.storage import BLOCK, LATEST, REMOVING, STAGING, Storage
from elastic_torch.version import Checkpoint, Position, parse

logger = logging.getLogger("elastic_torch.disk")


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong, and in which checkpoint."""

    where: str  # the checkpoint, as a path or URL
    reason: str  # what is wrong
    kind: Literal["damaged", "unread", "incomplete"] = "damaged"
    """It is not what was written; or could not be read, and may be intact; or is on none of the nodes that are here."""
    position: Position | None = None  # the checkpoint's; None where it is not about one

    def __str__(self) -> str:
        if self.position is None:
            return f"{self.where} {self.reason}."
        state = {"damaged": "is damaged", "unread": "could not be read", "incomplete": "is incomplete"}[self.kind]
        return f"The checkpoint {self.where} {state}: {self.reason}."


@dataclass(frozen=True, slots=True)
class Holding:
    """The files of a checkpoint in one directory."""

    folder: str  # its folder there
    manifest: Manifest  # its list of contents
    intact: frozenset[str]  # the names of its files that are there, and as they should be as far as is known
    faults: tuple[Damage, ...] = ()  # what is wrong with it at first sight

    @property
    def position(self) -> Position:
        """Its place in the order of all checkpoints."""
        return self.manifest.position

    @property
    def whole(self) -> bool:
        """True if no file is missing; of a scattered one, files that other directories have are."""
        return self.intact >= {*self.manifest.files}


def positions(storage: Storage) -> list[tuple[Position, str]]:
    """Return every checkpoint's position and folder, newest first; those of one position by their names."""
    found = [(position, folder) for folder in storage.folders() if (position := parse(folder)) is not None]
    return sorted(sorted(found, key=lambda item: item[1]), key=lambda item: item[0], reverse=True)


def point(storage: Storage) -> None:
    """Let ``latest`` name the newest one. That this cannot be done is no harm: nothing that we load relies on it."""
    try:
        storage.point(next((folder for _, folder in positions(storage)), None))
    except OSError as error:
        logger.warning("%s could not be moved: %s. The checkpoint is there all the same.", storage.path(LATEST), error)


def holdings(storage: Storage, retry: Retry = ONCE) -> tuple[list[Holding], list[Damage]]:
    """Return every checkpoint with a readable manifest, newest first, and all damage seen without reading the data.

    Raises OSError where the directory cannot be listed.
    """
    found, damage = [], []
    for position, folder in retry(lambda: positions(storage)):
        seen = _look(storage, folder, position, retry)
        if isinstance(seen, Damage):
            damage.append(seen)
        else:
            found.append(seen)
            damage.extend(seen.faults)
    return found, damage


def _look(storage: Storage, folder: str, position: Position, retry: Retry) -> Holding | Damage:
    """Return one checkpoint at first sight: its manifest and the sizes of its files."""
    try:
        manifest = read_manifest(storage, folder, retry)
        if manifest.position != position:
            raise DamagedError(f"its manifest is that of {manifest.position}")
        present = {*retry(lambda: storage.names(folder))}
        sizes = {name: retry(partial(storage.size, f"{folder}/{name}")) for name in {*manifest.files} & present}
    except (DamagedError, UnknownFormatError, OSError) as error:
        return _damage(storage, folder, str(error), "damaged" if isinstance(error, DamagedError) else "unread")
    faults, intact = [], set[str]()
    for name, expected in manifest.files.items():
        size = sizes.get(name)
        if size == expected.size:
            intact.add(name)
        elif size is not None:
            faults.append(_damage(storage, folder, f"{name} has {size} bytes instead of {expected.size}"))
        elif not manifest.scattered:
            faults.append(_damage(storage, folder, f"{name} is missing"))
    return Holding(folder, manifest, frozenset(intact), tuple(faults))


def _damage(storage: Storage, folder: str, reason: str, kind: Literal["damaged", "unread"] = "damaged") -> Damage:
    return Damage(storage.path(folder), reason, kind, parse(folder))


def read_manifest(storage: Storage, folder: str, retry: Retry = ONCE) -> Manifest:
    """Return a list of contents; raise what ``decode`` does, DamagedError also if it is missing, or OSError."""
    try:
        with opened(storage, f"{folder}/{manifests.NAME}", retry) as file:
            return manifests.decode(file.read(manifests.LIMIT))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DamagedError("its manifest is missing") from error


def check(storage: Storage, folder: str, name: str, expected: FileSum, retry: Retry = ONCE) -> Damage | None:
    """Read a whole file of a checkpoint; what is wrong with it, or None."""
    digest, size, block = hashlib.sha256(), 0, bytearray(BLOCK)
    try:
        with opened(storage, f"{folder}/{name}", retry) as file:
            while count := file.readinto(block):
                digest.update(memoryview(block)[:count])
                size += count
    except (FileNotFoundError, NotADirectoryError):
        return _damage(storage, folder, f"{name} is missing")
    except OSError as error:
        return _damage(storage, folder, f"{name}: {error}", "unread")
    if size != expected.size:
        return _damage(storage, folder, f"{name} has {size} bytes instead of {expected.size}")
    if digest.hexdigest() != expected.sha256:
        return _damage(storage, folder, f"the checksum of {name} is wrong")
    return None


def as_checkpoint(storage: Storage, folder: str, manifest: Manifest) -> Checkpoint:
    """Return the public description of a checkpoint."""
    return Checkpoint(manifest.position, manifest.run_uid, folder, storage.path(folder), manifest.size)


def superfluous(found: Sequence[Holding], keep: int, lineage: str) -> list[Holding]:
    """Return what may go: of this lineage all that is older than the ``keep`` newest good ones. Pure.

    Checkpoints of other and of unknown lineages never go: this training has not gone on from them. Damaged
    ones do not count, so that they never push out a good one.
    """
    ours = [holding for holding in found if holding.manifest.lineage == lineage]
    good = sorted((holding.position for holding in ours if not holding.faults), reverse=True)
    return [holding for holding in ours if holding.position < good[keep - 1]] if len(good) > keep else []


def prune(storage: Storage, keep: int, lineage: str) -> None:
    """Remove what is :func:`superfluous`; what is damaged of it is set aside. Errors are logged, and harm nothing."""
    try:
        found, _ = holdings(storage)
    except OSError as error:
        logger.warning("Old checkpoints in %s could not be removed: %s", storage.root, error)
        return
    for holding in superfluous(found, keep, lineage):
        if holding.faults:
            set_aside(storage, holding.folder)
        else:
            _remove(storage, holding.folder, "old")


def set_aside(storage: Storage, folder: str) -> bool:
    """Move a damaged checkpoint to the folder ``damaged``; whether it is gone from its place."""
    try:
        there = storage.set_aside(folder)
    except OSError as error:
        logger.warning("The damaged checkpoint %s stays where it is: %s", storage.path(folder), error)
        return False
    if there is None:
        return False
    logger.warning("The damaged checkpoint %s is kept as %s. Nothing removes it.", storage.path(folder), there)
    return True


def _remove(storage: Storage, folder: str, which: str) -> None:
    try:
        storage.remove(folder)
    except OSError as error:
        logger.warning("The %s checkpoint %s could not be removed: %s", which, storage.path(folder), error)


def sweep(storage: Storage, turn: tuple[int, int]) -> None:
    """Remove what earlier turns left half-written; who still writes there would be refused anyway."""
    for folder in stale(storage.unfinished(), turn):
        _remove(storage, folder, "unfinished")


def stale(folders: Iterable[str], turn: tuple[int, int]) -> list[str]:
    """Return the unfinished folders of turns before this one, and those that were being removed. Pure."""
    found = []
    for folder in folders:
        removing = folder.startswith(REMOVING)
        position = parse(folder.removeprefix(REMOVING if removing else STAGING))  # at a URL there is no prefix
        if position is not None and (removing or position.turn < turn):
            found.append(folder)
    return found
