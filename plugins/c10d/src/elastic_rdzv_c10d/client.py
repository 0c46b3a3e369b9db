"""One connection to a TCPStore, with every wait bounded and every error one of ours.

torch's client keeps its socket to itself: it neither notices a peer that has vanished without a word, nor gives up on
one that has stopped answering, nor lets another thread end a wait. A socket's owner can do all three, so this module
finds the socket among this process's descriptors and holds a duplicate of it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Protocol, TypeAlias, cast

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_core.threads import asked
from elastic_rdzv_c10d.endpoint import Address, calls, knock
from elastic_rdzv_c10d.quiet_torch import DistNetworkError, DistStoreError, TCPStore
from elastic_rdzv_c10d.records import READER, UNWRITTEN

LEAST_PATIENCE = 8.0
"""Seconds that a handshake gets at least: TCPStore looks up its peer's name, and a resolver may drop that for 5 s."""
KNOCK_AGAIN = 1.0
"""Seconds until the second look whether a server still listens, while TCPStore, which never gives up early, connects.
Each further one waits twice as long, since a store to which thousands connect is busy enough."""
INTERRUPTIBLE = 2.0  # seconds that the main thread waits at a time; Python handles a Ctrl-C between two of them

_ABSENT = b"\0"
"""No record of ours. Comparing a missing key with anything but '' returns that very thing, and changes nothing."""
_GOOD_BYE = "and with it the agent that hosts it, or the network in between"

_turns: dict[Address, threading.Lock] = {}
_taking_turns = threading.Lock()


class _Store(Protocol):
    """The interface of TCPStore that we use; its annotations say that values are ``str``, but it keeps bytes."""

    def set(self, key: str, value: bytes, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def check(self, keys: Sequence[str], /) -> bool: ...
    def compare_set(self, key: str, expected: bytes, desired: bytes, /) -> bytes: ...
    def multi_get(self, keys: Sequence[str], /) -> list[bytes]: ...
    def multi_set(self, keys: Sequence[str], values: Sequence[bytes], /) -> None: ...
    def wait(self, keys: Sequence[str], timeout: timedelta, /) -> None: ...
    def list_keys(self) -> list[str]: ...
    def delete_key(self, key: str, /) -> bool: ...
    def set_timeout(self, timeout: timedelta, /) -> None: ...


_Connected: TypeAlias = "tuple[_Store, socket.socket]"


class StoreClient:
    """One connection. It never reconnects: what the far end held is gone with it.

    Every method raises RendezvousConnectionError when the store is gone or does not answer in time, or this connection
    is closed.

    Connecting may take ``patience`` seconds, as long as an answer when None. ``waiting`` is called repeatedly while
    a server takes the connection and does not answer; it may raise.

    Raises:
        RendezvousConnectionError: No server listens there, or it is no TCPStore.
    """

    def __init__(
        self,
        address: Address,
        read_timeout: float,
        patience: float | None = None,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self.address = address
        self.read_timeout = read_timeout
        self._closed = False
        self._store, self._socket = _dial(address, max(LEAST_PATIENCE, patience or read_timeout), waiting)
        self._store.set_timeout(timedelta(seconds=read_timeout))
        _bound(self._socket, read_timeout)

    def close(self) -> None:
        """Close the connection; a :meth:`wait_for` in another thread ends with an error. May be repeated."""
        self._closed = True
        self._hang_up()
        self._socket.close()

    def peek(self, key: str) -> bytes | None:
        """Return the value of a key, or None: one round trip, without waiting, unlike TCPStore's own ``get``."""
        value = self.swap_seen(key, _ABSENT, _ABSENT)
        return None if value == _ABSENT else value

    def count(self, key: str) -> int:
        """Return the value of a counter; 0 when there is none."""
        return READER.number(self.peek(key) or b"0")

    def put(self, key: str, value: bytes) -> None:
        """Set a key. There is no answer to wait for; what this connection asks next is answered after it."""
        with self._asking() as store:
            store.set(key, value)

    def put_all(self, values: Mapping[str, bytes]) -> None:
        """Set several keys in one request."""
        with self._asking() as store:
            store.multi_set(list(values), list(values.values()))

    def add(self, key: str, amount: int) -> int:
        """Add to a counter; its new value."""
        with self._asking() as store:
            return store.add(key, amount)

    def create(self, key: str, value: bytes) -> bytes:
        """Set a key unless something is written there; what is there now."""
        return self.swap_seen(key, UNWRITTEN, value)

    def swap(self, key: str, old: bytes, new: bytes) -> bool:
        """Replace a key's value if it is still ``old``; whether it is ``new`` now."""
        return self.swap_seen(key, old, new) == new

    def swap_seen(self, key: str, old: bytes, new: bytes) -> bytes:
        """Replace a key's value if it is still ``old``; what is there now."""
        with self._asking() as store:
            return store.compare_set(key, old, new)

    def exist(self, *keys: str) -> bool:
        """Return True if all the keys are there."""
        with self._asking() as store:
            return store.check(keys)

    def fetch(self, keys: Sequence[str]) -> list[bytes]:
        """Return the values of keys that exist, as they are at one instant."""
        with self._asking() as store:
            return store.multi_get(keys) if keys else []

    def names(self) -> list[str] | None:
        """Return the names of all keys, of every job; None where torch is too old to tell."""
        with self._asking() as store:
            return store.list_keys() if hasattr(store, "list_keys") else None

    def delete(self, key: str) -> None:
        """Delete a key on which no client waits, now or later."""
        with self._asking() as store:
            store.delete_key(key)

    def wait_for(self, key: str, timeout: float) -> bool:
        """Block until there is a key; False when there is none after ``timeout`` seconds."""
        for piece in _pieces(timeout):
            with self._asking() as store, contextlib.suppress(DistStoreError):
                store.wait([key], piece)
                return True
        return False

    def wait_and_get(self, key: str, timeout: float) -> bytes:
        """Block until there is a key; its value, '' when there is none after ``timeout`` seconds, or for no reason."""
        for piece in _pieces(timeout):
            with self._asking() as store, contextlib.suppress(DistStoreError):
                store.set_timeout(piece)
                try:
                    return store.get(key)
                finally:
                    store.set_timeout(timedelta(seconds=self.read_timeout))
        return UNWRITTEN

    @contextmanager
    def _asking(self) -> Iterator[_Store]:
        try:
            if not self._closed:
                yield self._store
                return
        except DistNetworkError as exc:
            self._hang_up()  # a late answer would be taken for the next question's
            if not self._closed:
                late = "Timeout" in str(exc)
                said = f"has not answered for {self.read_timeout:g} s" if late else f"is gone, {_GOOD_BYE}"
                raise RendezvousConnectionError(f"The store at {self.address} {said}.") from exc
        except DistStoreError as exc:
            raise RendezvousStateError(f"The store at {self.address} no longer has all the keys that it had.") from exc
        raise RendezvousConnectionError(f"This connection to the store at {self.address} is closed.")

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):  # not connected any more
            self._socket.shutdown(socket.SHUT_RDWR)


def _pieces(timeout: float) -> Iterator[timedelta]:
    """Yield the time left until ``timeout`` seconds are over; on the main thread not all of it at once."""
    most = INTERRUPTIBLE if threading.current_thread() is threading.main_thread() else math.inf
    deadline = time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0:
        yield timedelta(seconds=min(left, most))


def _dial(address: Address, patience: float, waiting: Callable[[], None]) -> _Connected:
    """Connect. A thread does it, since a peer that accepts and then says nothing would hold TCPStore up for ever."""
    known: list[set[int]] = []  # the connections that there are, as soon as it is our turn
    given_up = threading.Event()

    def connect() -> _Connected:
        with _turn(address):  # one at a time, so that the new socket is ours
            if given_up.is_set():
                raise TimeoutError
            knock(address)
            known.append(_inodes(address))
            store = TCPStore(
                address.host,
                address.port,
                is_master=False,
                timeout=timedelta(seconds=max(1, math.ceil(patience))),
                wait_for_workers=False,
            )
            return cast(_Store, store), _only_socket(address, known[0])

    try:
        return _answer(asked(connect, name="elastic-c10d-dial"), address, patience + 1, waiting)
    except TimeoutError as exc:
        given_up.set()
        if known:  # else all connections are others', as is the turn
            with contextlib.suppress(RendezvousStateError), _only_socket(address, known[0]) as silent:
                silent.shutdown(socket.SHUT_RDWR)
        raise RendezvousConnectionError(
            f"The server that listens at {address} has not answered for {patience:g} s.",
            hint="If the agent there hangs, stop it; if it is no agent at all, choose another port. If many nodes are "
            "connected already, its store may have no open file left: it needs 4 for each node (ulimit -Hn there).",
        ) from exc
    except DistNetworkError as exc:
        reason = str(exc).partition("\n")[0]
        raise RendezvousConnectionError(
            f"No TCPStore answers at {address}: {reason}",
            hint="If the agent that hosts the store is gone, so is the store; else choose another port.",
        ) from exc


def _forget_turns() -> None:
    """Make new locks in a process that was just forked, since the threads that held the old ones are not in it."""
    global _taking_turns
    _taking_turns = threading.Lock()
    _turns.clear()


os.register_at_fork(after_in_child=_forget_turns)


def _turn(address: Address) -> threading.Lock:
    """Return the lock that a thread holds while it connects to an address."""
    with _taking_turns:  # a dictionary may make two of them, since addresses are compared in Python
        return _turns.setdefault(address, threading.Lock())


def _answer(outcome: Future[_Connected], address: Address, patience: float, waiting: Callable[[], None]) -> _Connected:
    """Return what the dialling comes to, unless the store dies meanwhile; TimeoutError after ``patience`` seconds."""
    deadline, pause = time.monotonic() + patience, KNOCK_AGAIN
    while not wait([outcome], min(pause, deadline - time.monotonic())).done:
        if time.monotonic() >= deadline:
            raise TimeoutError
        pause *= 2
        waiting()
        try:
            knock(address)
        except RendezvousConnectionError as exc:
            if isinstance(exc.__cause__, ConnectionRefusedError):  # a full queue proves nothing
                raise
    return outcome.result()


def _only_socket(address: Address, known: set[int]) -> socket.socket:
    """Return a duplicate of the one socket to ``address`` that is not among ``known``."""
    found = _sockets_to(address)
    new = found.keys() - known
    only = found.pop(new.pop()) if len(new) == 1 else None
    for connection in found.values():
        connection.close()
    if only is None:
        raise RendezvousStateError(f"TCPStore has {len(new)} new sockets to {address}; there should be one.")
    return only


def _inodes(address: Address) -> set[int]:
    """Return the inodes of this process's connections to ``address``."""
    found = _sockets_to(address)
    for connection in found.values():
        connection.close()
    return set(found)


def _sockets_to(address: Address) -> dict[int, socket.socket]:
    """Return duplicates of this process's connections to ``address``, by inode.

    What a descriptor's number means can change at any time, since others open and close what they like.
    """
    wanted, found = (_canonical(address.host), address.port), {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError), ExitStack() as undo:  # closed since, or not connected
            duplicate = os.dup(fd)
            undo.callback(os.close, duplicate)
            status = os.fstat(duplicate)
            if stat.S_ISSOCK(status.st_mode) and status.st_ino not in found and _peer(duplicate) == wanted:
                undo.pop_all()
                found[status.st_ino] = socket.socket(fileno=duplicate)
    return found


def _peer(fd: int) -> tuple[object, int] | None:
    """Return the peer of a connection; None for connections of :func:`knock`. OSError if it is not connected.

    Another thread may be about to connect the socket. A call is marked before it connects, so the mark is read last.
    """
    with socket.socket(fileno=os.dup(fd)) as duplicate:
        if duplicate.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        host, port = duplicate.getpeername()[:2]
        return None if calls(duplicate) else (_canonical(host), port)


def _canonical(host: str) -> object:
    """Return an address in one form: TCPStore writes 10.0.0.1 as ::ffff:10.0.0.1, and some have a %scope."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _bound(connection: socket.socket, seconds: float) -> None:
    """Let no silence on a connection last longer than ``seconds``, whether in an answer or between two."""
    interval = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, interval)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(seconds / 2)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, int(seconds / 6)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(seconds * 1000)))
