"""The address of the store, and whether it belongs on this host.

The agent whose host has the endpoint's address hosts the store. Whether an address is this host's, the kernel answers
best: it can be bound, or it cannot. Of several agents on one host the first gets the port; the others find it taken and
become clients.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from elastic_core.errors import RendezvousConnectionError, UsageError
from elastic_core.rendezvous import HostPort, ip_address

DEFAULT_PORT = 29400

_BACKLOG = 4096
"""Agents that may knock while the host's agent still imports torch; the kernel has a limit of its own (somaxconn)."""
_KNOCK = 5.0  # seconds that one attempt to connect may take
_ANSWER = 1024  # bytes of an answer that are read
_CALLS = 29
"""Bytes that one reads at least: the mark by which others know a socket that is no connection to a store. Answers that
``search`` knows are longer."""
_TOWARDS_ALL = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses that are reserved for documentation (RFC 5737, RFC 3849); nothing is ever sent there."""


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
        return caller.recv(_ANSWER)


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
