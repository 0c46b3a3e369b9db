"""The address of the store, whether it belongs on this host, and the search for the agent that hosts it elsewhere.

The agent whose host has the endpoint's address hosts the store. Whether an address is this host's, the kernel answers
best: it can be bound, or it cannot. Of several agents on one host the first gets the port; the others find it taken and
become clients.

The host's agent may start later than those that look for it, as its name may. A refused connection is normal before
that agent starts, and no answer is normal before its host is up: both are waited for, and said early, since they may
also mean that something is wrong. What this host's own kernel refuses, for want of a route or by a firewall, no waiting
mends; nor that the server is etcd or Redis, which have their own backends.
"""

from __future__ import annotations

import enum
import errno
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from elastic_core.errors import RendezvousConnectionError, UsageError
from elastic_core.rendezvous import HostPort, ip_address

DEFAULT_PORT = 29400

_BACKLOG = 4096
"""Agents that may knock while the host's agent still imports torch; the kernel has a limit of its own (somaxconn)."""
_KNOCK = 5.0  # seconds that one attempt to connect may take
_ANSWER_BYTES = 1024  # bytes of an answer that are read
_CALLS = 29
"""Bytes that one reads at least: the mark by which others know a socket that is no connection to a store. Answers to
:data:`REQUEST` are longer."""
_TOWARDS_ALL = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses that are reserved for documentation (RFC 5737, RFC 3849); nothing is ever sent there."""

REQUEST = b"GET /version HTTP/1.0\r\n\r\n"
"""A question that etcd answers with its version, and Redis with an error about GET. A TCPStore does not answer it."""
NAMES = {"etcd": "etcd", "redis": "Redis"}  # of the servers, by their backends
_USUAL_PORTS = {2379: "etcd", 6379: "redis"}
_REDIS_ERRORS = (b"-ERR ", b"-NOAUTH ", b"-DENIED ", b"-LOADING ")
SOON = 1.5  # seconds after which people are told what an agent waits for that has not connected yet
_RETRY_FIRST, _RETRY_MOST = 0.1, 2.0
_ANSWER_SECONDS = 0.5  # seconds for the answer of a server that is no agent's
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


@dataclass(frozen=True, slots=True)
class Address:
    """One numeric address and a port; not a name, since looking one up can stall a thread for seconds."""

    family: socket.AddressFamily
    host: str
    port: int

    def __str__(self) -> str:
        return str(HostPort(self.host, self.port))

    @property
    def is_loopback(self) -> bool:
        """True if only this host can reach it."""
        literal = ip_address(self.host)
        return literal is not None and literal.is_loopback


@dataclass(frozen=True, slots=True)
class Site:
    """The addresses of the store, and the socket to serve it on if this host does."""

    addresses: Sequence[Address]
    listener: socket.socket | None = None


def find_site(endpoint: HostPort, addresses: Sequence[Address], is_host: bool | None, local_addr: str | None) -> Site:
    """Decide where the store is to be, and take its port if that is here.

    ``is_host`` says whether the store is to be here; None to find out.

    Raises:
        UsageError: This host cannot tell.
        RendezvousConnectionError: The store is to be here, and its port cannot be had.
    """
    if is_host is False:
        return Site(addresses)
    for named in addresses:
        address = named
        if named.is_loopback and not _means_this_host(endpoint.host):
            # Debian's /etc/hosts gives a host's own name a loopback address, where no other host could reach the store.
            address = _outward(named, local_addr) or named
        try:
            listener = _listen(address)
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE and is_host is None:
                return Site([address])
            if exc.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise _cannot_listen(address, exc) from exc
        else:
            if is_host is None and not address.is_loopback and _binds_anything(address.family):
                listener.close()
                raise UsageError(
                    f"This host may bind addresses that it does not have (ip_nonlocal_bind), {address} among them "
                    "perhaps, and so cannot tell whether it is to host the store.",
                    hint="Add is_host=true to --rdzv_conf on the one node that has it, and is_host=false elsewhere.",
                )
            return Site([address], listener)
    return _forced(addresses, local_addr) if is_host else Site(addresses)


def knock(address: Address) -> None:
    """See that the store which was there still is: TCPStore itself would try for as long as it is allowed to.

    Raises:
        RendezvousConnectionError: No server listens there.
    """
    try:
        call(address, _KNOCK)
    except OSError as exc:
        raise RendezvousConnectionError(
            f"The store at {address} is gone, and with it the agent that hosts it, or the network in between: "
            f"{exc.strerror or exc}."
        ) from exc


def call(address: Address, seconds: float, request: bytes = b"") -> bytes:
    """Connect and hang up; with a request, send it first, and return the beginning of the answer.

    To connect takes ``seconds`` at most, and to wait for the answer as long again.

    Raises:
        OSError: No server takes the connection, or it does not answer in time.
    """
    told = address.host, address.port, address.family, socket.SOCK_STREAM
    [(*_, at), *_] = socket.getaddrinfo(*told, flags=socket.AI_NUMERICHOST)  # which knows what a %scope is
    with socket.socket(address.family, socket.SOCK_STREAM) as caller:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _CALLS)
        caller.settimeout(seconds)
        caller.connect(at)
        if not request:
            return b""
        caller.sendall(request)
        return caller.recv(_ANSWER_BYTES)


def calls(connection: socket.socket) -> bool:
    """Return True if :func:`call` made the connection, on any thread; False for a connection to a store."""
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == _CALLS


def _means_this_host(host: str) -> bool:
    """Return True for an address, and for a name that means loopback: the user has asked for just that."""
    return ip_address(host) is not None or host == "localhost" or host.endswith(".localhost")


def _listen(address: Address) -> socket.socket:
    return socket.create_server((address.host, address.port), family=address.family, backlog=_BACKLOG)


def _forced(addresses: Sequence[Address], local_addr: str | None) -> Site:
    """Return the site of a store here, although none of the endpoint's addresses is: NAT translates it on the way."""
    named = addresses[0]
    address = _outward(named, local_addr)
    if address is None:
        raise RendezvousConnectionError(
            f"is_host=true, but {named} is not an address of this host, and no network is reachable from here.",
            hint="Name the address that others reach this host at: --local_addr=ADDRESS.",
        )
    try:
        return Site([address], _listen(address))
    except OSError as exc:
        raise _cannot_listen(address, exc) from exc


def _cannot_listen(address: Address, exc: OSError) -> RendezvousConnectionError:
    if exc.errno == errno.EADDRINUSE:
        return RendezvousConnectionError(
            f"is_host=true, but port {address.port} of {address.host} is taken.",
            hint="If another agent of this job hosts the store there, leave is_host out; else choose another port.",
        )
    return RendezvousConnectionError(
        f"The store cannot listen at {address}: {exc.strerror}.", hint="Choose another port, or another host's address."
    )


def _outward(named: Address, local_addr: str | None) -> Address | None:
    """Return the address at which other hosts reach this one: the given one, or the source of the default route."""
    if local_addr is not None:
        family, _, _, _, at = socket.getaddrinfo(local_addr, named.port, type=socket.SOCK_STREAM)[0]
        return Address(family, str(at[0]), named.port)
    with socket.socket(named.family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((_TOWARDS_ALL[named.family], named.port))
        except OSError:
            return None
        return Address(named.family, str(probe.getsockname()[0]), named.port)


def _binds_anything(family: socket.AddressFamily) -> bool:
    version = "ipv6" if family == socket.AF_INET6 else "ipv4"
    try:
        return Path(f"/proc/sys/net/{version}/ip_nonlocal_bind").read_text().strip() != "0"
    except OSError:
        return False


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
        """Return the first address where a server listens; raise RendezvousConnectionError when patience has ended."""
        while self._found is None and (failure := self._knock(_KNOCK)) is not None:
            if not self.patience.left():
                raise self._refusal(failure) from failure
            self._tell(_Met.of(failure), failure)
            self.patience.pause()
        assert self._found is not None
        return self._found

    def waiting(self) -> None:
        """Tell people that no store answers there yet; raise RendezvousConnectionError if etcd or Redis does."""
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
            return backend_of(call(self._found, _ANSWER_SECONDS, REQUEST))
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
