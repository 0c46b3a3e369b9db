"""The endpoint's most common form, ``HOST[:PORT]``, and the timeouts of connections to it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from elastic_core.errors import UsageError
from elastic_core.rendezvous.options import positive_seconds

FORM = "HOST[:PORT]"
_PARTS = re.compile(r"(?:\[(?P<ipv6>[^\s\[\]]*)\]|(?P<name>[^\s\[\]:/?#@,%\\]*))(?::(?P<port>[^\s:]*))?")
_BROADCAST = ipaddress.IPv4Address("255.255.255.255")
_ONE_HOST = "Name the one host where the store is, or is to be."


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host, by its name or its address, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, default_port: int, *, endpoint: str | None = None, hint: str = "") -> HostPort:
        """Return the host and the port of ``HOST``, ``HOST:PORT``, ``[IPV6]`` or ``[IPV6]:PORT``.

        Args:
            endpoint: For errors, the whole endpoint, without a password; None if that is ``text``.
            hint: For errors, what to write.

        Raises:
            UsageError: The text is not of the form, or names all hosts or a group of hosts.
        """
        example = f"e.g. 10.0.0.1, node0.example:{default_port} or [fd00::1]:{default_port}"

        def refused(why: str, hint: str = hint or f"Write {FORM}, {example}.") -> UsageError:
            return UsageError(f"--rdzv_endpoint {text if endpoint is None else endpoint!r}: {why}.", hint=hint)

        if not text:
            raise refused("it names no host")
        try:
            host, port = split_host_port(text)
        except ValueError:
            raise refused(f"{text!r} is not of the form {FORM}") from None
        if text == host and ":" in host:  # what would be the port?
            raise refused(f"{text!r} is not of the form {FORM}: an address of IPv6 has brackets, [{text}]")
        if port is not None and not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
            raise refused(f"{port!r} is not a port from 1 to 65535")
        literal = ip_address(host)
        if literal is not None and literal.is_unspecified:
            raise refused(f"{host!r} is every address of every host, and so no host that others could find", _ONE_HOST)
        if literal is not None and (literal.is_multicast or literal == _BROADCAST):
            raise refused(f"{host!r} is the address of a group of hosts, to which no client can connect", _ONE_HOST)
        return cls(host, default_port if port is None else int(port))


def split_host_port(text: str) -> tuple[str, str | None]:
    """Return host and port as they are written, None for no port; raise ValueError if the text is not of the form.

    An address of IPv6 may have no brackets.
    """
    if ":" in text and ip_address(text) is not None:
        return text, None
    parts = _PARTS.fullmatch(text)
    host = "" if parts is None else parts["ipv6"] or parts["name"] or ""
    if parts is None or not host or (parts["ipv6"] is not None and ip_address(host) is None):
        raise ValueError(f"{text!r} is not of the form {FORM}")
    return host, parts["port"]


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return a numeric address, whose zone is left out; None for a name."""
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def timeouts(config: Mapping[str, str]) -> dict[str, float]:
    """Return ``connect_timeout`` and ``read_timeout`` of ``--rdzv_conf``; raise UsageError if one is no duration."""
    return {key: positive_seconds(key, config[key]) for key in ("connect_timeout", "read_timeout") if key in config}
