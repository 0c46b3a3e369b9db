"""How the ranks find the newest checkpoint that is intact anywhere, and how all get it.

With one directory for all that is a look into it. With a directory for each node, the ranks tell each other what they
have, agree on the newest checkpoint that can be put together, and send what is missing over the process group.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import IO

import torch

from elastic_torch.disk import catalog
from elastic_torch.disk.assembly import Assembly, Holding, assemble, newest_first
from elastic_torch.disk.crew import Crew, PeerFailedError
from elastic_torch.disk.errors import CheckpointLoadError
from elastic_torch.disk.islands import Map
from elastic_torch.disk.manifest import Manifest
from elastic_torch.disk.position import Checkpoint, Position
from elastic_torch.disk.receiving import Receiver
from elastic_torch.disk.storage import Storage

logger = logging.getLogger("elastic_torch.disk")
CHUNK = 16 << 20
"""Bytes that are sent at once."""
READERS = 4
"""Files that a rank checks at the same time."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong, and in which checkpoint."""

    where: str
    reason: str

    def __str__(self) -> str:
        return f"The checkpoint {self.where} is damaged: {self.reason}."


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint that every island can have whole.

    Attributes:
        assembly: How.
        mine: This island's own part of it, if it has one.
        damage: What was found wrong on the way to it, anywhere.
    """

    assembly: Assembly | None
    mine: Holding | None
    damage: tuple[Damage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """One rank's part in loading.

    Attributes:
        storage: This rank's directory.
        everyone: All ranks.
        chart: Who of them sees the same directory.
    """

    storage: Storage
    everyone: Crew
    chart: Map

    def find(self, *, verify: bool = True) -> Found:
        """The newest checkpoint that is intact, or can be put together. Collective.

        Args:
            verify: Read all of it, and compare checksums; else believe names and sizes.
        """
        listed = catalog.entries(self.storage) if self.chart.first else []
        damage = [self._damage(entry.folder, reason) for entry in listed for _, reason in entry.damage]
        offered = self.everyone.agree(lambda: {e.position: e for e in reversed(listed) if e.manifest is not None})
        for position in newest_first([position for offer in offered for position in offer]):
            holdings = {}
            for island, places in enumerate(self.chart.islands):
                entry = offered[places[0]].get(position)
                if entry is not None and entry.manifest is not None:
                    holdings[island] = Holding(entry.folder, entry.manifest, entry.here)
            if verify and assemble(holdings, len(self.chart.islands)) is not None:
                holdings = self._verified(holdings, damage)
            assembly = assemble(holdings, len(self.chart.islands))
            if assembly is not None:
                mine = holdings.get(self.chart.mine)
                return Found(assembly, mine, self._told(position, damage))
        return Found(None, None, self._told(None, damage))

    def _verified(self, holdings: dict[int, Holding], damage: list[Damage]) -> dict[int, Holding]:
        """The same, without the files whose contents are wrong. Each rank reads a part of what its island has."""
        mine = holdings.get(self.chart.mine)
        wrong: dict[str, str] = {}
        if mine is not None:
            ranks = self.chart.islands[self.chart.mine]
            names = _share(mine, ranks.index(self.everyone.place), len(ranks))

            def check(name: str) -> str | None:
                return catalog.check(self.storage, f"{mine.folder}/{name}", mine.manifest.files[name])

            with ThreadPoolExecutor(READERS) as readers:  # sums are made without Python's lock
                reasons = list(readers.map(check, names))
            for name, reason in zip(names, reasons, strict=True):
                if reason is not None:
                    wrong[name] = reason
                    damage.append(self._damage(mine.folder, reason))
        reports = self.everyone.agree(lambda: (self.chart.mine, frozenset(wrong)))
        bad = {i: frozenset().union(*(names for island, names in reports if island == i)) for i in holdings}
        return {i: replace(holding, intact=holding.intact - bad[i]) for i, holding in holdings.items()}

    def _damage(self, folder: str, reason: str) -> Damage:
        return Damage(self.storage.path(folder), reason)

    def _told(self, found: Position | None, damage: Iterable[Damage]) -> tuple[Damage, ...]:
        """Warn of all that is damaged, wherever it was found; the same for everybody."""
        everything = tuple(item for part in self.everyone.gather(tuple(damage)) for item in part)
        if self.everyone.leads:
            for item in everything:
                instead = "No other one is there" if found is None else f"Taken instead: that of step {found.step}"
                logger.warning("%s %s.", item, instead)
        return everything

    def fetch(self, found: Found) -> Checkpoint:
        """Let this island have the whole checkpoint. Collective.

        Raises:
            CheckpointLoadError: There is no room for it somewhere.
        """
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
        return catalog.as_checkpoint(self.storage, folder, manifest)

    def _fetch(self, assembly: Assembly, mine: Holding | None) -> tuple[str, Manifest]:
        lacks = assembly.needs.get(self.chart.mine)
        receiver = None
        if lacks is not None and self.chart.first:
            receiver = Receiver(self.storage, assembly, lacks, mine)
        for name, island in assembly.sends:
            self._pass_on(name, island, assembly, receiver if receiver is not None and name in receiver.lacks else None)
        folders = self.everyone.agree(lambda: receiver.finish() if receiver is not None else None)
        if lacks is None:
            assert mine is not None
            return mine.folder, mine.manifest
        return folders[self.chart.islands[self.chart.mine][0]] or "", assembly.manifest

    def _pass_on(self, name: str, island: int, assembly: Assembly, receiver: Receiver | None) -> None:
        """Send one file to everybody. Errors wait: nobody may leave the others alone in the middle of it."""
        source = self.chart.islands[island][0]
        size = assembly.manifest.files[name].size
        file = _File(self.storage, f"{assembly.folder}/{name}") if self.everyone.place == source else None
        if receiver is not None:
            receiver.begin(name)
        for start in range(0, size, CHUNK):
            buffer = torch.zeros(min(CHUNK, size - start), dtype=torch.uint8)
            if file is not None:
                file.read_into(buffer.numpy().data)
            self.everyone.send(buffer, source)
            if receiver is not None:
                receiver.take(buffer.numpy().data)
        if file is not None:
            file.close()
        if receiver is not None:
            receiver.end(name)


class _File:
    """A file to be sent. What cannot be read is sent as zeros: the receiver compares sums, and names it."""

    def __init__(self, storage: Storage, path: str) -> None:
        self._file: IO[bytes] | None = None
        with contextlib.suppress(OSError):
            self._file = storage.read(path, checked=True)

    def read_into(self, buffer: memoryview) -> None:
        """Fill the buffer with what comes next."""
        start = 0
        with contextlib.suppress(OSError):
            while self._file is not None and start < len(buffer) and (data := self._file.read(len(buffer) - start)):
                buffer[start : start + len(data)] = data
                start += len(data)

    def close(self) -> None:
        """Close it."""
        if self._file is not None:
            self._file.close()


def _share(holding: Holding, place: int, ranks: int) -> list[str]:
    """The files that one of several ranks reads: the largest first, dealt out in turn. Pure."""
    names = sorted(holding.intact, key=lambda name: (-holding.manifest.files[name].size, name))
    return names[place::ranks]
