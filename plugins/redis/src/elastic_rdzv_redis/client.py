"""One connection to a Redis server, with every wait bounded and every error one of ours.

redis-py speaks the protocol; the socket is made and kept here. So a name is looked up by who connects, and never by
who heartbeats; another thread can end a wait; and a connection that broke is never silently made anew, since what was
agreed on it (which server, that it will do) is to be asked again.
"""

from __future__ import annotations

import contextlib
import math
import re
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from redis.connection import AbstractConnection

from elastic_core.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError
from elastic_rdzv_redis.options import Credentials
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

_ECHO = ", with args beginning with"
"""The words before which a server without AUTH repeats its arguments: the password."""


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
