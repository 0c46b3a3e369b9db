"""The endpoints of etcd: reading ``HOST[:PORT][,HOST[:PORT]…]``."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from elastic_core.errors import UsageError
from elastic_core.rendezvous import HostPort

DEFAULT_PORT = 2379
FORM = "HOST[:PORT][,HOST[:PORT]...]"

_HINT = f"Write {FORM}, e.g. etcd0:{DEFAULT_PORT},etcd1:{DEFAULT_PORT}; each may begin with http:// or https://."


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One member of the cluster, as the user named it."""

    host: str
    port: int = DEFAULT_PORT
    tls: bool = False

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{HostPort(self.host, self.port)}"


@dataclass(frozen=True, slots=True)
class Site:
    """One numeric address of a member: names are looked up once, since that can stall a thread for seconds."""

    endpoint: Endpoint
    family: socket.AddressFamily
    address: str

    def __str__(self) -> str:
        if self.address == self.endpoint.host:
            return str(self.endpoint)
        return f"{self.endpoint} ({self.address})"


def parse(text: str, *, tls: bool | None = None) -> list[Endpoint]:
    """Return the endpoints in the order given, each once.

    Args:
        text: As the user typed it.
        tls: What an endpoint without a scheme means, and what one with a scheme must not contradict; None: no TLS
            unless the scheme says so.

    Raises:
        UsageError: One is not of the form, contradicts ``tls``, or has a password in it, which is not repeated.
    """
    if "@" in text:
        raise UsageError(
            "--rdzv_endpoint has a user in it, and perhaps a password: every user of this host could read it.",
            hint="Take out what stands before the @. Say --rdzv_conf user=NAME,password_file=PATH, or set "
            "ELASTIC_ETCD_USER and ELASTIC_ETCD_PASSWORD.",
        )
    found = [_parse_one(part.strip(), text, tls) for part in text.split(",")]
    return list(dict.fromkeys(found))


def _parse_one(part: str, text: str, tls: bool | None) -> Endpoint:
    scheme, separator, rest = part.partition("://")
    if not separator:
        scheme, rest = "https" if tls else "http", part
    if scheme not in ("http", "https"):
        raise UsageError(f"--rdzv_endpoint {text!r}: {scheme!r} is neither http nor https.", hint=_HINT)
    if tls is not None and tls != (scheme == "https"):
        wanted = "TLS is asked for" if tls else "protocol=http is asked for"
        raise UsageError(f"--rdzv_endpoint {text!r}: {part!r} is {scheme}, and {wanted}.", hint=_HINT)
    where = HostPort.parse(rest.removesuffix("/"), DEFAULT_PORT, endpoint=text, hint=_HINT)
    return Endpoint(where.host, where.port, scheme == "https")
