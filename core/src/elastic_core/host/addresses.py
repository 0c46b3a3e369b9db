"""Addresses and ports of this host: where other nodes reach it, and a port that is kept for the workers' store.

Addresses are numeric, so that no name has to be looked up.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import re
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from elastic_core.errors import ElasticError, RendezvousConnectionError
from elastic_core.rendezvous.options import ip_address, split_host_port

LOOPBACK, ANY_FORM = "127.0.0.1", "ENDPOINT"  # the latter is a form of endpoints that may name a host or not

_FAR_AWAY = ("192.0.2.1", "2001:db8::1")
"""Addresses of no host (RFC 5737, RFC 3849), so the way to them is the default route."""
_SIOCGIFFLAGS, _SIOCGIFADDR, _IFF_UP = 0x8913, 0x8915, 1
PROBE_PORT = 9  # any number: connecting a datagram socket chooses a route and sends nothing


def endpoint_host(endpoint: str) -> str | None:
    """Return the host that an endpoint names; None for a path, or nothing.

    Forms are ``HOST``, ``HOST:PORT``, ``[IPV6]:PORT`` and URLs; of several between commas it takes the first.
    """
    scheme, separator, rest = parts(endpoint)[0].rpartition("://")
    if scheme in ("file", "unix") or rest.startswith("file:") or ("/" in rest and not separator):
        return None
    try:
        return split_host_port(re.split("[/?#]", rest.rpartition("@")[2])[0])[0]
    except ValueError:
        return None


def parts(endpoint: str) -> list[str]:
    """Return the parts of an endpoint between commas, without the user and the password, which may have a comma."""
    return re.sub(r"^(\w+://).*@", r"\1", endpoint, flags=re.DOTALL).split(",")


def advertised_address(endpoint: str, form: str, local_addr: str | None, *, single_node: bool) -> str:
    """Return the address that an agent advertises: the workers' ``MASTER_ADDR`` if rank 0 runs here.

    ``local_addr`` wins. A ``single_node``, which no other can join, needs no more than loopback. ``endpoint`` is as the
    user typed it; with ``HOST`` in the backend's ``form`` (``RendezvousOptions.endpoint``) it names a host.

    Raises:
        RendezvousConnectionError: None of the endpoint's hosts can be looked up.
    """
    if local_addr or single_node:
        return local_addr or LOOPBACK
    if "HOST" not in form and form != ANY_FORM:
        return local_address(None)
    *others, last = (*parts(endpoint), "") if form == ANY_FORM else parts(endpoint)
    for part in others:  # the name of a lost host may be lost, too
        with contextlib.suppress(RendezvousConnectionError):
            return local_address(endpoint_host(part))
    return local_address(endpoint_host(last))


def local_address(endpoint_host: str | None) -> str:
    """Return the address at which workers on other nodes find a rank 0 that runs here.

    It is the address from which this host reaches the endpoint; if that is loopback, all nodes that use this name are
    on this host. If only the hosts file of this host maps its name to loopback, as Debian's does, and without an
    endpoint's host, it is the address of the default route; without such a route that of an interface, of several that
    of the host's name.

    Raises:
        RendezvousConnectionError: The endpoint's host cannot be looked up.
    """
    if endpoint_host is not None:
        for target in _look_up(endpoint_host):
            source = _source(target)
            if source is not None and (not ipaddress.ip_address(source).is_loopback or says_loopback(endpoint_host)):
                return source
    if (default := next(filter(None, map(_source, _FAR_AWAY)), None)) is not None:
        return default
    found, named = interfaces(), list[str]()
    if len(found) > 1:
        with contextlib.suppress(RendezvousConnectionError):
            named = _look_up(socket.gethostname())
    return next((address for address in (*named, *found) if address in found), LOOPBACK)


def interfaces() -> dict[str, str]:
    """Return the interfaces at which other hosts may reach this one, by their addresses, those of IPv4 first.

    Bridges are left out, such as Docker's, which has one address on all hosts.
    """
    names = [name for _, name in socket.if_nameindex() if not os.path.isdir(f"/sys/class/net/{name}/bridge")]
    found, up = dict[str, str](), set[str]()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for name in names:
            with contextlib.suppress(OSError):  # it is gone, or has no address of IPv4
                if int.from_bytes(_ask(asking, name, _SIOCGIFFLAGS)[:2], sys.byteorder) & _IFF_UP:
                    up.add(name)
                    found[socket.inet_ntoa(_ask(asking, name, _SIOCGIFADDR)[4:8])] = name
    with contextlib.suppress(OSError), open("/proc/net/if_inet6", encoding="ascii") as table:
        entries = map(str.split, table)
        found |= {str(ipaddress.ip_address(bytes.fromhex(at))): name for at, *_, name in entries if name in up}
    usable = {address: ipaddress.ip_address(address) for address in found}
    return {at: found[at] for at, ip in usable.items() if not (ip.is_loopback or ip.is_link_local)}


def collective_interfaces(address: str) -> dict[str, str]:
    """Return the variables by which gloo and NCCL use the interface that has this node's address.

    gloo looks up the name of the host instead, which may not resolve, or only to loopback. NCCL chooses well among
    several interfaces, so it is told of one only where there is no other.
    """
    found = interfaces()
    if (name := found.get(address)) is None:
        return {}
    alone = {"NCCL_SOCKET_IFNAME": f"={name}"} if {*found.values()} == {name} else {}
    return {"GLOO_SOCKET_IFNAME": name, **alone}


def _ask(asking: socket.socket, name: str, request: int) -> bytes:
    """Return what the kernel says of an interface (netdevice(7)), without its name."""
    return fcntl.ioctl(asking, request, struct.pack("256s", name.encode()))[16:]


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


def says_loopback(host: str) -> bool:
    """Return True if a name or an address means loopback on every host."""
    if (literal := ip_address(host)) is not None:
        return literal.is_loopback
    return host == "localhost" or host.endswith(".localhost")


class HeldPort:
    """A port of this host, bound and not listened on.

    Linux lets another socket listen there if both set SO_REUSEADDR, as torch's TCPStore does, and does not choose the
    port for sockets that bind *any* one.
    """

    def __init__(self, held: socket.socket, reached_at: str) -> None:
        self._held = held
        self.reached_at = reached_at  # an address at which this host itself reaches it
        self.port: int = held.getsockname()[1]

    @classmethod
    def take(cls, address: str, port: int = 0) -> HeldPort:
        """Hold a port, 0 for a free one, for a worker that others reach at ``address`` and that opens the store itself.

        It is bound as torch's TCPStore listens: on every address of both families, where the host has both.

        Raises:
            ElasticError: No port is free, this one is taken, or no descriptor is left.
        """
        with _explained(port):
            try:
                held = _bind(socket.AF_INET6, "::", port)
            except OSError:
                if ":" in address:
                    raise
                return cls(_bind(socket.AF_INET, "0.0.0.0", port), LOOPBACK)  # a host without IPv6
            takes_ipv4 = held.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 0
            return cls(held, LOOPBACK if takes_ipv4 else "::1")

    @classmethod
    def take_at(cls, address: str, port: int = 0) -> HeldPort:
        """Hold a port for a process of ours that other hosts reach at ``address``, on that address only.

        If this host does not have the address, since it is translated on the way (NAT) or is a name, which other hosts
        may look up otherwise, packets can come to any address, and it is bound as by :meth:`take`, whose arguments and
        errors these are.
        """
        if (own := own_address(address)) is None:
            return cls.take(address, port)
        family, host = own
        with _explained(port):
            return cls(_bind(family, host, port), host)

    def listen(self) -> None:
        """Take connections for another process to accept, so that none is refused meanwhile.

        Raises:
            ElasticError: Another socket listens there.
        """
        with _explained(self.port):
            self._held.listen(socket.SOMAXCONN)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._held.fileno()

    def close(self) -> None:
        """Release the port; another socket that listens there goes on."""
        self._held.close()


def own_address(address: str) -> tuple[socket.AddressFamily, str] | None:
    """Return the family and the number of an address that this host has; None for any other, and for a name.

    The kernel binds only addresses of the host, unless ``ip_nonlocal_bind`` is set: then the test is whether the kernel
    would send to the address from the address itself.
    """
    if address == "localhost":
        address = LOOPBACK
    try:
        [(family, *_, at)] = socket.getaddrinfo(
            address, PROBE_PORT, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST
        )
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((at[0], 0, *at[2:]))
        if _binds_anything(family):
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(at)
                if probe.getsockname()[0] != at[0]:
                    return None
    except (OSError, UnicodeError):  # UnicodeError: not even a name
        return None
    return family, address


def _binds_anything(family: socket.AddressFamily) -> bool:
    version = "ipv6" if family == socket.AF_INET6 else "ipv4"
    try:
        return Path(f"/proc/sys/net/{version}/ip_nonlocal_bind").read_text(encoding="ascii").strip() != "0"
    except OSError:
        return False


@contextlib.contextmanager
def _explained(port: int) -> Iterator[None]:
    """Turn an OSError into the ElasticError that says that ``port``, or for 0 any port, could not be held."""
    try:
        yield
    except OSError as exc:
        message = f"No port could be held for rank 0's store: {exc}."
        hint = "Check ip_local_port_range and the limit of open files (ulimit -n)."
        if port:
            message = f"Port {port} could not be held for the workers' store: {exc.strerror or exc}."
            hint = "Give another --master_port, or leave it out for a free one."
        raise ElasticError(message, hint=hint) from exc


def _bind(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    [(*_, at)] = socket.getaddrinfo(address, port, family, socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family is socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if port:  # connections of a job that has just ended, which the kernel keeps for a minute, are no obstacle
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(at)
        # Not before: otherwise the kernel might choose a port that another process holds the same way.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError:
        held.close()
        raise
    return held
