"""One connection to whichever member of the cluster answers.

A request that fails is made again, on the next member, until its time is up. That is safe because every request of
``backend`` may be made twice: its conditions see to it that the second one changes nothing. A request whose time is up
is an error, and its outcome unknown.

Names are not looked up here, since a heartbeat must not wait for a resolver: see :meth:`Cluster.look_up_again`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from elastic_core.errors import RendezvousConnectionError
from elastic_rdzv_etcd.cluster import Cluster
from elastic_rdzv_etcd.endpoint import Site
from elastic_rdzv_etcd.gateway import Gateway, Unreachable
from elastic_rdzv_etcd.refusals import Kind, Refusal, in_words

ATTEMPT = 2.0
"""Most seconds for one attempt on one member of several. A follower whose leader is gone keeps a write waiting for
longer than the others take to elect a new one. Twice as long after each round through all of them: members that are
slow since a thousand others ask too must not be asked ever more. For the same reason the only member is asked once."""
LET_GO = 1.0
"""Seconds that a request gets to notice that its connection was closed."""
PAUSE = 0.1
"""Seconds between two rounds through all members."""

_T = TypeVar("_T")


class Lost(Exception):
    """The job's lease is not there. Never leaves this distribution."""


class Client:
    """One connection at a time, made when it is needed."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._gateway: Gateway | None = None
        self._using = threading.Lock()
        """Held for as long as a request takes."""
        self._lock = threading.Lock()
        self._closed = threading.Event()

    @property
    def closed(self) -> bool:
        """True if :meth:`close` was called."""
        return self._closed.is_set()

    def close(self) -> None:
        """Close the connection; a request in another thread ends with an error. May be repeated."""
        self._closed.set()
        with self._lock:
            if self._gateway is not None:
                self._gateway.close()
        if self._using.acquire(timeout=LET_GO):  # else the thread that uses it drops it
            self._drop()
            self._using.release()

    def call(self, path: str, request: Mapping[str, Any], *, reaching: bool = False) -> dict[str, Any]:
        """Ask, and read the answer; ``reaching`` says that it is the first question, which has a time of its own.

        Raises:
            Lost: The lease that the request names is not there.
            RendezvousConnectionError: No member answered in time, or none lets us in, or this connection is closed.
            RendezvousStateError: They refuse it for what it is.
        """
        body = json.dumps(request).encode()
        options = self.cluster.options
        budget = options.connect_timeout if reaching else options.read_timeout

        def ask(gateway: Gateway, token: str | None, timeout: float) -> dict[str, Any]:
            return gateway.post(path, body, token, timeout)

        return self._using_it(ask, budget, reaching=reaching)

    def stream(self, path: str, request: Mapping[str, Any]) -> tuple[Gateway, Iterator[dict[str, Any]]]:
        """Ask over a connection of its own for a stream of messages; the caller closes the connection.

        Raises:
            RendezvousConnectionError: No member answered in time, or this connection is closed.
            RendezvousStateError: They refuse it for what it is.
        """
        body = json.dumps(request).encode()

        def ask(gateway: Gateway, token: str | None, timeout: float) -> Iterator[dict[str, Any]]:
            return gateway.stream(path, body, token, timeout)

        beside = Client(self.cluster)
        try:
            messages = beside._using_it(ask, self.cluster.options.read_timeout)
        except BaseException:
            beside.close()
            raise
        assert beside._gateway is not None
        if self.closed:
            beside._gateway.discard()
            raise self._is_closed()
        return beside._gateway, messages

    def leave(self) -> None:
        """Go to the next member with the next request: this one does not hear what the others do."""
        with self._lock:
            site = None if self._gateway is None else self._gateway.site
        self._drop()
        sites = self.cluster.sites()
        if site == sites[0]:
            self.cluster.answered(sites[1 % len(sites)])

    def _using_it(
        self, ask: Callable[[Gateway, str | None, float], _T], budget: float, *, reaching: bool = False
    ) -> _T:
        with self._using:
            try:
                return self._somewhere(ask, budget, reaching=reaching)
            finally:
                if self.closed:
                    self._drop()

    def _somewhere(self, ask: Callable[[Gateway, str | None, float], _T], budget: float, *, reaching: bool) -> _T:
        """Return the answer of the first member that gives one."""
        began = time.monotonic()
        deadline = began + budget
        failures: dict[Site, Unreachable | Refusal] = {}
        limit = ATTEMPT
        while True:
            sites = self.cluster.sites()
            if self._gateway is not None and self._gateway.site in sites:
                at = sites.index(self._gateway.site)
                sites = sites[at:] + sites[:at]
            for number, site in enumerate(sites):
                share = max(0.0, deadline - time.monotonic()) / (len(sites) - number)
                if share <= 0 and failures:
                    raise self._failed(failures, time.monotonic() - began)
                try:
                    answer = self._ask(site, ask, max(share if len(sites) == 1 else min(limit, share), PAUSE))
                except Unreachable as exc:
                    self._drop()
                    if self.closed:
                        raise self._is_closed() from exc
                    failures[site] = exc
                except Refusal as exc:
                    if exc.kind is not Kind.PASSING:
                        raise self._refused(exc, site) from exc
                    self._drop()
                    failures[site] = exc
                else:
                    self.cluster.answered(site)
                    return answer
            spent = time.monotonic() - began
            enough = reaching and spent >= self.cluster.options.listen_timeout
            if spent >= budget or all(_is_final(failures.get(site), enough=enough) for site in sites):
                raise self._failed(failures, spent)
            limit *= 2
            if self._closed.wait(PAUSE):
                raise self._is_closed()

    def _ask(self, site: Site, ask: Callable[[Gateway, str | None, float], _T], timeout: float) -> _T:
        deadline = time.monotonic() + timeout

        def left() -> float:
            return max(deadline - time.monotonic(), PAUSE)

        gateway = self._at(site, timeout)
        token = self.cluster.token(gateway, left())
        try:
            return ask(gateway, token, left())
        except Refusal as refused:
            if refused.kind is not Kind.TOKEN or self.cluster.options.password is None:
                raise
            self._drop()  # a stream that was refused has used it up
            gateway = self._at(site, left())
            token = self.cluster.another_token(gateway, left(), token)
            return ask(gateway, token, left())

    def _at(self, site: Site, timeout: float) -> Gateway:
        gateway = self._gateway
        if gateway is None or gateway.site != site:
            self._drop()
            gateway = Gateway(site, self.cluster.context, timeout)
            with self._lock:
                self._gateway = gateway
        if self.closed:
            self._drop()
            raise Unreachable("this connection is closed", final=True)
        return gateway

    def _drop(self) -> None:
        with self._lock:
            gateway, self._gateway = self._gateway, None
        if gateway is not None:
            gateway.discard()

    def _is_closed(self) -> RendezvousConnectionError:
        return RendezvousConnectionError(f"This connection to etcd at {self.cluster} is closed.")

    def _refused(self, refused: Refusal, site: Site) -> Exception:
        if refused.kind in (Kind.NO_LEASE, Kind.LEASE_THERE):
            return Lost(refused.text)
        return in_words(refused, site, self.cluster.options.user)

    def _failed(self, failures: Mapping[Site, Unreachable | Refusal], seconds: float) -> RendezvousConnectionError:
        said = "; ".join(f"{site}: {exc}" for site, exc in failures.items())
        return RendezvousConnectionError(
            f"No etcd answers, after {seconds:.1f} s: {said}.",
            hint="Check the endpoints, the network, and whether most members of the cluster are up.",
            lasting=all(isinstance(exc, Unreachable) and exc.final for exc in failures.values()),
        )


def _is_final(failure: Unreachable | Refusal | None, *, enough: bool) -> bool:
    return isinstance(failure, Unreachable) and (failure.final or (enough and failure.mute))
