"""From an endpoint to a connection: names, sentinels, TLS, and whether the server will do.

On a connection every wait is bounded, and every error is one of ours. redis-py speaks the protocol; the socket is made
and kept here. So a name is looked up by who connects, and never by who heartbeats; another thread can end a wait; and a
connection that broke is never silently made anew, since what was agreed on it (which server, that it will do) is to be
asked again.

Names are looked up once, when the first connection is made, and again only after an attempt has failed: a resolver can
stall for seconds, and a managed server may have moved, while at its old address a replica answers, or no server.
"""

from __future__ import annotations

import contextlib
import math
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis
from redis.connection import AbstractConnection

from elastic_core.errors import (
    ElasticError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousStateError,
    UsageError,
    in_one_line,
)
from elastic_core.rendezvous import HostPort
from elastic_core.threads import bounded
from elastic_rdzv_redis.options import Credentials, Options
from elastic_rdzv_redis.scripts import NOT_PERMITTED, Script

_ACL = "The README of elastic-rdzv-redis has the line for the server's access list."
_HINTS = {
    "NOPERM": _ACL,
    "OOM": "The server's memory is full: raise its maxmemory.",
    "MISCONF": "The server cannot write to its disk; see its log.",
    "READONLY": "It is a replica: name the master, or the sentinels with --rdzv_conf sentinel=NAME.",
    "MOVED": "It is a node of a Redis Cluster; name a server that is in none.",
    "LOADING": "It still reads its data from disk.",
    "max number of clients reached": "Raise the server's maxclients, and its limit of open files: a node of a job has "
    "4 connections.",
}
"""The advice for an error of a server, by its first word."""

_KEEPS = "noeviction"
_ECHO = ", with args beginning with"  # a server without AUTH repeats its arguments after this: the password


class _Line(AbstractConnection):
    """redis-py's side of a connection: a socket that is there already, once."""

    host = ""  # for redis-py's own records, which are never read

    def __init__(self, sock: socket.socket, where: str, **settings: Any) -> None:
        super().__init__(**settings)
        # redis-py would introduce itself, by a command that older servers' access lists cannot even name. (The
        # first attribute is that of its newer versions.)
        self.driver_info = self.lib_name = self.lib_version = None
        self._given: socket.socket | None = sock
        self._where = where

    def repr_pieces(self) -> list[tuple[str, str]]:
        return [("at", self._where)]

    def _connect(self) -> socket.socket:
        given, self._given = self._given, None
        if given is None:
            raise OSError("the connection is closed")
        return given

    def _host_error(self) -> str:
        return self._where


class Client:
    """One connection. It never reconnects.

    Every method raises RendezvousConnectionError when the server is gone, does not answer in time or refuses, or when
    this connection is closed; and RendezvousStateError when a key holds something else.

    ``sock`` is closed with this object, also when making it fails. An answer may take ``patience`` seconds until
    :meth:`settle` says otherwise.

    Raises:
        RendezvousConnectionError: It does not let us in.
    """

    def __init__(
        self,
        sock: socket.socket,
        where: str,
        *,
        db: int = 0,
        credentials: Credentials,
        identity: tuple[str | None, str | None],
        patience: float,
        doubt: str | None = None,
    ) -> None:
        self.where = where
        self._credentials, self._doubt = credentials, doubt
        self._patience = patience
        self._closed = False
        self._busy = threading.Lock()  # held while an answer is waited for
        self._socket = sock
        self._plug = socket.socket(fileno=socket.dup(sock.fileno()))
        """A duplicate of the socket for other threads, which must not touch a TLS socket."""
        username, password = identity
        self._line: AbstractConnection = _Line(sock, where, db=db, username=username, password=password, protocol=2)
        try:
            sock.settimeout(patience)
            with self._asking():
                self._line.connect()  # type: ignore[no-untyped-call]  # redis-py has not annotated it
        except BaseException:
            self.close()
            raise

    def settle(self, read_timeout: float) -> None:
        """Switch to the time limit for answers, once the connection is made; from now on a silent peer is noticed."""
        self._patience, self._doubt = read_timeout, None
        self._socket.settimeout(read_timeout)
        if self._plug.family != socket.AF_UNIX:
            self._plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(read_timeout / 2)))
            self._plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, int(read_timeout / 6)))
            self._plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
            self._plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(read_timeout * 1000)))

    def close(self) -> None:
        """Close the connection; what another thread waits for ends with an error. May be repeated."""
        self._closed = True
        with contextlib.suppress(OSError):  # not connected any more
            self._plug.shutdown(socket.SHUT_RDWR)
        with self._busy:
            self._line.disconnect()
            self._socket.close()
            self._plug.close()

    def ask(self, *command: str | bytes | int) -> Any:
        """Return the answer to a command, as redis-py reads it: bytes, numbers, None, and lists of them."""
        with self._asking():
            return self._ask(*command)

    def run(self, script: Script, keys: Sequence[str], *arguments: str | bytes | int) -> Any:
        """Return a script's answer."""
        with self._asking():
            try:
                return self._ask("EVALSHA", script.sha, len(keys), *keys, *arguments)
            except redis.exceptions.NoScriptError:  # the server has not seen it, or was started anew
                return self._ask("EVAL", script.text, len(keys), *keys, *arguments)

    def sleep_until_rung(self, bells: Sequence[str], strokes: Sequence[bytes], timeout: float) -> Any:
        """Block until one of the streams has an element after the one named, for ``timeout`` seconds at most.

        Returns the streams that have, each with its elements; None where none has.
        """
        with self._asking():
            self._socket.settimeout(timeout + self._patience)
            rung = self._ask("XREAD", "BLOCK", max(1, math.ceil(timeout * 1000)), "STREAMS", *bells, *strokes)
            self._socket.settimeout(self._patience)
            return rung

    def _ask(self, *command: str | bytes | int) -> Any:
        self._line.send_command(*command, check_health=False)
        return self._line.read_response()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        with self._busy:
            try:
                if not self._closed:
                    yield
                    return
            except (redis.RedisError, OSError, ValueError, AttributeError) as exc:
                # The last two: another thread has closed the socket that redis-py was about to read from.
                if not self._closed:
                    raise self._error(exc) from _without_details(exc)
        raise RendezvousConnectionError(f"This connection to the Redis server at {self.where} is closed.")

    def _error(self, exc: Exception) -> RendezvousError:
        server = f"The Redis server at {self.where}"
        if isinstance(exc, (redis.exceptions.TimeoutError, TimeoutError)):
            waited = f"{self._patience:.2g}"
            return RendezvousConnectionError(
                f"{server} has not answered for {waited} s.", hint="See its log, and the network in between."
            )
        said = _said(exc)
        code = next((code for code in _HINTS if re.search(rf"\b{code}\b", said)), "")
        if any(words in said for words in NOT_PERMITTED):  # what a script is refused has no first word of its own
            code = "NOPERM"
        if isinstance(exc, redis.exceptions.InvalidResponse):
            return RendezvousConnectionError(
                f"The server that listens at {self.where} is no Redis server: {said}",
                hint="Check --rdzv_endpoint.",
                lasting=True,
            )
        if isinstance(exc, redis.exceptions.AuthenticationError):
            todo = "Give a password" if "NOAUTH" in said else "Check the user's name and the password"
            where = f"--rdzv_conf {self._credentials.option}, or the variable {self._credentials.variable}"
            return RendezvousConnectionError(
                f"{server} does not let us in: {said}", hint=f"{todo}; see {where}.", lasting=True
            )
        if "WRONGTYPE" in said:
            return RendezvousStateError(
                f"{server} holds something else where this job's keys are: {said}",
                hint="Use another --rdzv_id, or another --rdzv_conf prefix.",
            )
        if isinstance(exc, redis.exceptions.ResponseError):
            lasting = code in ("NOPERM", "MOVED")
            return RendezvousConnectionError(f"{server} refuses: {said}", hint=_HINTS.get(code), lasting=lasting)
        hint = _HINTS.get(code, self._doubt)
        return RendezvousConnectionError(f"{server} is gone, or the network in between: {said}", hint=hint)


def _said(exc: Exception) -> str:
    """Return the server's own words, on one line, with the first one, which redis-py cuts off where it knows it."""
    said = " ".join(str(exc).split()).partition(_ECHO)[0]
    prefixes: dict[type[Exception], str] = {
        redis.exceptions.NoPermissionError: "NOPERM",
        redis.exceptions.ReadOnlyError: "READONLY",
        redis.exceptions.OutOfMemoryError: "OOM",
        redis.exceptions.BusyLoadingError: "LOADING",
    }
    code = prefixes.get(type(exc))
    if isinstance(exc, redis.exceptions.AuthenticationError) and not said.startswith(("WRONGPASS", "NOAUTH")):
        code = "NOAUTH" if "required" in said else "WRONGPASS" if "invalid" in said else None
    return said if code is None or code in said else f"{code} {said}"


def _without_details(exc: Exception) -> Exception | None:
    """Return the cause, for a traceback; None where it, or its frames, hold a password."""
    return None if isinstance(exc, redis.exceptions.AuthenticationError) or _ECHO in str(exc) else exc


@dataclass(frozen=True, slots=True)
class Master:
    """A server that will do, as it was when the connection was made."""

    client: Client
    host: HostPort | None  # its address; None for the endpoint's unix socket
    replicas: int  # replicas that were connected to it
    guarded: bool  # true if it refuses writes that too few replicas would have (min-replicas-to-write)


class Dialler:
    """Makes connections to one server, or to whichever server is the master at the time. Safe to share by threads."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._addresses: dict[HostPort, list[Any]] = {}  # the addresses of names when they were last looked up
        self._context = None if options.tls is None else _tls_context(options)

    def dial(self) -> Master:
        """Return a new connection; raise RendezvousConnectionError if no server answers, lets us in, or will do."""
        deadline = time.monotonic() + self.options.connect_timeout
        if self.options.sentinel is not None:
            return self._by_sentinels(self.options.sentinel, deadline)
        return self._to_master(next(iter(self.options.endpoint.hosts), None), "", deadline)

    def names(self, host: HostPort | None) -> bool:
        """Return True if a majority of the sentinels names this server as the master, or there are no sentinels.

        Two servers cannot both be named: to replace a master takes the majority of the sentinels.
        """
        if self.options.sentinel is None or host is None:
            return True
        sentinels, deadline = self.options.endpoint.hosts, time.monotonic() + self.options.connect_timeout
        found = 0
        for place, sentinel in enumerate(sentinels):
            now = time.monotonic()
            until = now + (deadline - now) / (len(sentinels) - place)
            with contextlib.suppress(ElasticError):
                found += self._same(self._named_by(sentinel, self.options.sentinel, until), host)
        return 2 * found > len(sentinels)

    def _same(self, named: HostPort, host: HostPort) -> bool:
        if named == host:
            return True
        if named.port != host.port:
            return False
        patience = self.options.connect_timeout
        addresses = [{address[4][0] for address in _look_up(each, patience)} for each in (named, host)]
        return bool(addresses[0] & addresses[1])

    def _by_sentinels(self, name: str, deadline: float) -> Master:
        """Return a connection to the first master that a sentinel names and that will do.

        One that has lost sight of the others may go on naming an old master, whose host may be off and answer nothing.
        So it is not the last to be asked, and what it says takes half of the time at most while there are others; if
        they say no better, it has what is left.
        """
        failures: list[RendezvousConnectionError] = []
        tried: set[HostPort] = set()
        slow: list[HostPort] = []
        whose = f" (master {name!r})"
        *_, last = sentinels = self.options.endpoint.hosts
        for sentinel in sentinels:
            try:
                master = self._named_by(sentinel, name, deadline)
            except RendezvousConnectionError as exc:
                failures.append(exc)
                continue
            if master in tried:
                continue
            tried.add(master)
            until = deadline if sentinel is last else _halfway(deadline)
            try:
                return self._to_master(master, whose, until)
            except RendezvousConnectionError as exc:
                failures.append(exc)
                if time.monotonic() >= until:
                    slow.append(master)
        for master in slow:
            if time.monotonic() < deadline:
                with contextlib.suppress(RendezvousConnectionError):  # which says what was said before
                    return self._to_master(master, whose, deadline)
        if len(failures) == 1:
            raise failures[0]
        said = " ".join(exc.message for exc in failures)
        raise RendezvousConnectionError(
            f"No sentinel leads to the master {name!r}. {said}",
            hint=failures[-1].hint,
            lasting=all(failure.lasting for failure in failures),
        ) from failures[-1]

    def _named_by(self, sentinel: HostPort, name: str, deadline: float) -> HostPort:
        """Return the address of the master as a sentinel names it."""
        until = _halfway(deadline)  # what one that hangs may take from the others
        client = self._client(sentinel, self.options.sentinel_credentials, until, whose=" (sentinel)")
        with contextlib.closing(client):
            found = client.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
        if found is None:
            raise RendezvousConnectionError(
                f"The sentinel at {sentinel} knows no master {name!r}.", hint="See --rdzv_conf sentinel."
            )
        return HostPort(found[0].decode(), int(found[1]))

    def _to_master(self, host: HostPort | None, whose: str, deadline: float) -> Master:
        """Return a connection to a server that will do, with no host to the endpoint's unix socket."""
        client = self._client(host, self.options.credentials, deadline, whose=whose, db=self.options.endpoint.db)
        try:
            facts = _check_fitness(client)
            client.settle(self.options.read_timeout)
        except BaseException:
            client.close()
            self._forget(host)
            raise
        replicas = facts.get("connected_slaves", "")
        return Master(
            client,
            host,
            replicas=int(replicas) if replicas.isdecimal() else 0,
            guarded="min_slaves_good_slaves" in facts,  # which is there only while both of its settings are
        )

    def _client(
        self, host: HostPort | None, credentials: Credentials, deadline: float, *, whose: str = "", db: int = 0
    ) -> Client:
        identity = credentials.now()
        where = f"{host or self.options.endpoint}{whose}"
        sock = self._unix(where) if host is None else self._tcp(host, where, deadline)
        try:
            if self._context is not None and host is not None:
                sock = self._encrypted(self._context, sock, host, where)
            patience = max(0.1, deadline - time.monotonic())
            doubt = None if host is None else self._doubt()
            return Client(
                sock, where, db=db, credentials=credentials, identity=identity, patience=patience, doubt=doubt
            )
        except BaseException:
            sock.close()
            self._forget(host)
            raise

    def _doubt(self) -> str:
        """Return the advice for a server that hangs up at once."""
        if self.options.tls is None:
            return "If it speaks TLS, write rediss:// before the host."
        if self.options.tls.cert is None:
            return "If it wants a client's certificate, see --rdzv_conf cert and key."
        return f"It may not trust the client's certificate, --rdzv_conf cert={self.options.tls.cert}; see its log."

    def _forget(self, host: HostPort | None) -> None:
        if host is not None:
            self._addresses.pop(host, None)

    def _unix(self, where: str) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(self.options.connect_timeout)
            sock.connect(str(self.options.endpoint.path))
        except OSError as exc:
            sock.close()
            raise _unreachable(where, exc.strerror or str(exc)) from exc
        return sock

    def _tcp(self, host: HostPort, where: str, deadline: float) -> socket.socket:
        began = time.monotonic()
        known = self._addresses.get(host)
        addresses = known or _look_up(host, max(0.1, deadline - time.monotonic()))
        failure: OSError | None = None
        for place, (family, kind, protocol, _, address) in enumerate(addresses):
            left = (deadline - time.monotonic()) / (len(addresses) - place)
            sock = socket.socket(family, kind, protocol)
            try:
                sock.settimeout(max(0.1, left))
                sock.connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as exc:
                sock.close()
                failure = exc
            else:
                self._addresses[host] = addresses
                return sock
        self._forget(host)
        waited = f"no answer within {time.monotonic() - began:.2g} s"
        why = waited if failure is None or isinstance(failure, TimeoutError) else failure.strerror or str(failure)
        raise _unreachable(where, why) from failure

    def _encrypted(self, context: ssl.SSLContext, sock: socket.socket, host: HostPort, where: str) -> socket.socket:
        assert self.options.tls is not None
        name = self.options.tls.hostname or host.host.partition("%")[0]
        try:
            return context.wrap_socket(sock, server_hostname=name)
        except ssl.SSLCertVerificationError as exc:
            raise RendezvousConnectionError(
                f"The certificate of the Redis server at {where} is not to be trusted: {exc.verify_message}.",
                hint="Name the authority that signed it by --rdzv_conf cacert=FILE; the name that it is for, if that "
                f"is not {name!r}, by tls_hostname=NAME.",
                lasting=True,
            ) from exc
        except (OSError, ValueError) as exc:
            said = getattr(exc, "reason", None) or getattr(exc, "strerror", None) or str(exc)
            raise RendezvousConnectionError(
                f"The Redis server at {where} does not answer in TLS: {said}.",
                hint="If it does not speak TLS, write redis:// instead of rediss://.",
            ) from exc


def _halfway(deadline: float) -> float:
    return (time.monotonic() + deadline) / 2


def _unreachable(where: str, why: str) -> RendezvousConnectionError:
    return RendezvousConnectionError(
        f"No Redis server can be reached at {where}: {why}.",
        hint="Start it, or check --rdzv_endpoint, the network and the firewall.",
    )


def _look_up(host: HostPort, patience: float) -> list[Any]:
    with contextlib.suppress(socket.gaierror, UnicodeError):
        return socket.getaddrinfo(host.host, host.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    try:
        return bounded(lambda: socket.getaddrinfo(host.host, host.port, type=socket.SOCK_STREAM), patience)
    except (OSError, UnicodeError) as exc:
        why = "it cannot be a name" if isinstance(exc, UnicodeError) else exc.strerror or str(exc)
        raise RendezvousConnectionError(
            f"The host {host.host!r} cannot be looked up: {why}.",
            hint="Check the name, or write the address itself.",
            lasting=isinstance(exc, UnicodeError) or exc.errno == socket.EAI_NONAME,
        ) from exc


def _check_fitness(client: Client) -> dict[str, str]:
    """Return what a server says of itself; RendezvousConnectionError if it may throw entries away, or takes none."""
    said = client.ask("INFO", "memory") + b"\r\n" + client.ask("INFO", "replication")
    facts = dict(line.split(":", 1) for line in said.decode(errors="replace").splitlines() if ":" in line)
    policy = facts.get("maxmemory_policy", _KEEPS)
    if policy != _KEEPS:
        raise RendezvousConnectionError(
            f"The Redis server at {client.where} has maxmemory-policy {policy}: when its memory is full, it throws "
            "away what the job stands on.",
            hint=f"Set maxmemory-policy to {_KEEPS} (CONFIG SET maxmemory-policy {_KEEPS}), or use another server.",
            lasting=True,
        )
    if facts.get("role", "master") != "master":
        raise RendezvousConnectionError(
            f"The Redis server at {client.where} is a replica of {facts.get('master_host')}:"
            f"{facts.get('master_port')}, and cannot be written to.",
            hint="Name the master, or the sentinels with --rdzv_conf sentinel=NAME.",
        )
    return facts


def _tls_context(options: Options) -> ssl.SSLContext:
    """Return the TLS context for this server; raise UsageError if a file holds something else."""
    tls = options.tls
    assert tls is not None
    try:
        context = ssl.create_default_context(cafile=tls.cacert)
    except (OSError, ssl.SSLError) as exc:
        raise UsageError(f"--rdzv_conf cacert={tls.cacert} holds no certificates: {_reason(exc)}.") from exc
    if tls.cert is not None:
        try:
            context.load_cert_chain(tls.cert, tls.key, password=_no_password)
        except ElasticError:
            raise
        except (OSError, ssl.SSLError) as exc:
            files = f"cert={tls.cert}" + (f" and key={tls.key}" if tls.key else "")
            raise UsageError(f"--rdzv_conf {files} are no certificate and its key: {_reason(exc)}.") from exc
    return context


def _no_password() -> str:
    """Refuse an encrypted key, for whose password OpenSSL would ask at a terminal."""
    raise UsageError("The private key of --rdzv_conf key or cert is encrypted.", hint="Give one that is not.")


def _reason(exc: Exception) -> str:
    return getattr(exc, "reason", None) or getattr(exc, "strerror", None) or in_one_line(exc)
