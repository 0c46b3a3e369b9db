"""The members of a cluster, shared by all connections of one agent, for both versions of the API.

Names are looked up when the first connection is made, and again when no known address answers: a resolver can stall for
many seconds, so a caller waits for it only briefly then, and a late answer is taken when it comes.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial

from elastic_core.errors import RendezvousConnectionError
from elastic_core.threads import asked
from elastic_rdzv_etcd.endpoint import Endpoint, Site
from elastic_rdzv_etcd.options import Options

LOOK_UP = 7.0
"""Seconds that names may take at first: a resolver whose first server is down asks its second after 5."""
LOOK_UP_ANY = 30.0
"""The same as long as none of them has an address, without which there is nothing to begin with."""
LOOK_UP_AGAIN = 0.5
"""Seconds that a caller waits for new addresses later, when a node's heartbeats may depend on it."""


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
        self._known: dict[Endpoint, list[Site]] = {}
        """The addresses of each name when the resolver last knew it."""
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
