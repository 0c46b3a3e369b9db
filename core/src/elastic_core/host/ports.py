"""A TCP port that is kept for the workers' store until that listens there."""

from __future__ import annotations

import socket
from pathlib import Path

from elastic_core.errors import ElasticError
from elastic_core.host.addresses import LOOPBACK, PROBE_PORT


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
        """Hold a port for a worker that other hosts reach at ``address``, and that opens the store itself.

        It is bound as torch's TCPStore listens: on every address of both families, where the host has both.

        Args:
            address: Where others reach this host.
            port: The port's number; 0 for a free one.

        Raises:
            ElasticError: No port is free, this one is taken, or no descriptor is left.
        """
        try:
            held = _bind(socket.AF_INET6, "::", port)
            takes_ipv4 = held.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 0
            return cls(held, LOOPBACK if takes_ipv4 else "::1")
        except OSError as exc:
            error = exc
        if ":" not in address:  # a host without IPv6
            try:
                return cls(_bind(socket.AF_INET, "0.0.0.0", port), LOOPBACK)
            except OSError as exc:
                error = exc
        raise _not_held(error, port) from error

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
        try:
            return cls(_bind(family, host, port), host)
        except OSError as exc:
            raise _not_held(exc, port) from exc

    def listen(self) -> None:
        """Take connections for another process to accept, so that none is refused meanwhile.

        Raises:
            ElasticError: Another socket listens there.
        """
        try:
            self._held.listen(socket.SOMAXCONN)
        except OSError as exc:
            raise _not_held(exc, self.port) from exc

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


def _not_held(exc: OSError, port: int) -> ElasticError:
    if port:
        return ElasticError(
            f"Port {port} could not be held for the workers' store: {exc.strerror or exc}.",
            hint="Give another --master_port, or leave it out for a free one.",
        )
    return ElasticError(
        f"No port could be held for rank 0's store: {exc}.",
        hint="Check ip_local_port_range and the limit of open files (ulimit -n).",
    )


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
