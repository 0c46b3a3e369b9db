"""Which ranks see the same directory. Those that do are an island; with node-local directories each node is one.

It is tried and not guessed: each rank leaves a file, and looks whose files it sees.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from elastic_torch.disk.collective import Crew
from elastic_torch.disk.storage import LocalStorage, Storage

FOLDER = ".probe"


@dataclass(frozen=True, slots=True)
class Map:
    """Who sees what.

    Attributes:
        islands: The places in the crew by island, each in order; islands in the order of their first.
        mine: This process' island.
        first: Whether this process is its island's first.
    """

    islands: tuple[tuple[int, ...], ...]
    mine: int
    first: bool


def unknown(crew: Crew, storage: Storage) -> Map:
    """The map where nothing can be found out: each rank sees a directory of its own. At a URL all see the same."""
    if not isinstance(storage, LocalStorage):
        return Map((tuple(range(crew.size)),), 0, crew.leads)
    return Map(tuple((place,) for place in range(crew.size)), crew.place, True)


def discover(crew: Crew, storage: Storage, *, read_only: bool = False) -> Map:
    """Find out who sees the same directory. Collective.

    That takes writing. Who only reads does without, where it must: a rank that cannot write counts as one that sees its
    own directory.

    Raises:
        PeerFailedError: Some rank cannot write there.
    """
    if crew.size == 1 or not isinstance(storage, LocalStorage):
        return unknown(crew, storage)
    nonce = crew.lead(lambda: secrets.token_hex(6))
    mine = f"{FOLDER}/{nonce}-{crew.place}"

    def leave() -> bool:
        try:
            storage.make(FOLDER)
            storage.put(mine, b"")
        except Exception:
            if not read_only:
                raise
            return False
        return True

    def look() -> int:
        if not able[crew.place]:
            return crew.place
        prefix = f"{nonce}-"
        return min(int(name.removeprefix(prefix)) for name in storage.names(FOLDER) if _is_probe(name, prefix))

    try:
        able = crew.agree(leave)
        return chart(crew.agree(look), crew.place)
    finally:
        with contextlib.suppress(OSError):
            storage.unlink(mine)


def chart(sights: Sequence[int], place: int) -> Map:
    """The map, from the smallest place whose file each one sees. Pure."""
    firsts = sorted({*sights})
    islands = tuple(tuple(i for i, seen in enumerate(sights) if seen == first) for first in firsts)
    mine = firsts.index(sights[place])
    return Map(islands, mine, islands[mine][0] == place)


def _is_probe(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and name.removeprefix(prefix).isdecimal()
