"""The endpoint, ``HOST[:PORT][,HOST[:PORT]…]``, the ``--rdzv_conf`` keys of both backends, and their environment.

Every user of the host can read a command line, so no password is taken from there: it comes from a
file or from the environment, and is never shown.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_core.errors import UsageError
from elastic_core.rendezvous import HostPort, boolean, timeouts

if TYPE_CHECKING:
    import ssl

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


def parse_endpoints(text: str, *, tls: bool | None = None) -> list[Endpoint]:
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


USER_VARIABLE, PASSWORD_VARIABLE = "ELASTIC_ETCD_USER", "ELASTIC_ETCD_PASSWORD"
DEFAULT_PREFIX = "/elastic"

TLS_KEYS: Mapping[str, tuple[str, ...]] = {
    "cacert": ("cacert", "ca_cert"),
    "cert": ("cert", "ssl_cert"),
    "key": ("key", "ssl_cert_key"),
}
"""A file's meaning, and the keys that name it: torch has two spellings for each."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a connection to etcd, with the user. Durations are in seconds."""

    prefix: str = DEFAULT_PREFIX
    tls: bool | None = None  # true if an option other than an endpoint's ``https://`` asks for TLS; None without one
    cacert: str | None = None
    cert: str | None = None
    key: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    connect_timeout: float = 2.5  # until a member answers, at first
    listen_timeout: float = 1.0
    """Until one of them takes a connection and says anything, at first: one that restarts does by then, and so does one
    that is busy. Who gives ``connect_timeout`` means both."""
    read_timeout: float = 20.0
    durable: bool = False

    @classmethod
    def read(cls, config: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> Options:
        """Read them; raise UsageError if a value is wrong, two contradict each other, or a file cannot be read."""
        files = {name: _one_of(config, spellings) for name, spellings in TLS_KEYS.items()}
        user, password = _credentials(config, environ)
        given = timeouts(config)
        options = cls(
            prefix="/" + config.get("etcd_prefix", DEFAULT_PREFIX).strip("/"),
            tls=_tls(config, files),
            user=user,
            password=password,
            connect_timeout=given.get("connect_timeout", DEFAULTS.connect_timeout),
            listen_timeout=given.get("connect_timeout", DEFAULTS.listen_timeout),
            read_timeout=given.get("read_timeout", DEFAULTS.read_timeout),
            durable=boolean("durable", config.get("durable", "false")),
            **files,
        )
        if options.key is not None and options.cert is None:
            raise UsageError(f"--rdzv_conf names the key {options.key!r} of a certificate, and no certificate.")
        return options

    def context(self) -> ssl.SSLContext:
        """Return the TLS context: TLS 1.2 or newer, the server's certificate and name checked.

        Raises:
            UsageError: A file is not there, or is no certificate, no key, or not this certificate's.
        """
        import ssl  # only where TLS is asked for

        named = self.cacert
        try:
            context = ssl.create_default_context(cafile=self.cacert)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.cert is not None:
                named = f"{self.cert}, {self.key}" if self.key else self.cert
                # An encrypted key would have to be asked for at a terminal.
                context.load_cert_chain(self.cert, self.key, password=lambda: "")
        except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
            what = "certificate of the authority" if named == self.cacert else "client certificate and its key"
            raise UsageError(
                f"The {what}, {named!r}, cannot be used: {exc.strerror if isinstance(exc, OSError) else exc}.",
                hint="The files have to be in PEM format, readable, not encrypted, and key and certificate a pair.",
            ) from exc
        return context


DEFAULTS = Options()

CONF: Mapping[str, str] = {
    "protocol": "http or https, for endpoints that do not say [https with cacert or cert, else http]",
    "cacert": "PEM file with the authority that the servers' certificates are checked against [the system's]",
    "cert": "PEM file with this client's certificate",
    "key": "PEM file with its key, where that is another file",
    "user": f"user of etcd [{USER_VARIABLE}]; the password comes from password_file or {PASSWORD_VARIABLE}",
    "password_file": "file whose first line is the password",
    "etcd_prefix": f"what the names of all keys begin with [{DEFAULT_PREFIX}]",
    "connect_timeout": "seconds to look for a member that answers, at first "
    f"[{DEFAULTS.connect_timeout:g}; {DEFAULTS.listen_timeout:g} where no server listens]",
    "read_timeout": f"seconds that one operation may take, on whichever member [{DEFAULTS.read_timeout:g}]",
    "durable": "true: this etcd never comes back without what it was told, so a job's first round need not wait "
    "4 s for one that was running",
    "ca_cert": "the same as cacert, as torch spells it elsewhere",
    "ssl_cert": "the same as cert",
    "ssl_cert_key": "the same as key",
    "password": "not taken: a command line can be read by every user of the host; use password_file",
}
"""The options of both backends, each with a line of help."""


def _one_of(config: Mapping[str, str], spellings: tuple[str, ...]) -> str | None:
    given = [key for key in spellings if key in config]
    if len(given) > 1:
        raise UsageError(f"--rdzv_conf gives {' and '.join(given)}, which mean the same.", hint="Leave one out.")
    return config[given[0]] if given else None


def _tls(config: Mapping[str, str], files: Mapping[str, str | None]) -> bool | None:
    given, named = config.get("protocol"), any(files.values())
    protocol = None if given is None else given.strip().lower()
    if protocol not in (None, "http", "https"):
        raise UsageError(f"--rdzv_conf protocol={given!r} is neither http nor https.")
    if protocol == "http" and named:
        raise UsageError("--rdzv_conf says protocol=http, and names certificates.", hint="Leave out one of them.")
    if protocol is None:
        return True if named else None
    return protocol == "https"


def _credentials(config: Mapping[str, str], environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    if "password" in config:
        raise UsageError(
            "--rdzv_conf has a password in it, which every user of this host could read.",
            hint=f"Say password_file=PATH, or set {PASSWORD_VARIABLE}.",
        )
    user = config.get("user") or environ.get(USER_VARIABLE) or None
    password = environ.get(PASSWORD_VARIABLE) or None
    if (path := config.get("password_file")) is not None:
        try:
            password = Path(path).read_text().partition("\n")[0].rstrip("\r")
        except (OSError, UnicodeError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else "it is no text"
            raise UsageError(f"--rdzv_conf password_file={path!r} cannot be read: {reason}.") from exc
        if not password:
            raise UsageError(f"--rdzv_conf password_file={path!r}: its first line is empty.")
    if (user is None) != (password is None):
        there, missing = ("a password", "a user") if user is None else (f"the user {user!r}", "a password")
        raise UsageError(
            f"There is {there} for etcd, and no {missing.partition(' ')[2]}.",
            hint=f"Say --rdzv_conf user=NAME,password_file=PATH, or set {USER_VARIABLE} and {PASSWORD_VARIABLE}.",
        )
    return user, password
