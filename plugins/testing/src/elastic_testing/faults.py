"""Faults of a store: an author defines them once, and the suites inject them at any instant.

* A :class:`BadLine` loses a request or its reply, or holds it for as long as a test wants: the connection stays open,
  and nothing passes, as where a server is stopped or a route drops packets. :class:`LossyProxy` is one for every store
  that is reached over TCP: let the backend connect to its address instead of the server's. :class:`LossyCalls` is one
  for a store without a server: it loses or holds whole calls.
* A :class:`Keeper` restarts the store: with its data, with an older copy of it, or with nothing.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from elastic_core.errors import RendezvousConnectionError, RendezvousError
from elastic_core.rendezvous import RendezvousBackend, WrappedBackend

_T = TypeVar("_T")
_CHUNK = 1 << 16
LATE = 0.5
"""Seconds for which a held request's reply is waited for when its client has given up; some requests have none."""
RELEASED_WITHIN = 60.0  # seconds after which a request that was held and released must have passed


class Lost(enum.Enum):
    """The message that a bad line loses."""

    REQUEST = "request"  # the store never sees it
    REPLY = "reply"  # the store has done what it was asked, and its reply is lost


class Data(enum.Enum):
    """The data that a store is restarted with."""

    KEPT = "kept"  # all that it has acknowledged
    COPY = "copy"  # the contents at the last :meth:`Keeper.copy`: its last writes are gone
    EMPTY = "empty"


class BadLine(ABC):
    """A faulty line between the connections under test and the store. Counts requests of all connections together."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._hold_in = 0  # which request from now on is to be held; 0 for none
        self._held: object = None  # the connection on which nothing passes
        self._silent = False
        self._lost: Lost | None = None
        self._left = 0
        self.requests = 0  # the number of requests so far
        self.spoilt = False
        """True if something was lost since :meth:`lose` was called, or held since :meth:`hold` or :meth:`silence`."""
        self.down = False  # true if nothing passes at all; set it by :meth:`cut` and :meth:`mend`

    def lose(self, what: Lost, nth: int) -> None:
        """Lose the ``nth`` request from now on (1 is the next), or its reply, and break the connection it was on."""
        with self._lock:
            self._lost, self._left, self.spoilt = what, nth, False

    def hold(self, nth: int) -> None:
        """Hold the ``nth`` request from now on (1 is the next), and all else on its connection, until :meth:`release`.

        Other connections are served. Nothing breaks, so a client can end only by its own timeout, or by closing.
        """
        with self._lock:
            self._hold_in, self.spoilt = nth, False

    def silence(self) -> None:
        """Hold all that comes on any connection, also on new ones, until :meth:`release`."""
        with self._lock:
            self._silent, self.spoilt = True, False

    def release(self) -> None:
        """Let pass what was held, also requests whose clients have given up meanwhile; return when the store had them.

        So a stopped server, when it goes on, reads what had been sent to it, also from clients that are gone.
        """
        with self._changed:
            self._hold_in, self._held, self._silent = 0, None, False
            self._changed.notify_all()

    def await_held(self, doing: Future[_T], within: float) -> bool:
        """Wait until a request is held; False where ``doing``, which should make it, is done without that."""
        doing.add_done_callback(lambda _: self._notify())
        with self._changed:
            assert self._changed.wait_for(lambda: self.spoilt or doing.done(), within), "nothing was held"
            return self.spoilt

    def mend(self) -> None:
        """Lose nothing more; whether something was lost, :attr:`spoilt` goes on saying."""
        with self._lock:
            self._lost, self.down = None, False

    @abstractmethod
    def cut(self) -> None:
        """Let nothing pass, and break every connection there is, until :meth:`mend`."""

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _is_held(self, connection: object) -> bool:
        return self._silent or self._held is connection

    def _asked(self, connection: object) -> Lost | None:
        """Count a request that has come on a connection; return what is to be lost of it."""
        with self._lock:
            self.requests += 1
            self._hold_in = max(0, (due := self._hold_in) - 1)
            if due == 1:
                self._held = connection
            if self._is_held(connection):
                self.spoilt = True
                self._changed.notify_all()
            if self._lost is None:
                return None
            self._left -= 1
            if self._left:
                return None
            what, self._lost, self.spoilt = self._lost, None, True
            return what


class Keeper(ABC):
    """Starts and stops the store for a test."""

    @abstractmethod
    def copy(self) -> None:
        """Keep a copy of all that the store holds now; the next one replaces it."""

    @abstractmethod
    def restart(self, data: Data) -> None:
        """Stop the store, and start it at the same address with this data. Connections may break, or go on."""


class LossyProxy(BadLine):
    """Stands between clients and a server that is reached over TCP; what one reads from a client at once is a request.

    Attributes:
        port: Where the proxy listens, on 127.0.0.1.
    """

    def __init__(self, host: str, port: int) -> None:
        super().__init__()
        self._server = (host, port)
        self._under_way = 0  # requests that were held, and that the server has not answered yet
        self._open: set[socket.socket] = set()
        self.port = 0
        self._listen()

    def cut(self) -> None:
        """Break every connection, and refuse new ones."""
        with self._lock:
            self.down = True
            broken, self._open = self._open, set()
            self._changed.notify_all()
        for connection in (self._listener, *broken):
            _hang_up(connection)
        self._accepting.join()

    def mend(self) -> None:
        """Listen again, at the same port, and lose nothing more."""
        super().mend()
        if not self._accepting.is_alive():
            self._listen()

    def release(self) -> None:
        """Let pass what was held; return when the server has it."""
        super().release()
        with self._changed:
            assert self._changed.wait_for(lambda: not self._under_way, RELEASED_WITHIN), "what was held does not pass"

    def close(self) -> None:
        """Stop for good."""
        self.cut()

    def _listen(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, args=(self._listener,), daemon=True)
        self._accepting.start()

    def _accept(self, listener: socket.socket) -> None:
        with listener, contextlib.suppress(OSError):  # hung up on
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(self._server) as server:
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                if self.down:
                    return
                self._open |= {client, server}
            swallow, answered = threading.Event(), threading.Event()
            replies = threading.Thread(target=self._send_back, args=(server, client, swallow, answered), daemon=True)
            replies.start()
            with contextlib.suppress(OSError):
                self._send_on(client, server, swallow, answered)
            for end in (client, server):
                _hang_up(end)
            replies.join()
            with self._lock:
                self._open -= {client, server}

    def _send_on(
        self, client: socket.socket, server: socket.socket, swallow: threading.Event, answered: threading.Event
    ) -> None:
        while request := client.recv(_CHUNK):
            lost = self._asked(client)
            if lost is Lost.REQUEST:
                return
            if lost is Lost.REPLY:
                swallow.set()
            answered.clear()
            with self._held_back(client) as held:
                server.sendall(request)
                if held:
                    answered.wait(LATE)  # before the server learns that no client waits for it

    @contextmanager
    def _held_back(self, client: socket.socket) -> Iterator[bool]:
        """Wait while a connection's requests are held; whether this one was."""
        with self._changed:
            held = self._is_held(client)
            self._under_way += held
            self._changed.wait_for(lambda: self.down or not self._is_held(client))
        try:
            yield held
        finally:
            with self._changed:
                self._under_way -= held
                self._changed.notify_all()

    def _send_back(
        self, server: socket.socket, client: socket.socket, swallow: threading.Event, answered: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while reply := server.recv(_CHUNK):
                answered.set()
                if swallow.is_set():  # that there is a reply shows that the server has done it
                    break
                with self._changed:
                    self._changed.wait_for(lambda: self.down or not self._is_held(client))
                client.sendall(reply)
        for end in (client, server):
            _hang_up(end)


class LossyCalls(BadLine):
    """Loses whole calls, for a store that no line leads to: :meth:`through` wraps what makes its connections.

    A call that is held when its connection is closed ends with an error, and is done when the line is released.
    """

    def __init__(self) -> None:
        super().__init__()
        self._late: list[Callable[[], object]] = []
        self._to_close: list[RendezvousBackend] = []

    def release(self) -> None:
        """Let the calls that were held be made, the given up ones here and now."""
        super().release()
        late, self._late = self._late, []
        to_close, self._to_close = self._to_close, []
        for body in late:
            with contextlib.suppress(RendezvousError):
                body()
        for inner in to_close:
            inner.close()

    def close(self, connection: LossyBackend, inner: RendezvousBackend) -> None:
        """End a connection's call, and close what it leads to once what it had asked for has passed."""
        with self._changed:
            if waits := connection.request_held:
                self._to_close.append(inner)
            self._changed.notify_all()
        if not waits:
            inner.close()

    def cut(self) -> None:
        """Let every call fail."""
        self.down = True

    def through(self, make: Callable[[str], RendezvousBackend]) -> Callable[[str], RendezvousBackend]:
        """Return what makes the same connections over this line."""
        return lambda run_id: LossyBackend(make(run_id), self)

    def call(self, body: Callable[[], _T], connection: LossyBackend) -> _T:
        """Do it, or not, and tell of it, or not."""
        if self.down:
            raise RendezvousConnectionError("The line is down.")
        lost = self._asked(connection)
        if lost is Lost.REQUEST:
            raise RendezvousConnectionError("The request was lost.")
        connection.request_held = True
        passes = self._passes(connection)
        connection.request_held = False
        if not passes:
            self._late.append(body)
            raise RendezvousConnectionError("The connection was closed while its request was held.")
        result = body()
        if lost is Lost.REPLY:
            raise RendezvousConnectionError("The reply was lost.")
        if not self._passes(connection):
            raise RendezvousConnectionError("The connection was closed while its reply was held.")
        return result

    def _passes(self, connection: LossyBackend) -> bool:
        """Wait while a connection is held; False where it was closed meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: connection.closed or not self._is_held(connection))
            return not self._is_held(connection)


class LossyBackend(WrappedBackend):
    """A connection over :class:`LossyCalls`."""

    def __init__(self, inner: RendezvousBackend, line: LossyCalls) -> None:
        super().__init__(inner)
        self._line = line
        self.closed = self.request_held = False

    def connect(self) -> LossyBackend:
        """Another one over the same line."""
        return LossyBackend(self._line.call(self.inner.connect, self), self._line)

    def close(self) -> None:
        """Close the connection."""
        self.closed = True
        self._line.close(self, self.inner)

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call the backend, if the line lets it."""
        make = super().call
        return self._line.call(lambda: make(method, *arguments, **named), self)


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
