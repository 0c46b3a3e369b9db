"""The address of the server: reading what users write, and never writing a password back."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote

from elastic_core.errors import UsageError
from elastic_core.rendezvous import HostPort

PORT, SENTINEL_PORT = 6379, 26379
FORM = "HOST[:PORT], redis://HOST[:PORT][/DB], rediss:// for TLS, or unix:///PATH"

_HINT = (
    f"Write {FORM}, e.g. redis.example:{PORT}. "
    "A URL may have a user, a colon, a password and an @ before the host; / and @ of a password are %2F and %40."
)
_URL = re.compile(r"(?P<scheme>[a-z]+)://(?:(?P<user>.*)@)?(?P<rest>[^@]*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """``--rdzv_endpoint``, read. As text it has no password."""

    hosts: tuple[HostPort, ...] = ()  # one; several only for sentinels
    path: str | None = None  # of a unix socket
    tls: bool = False
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix://{self.path}"
        return ",".join(map(str, self.hosts))

    @classmethod
    def parse(cls, text: str, *, sentinels: bool = False) -> Endpoint:
        """Read an endpoint: of a server, or of one or more sentinels separated by commas.

        Raises:
            UsageError: It is none.
        """
        scheme, user, rest = "redis", None, text
        if "://" in text:
            found = _URL.fullmatch(text)
            if found is None or found["scheme"] not in ("redis", "rediss", "unix"):
                raise _refused(text, f"it is not of the form {FORM}")
            scheme, user, rest = found["scheme"], found["user"], found["rest"]
        elif "@" in text:
            raise _refused(text, "a user and a password need a URL, which begins with redis://")
        username, password = _credentials(user)
        if scheme == "unix":
            path, _, query = rest.partition("?")
            if not path.startswith("/") or sentinels:
                raise _refused(text, "sentinels have hosts" if sentinels else "the socket's path must begin with /")
            options = dict(parse_qsl(query, keep_blank_values=True))
            db = _database(text, options.pop("db", ""))
            if options:
                raise _refused(text, f"there is no option {next(iter(options))!r}")
            return cls(path=unquote(path), db=db, username=username, password=password)
        where, slash, db_text = rest.partition("/")
        if slash and "://" not in text:
            raise _refused(text, "a database needs a URL, redis://HOST/DB")
        port = SENTINEL_PORT if sentinels else PORT
        hosts = tuple(HostPort.parse(each, port, endpoint=shown(text), hint=_HINT) for each in where.split(","))
        if len(hosts) > 1 and not sentinels:
            raise _refused(
                text, f"it names {len(hosts)} servers; only sentinels may be several (--rdzv_conf sentinel=NAME)"
            )
        return cls(
            hosts=hosts, tls=scheme == "rediss", db=_database(text, db_text), username=username, password=password
        )


def shown(text: str) -> str:
    """Return an endpoint as it was typed, less the password."""
    return re.sub(r"^([a-z]*://)?(.*)@", r"\1***@", text, flags=re.DOTALL)


def _refused(text: str, why: str) -> UsageError:
    return UsageError(f"--rdzv_endpoint {shown(text)!r}: {why}.", hint=_HINT)


def _credentials(user: str | None) -> tuple[str | None, str | None]:
    if user is None:
        return None, None
    name, colon, password = user.partition(":")
    return unquote(name) or None, unquote(password) if colon else None


def _database(text: str, digits: str) -> int:
    if digits and not (digits.isascii() and digits.isdigit()):
        raise _refused(text, f"{digits!r} is not the number of a database")
    return int(digits or 0)
