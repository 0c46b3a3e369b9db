"""Makes core's drivers run in virtual time: what they know of threads and bytes is exchanged, while a plan is played.

Only names of the standard library and of the codec are exchanged, wherever a module of the rendezvous has
imported them, the connections that a probe makes, and, where values are not encoded, the look at whether the leader can
read a node's row. No line of the protocol is.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import elastic_core.protocol
import elastic_core.rendezvous
import elastic_core.session
from elastic_core.agent import probing
from elastic_core.errors import ElasticError
from elastic_core.protocol import codec, compaction
from elastic_core.protocol.ledger import Entry
from elastic_core.protocol.roster import NodeRow
from elastic_core.rendezvous.backend import SEAL_BYTES
from simulation import engine, peers
from simulation.lines import Wire

# A lock that nobody blocks under is always free here: what is simulated takes turns only where it blocks.
THREADS = SimpleNamespace(Condition=engine.Condition, Event=engine.Event, Lock=nullcontext, Thread=engine.Thread)


class Pool:
    """In place of a pool of one thread: what is submitted runs in a simulated one."""

    def __init__(self, _most: int = 1, **_named: object) -> None:
        """Nothing is made yet."""

    def submit(self, function: Callable[..., Any], *args: Any) -> Future:
        """Begin."""
        return Future(function, args)

    def shutdown(self, wait: bool = True) -> None:
        """Nothing is left to do."""


class Future:
    """What such a thread will return; ``function`` may take its time by blocking."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._changed = engine.Event()
        self._value: Any = None
        engine.Thread(self._run, (function, args)).start()

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._value = function(*args)
        self._changed.set()

    def done(self) -> bool:
        """Whether it has."""
        return self._changed.is_set()

    def result(self, timeout: float | None = None) -> Any:
        """Wait for it."""
        if not self._changed.wait(timeout):
            raise FutureTimeoutError
        return self._value

    def exception(self) -> None:
        """Wait for it; a simulated judge never raises."""
        self._changed.wait()


class NoRowCheck:
    """In place of a node's check whether the leader can read its row: a row that is no bytes can always be read."""

    def __init__(self, *_of: object) -> None:
        """Nothing is kept."""

    def is_due(self, *_at: object) -> bool:
        """Never."""
        return False


def _asked(ask: Callable[[], Any], *, name: str = "") -> Future:
    """In place of a question to a thread that may never answer."""
    return Future(ask, ())


def _encoded_entry(entry: Entry) -> Wire:
    return Wire.of(codec.decode_entry(codec.encode_entry(entry)))


def _encoded_row(row: NodeRow) -> Wire:
    return Wire.of(codec.decode_row(codec.encode_row(row)))


def _unwrap(data: bytes) -> Any:
    assert isinstance(data, Wire), data
    if isinstance(data.value, ElasticError):
        raise data.value
    return data.value


EXCHANGED: dict[str, object] = {
    "threading": THREADS,
    "ThreadPoolExecutor": Pool,
    "asked": _asked,
    "encode_entry": Wire.of,
    "encode_row": Wire.of,
    "decode_entry": _unwrap,
    "decode_row": _unwrap,
    "RowCheck": NoRowCheck,
}
"""What replaces what, by the name under which modules have it."""
LIMITED: dict[str, object] = {**EXCHANGED, "encode_entry": _encoded_entry, "encode_row": _encoded_row}
"""The same, where a value has a limit: it is encoded, and what travels is what it is read as."""
PLAIN = {name: EXCHANGED[name] for name in ("threading", "ThreadPoolExecutor", "asked")}
"""The same, but for the codec."""
PACKAGES = (elastic_core.protocol, elastic_core.session, elastic_core.rendezvous)
"""Whose modules use the names; the codec itself keeps its own."""


@contextmanager
def virtual_time(whole: int, limit: int = 0, *, encoded: bool = False) -> Iterator[None]:
    """Exchange the names meanwhile.

    Args:
        whole: The newest entries, which do not shrink: few plans come to as many as core keeps.
        limit: The most bytes of a value; 0 for values that are not encoded.
        encoded: Whether values travel as bytes, by the codec itself.
    """
    patches = [*_patches(limit > 0, encoded), (compaction, "ENTRIES_KEPT_WHOLE", whole)]
    if limit:
        patches.append((codec, "MAX_VALUE_BYTES", limit + SEAL_BYTES))
    before = [getattr(module, name) for module, name, _ in patches]
    for module, name, substitute in patches:
        setattr(module, name, substitute)
    try:
        yield
    finally:
        for (module, name, _), original in zip(patches, before, strict=True):
            setattr(module, name, original)


@functools.cache
def _patches(limited: bool, encoded: bool) -> tuple[tuple[ModuleType, str, object], ...]:
    exchanged = PLAIN if encoded else LIMITED if limited else EXCHANGED
    names = [(module, name) for module in _modules() for name in exchanged if hasattr(module, name)]
    found = [(module, name, exchanged[name]) for module, name in names]
    return (*found, (probing, "unreachable", peers.unreachable))


def _modules() -> list[ModuleType]:
    found = [
        f"{package.__name__}.{module.name}" for package in PACKAGES for module in pkgutil.iter_modules(package.__path__)
    ]
    names = sorted(set(found) - {codec.__name__})
    return [probing, *(importlib.import_module(name) for name in names)]
