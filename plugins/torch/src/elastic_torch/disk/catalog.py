"""What is in a checkpoint directory: which checkpoints there are, whether they are whole, and which may go."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from elastic_torch.disk import manifest as manifests
from elastic_torch.disk.manifest import DamagedError, FileSum, Manifest, UnknownFormatError
from elastic_torch.disk.retry import ONCE, Retry, opened
from elastic_torch.disk.storage import BLOCK, LATEST, REMOVING, STAGING, Storage
from elastic_torch.version import Checkpoint, Position, parse

logger = logging.getLogger("elastic_torch.disk")


@dataclass(frozen=True, slots=True)
class Fault:
    """What keeps a checkpoint from being loaded.

    Attributes:
        reason: What it is, for people.
        damaged: Whether what was read is not what was written. Else it could not be read, and may be intact.
    """

    reason: str
    damaged: bool = True


@dataclass(frozen=True, slots=True)
class Entry:
    """One folder that is named as a checkpoint is.

    Attributes:
        folder: Its name.
        position: What the name says.
        manifest: Its list of contents; None where that cannot be read.
        faults: What is wrong with it at first sight.
        here: Its files that are there, and of the right size.
    """

    folder: str
    position: Position
    manifest: Manifest | None
    faults: tuple[Fault, ...] = ()
    here: frozenset[str] = frozenset()

    @property
    def good(self) -> bool:
        """Whether it is whole at first sight; of a scattered one, whether what should be here is."""
        return self.manifest is not None and not self.faults


def positions(storage: Storage) -> list[tuple[Position, str]]:
    """Every checkpoint's position and folder, newest first; those of one position in the order of their names."""
    found = [(position, folder) for folder in storage.folders() if (position := parse(folder)) is not None]
    return sorted(sorted(found, key=lambda item: item[1]), key=lambda item: item[0], reverse=True)


def point(storage: Storage) -> None:
    """Let ``latest`` name the newest one. That this cannot be done is no harm: nothing that we load relies on it."""
    try:
        storage.point(next((folder for _, folder in positions(storage)), None))
    except OSError as error:
        logger.warning("%s could not be moved: %s. The checkpoint is there all the same.", storage.path(LATEST), error)


def entries(storage: Storage, retry: Retry = ONCE) -> list[Entry]:
    """Every checkpoint, newest first, looked at without reading its data.

    Raises:
        OSError: The directory cannot be listed.
    """
    return [entry(storage, folder, position, retry) for position, folder in retry(lambda: positions(storage))]


def entry(storage: Storage, folder: str, position: Position, retry: Retry = ONCE) -> Entry:
    """One checkpoint at first sight: its manifest and the sizes of its files."""
    try:
        manifest = read_manifest(storage, folder, retry)
        if manifest.position != position:
            raise DamagedError(f"its manifest is that of {manifest.position}")
        present = {*retry(lambda: storage.names(folder))}
        sizes = {name: retry(partial(storage.size, f"{folder}/{name}")) for name in {*manifest.files} & present}
    except (DamagedError, UnknownFormatError, OSError) as error:
        return Entry(folder, position, None, (Fault(str(error), damaged=isinstance(error, DamagedError)),))
    faults, here = [], set[str]()
    for name, expected in manifest.files.items():
        size = sizes.get(name)
        if size == expected.size:
            here.add(name)
        elif size is not None:
            faults.append(Fault(f"{name} has {size} bytes instead of {expected.size}"))
        elif not manifest.scattered:
            faults.append(Fault(f"{name} is missing"))
    return Entry(folder, position, manifest, tuple(faults), frozenset(here))


def read_manifest(storage: Storage, folder: str, retry: Retry = ONCE) -> Manifest:
    """Return a checkpoint's list of contents.

    Raises:
        DamagedError: It is missing, or not as it was written.
        UnknownFormatError: Another release has written it.
        OSError: It cannot be read.
    """
    try:
        with opened(storage, f"{folder}/{manifests.NAME}", retry) as file:
            return manifests.decode(file.read(manifests.LIMIT))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DamagedError("its manifest is missing") from error


def check(storage: Storage, path: str, expected: FileSum, retry: Retry = ONCE) -> Fault | None:
    """Read a whole file; what is wrong with it, or None."""
    name = path.rsplit("/", 1)[-1]
    digest, size, block = hashlib.sha256(), 0, bytearray(BLOCK)
    try:
        with opened(storage, path, retry) as file:
            while count := file.readinto(block):
                digest.update(memoryview(block)[:count])
                size += count
    except (FileNotFoundError, NotADirectoryError):
        return Fault(f"{name} is missing")
    except OSError as error:
        return Fault(f"{name}: {error}", damaged=False)
    if size != expected.size:
        return Fault(f"{name} has {size} bytes instead of {expected.size}")
    return None if digest.hexdigest() == expected.sha256 else Fault(f"the checksum of {name} is wrong")


def as_checkpoint(storage: Storage, folder: str, manifest: Manifest) -> Checkpoint:
    """Return the public description of a checkpoint."""
    return Checkpoint(manifest.position, manifest.run_uid, folder, storage.path(folder), manifest.size)


def superfluous(found: Sequence[Entry], keep: int, lineage: str) -> list[Entry]:
    """Return what may go: of this lineage all that is older than the ``keep`` newest good ones. Pure.

    Checkpoints of other and of unknown lineages never go: this training has not gone on from them. Damaged
    ones do not count, so that they never push out a good one.
    """
    ours = [entry for entry in found if entry.manifest is not None and entry.manifest.lineage == lineage]
    good = sorted((entry.position for entry in ours if entry.good), reverse=True)
    return [entry for entry in ours if entry.position < good[keep - 1]] if len(good) > keep else []


def prune(storage: Storage, keep: int, lineage: str) -> None:
    """Remove what is :func:`superfluous`; what is damaged of it is set aside."""
    for entry in superfluous(entries(storage), keep, lineage):
        if entry.good:
            _remove(storage, entry.folder, "old")
        else:
            set_aside(storage, entry.folder)


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
    """Remove a folder. A failure is only logged: the next save tries again."""
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
