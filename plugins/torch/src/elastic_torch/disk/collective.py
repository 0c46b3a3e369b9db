"""Calls of several ranks together, which fail together, too; and which of the ranks see the same directory."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from elastic_torch.disk.errors import CheckpointError
from elastic_torch.disk.storage import LocalStorage, Storage

T = TypeVar("T")
TIMEOUT = timedelta(hours=2)  # for the slowest writer; a peer that dies is noticed at once, by its connection
_PROBES = ".probe"  # the folder in which ranks leave files for each other


@dataclass(frozen=True, slots=True)
class _Failure:
    error: Exception
    code: int | None = None  # the system's number of it

    def __reduce__(self) -> tuple[Any, ...]:
        # Not every exception can be pickled; what others need of it is its text.
        error = self.error if isinstance(self.error, CheckpointError) else OSError(_line(self.error))
        return _Failure, (error, self.code)


class PeerFailedError(Exception):
    """Something failed on one rank or more; the message lists rank and reason.

    Attributes:
        codes: The system's numbers of the errors; None for those of something else.
    """

    def __init__(self, message: str, codes: frozenset[int | None] = frozenset()) -> None:
        super().__init__(message)
        self.codes = codes


class Collective:
    """Some ranks of the job, or this process alone.

    ``ranks`` are global, in order; the first one leads. Only one thread uses the ``group``, which a single rank lacks.
    """

    def __init__(self, ranks: Sequence[int], group: dist.ProcessGroup | None, rank: int) -> None:
        self.ranks = tuple(ranks)
        self.size = len(self.ranks)
        self.group = group if len(self.ranks) > 1 else None
        self.place = self.ranks.index(rank)  # this process' place in the collective, from 0
        self.leads = self.place == 0

    def gather(self, value: T) -> list[T]:
        """Give each rank the values of all ranks, in the order of ranks."""
        if self.group is None:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.group)
        return cast(list[T], found)

    def agree(self, act: Callable[[], T]) -> list[T]:
        """Call a function on each rank; each rank gets the results of all, which should be small.

        Raises:
            CheckpointError: The first of those that were raised, as it is.
            PeerFailedError: Something else was raised on some rank; names all of them.
        """
        outcome = _try(act)
        return self._all_well(self.gather(outcome), outcome)

    def collect(self, act: Callable[[], T]) -> list[T]:
        """Call a function on each rank; the first rank gets all results. Raises what :meth:`agree` does."""
        outcome = _try(act)
        if self.group is None:
            return self._all_well([outcome], outcome)
        found: list[Any] = [None] * self.size
        dist.gather_object(outcome, found if self.leads else None, dst=self.ranks[0], group=self.group)
        failed = self.lead(lambda: [item if isinstance(item, _Failure) else None for item in found])
        self._all_well(failed, outcome)
        return cast(list[T], found) if self.leads else []

    def lead(self, act: Callable[[], T]) -> T:
        """Call a function on the first rank; each rank gets its result. Raises what :meth:`agree` does."""
        outcome = _try(act) if self.leads else None
        box = [outcome]
        if self.group is not None:
            dist.broadcast_object_list(box, src=self.ranks[0], group=self.group)
        return cast(T, self._all_well(box, outcome)[0])

    def deal(self, act: Callable[[], list[T]]) -> T:
        """Call a function on the first rank; each rank gets its item of the result. Raises what :meth:`agree` does."""
        made: list[T] = []
        self.lead(lambda: made.extend(act()))
        if self.group is None:
            return made[0]
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, made if self.leads else None, src=self.ranks[0], group=self.group)
        return cast(T, mine[0])

    def _all_well(self, outcomes: Sequence[Any], mine: Any) -> list[Any]:
        failures = {self.ranks[i]: item for i, item in enumerate(outcomes) if isinstance(item, _Failure)}
        if not failures:
            return list(outcomes)
        for item in failures.values():
            if isinstance(item.error, CheckpointError):
                raise item.error
        text = "; ".join(f"rank {rank}: {_line(item.error)}" for rank, item in failures.items())
        cause = mine.error if isinstance(mine, _Failure) else None
        raise PeerFailedError(text, frozenset(item.code for item in failures.values())) from cause

    def send(self, data: torch.Tensor, source: int) -> None:
        """Broadcast from the rank at this place: into a tensor of uint8 that has the same length on all ranks."""
        if self.group is not None:
            dist.broadcast(data, src=self.ranks[source], group=self.group)


def _try(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except Exception as error:
        return _Failure(error, error.errno if isinstance(error, OSError) else None)


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, OSError) and text else f"{type(error).__name__}: {text}"


def collective_of(ranks: Sequence[int] | None) -> Collective:
    """Return a collective of these global ranks, which all call this in one order; or of this process alone."""
    if ranks is None:
        return Collective([0], None, 0)
    group = dist.new_group(list(ranks), timeout=TIMEOUT, backend="gloo", use_local_synchronization=True)
    return Collective(ranks, group, dist.get_rank())


@dataclass(frozen=True, slots=True)
class SharedDirs:
    """Which ranks see the same directory: all of them, or with node-local directories those of one node."""

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

    Each rank leaves a file, and looks whose files it sees. With ``read_only`` a rank that cannot write counts as the
    only one that sees its directory. Raises PeerFailedError where some rank cannot write there.
    """
    if collective.size == 1 or not isinstance(storage, LocalStorage):
        return unknown(collective, storage)
    nonce = collective.lead(lambda: secrets.token_hex(6))
    mine = f"{_PROBES}/{nonce}-{collective.place}"

    def leave() -> bool:
        try:
            storage.make(_PROBES)
            storage.put(mine, b"")
        except Exception:
            if not read_only:
                raise
            return False
        return True

    def look() -> int:
        if not able[collective.place]:
            return collective.place
        places = [name.removeprefix(f"{nonce}-") for name in storage.names(_PROBES)]
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
