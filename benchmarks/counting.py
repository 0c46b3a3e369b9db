"""The operations of agents on their store: by name, with their requests, and bytes on the wire.

Everything is counted where clients ask, so that all stores are counted alike, torch's own client among them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeVar

from elastic_core.errors import RendezvousConnectionError
from elastic_core.rendezvous.backend import RendezvousBackend, WrappedBackend

OPERATIONS, REQUESTS = "operations", "requests"
HEARTBEAT = "heartbeat"
"""The one operation that is done by the clock."""
_T = TypeVar("_T")


class Tally:
    """The operations of one agent, over all its connections; each is used by one thread at a time."""

    def __init__(self) -> None:
        self._counts: list[Counter[tuple[str, str]]] = []

    def column(self) -> Counter[tuple[str, str]]:
        """Count of one connection, by operations or requests, and by the operation's name."""
        self._counts.append(Counter())
        return self._counts[-1]

    def total(self) -> Counter[tuple[str, str]]:
        """Those of all of them."""
        return sum((Counter(dict(counts)) for counts in self._counts), Counter())


class _Now(threading.local):
    """The caller whose operation a thread is in the middle of."""

    counts: Counter[tuple[str, str]] | None = None
    name = ""


_now = _Now()


def count_requests(client: type, *methods: str) -> None:
    """Have each of a client's methods, of which every call is one request, count."""

    def counting(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def asked(*arguments: Any, **named: Any) -> Any:
            if _now.counts is not None:
                _now.counts[REQUESTS, _now.name] += 1
            return method(*arguments, **named)

        return asked

    for name in methods:
        setattr(client, name, counting(getattr(client, name)))


@contextlib.contextmanager
def _counted(counts: Counter[tuple[str, str]], name: str) -> Iterator[None]:
    counts[OPERATIONS, name] += 1
    _now.counts, _now.name = counts, name
    try:
        yield
    finally:
        _now.counts = None


class CountedBackend(WrappedBackend):
    """A backend that counts what it is asked, and whose further connections have been made ahead.

    Args:
        inner: The connection.
        tally: Where to count.
        spare: The connections that :meth:`connect` hands out.
    """

    def __init__(self, inner: RendezvousBackend, tally: Tally, spare: list[RendezvousBackend] | None = None) -> None:
        super().__init__(inner)
        self._tally, self._spare = tally, spare or []
        self._counts = tally.column()

    def connect(self) -> CountedBackend:
        """One of those made ahead."""
        if not self._spare:
            raise RendezvousConnectionError("All connections are used up: one has broken.")
        return CountedBackend(self._spare.pop(), self._tally)

    def close(self) -> None:
        """Close it."""
        self.inner.close()

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Count the request and pass it on."""
        looks_up = method == "roster" and arguments[:1] not in ((), (None,))
        name = "look up" if looks_up else HEARTBEAT if method == "heartbeat" else method
        with _counted(self._counts, name):
            return super().call(method, *arguments, **named)


def counted(counts: Counter[tuple[str, str]], name: str, ask: Callable[..., _T], *arguments: Any, **named: Any) -> _T:
    """Return what ``ask`` answers, counted as one operation, and one request."""
    with _counted(counts, name):
        counts[REQUESTS, name] += 1
        return ask(*arguments, **named)


class Traffic:
    """Bytes over this process's connections to a port, both ways, those that are closed by now too; no TCP headers.

    Args:
        port: The store's.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._known: dict[int, int] = {}
        """The bytes of each connection when it was last seen, by inode."""

    def total(self) -> int:
        """All of them so far."""
        for fd in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):  # closed since, or not connected
                status = os.fstat(fd)
                if stat.S_ISSOCK(status.st_mode):
                    self._look(status.st_ino, fd)
        return sum(self._known.values())

    def _look(self, inode: int, fd: int) -> None:
        with socket.socket(fileno=os.dup(fd)) as duplicate:
            if duplicate.family in (socket.AF_INET, socket.AF_INET6) and duplicate.getpeername()[1] == self._port:
                facts = duplicate.getsockopt(socket.SOL_TCP, socket.TCP_INFO, 136)
                self._known[inode] = sum(struct.unpack_from("@QQ", facts, 120))  # tcpi_bytes_acked and _received
