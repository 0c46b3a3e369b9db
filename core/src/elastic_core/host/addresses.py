"""The address at which other nodes reach this one: numeric, so that no name has to be looked up."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from urllib.parse import urlsplit

from elastic_core.errors import RendezvousConnectionError

LOOPBACK = "127.0.0.1"

_FAR_AWAY = ("192.0.2.1", "2001:db8::1")
"""Addresses of no host (RFC 5737, RFC 3849), so the way to them is the default route."""
PROBE_PORT = 9  # any number: connecting a datagram socket chooses a route and sends nothing


def endpoint_host(endpoint: str) -> str | None:
    """Return the host that an endpoint names; None for a path, or nothing.

    Forms are ``HOST``, ``HOST:PORT``, ``[IPV6]:PORT`` and URLs; of several between commas it takes the first.
    """
    first = parts(endpoint)[0]
    if "://" not in first:
        if "/" in first or first.startswith("file:"):
            return None
        first = f"//[{first}]" if _is_ipv6(first) else f"//{first}"
    try:
        url = urlsplit(first)
        return None if url.scheme in ("file", "unix") else url.hostname
    except ValueError:  # brackets without an address between them
        return None


def parts(endpoint: str) -> list[str]:
    """Return the parts of an endpoint between commas, without the user and the password, which may have a comma."""
    return re.sub(r"^(\w+://).*@", r"\1", endpoint, flags=re.DOTALL).split(",")


def advertised_address(endpoint: str, form: str, local_addr: str | None, *, single_node: bool) -> str:
    """Return the address that an agent advertises: the workers' ``MASTER_ADDR`` if rank 0 runs here.

    Args:
        endpoint: As the user typed it.
        form: The backend's form of endpoints (``RendezvousOptions.endpoint``); one with ``HOST`` names a host.
        local_addr: ``--local_addr``.
        single_node: Whether no other node can join.

    Raises:
        RendezvousConnectionError: None of the endpoint's hosts can be looked up.
    """
    if "HOST" not in form:
        return local_address(None, local_addr, single_node=single_node)
    *others, last = parts(endpoint)
    for part in others:  # the name of a lost host may be lost, too
        with contextlib.suppress(RendezvousConnectionError):
            return local_address(endpoint_host(part), local_addr, single_node=single_node)
    return local_address(endpoint_host(last), local_addr, single_node=single_node)


def local_address(endpoint_host: str | None, local_addr: str | None, *, single_node: bool) -> str:
    """Return the address at which workers on other nodes find a rank 0 that runs here.

    ``local_addr`` wins. A single node needs no more than loopback. Otherwise it is the address from which this host
    reaches the endpoint; if that is loopback, all nodes that use this name are on this host. If only the hosts file
    of this host maps its name to loopback, as Debian's does, and without an endpoint's host, it is the address of the
    default route.

    Raises:
        RendezvousConnectionError: The endpoint's host cannot be looked up.
    """
    if local_addr:
        return local_addr
    if single_node:
        return LOOPBACK
    if endpoint_host is not None:
        for target in _look_up(endpoint_host):
            source = _source(target)
            if source is not None and (not ipaddress.ip_address(source).is_loopback or says_loopback(endpoint_host)):
                return source
    return next((source for target in _FAR_AWAY if (source := _source(target)) is not None), LOOPBACK)


def _look_up(host: str) -> list[str]:
    """Return the numeric addresses of a host, in the resolver's order."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise RendezvousConnectionError(
            f"The host of the rendezvous endpoint, {host!r}, cannot be looked up: {reason}.",
            hint="Check the name, or give a numeric address as --rdzv_endpoint.",
        ) from exc
    return [str(address[0]) for *_, address in found]


def _source(target: str) -> str | None:
    """Return the address that packets to ``target`` leave from; None without a route, or for a link-local one."""
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target, PROBE_PORT))
            source = str(probe.getsockname()[0])
    except OSError:
        return None
    return None if ipaddress.ip_address(source).is_link_local else source


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def says_loopback(host: str) -> bool:
    """Whether a name or an address means loopback on every host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
