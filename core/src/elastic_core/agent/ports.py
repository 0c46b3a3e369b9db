"""A TCP port that is kept for the workers' store until somebody listens there."""

from __future__ import annotations

import socket

from elastic_core.errors import ElasticError


class HeldPort:
    """A port of this host, bound and not listened on.

    Linux lets another socket listen there if both set SO_REUSEADDR, as torch's TCPStore does, and gives the port to
    nobody who asks for *any* one. It is bound as TCPStore listens: on every address of both families, where the host
    has both.
    """

    def __init__(self, held: socket.socket) -> None:
        self._held = held
        self.port: int = held.getsockname()[1]

    @classmethod
    def take(cls, address: str) -> HeldPort:
        """Hold a free port for a worker that others reach at ``address``.

        Raises:
            ElasticError: No port is free, or no descriptor is left.
        """
        try:
            return cls(_bind(socket.AF_INET6, "::"))
        except OSError as exc:
            error = exc
        if ":" not in address:  # a host without IPv6
            try:
                return cls(_bind(socket.AF_INET, "0.0.0.0"))
            except OSError as exc:
                error = exc
        raise ElasticError(
            f"No port could be held for rank 0's store: {error}.",
            hint="Check ip_local_port_range and the limit of open files (ulimit -n).",
        ) from error

    @property
    def reached_at(self) -> str:
        """An address at which this host itself reaches it."""
        return "127.0.0.1" if self._held.family is socket.AF_INET or _mapped(self._held) else "::1"

    def listen(self) -> None:
        """Take connections, for somebody else to accept: nobody is refused meanwhile."""
        self._held.listen(socket.SOMAXCONN)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._held.fileno()

    def close(self) -> None:
        """Let go of it; who listens there goes on."""
        self._held.close()


def _mapped(held: socket.socket) -> bool:
    """Whether a socket of IPv6 takes connections of IPv4, too."""
    return held.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 0


def _bind(family: socket.AddressFamily, wildcard: str) -> socket.socket:
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family is socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.bind((wildcard, 0))
        # Only now: with it set before, the kernel might choose a port that somebody else holds the same way.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError:
        held.close()
        raise
    return held
