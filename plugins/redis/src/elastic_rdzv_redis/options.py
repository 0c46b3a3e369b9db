"""Reading ``--rdzv_endpoint`` and ``--rdzv_conf``, and where a password comes from, which is never written back."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from elastic_core.errors import RendezvousConnectionError, UsageError
from elastic_core.rendezvous import HostPort, timeouts

PORT, SENTINEL_PORT = 6379, 26379
FORM = "HOST[:PORT], redis://HOST[:PORT][/DB], rediss:// for TLS, or unix:///PATH"

_HINT = (
    f"Write {FORM}, e.g. redis.example:{PORT}. "
    "A URL may have a user, a colon, a password and an @ before the host; / and @ of a password are %2F and %40."
)
_URL = re.compile(r"(?P<scheme>[a-z]+)://(?:(?P<user>.*)@)?(?P<rest>[^@]*)", re.DOTALL)

USERNAME, PASSWORD = "ELASTIC_REDIS_USERNAME", "ELASTIC_REDIS_PASSWORD"
SENTINEL_PASSWORD = "ELASTIC_REDIS_SENTINEL_PASSWORD"
PREFIX = "elastic"
CONNECT_TIMEOUT, READ_TIMEOUT = 2.0, 5.0

CONF: Mapping[str, str] = {
    "username": f"the user to identify as; else ${USERNAME}, or the server's default user",
    "password_file": "a file with the password, which no list of processes shows; read for each connection",
    "password": f"the password, in your shell's history too; better password_file, or ${PASSWORD}",
    "cacert": "a file with the authorities that sign the server's certificate (rediss://); else the system's",
    "cert": "a file with this client's certificate, where the server wants one",
    "key": "a file with its private key, where cert does not hold it",
    "tls_hostname": "the name that the server's certificate is for, where that is not the endpoint's host",
    "sentinel": "the master's name: the endpoint is its sentinels, HOST[:PORT],HOST[:PORT],… (port 26379)",
    "sentinel_username": "the user to identify as to sentinels, where they want one",
    "sentinel_password_file": f"a file with the sentinels' password; else ${SENTINEL_PASSWORD}, or none",
    "prefix": f"what the names of all keys begin with [{PREFIX}]",
    "connect_timeout": f"seconds that making a connection may take [{CONNECT_TIMEOUT:g}]",
    "read_timeout": f"seconds that one answer of the server may take [{READ_TIMEOUT:g}]",
}
"""The keys, each with one line of help."""


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
        """Read an endpoint of a server, or of sentinels separated by commas; raise UsageError if it is none."""
        scheme, user, rest = "redis", None, text
        if "://" in text:
            found = _URL.fullmatch(text)
            if found is None or found["scheme"] not in ("redis", "rediss", "unix"):
                raise _refused(text, f"it is not of the form {FORM}")
            scheme, user, rest = found["scheme"], found["user"], found["rest"]
        elif "@" in text:
            raise _refused(text, "a user and a password need a URL, which begins with redis://")
        username, password = _user_and_password(user)
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


def _user_and_password(user: str | None) -> tuple[str | None, str | None]:
    if user is None:
        return None, None
    name, colon, password = user.partition(":")
    return unquote(name) or None, unquote(password) if colon else None


def _database(text: str, digits: str) -> int:
    if digits and not (digits.isascii() and digits.isdigit()):
        raise _refused(text, f"{digits!r} is not the number of a database")
    return int(digits or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The credentials of this client, for a server or its sentinels."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    file: Path | None = None  # the file that has the password, in its place
    option: str = "password_file"  # the key of ``--rdzv_conf`` that names such a file
    variable: str = PASSWORD  # the environment's, from which the password may come as well

    def now(self) -> tuple[str | None, str | None]:
        """Return the user's name and the password; a file is read each time, since passwords change.

        Raises:
            RendezvousConnectionError: The file cannot be read, or has no password.
        """
        if self.file is None:
            return self.username, self.password
        try:
            password = self.file.read_text().strip("\r\n")
        except (OSError, ValueError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else "it is no text"
            raise RendezvousConnectionError(
                f"The password file {str(self.file)!r} cannot be read: {why}.",
                hint=f"See --rdzv_conf {self.option}.",
                lasting=True,
            ) from exc
        if not password:
            raise RendezvousConnectionError(f"The password file {str(self.file)!r} is empty.", lasting=True)
        return self.username, password


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Files of certificates, and the name that the server's must be for."""

    cacert: str | None = None
    cert: str | None = None
    key: str | None = None
    hostname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the user, parsed. Durations are in seconds."""

    endpoint: Endpoint
    credentials: Credentials = Credentials()
    sentinel: str | None = None  # the master's name, where the endpoint names its sentinels
    sentinel_credentials: Credentials = Credentials()
    tls: Tls | None = None
    prefix: str = PREFIX
    connect_timeout: float = CONNECT_TIMEOUT
    read_timeout: float = READ_TIMEOUT

    @classmethod
    def read(cls, endpoint: str, config: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> Options:
        """Read them; raise UsageError if the endpoint or a value is wrong, or two of them contradict each other."""
        if "sentinel" in config and not config["sentinel"]:
            raise UsageError("--rdzv_conf 'sentinel=': the master has no name.")
        where = Endpoint.parse(endpoint, sentinels="sentinel" in config)
        return cls(
            endpoint=where,
            credentials=_credentials(where, config, environ),
            sentinel=config.get("sentinel"),
            sentinel_credentials=_sentinel_credentials(config, environ),
            tls=_tls(where, config),
            prefix=_prefix(config.get("prefix", PREFIX)),
            **timeouts(config),
        )


def _credentials(endpoint: Endpoint, config: Mapping[str, str], environ: Mapping[str, str]) -> Credentials:
    given = {
        "the URL": endpoint.password,
        "--rdzv_conf password": config.get("password"),
        "--rdzv_conf password_file": config.get("password_file"),
    }
    places = [place for place, value in given.items() if value is not None]
    if len(places) > 1:
        raise UsageError(f"Both {places[0]} and {places[1]} give a password.", hint="Leave one of them out.")
    names = {name for name in (endpoint.username, config.get("username")) if name}
    if len(names) > 1:
        raise UsageError(f"The URL says user {endpoint.username!r}, --rdzv_conf username={config['username']}.")
    username = names.pop() if names else environ.get(USERNAME) or None
    if "password_file" in config:
        return Credentials(username=username, file=_file("password_file", config))
    password = endpoint.password or config.get("password") or environ.get(PASSWORD) or None
    if username is not None and password is None:
        raise UsageError(
            f"The user {username!r} has no password.",
            hint=f"Give one by --rdzv_conf password_file=FILE, or in {PASSWORD}.",
        )
    return Credentials(username=username, password=password)


def _sentinel_credentials(config: Mapping[str, str], environ: Mapping[str, str]) -> Credentials:
    for key in ("sentinel_username", "sentinel_password_file"):
        if key in config and "sentinel" not in config:
            raise UsageError(f"--rdzv_conf {key} has no effect without sentinel=NAME.")
    option = "sentinel_password_file"
    path = _file(option, config) if option in config else None
    password = None if option in config else environ.get(SENTINEL_PASSWORD) or None
    username = config.get("sentinel_username")
    return Credentials(username=username, password=password, file=path, option=option, variable=SENTINEL_PASSWORD)


def _tls(endpoint: Endpoint, config: Mapping[str, str]) -> Tls | None:
    given = [key for key in ("cacert", "cert", "key", "tls_hostname") if key in config]
    if not endpoint.tls:
        if given:
            raise UsageError(
                f"--rdzv_conf {given[0]}={config[given[0]]} has no effect: {str(endpoint)!r} does not speak TLS.",
                hint="Write the endpoint as rediss://HOST[:PORT].",
            )
        return None
    if "key" in config and "cert" not in config:
        raise UsageError(f"--rdzv_conf key={config['key']} needs the certificate that it is for, cert=FILE.")
    files = {key: str(_file(key, config)) for key in ("cacert", "cert", "key") if key in config}
    return Tls(**files, hostname=config.get("tls_hostname"))


def _file(key: str, config: Mapping[str, str]) -> Path:
    path = Path(config[key]).expanduser()
    if not path.is_file():
        raise UsageError(f"--rdzv_conf {f'{key}={config[key]}'!r}: there is no such file.")
    return path.absolute()


def _prefix(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.:/-]{1,100}", text):
        raise UsageError(
            f"--rdzv_conf {f'prefix={text}'!r}: a prefix has 1 to 100 letters, digits, and characters of _ . : / -.",
            hint="Those have no special meaning in the server's access list.",
        )
    return text
