"""Looking for the agent that hosts the store, which may start later than those who look for it, as its name may.

A refused connection is normal before that agent starts, and no answer is normal before its host is up: both are
waited for, and said early, since they may also mean that something is wrong. What this host's own kernel refuses, for
want of a route or by a firewall, no waiting mends; nor that the server is etcd or Redis, which have their own backends.
"""

from __future__ import annotations

import enum
import errno
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from elastic_core.errors import RendezvousConnectionError
from elastic_core.rendezvous import HostPort
from elastic_rdzv_c10d.endpoint import Address, Site, call

REQUEST = b"GET /version HTTP/1.0\r\n\r\n"
"""A question that etcd answers with its version, and Redis with an error about GET. A TCPStore does not answer it."""
NAMES = {"etcd": "etcd", "redis": "Redis"}  # of the servers, by their backends
_USUAL_PORTS = {2379: "etcd", 6379: "redis"}
_REDIS_ERRORS = (b"-ERR ", b"-NOAUTH ", b"-DENIED ", b"-LOADING ")
SOON = 1.5  # seconds after which people are told what an agent waits for that has not connected yet
_RETRY_FIRST, _RETRY_MOST = 0.1, 2.0
_ANSWER = 0.5  # seconds for the answer of a server that is no agent's
_KNOCK = 5.0  # seconds that one attempt to connect may take, later on
_OWN = frozenset(
    {
        errno.ENETUNREACH,  # no route; with IPv6 also: no address
        errno.EADDRNOTAVAIL,
        errno.EAFNOSUPPORT,
        errno.EINVAL,  # a route that says "blackhole", or a link-local address without its %interface
        errno.EACCES,  # a route that says "prohibit"
        errno.EPERM,  # a firewall
    }
)


def _say(message: str) -> None:
    print(f"[elastic] {message}", file=sys.stderr, flush=True)


@dataclass(slots=True)
class Patience:
    """Trying again for a while: ``while patience.left(): … patience.pause()``."""

    seconds: float
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    say: Callable[[str], None] = _say  # tell people, who see nothing else of what goes on yet
    _deadline: float | None = None
    _next: float = _RETRY_FIRST
    _told: set[str] = field(default_factory=set)

    def left(self) -> float:
        """Return the seconds left, counted from the first call; 0 when there are none."""
        if self._deadline is None:
            self._deadline = self.now() + self.seconds
        return max(0.0, self._deadline - self.now())

    def spent(self) -> float:
        """Return the seconds since the first call of :meth:`left`."""
        return self.seconds - self.left()

    def tell(self, message: str, *, at_once: bool = False) -> None:
        """Say what one waits for, once, and not before it is clear that one has to; not where the end is near."""
        key = message.split(" for up to")[0]
        if key not in self._told and self.left() >= 1 and (at_once or self.spent() >= SOON):
            self._told.add(key)
            self.say(f"{message}.")

    def pause(self, most: float = _RETRY_MOST) -> None:
        """Wait before the next attempt, longer each time, for ``most`` seconds at most."""
        self.sleep(min(self._next, self.left(), most))
        self._next = min(2 * self._next, _RETRY_MOST)


def resolve(endpoint: HostPort, patience: Patience) -> list[Address]:
    """Return the endpoint's addresses, in the resolver's order; asked again until there are any.

    Raises:
        RendezvousConnectionError: No resolver knew the name for as long as ``patience`` lasts.
    """
    while True:
        try:
            found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError) as exc:
            if not patience.left():
                raise RendezvousConnectionError(
                    f"The endpoint's host {endpoint.host!r} has no address: {exc}.",
                    hint="Check the name, or write the address itself.",
                ) from exc
            patience.tell(
                f"the endpoint's host {endpoint.host!r} has no address yet; asking again for up to "
                f"{patience.left():.0f} s ({exc}). If there is no such host, check the name or write the address"
            )
            patience.pause()
        else:
            return list(dict.fromkeys(Address(family, str(at[0]), endpoint.port) for family, _, _, _, at in found))


class _Met(enum.IntEnum):
    """The answer of an address. The lowest is the most hopeful one, and is what people are told of."""

    NOBODY = 0  # the host answers, and no server listens
    SILENCE = 1  # the host does not answer: it is off, on its way up, or behind something that drops packets
    NO_WAY = 2  # this host does not even try

    @classmethod
    def of(cls, exc: OSError) -> _Met:
        if exc.errno in _OWN:
            return cls.NO_WAY
        silent = isinstance(exc, TimeoutError) or exc.errno in (errno.EHOSTUNREACH, errno.EHOSTDOWN)
        return cls.SILENCE if silent else cls.NOBODY


@dataclass(slots=True)
class Search:
    """The search for the server that listens at an endpoint."""

    endpoint: HostPort
    site: Site
    patience: Patience
    _found: Address | None = None

    def look(self) -> None:
        """Look for :data:`SOON` seconds at most, and tell people if the host does not answer.

        It comes before torch is imported, so that users learn early of what they have to mend. That no server
        listens there is nothing to mend yet: :meth:`reach` says it.

        Raises:
            RendezvousConnectionError: This host has no way there.
        """
        while (failure := self._knock(SOON)) is not None:
            met = _Met.of(failure)
            if met is not _Met.NO_WAY:
                self._tell(met, failure)
                return
            if not (left := min(SOON, self.patience.seconds) - self.patience.spent()) > 0:
                raise self._refusal(failure) from failure
            self.patience.pause(left)  # an interface may be on its way up

    def reach(self) -> Address:
        """Return the first address where a server listens; tries again until there is one.

        Raises:
            RendezvousConnectionError: There was none for as long as the patience lasts.
        """
        while self._found is None and (failure := self._knock(_KNOCK)) is not None:
            if not self.patience.left():
                raise self._refusal(failure) from failure
            self._tell(_Met.of(failure), failure)
            self.patience.pause()
        assert self._found is not None
        return self._found

    def waiting(self) -> None:
        """Tell people that a server listens, and does not answer as a store would.

        Raises:
            RendezvousConnectionError: It answers as etcd or Redis.
        """
        if (backend := self._other_backend()) is not None:
            raise RendezvousConnectionError(
                f"{NAMES[backend]} answers at {self._where()}, and no store of an agent's.",
                hint=f"Add --rdzv_backend={backend}, and name the server by --rdzv_endpoint.",
            )
        self._say(
            f"a server takes connections at {self._where()}, but no store answers there yet; waiting for it "
            f"for up to {self.patience.left():.0f} s. If no agent is starting there, choose another port"
        )

    def _other_backend(self) -> str | None:
        assert self._found is not None
        try:
            return backend_of(call(self._found, _ANSWER, REQUEST))
        except OSError:  # it says nothing, or has gone; the dialling goes on
            return None

    def _knock(self, seconds: float) -> OSError | None:
        """Try each address once; return the most hopeful failure, None where a server listens."""
        failures: list[OSError] = []
        budget = min(seconds, self.patience.left()) / len(self.site.addresses)
        for address in self.site.addresses:
            try:
                call(address, max(0.1, budget))
            except OSError as exc:
                failures.append(exc)
            else:
                self._found = address
                return None
        return min(failures, key=_Met.of)

    def _tell(self, met: _Met, failure: OSError) -> None:
        left = f"for up to {self.patience.left():.0f} s"
        if met is _Met.NOBODY:
            self._say(f"no agent hosts the store at {self._where()} yet; waiting for it {left}")
        else:
            self._say(
                f"{self._where()} does not answer ({_why(failure)}); trying again {left}, since that host may be on "
                "its way up. If it is up, check the address, the routes and the firewalls in between",
                at_once=True,
            )

    def _say(self, message: str, *, at_once: bool = False) -> None:
        at_port = advice(self.endpoint.port).rstrip(".")
        self.patience.tell(f"{message}.{at_port}" if at_port else message, at_once=at_once)

    def _refusal(self, failure: OSError) -> RendezvousConnectionError:
        where, why, after = self._where(), _why(failure), f"after {self.patience.seconds:g} s"
        met, at_port = _Met.of(failure), advice(self.endpoint.port)
        if met is _Met.NO_WAY:
            return RendezvousConnectionError(
                f"There is no way from this host to {where}: {why}.",
                hint="Check the address, this host's routes and its own firewall (`ip route get ADDRESS`).",
            )
        if met is _Met.SILENCE:
            return RendezvousConnectionError(
                f"No host answers at {where}, {after}: {why}.",
                hint="Start that host, or check the address, the routes and the firewalls in between." + at_port,
            )
        return RendezvousConnectionError(
            f"No server listens at {where}, {after}: {why}.",
            hint="Start the agent on that host, or check the address and the firewall. An agent that cannot know "
            "that the address is its own, behind a NAT for example, needs --rdzv_conf is_host=true." + at_port,
        )

    def _where(self) -> str:
        where, at = str(self.endpoint), ", ".join(map(str, self.site.addresses))
        return where if at == where else f"{where} ({at})"


def _why(exc: OSError) -> str:
    return exc.strerror or str(exc)


def backend_of(answer: bytes) -> str | None:
    """Return the backend for the server that has answered :data:`REQUEST` so; None where the answer does not tell."""
    if answer.startswith(b"HTTP/") and b"etcdserver" in answer:
        return "etcd"
    return "redis" if answer.startswith(_REDIS_ERRORS) else None


def advice(port: int) -> str:
    """Return a sentence to stand after another one, if etcd or Redis usually has this port; '' for any other port."""
    if (backend := _USUAL_PORTS.get(port)) is None:
        return ""
    return f" Port {port} is usually {NAMES[backend]}'s: to meet there, add --rdzv_backend={backend}."
