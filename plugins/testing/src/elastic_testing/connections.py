"""Helpers of every backend suite: connections that are closed in the end, and a few operations on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import ParamSpec, TypeAlias

import pytest

from elastic_core.rendezvous import MAX_VALUE_BYTES, ORIGIN, Cursor, Link, RendezvousBackend
from elastic_testing.race import PATIENCE, WAKE_UP, asleep, background, outcome, sleeper

_P = ParamSpec("_P")
ALL_BYTES = bytes(range(256))

Store: TypeAlias = RendezvousBackend  # a connection to the store of one job, as the fixtures open it
MakeBackend: TypeAlias = Callable[[str], Store]
Connect: TypeAlias = Callable[[], Store]


class Connections:
    """The fixtures that every suite stands on."""

    @pytest.fixture
    def make_backend(self) -> MakeBackend:
        """To be overridden: a function from a run id to a first connection, made as the plugin's hook makes it.

        All calls within one test reach the same store, which is empty at first. The suite closes what it is given.
        """
        raise NotImplementedError(f"{type(self).__name__} must override the fixture make_backend")

    @pytest.fixture
    def full_value(self) -> bytes:
        """Return a value of the greatest size allowed, with every byte in it."""
        return (ALL_BYTES * (MAX_VALUE_BYTES // len(ALL_BYTES) + 1))[:MAX_VALUE_BYTES]

    @pytest.fixture
    def open_job(self, make_backend: MakeBackend) -> Iterator[MakeBackend]:
        """``make_backend``, with every connection closed when the test ends, the last one first."""
        yield from _closing(make_backend)

    @pytest.fixture
    def store(self, open_job: MakeBackend) -> Store:
        """Return the first connection to one job's store."""
        return open_job("job")

    @pytest.fixture
    def connect(self, store: Store) -> Iterator[Connect]:
        """Open further connections to the store of ``store``; they are closed when the test ends."""
        yield from _closing(store.connect)


def _closing(make: Callable[_P, Store]) -> Iterator[Callable[_P, Store]]:
    """Yield what makes connections; close all that it has made in the end, the last one first."""
    with ExitStack() as stack:

        def opened(*args: _P.args, **named: _P.kwargs) -> Store:
            backend = make(*args, **named)
            stack.callback(backend.close)
            return backend

        yield opened


def chain(length: int) -> list[tuple[Link, Link]]:
    """Pairs of (previous, entry) for a whole chain from the origin."""
    links = [ORIGIN, *(Link(index, f"entry {index}") for index in range(1, length + 1))]
    return list(pairwise(links))


def long_wait(store: Store, cursor: Cursor, *, roster: bool, settled: bool = True) -> Future[Cursor]:
    """Wait in a thread, until the cursor moves, for so long that only the store can end it within :data:`PATIENCE`.

    With ``settled`` the thread is asleep by the time that this returns; else it may still be about to look.
    """
    wait = partial(_moved, store, cursor, roster)
    return asleep(wait) if settled else background(wait)


def sleeping_wait(store: Store, cursor: Cursor, *, roster: bool) -> tuple[Future[Cursor], Path]:
    """Return a wait whose thread is asleep, and that thread as a folder ``/proc/PID/task/TID``."""
    return sleeper(partial(_moved, store, cursor, roster))


def _moved(store: Store, cursor: Cursor, roster: bool) -> Cursor:
    while True:
        now = store.wait(cursor, roster=roster, timeout=10 * PATIENCE)
        if now.head != cursor.head or (roster and now.roster != cursor.roster):
            return now


def woken(waiting: Future[Cursor], by: str) -> Cursor:
    """Return what :func:`long_wait` brings, once what is called ``by`` should have woken it."""
    return outcome(waiting, WAKE_UP, f"wait() did not return within {WAKE_UP:g} s after {by}: is the waiter woken?")


def await_head(store: Store, head: int, wanted: int) -> None:
    """Wait until the ledger, last seen at ``head``, has reached entry ``wanted``; it need not be woken for it."""
    deadline = time.monotonic() + PATIENCE
    while head < wanted:
        assert time.monotonic() < deadline, f"entry {wanted} did not come; the newest is {head}"
        head = store.wait(Cursor(head), roster=False, timeout=1.0).head
