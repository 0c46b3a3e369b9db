"""Which ranks see the same directory: all of them, or with node-local directories those of one node.

They find out by trying: each rank leaves a file, and looks whose files it sees.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from elastic_torch.disk.collective import Collective
from elastic_torch.disk.storage import LocalStorage, Storage

FOLDER = ".probe"


@dataclass(frozen=True, slots=True)
class SharedDirs:
    """Which ranks see which directory."""

    directories: tuple[tuple[int, ...], ...]
    """By directory, the places in the collective of the ranks that see it; ordered by the first one."""
    mine: int  # the number of this process' directory
    first: bool  # whether this process is its directory's first


def unknown(collective: Collective, storage: Storage) -> SharedDirs:
    """Return what holds without a test: each rank sees another directory; at a URL all see the same one."""
    sights = range(collective.size) if isinstance(storage, LocalStorage) else [0] * collective.size
    return shared_dirs_of(sights, collective.place)


def discover(collective: Collective, storage: Storage, *, read_only: bool = False) -> SharedDirs:
    """Find out which ranks see the same directory. Collective.

    Each rank writes a file. With ``read_only`` a rank that cannot write counts as the only one that sees its directory.

    Raises:
        PeerFailedError: Some rank cannot write there.
    """
    if collective.size == 1 or not isinstance(storage, LocalStorage):
        return unknown(collective, storage)
    nonce = collective.lead(lambda: secrets.token_hex(6))
    mine = f"{FOLDER}/{nonce}-{collective.place}"

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
        if not able[collective.place]:
            return collective.place
        places = [name.removeprefix(f"{nonce}-") for name in storage.names(FOLDER)]
        return min(int(place) for place in places if place.isdecimal())

    try:
        able = collective.agree(leave)
        return shared_dirs_of(collective.agree(look), collective.place)
    finally:
        with contextlib.suppress(OSError):
            storage.unlink(mine)


def shared_dirs_of(sights: Sequence[int], place: int) -> SharedDirs:
    """Return the map, from the smallest place whose file each one sees. Pure."""
    firsts = sorted({*sights})
    directories = tuple(tuple(i for i, seen in enumerate(sights) if seen == first) for first in firsts)
    mine = firsts.index(sights[place])
    return SharedDirs(directories, mine, directories[mine][0] == place)
