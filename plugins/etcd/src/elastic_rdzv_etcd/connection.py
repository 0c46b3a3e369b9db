"""The members of a cluster, and one connection to whichever of them answers, for both versions of the API.

A request that fails is made again, on the next member, until its time is up. That is safe because every request of the
backends may be made twice: its conditions see to it that the second one changes nothing. A request whose time is up is
an error, and its outcome unknown.

All connections of one agent share the members. Their names are looked up when the first connection is made, and again
when no known address answers. A resolver can stall for many seconds, and a heartbeat must not wait for it: a caller
waits only briefly then, and a late answer is taken when it comes.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import TypeVar

from elastic_core.errors import RendezvousConnectionError
from elastic_core.threads import asked
from elastic_rdzv_etcd.gateway import Unreachable
from elastic_rdzv_etcd.options import Endpoint, Options, Site

LOOK_UP = 7.0
"""Seconds that names may take at first: a resolver whose first server is down asks its second after 5."""
LOOK_UP_ANY = 30.0
"""The same as long as none of them has an address, without which there is nothing to begin with."""
LOOK_UP_AGAIN = 0.5
"""Seconds that a caller waits for new addresses later, when a node's heartbeats may depend on it."""
ATTEMPT = 2.0
"""Most seconds for one attempt on one member of several. A follower whose leader is gone keeps a write waiting for
longer than the others take to elect a new one. Twice as long after each round through all of them: members that are
slow since a thousand others ask too must not be asked ever more."""
LET_GO = 1.0  # seconds that a request gets to notice that its connection was closed
PAUSE = 0.1  # seconds between two rounds through all members

_T = TypeVar("_T")


class Members:
    """The cluster's members, as the user named them. Safe to share by threads.

    Raises:
        UsageError: A certificate cannot be used.
        RendezvousConnectionError: None of the names has an address.
    """

    def __init__(self, endpoints: Sequence[Endpoint], options: Options) -> None:
        self.options = options
        self.context: ssl.SSLContext | None = options.context() if any(endpoint.tls for endpoint in endpoints) else None
        self._endpoints = list(endpoints)
        self._lock = threading.Lock()
        self._known: dict[Endpoint, list[Site]] = {}  # the addresses of each name when the resolver last knew it
        self._asking: dict[Endpoint, Future[None]] = {}
        self._favourite: Site | None = None
        unknown = self._look_up(LOOK_UP)
        if not (sites := self.sites()):
            raise RendezvousConnectionError(
                f"No host of the endpoint has an address: {', '.join(unknown)}.",
                hint="Check the names, or write the addresses themselves.",
                lasting=all(map(_is_unknown, self._asking.values())),
            )
        self._favourite = sites[os.getpid() % len(sites)]  # so that agents spread over the members

    def __str__(self) -> str:
        return ",".join(map(str, self._endpoints))

    def sites(self) -> list[Site]:
        """Return all addresses, the one that answered last first."""
        with self._lock:
            known = [site for endpoint in self._endpoints for site in self._known.get(endpoint, ())]
            sites = list(dict.fromkeys(known))
            at = sites.index(self._favourite) if self._favourite in sites else 0
            return sites[at:] + sites[:at]

    def answered(self, site: Site) -> None:
        """Have all connections begin with this address from now on."""
        with self._lock:
            self._favourite = site

    def look_up_again(self) -> None:
        """Ask for the names' addresses anew, since none of the known ones answers; without an answer, they stay."""
        self._look_up(LOOK_UP_AGAIN)

    def _look_up(self, patience: float) -> list[str]:
        """Ask for all at once; the names that have got no address in that time, and why."""
        began = time.monotonic()
        asking = {endpoint: self._ask(endpoint) for endpoint in self._endpoints}
        wait(asking.values(), patience)
        while not self._known and (late := [answer for answer in asking.values() if not answer.done()]):
            if not wait(late, began + LOOK_UP_ANY - time.monotonic(), FIRST_COMPLETED).done:
                break
        spent = time.monotonic() - began
        reasons = {endpoint: _reason(answer, spent) for endpoint, answer in asking.items()}
        return [f"{endpoint.host!r} ({reason})" for endpoint, reason in reasons.items() if reason is not None]

    def _ask(self, endpoint: Endpoint) -> Future[None]:
        with contextlib.suppress(OSError, UnicodeError):
            self._find(endpoint, socket.AI_NUMERICHOST)
            known: Future[None] = Future()
            known.set_result(None)
            return known
        with self._lock:
            asking = self._asking.get(endpoint)
            if asking is None or asking.done():
                asking = self._asking[endpoint] = asked(partial(self._find, endpoint))
            return asking

    def _find(self, endpoint: Endpoint, flags: int = 0) -> None:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=flags)
        with self._lock:
            self._known[endpoint] = [Site(endpoint, family, str(at[0])) for family, _, _, _, at in found]


def _is_unknown(answer: Future[None]) -> bool:
    exc = answer.exception() if answer.done() else None
    return isinstance(exc, UnicodeError) or (isinstance(exc, socket.gaierror) and exc.errno == socket.EAI_NONAME)


def _reason(answer: Future[None], spent: float) -> str | None:
    """Return the reason why a name has no address; None where it has one."""
    if not answer.done():
        return f"no answer within {spent:.2g} s"
    match answer.exception():
        case None:
            return None
        case OSError() as exc:
            return exc.strerror or str(exc)
        case exc:
            return str(exc)


class Connection(ABC):
    """One connection at a time, made when it is needed."""

    asks_only_member_once = True
    """True if an attempt on the only member may take all of the time: where it is slow since many ask, asking it more
    often makes it slower. False where a request cannot be closed while it is sent, and so must be short."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._using = threading.Lock()  # held for as long as a request takes
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._site: Site | None = None  # the member that it leads to; None while there is no connection

    @property
    def closed(self) -> bool:
        """True if :meth:`close` was called."""
        return self._closed.is_set()

    def close(self) -> None:
        """Close the connection; a request in another thread ends with an error. May be repeated."""
        self._closed.set()
        self._hang_up()
        if self._using.acquire(timeout=LET_GO):  # else the thread that uses it drops it
            self._drop()
            self._using.release()

    @abstractmethod
    def _hang_up(self) -> None:
        """End a wait in another thread."""

    @abstractmethod
    def _drop(self) -> None:
        """Close the connection, and forget it; only the thread that uses it may."""

    def _ask_any(self, ask: Callable[[Site, float], _T], *, reaching: bool = False, once: bool = False) -> _T:
        """Return the answer of the first member that gives one; ``ask`` takes a member and the seconds it may take.

        ``reaching`` says that it is the first question, which has a time of its own; ``once`` not to try again.

        Raises:
            RendezvousConnectionError: No member answered in time, or this connection is closed.
        """
        with self._using:
            try:
                return self._somewhere(ask, reaching=reaching, once=once)
            finally:
                if self.closed:
                    self._drop()

    def _somewhere(self, ask: Callable[[Site, float], _T], *, reaching: bool, once: bool) -> _T:
        began, options = time.monotonic(), self._members.options
        budget = options.connect_timeout if reaching else options.read_timeout
        failures: dict[Site, Unreachable] = {}
        limit = ATTEMPT
        while True:
            sites = self._members.sites()
            if self._site in sites:
                at = sites.index(self._site)
                sites = sites[at:] + sites[:at]
            alone = len(sites) == 1 and self.asks_only_member_once
            for number, site in enumerate(sites):
                share = max(0.0, began + budget - time.monotonic()) / (len(sites) - number)
                if share <= 0 and failures:
                    raise self._failed(failures, time.monotonic() - began)
                try:
                    answer = ask(site, max(share if alone else min(limit, share), PAUSE))
                except Unreachable as exc:
                    self._drop()
                    if self.closed:
                        raise self._is_closed() from exc
                    failures[site] = exc
                    if once:
                        raise self._failed(failures, time.monotonic() - began) from exc
                else:
                    self._members.answered(site)
                    return answer
            spent = time.monotonic() - began
            enough = reaching and spent >= options.listen_timeout
            known = [failures.get(site) for site in sites]
            final = all(exc is not None and (exc.final or (enough and exc.mute)) for exc in known)
            if spent >= budget or final:
                raise self._failed(failures, spent)
            limit *= 2
            if self._closed.wait(PAUSE):
                raise self._is_closed()

    def _is_closed(self) -> RendezvousConnectionError:
        return RendezvousConnectionError(f"This connection to etcd at {self._members} is closed.")

    def _failed(self, failures: Mapping[Site, Unreachable], seconds: float) -> RendezvousConnectionError:
        said = "; ".join(f"{site}: {exc}" for site, exc in failures.items())
        return RendezvousConnectionError(
            f"No etcd answers, after {seconds:.1f} s: {said}.",
            hint="Check the endpoints, the network, and whether most members of the cluster are up.",
            lasting=all(exc.final for exc in failures.values()),
        )
