"""One connection to whichever member of the cluster answers, for both versions of the API.

A request that fails is made again, on the next member, until its time is up. That is safe because every request of the
backends may be made twice: its conditions see to it that the second one changes nothing. A request whose time is up is
an error, and its outcome unknown.

Names are not looked up here, since a heartbeat must not wait for a resolver: see :meth:`Members.look_up_again`.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TypeVar

from elastic_core.errors import RendezvousConnectionError
from elastic_rdzv_etcd.endpoint import Site
from elastic_rdzv_etcd.gateway import Unreachable
from elastic_rdzv_etcd.members import Members

ATTEMPT = 2.0
"""Most seconds for one attempt on one member of several. A follower whose leader is gone keeps a write waiting for
longer than the others take to elect a new one. Twice as long after each round through all of them: members that are
slow since a thousand others ask too must not be asked ever more."""
LET_GO = 1.0  # seconds that a request gets to notice that its connection was closed
PAUSE = 0.1  # seconds between two rounds through all members

_T = TypeVar("_T")


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
