"""Loading by all ranks: they find the newest checkpoint that is intact anywhere, and all get it.

With one directory for all that is a look into it. With a directory for each node, the ranks tell each other what they
have, agree on the newest checkpoint that can be put together, and send what is missing over the process group.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch

from elastic_torch.disk import catalog
from elastic_torch.disk.catalog import Damage, Holding
from elastic_torch.disk.collective import Collective, PeerFailedError, SharedDirs
from elastic_torch.disk.errors import CheckpointLoadError
from elastic_torch.disk.manifest import NAME, FileSum, Manifest, encode
from elastic_torch.disk.retry import Retry, opened
from elastic_torch.disk.storage import LATEST, Storage, created
from elastic_torch.version import Checkpoint, Position, parse

logger = logging.getLogger("elastic_torch.disk")
CHUNK = 16 << 20  # bytes that are sent at once
READERS = 4  # files that a rank checks at the same time
SHOWN = 8  # missing files that are named


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of ``Disk.load``."""

    checkpoint: Checkpoint  # which checkpoint
    state: dict[str, Any]  # the state dict: what was given, filled; or all that was saved
    damage: tuple[Damage, ...]  # what was found damaged, in newer checkpoints and in copies of this one, on any node


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A checkpoint that every directory can have whole."""

    assembly: Assembly | None  # how
    mine: Holding | None  # this directory's own part of it, if it has one
    damage: tuple[Damage, ...]  # what was found wrong on the way to it, anywhere
    aside: tuple[str, ...] = ()  # this directory's damaged folders, this checkpoint's not among them
    passed: bool = False  # whether there is a newer one, anywhere, that was not found damaged, and yet cannot be loaded


@dataclass(frozen=True, slots=True)
class Loader:
    """One rank's part in loading. Read errors that may pass are tried again for ``patience`` seconds."""

    storage: Storage
    everyone: Collective
    shared_dirs: SharedDirs
    patience: float

    def find(self, *, verify: bool = True) -> FoundCheckpoint:
        """Return the newest checkpoint that is intact, or can be put together. Collective.

        What could not be read gets another chance in the end, since it would cost the steps since an older one: the
        error may have passed, or a saver may have removed the checkpoint meanwhile. Without ``verify`` names and sizes
        are believed.
        """
        found = self._look(verify, Retry(self.patience))
        if found.passed or (found.assembly is None and found.damage):
            found = self._look(verify, Retry(0))
        if self.everyone.leads and found.assembly is not None:
            for item in found.damage:
                logger.warning("%s Taken instead: that of step %d.", item, found.assembly.manifest.position.step)
        return found

    def _look(self, verify: bool, retry: Retry) -> FoundCheckpoint:
        listed, damage = self._listed(retry) if self.shared_dirs.first else ([], [])
        offered = self.everyone.agree(lambda: {holding.position: holding for holding in reversed(listed)})
        for position in sorted({position for offer in offered for position in offer}, reverse=True):
            offers = [offered[places[0]].get(position) for places in self.shared_dirs.directories]
            holdings = {directory: found for directory, found in enumerate(offers) if found is not None}
            if verify and assemble(holdings, len(self.shared_dirs.directories)) is not None:
                holdings = self._verified(holdings, damage, retry)
            assembly = assemble(holdings, len(self.shared_dirs.directories))
            if assembly is not None:
                return self._found(assembly, holdings.get(self.shared_dirs.mine), damage)
            if (lost := self._lost(position, holdings)) is not None:
                damage.append(lost)
        return self._found(None, None, damage)

    def _listed(self, retry: Retry) -> tuple[list[Holding], list[Damage]]:
        """Return what is in this rank's directory, and what is wrong with it at first sight."""
        try:
            listed, damage = catalog.holdings(self.storage, retry)
            pointed = None if listed or damage else retry(self.storage.pointed)
        except OSError as error:
            return [], [Damage(self.storage.root, f"cannot be listed: {error}", "unread")]
        if pointed is not None:
            gone = f"names {pointed}, which is not there, nor is any other checkpoint"
            return [], [Damage(self.storage.path(LATEST), gone, "unread")]
        return listed, damage

    def _verified(self, holdings: dict[int, Holding], damage: list[Damage], retry: Retry) -> dict[int, Holding]:
        """Return the holdings without files of a wrong checksum; each rank reads a part of its directory's files."""
        mine = holdings.get(self.shared_dirs.mine)
        wrong: dict[str, Damage] = {}
        if mine is not None:
            ranks = self.shared_dirs.directories[self.shared_dirs.mine]
            names = _share(mine, ranks.index(self.everyone.place), len(ranks))

            def check(name: str) -> Damage | None:
                return catalog.check(self.storage, mine.folder, name, mine.manifest.files[name], retry)

            with ThreadPoolExecutor(READERS) as readers:  # sums are made without Python's lock
                faults = list(readers.map(check, names))
            wrong = {name: fault for name, fault in zip(names, faults, strict=True) if fault is not None}
            damage.extend(wrong.values())
        reports = self.everyone.agree(lambda: (self.shared_dirs.mine, frozenset(wrong)))
        bad = {i: frozenset().union(*(names for directory, names in reports if directory == i)) for i in holdings}
        return {i: replace(holding, intact=holding.intact - bad[i]) for i, holding in holdings.items()}

    def _lost(self, position: Position, holdings: dict[int, Holding]) -> Damage | None:
        """Return what the first rank says of a scattered checkpoint that is not complete on the nodes that are here."""
        folder, manifest = next((holding.folder, holding.manifest) for holding in holdings.values())
        if not (self.everyone.leads and manifest.scattered):
            return None
        there = frozenset().union(*(h.intact for h in holdings.values() if h.manifest.save_id == manifest.save_id))
        names = sorted({*manifest.files} - there)
        text = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
        reason = f"no node that is here has {text} intact"
        return Damage(self.storage.path(folder), reason, "incomplete", position)

    def _found(self, assembly: Assembly | None, mine: Holding | None, damage: Sequence[Damage]) -> FoundCheckpoint:
        """Make the result; all ranks get the same, but for what concerns this directory alone."""
        parts = self.everyone.gather((self.shared_dirs.mine, tuple(damage)))
        everything = tuple(item for _, part in parts for item in part)
        taken = None if assembly is None else assembly.manifest.position
        passed = any(
            item.kind != "damaged" and (taken is None or item.position is None or item.position > taken)
            for item in everything
        )
        known = {item.position for item in everything if item.kind != "incomplete"}
        told = tuple(item for item in everything if item.kind != "incomplete" or item.position not in known)
        aside = {
            item.where.rsplit("/", 1)[-1]
            for directory, part in parts
            for item in part
            if directory == self.shared_dirs.mine and item.kind == "damaged" and item.position != taken
        }
        return FoundCheckpoint(assembly, mine, told, tuple(sorted(aside)), passed)

    def fetch(self, found: FoundCheckpoint) -> tuple[Checkpoint, Manifest]:
        """Let this directory have the whole checkpoint; raise CheckpointLoadError if there is no room. Collective."""
        assembly = found.assembly
        assert assembly is not None
        try:
            folder, manifest = self._fetch(assembly, found.mine)
        except PeerFailedError as error:
            step = assembly.manifest.position.step
            raise CheckpointLoadError(
                f"The checkpoint of step {step} could not be brought to every node: {error}.",
                hint="Every node's directory needs room for a whole checkpoint.",
            ) from error
        return catalog.as_checkpoint(self.storage, folder, manifest), manifest

    def _fetch(self, assembly: Assembly, mine: Holding | None) -> tuple[str, Manifest]:
        lacks = assembly.needs.get(self.shared_dirs.mine)
        receives = lacks is not None and self.shared_dirs.first
        staging = self.storage.staging(str(assembly.manifest.position), secrets.token_hex(4))
        late: list[OSError] = []
        """Errors are raised in the end, since a rank that left in the middle would block the others."""
        if receives:
            with _put_off(late):
                self.storage.make(staging)
                for name in {*assembly.manifest.files} - (lacks or set()):
                    assert mine is not None
                    self.storage.adopt(f"{mine.folder}/{name}", f"{staging}/{name}")
        for name, directory in assembly.sends:
            target = f"{staging}/{name}" if receives and name in (lacks or ()) else None
            self._pass_on(name, directory, assembly, target, late)

        def finish() -> str | None:
            try:
                for error in late:
                    raise error
                return self._publish(staging, assembly.manifest, mine) if receives else None
            except BaseException:
                if receives:
                    self.storage.remove(staging)
                raise

        folders = self.everyone.agree(finish)
        if lacks is None:
            assert mine is not None
            return mine.folder, mine.manifest
        return folders[self.shared_dirs.directories[self.shared_dirs.mine][0]] or "", assembly.manifest

    def _pass_on(self, name: str, directory: int, assembly: Assembly, target: str | None, late: list[OSError]) -> None:
        """Broadcast one file, into ``target`` where this rank receives it.

        For what cannot be read zeros are sent: receivers compare sums, and publish nothing.
        """
        source = self.shared_dirs.directories[directory][0]
        expected, sums = assembly.manifest.files[name], dict[str, FileSum]()
        with _put_off(late), contextlib.ExitStack() as stack:
            move: Callable[[memoryview], object] | None = None
            with _put_off(late):
                if self.everyone.place == source:
                    path = f"{assembly.folder}/{name}"
                    move = stack.enter_context(opened(self.storage, path, Retry(self.patience), checked=True)).readinto
                elif target is not None and not late:
                    move = stack.enter_context(created(self.storage, target, sums)).write
            for start in range(0, expected.size, CHUNK):
                buffer = torch.zeros(min(CHUNK, expected.size - start), dtype=torch.uint8)
                if self.everyone.place != source:
                    self.everyone.send(buffer, source)
                if move is not None:
                    with _put_off(late):
                        move(buffer.numpy().data)
                    move = None if late else move
                if self.everyone.place == source:
                    self.everyone.send(buffer, source)
            if target is not None and late:
                raise late[0]  # what has been written goes
        if target is not None and not late and sums[name] != expected:
            late.append(OSError(f"{name} did not arrive as it was sent"))

    def _publish(self, staging: str, manifest: Manifest, mine: Holding | None) -> str:
        """Publish a folder in place of what is there, whose intact files are in it; its name."""
        intact = frozenset() if mine is None else mine.intact
        self.storage.put(f"{staging}/{NAME}", encode(manifest))
        for folder in self.storage.folders():
            if parse(folder) != manifest.position or folder == staging:
                continue
            others = {*self.storage.names(folder)} - intact - {NAME}
            if not others or not catalog.set_aside(self.storage, folder):
                self.storage.remove(folder)
        with self.storage.guard() as locked:
            folder = self.storage.publish(staging, str(manifest.position))
            if locked:
                catalog.point(self.storage)
        return folder


@contextlib.contextmanager
def _put_off(errors: list[OSError]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        errors.append(error)


def _share(holding: Holding, place: int, ranks: int) -> list[str]:
    """Return the files that one of several ranks reads: the largest first, dealt out in turn. Pure."""
    names = sorted(holding.intact, key=lambda name: (-holding.manifest.files[name].size, name))
    return names[place::ranks]


@dataclass(frozen=True, slots=True)
class Assembly:
    """The copies that give every directory the whole checkpoint."""

    manifest: Manifest  # of the save that directories without a whole one of their own get
    folder: str  # its folder, where it is
    sends: tuple[tuple[str, int], ...]
    """The files that go round, each with the directory that has it; in an order that all share."""
    needs: Mapping[int, frozenset[str]]  # by directory, which of them it lacks


def assemble(holdings: Mapping[int, Holding], directories: int) -> Assembly | None:
    """Return how all directories get what some have; None where no save can be put together.

    Islands with a whole checkpoint keep their own, though another save of the same position may differ in its files:
    what was trained is the same.
    """
    lacking = [i for i in range(directories) if i not in holdings or not holdings[i].whole]
    saves: dict[str, dict[int, Holding]] = {}
    for directory in sorted(holdings):
        saves.setdefault(holdings[directory].manifest.save_id, {})[directory] = holdings[directory]
    complete = {
        save_id: parts
        for save_id, parts in saves.items()
        if frozenset().union(*(part.intact for part in parts.values())) >= {*_first(parts).manifest.files}
    }
    if not complete:
        return None
    save_id = min(complete, key=lambda name: (-len(complete[name]), name))
    parts = complete[save_id]
    chosen = _first(parts)
    names = {*chosen.manifest.files}
    needs = {i: frozenset(names - parts[i].intact if i in parts else names) for i in lacking}
    wanted = sorted({name for lacks in needs.values() for name in lacks})
    sends = tuple((name, min(i for i, part in parts.items() if name in part.intact)) for name in wanted)
    return Assembly(chosen.manifest, chosen.folder, sends, needs)


def _first(parts: Mapping[int, Holding]) -> Holding:
    return parts[min(parts)]
