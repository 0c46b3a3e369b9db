"""A cluster over API v3, and one connection to it: requests, streams, and the token that they carry.

A token is what etcd gives for a user and a password. It is lost when a member restarts or some minutes pass unused, so
the first thread whose token is refused asks for a new one, for all connections of an agent.
"""

from __future__ import annotations

import json
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from elastic_rdzv_etcd.connection import PAUSE, Connection, Members
from elastic_rdzv_etcd.gateway import Gateway, Kind, Refusal, Unreachable, in_words
from elastic_rdzv_etcd.options import Endpoint, Options, Site

AUTHENTICATE = "/v3/auth/authenticate"


class Cluster(Members):
    """The members, and the token."""

    def __init__(self, endpoints: Sequence[Endpoint], options: Options) -> None:
        super().__init__(endpoints, options)
        self._authenticating = threading.Lock()
        self._token: str | None = None
        self.passwords = options.password is not None
        """True if a token is needed; not while the cluster asks for no password."""

    def token(self, gateway: Gateway, timeout: float) -> str | None:
        """Return the token, asked for if there is none; None where none is needed.

        Raises:
            Refusal: The member does not let us in.
            Unreachable: It did not answer.
        """
        if not self.passwords:
            return None
        return self._token or self.another_token(gateway, timeout, None)

    def another_token(self, gateway: Gateway, timeout: float, worn_out: str | None) -> str | None:
        """Return a token newer than ``worn_out``, asked for unless there is one; None where none is needed.

        ``worn_out`` is the token that a member has refused; None where it was given none, and wants one.

        Raises:
            Refusal: The member does not let us in.
            Unreachable: It did not answer.
        """
        with self._authenticating:
            if self._token == worn_out:
                self._token = self._authenticate(gateway, timeout)
            return self._token

    def _authenticate(self, gateway: Gateway, timeout: float) -> str | None:
        assert self.options.password is not None
        body = json.dumps({"name": self.options.user, "password": self.options.password}).encode()
        try:
            answer = gateway.post(AUTHENTICATE, body, None, timeout)
        except Refusal as refused:
            if refused.kind is not Kind.NO_PASSWORDS:
                raise
            self.passwords = False
            return None
        self.passwords = True
        return str(answer["token"]) if "token" in answer else None


RANGE = "/v3/kv/range"

_T = TypeVar("_T")


class Lost(Exception):
    """The job's lease is not there. Never leaves this distribution."""


class Client(Connection):
    """One connection at a time, made when it is needed."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.cluster = cluster
        self._gateway: Gateway | None = None

    def call(self, path: str, request: Mapping[str, Any], *, reaching: bool = False) -> dict[str, Any]:
        """Ask, and read the answer; ``reaching`` says that it is the first question, which has a time of its own.

        Raises:
            Lost: The lease that the request names is not there.
            RendezvousConnectionError: No member answered in time, or none lets us in, or this connection is closed.
            RendezvousStateError: They refuse it for what it is.
        """
        body = json.dumps(request).encode()

        def ask(gateway: Gateway, token: str | None, timeout: float) -> dict[str, Any]:
            return gateway.post(path, body, token, timeout)

        return self._ask_any(partial(self._ask, ask), reaching=reaching)

    def stream(self, path: str, request: Mapping[str, Any]) -> tuple[Gateway, Iterator[dict[str, Any]]]:
        """Ask over a connection of its own for a stream of messages; the caller closes the connection.

        Raises:
            RendezvousConnectionError: No member answered in time, or this connection is closed.
            RendezvousStateError: They refuse it for what it is.
        """
        body = json.dumps(request).encode()

        def ask(gateway: Gateway, token: str | None, timeout: float) -> Iterator[dict[str, Any]]:
            return gateway.stream(path, body, token, timeout)

        beside = Client(self.cluster)
        try:
            messages = beside._ask_any(partial(beside._ask, ask))
        except BaseException:
            beside.close()
            raise
        assert beside._gateway is not None
        if self.closed:
            beside._gateway.discard()
            raise self._is_closed()
        return beside._gateway, messages

    def leave(self) -> None:
        """Go to the next member with the next request: this one does not hear what the others do."""
        with self._lock:
            site = self._site
        self._drop()
        sites = self.cluster.sites()
        if site == sites[0]:
            self.cluster.answered(sites[1 % len(sites)])

    def _hang_up(self) -> None:
        with self._lock:
            if self._gateway is not None:
                self._gateway.close()

    def _ask(self, ask: Callable[[Gateway, str | None, float], _T], site: Site, timeout: float) -> _T:
        try:
            return self._ask_with_token(ask, site, timeout)
        except Refusal as exc:
            if exc.kind is Kind.PASSING:
                raise Unreachable(str(exc)) from exc
            raise self._refused(exc, site) from exc

    def _ask_with_token(self, ask: Callable[[Gateway, str | None, float], _T], site: Site, timeout: float) -> _T:
        deadline = time.monotonic() + timeout

        def left() -> float:
            return max(deadline - time.monotonic(), PAUSE)

        gateway = self._at(site, timeout)
        token = self.cluster.token(gateway, left())
        try:
            return ask(gateway, token, left())
        except Refusal as refused:
            if refused.kind is not Kind.TOKEN or self.cluster.options.password is None:
                raise
            self._drop()  # a stream that was refused has used it up
            gateway = self._at(site, left())
            token = self.cluster.another_token(gateway, left(), token)
            return ask(gateway, token, left())

    def _at(self, site: Site, timeout: float) -> Gateway:
        gateway = self._gateway
        if gateway is None or gateway.site != site:
            self._drop()
            gateway = Gateway(site, self.cluster.context, timeout)
            with self._lock:
                self._gateway, self._site = gateway, site
        if self.closed:
            self._drop()
            raise Unreachable("this connection is closed", final=True)
        return gateway

    def _drop(self) -> None:
        with self._lock:
            gateway, self._gateway, self._site = self._gateway, None, None
        if gateway is not None:
            gateway.discard()

    def _refused(self, refused: Refusal, site: Site) -> Exception:
        if refused.kind in (Kind.NO_LEASE, Kind.LEASE_THERE):
            return Lost(refused.text)
        return in_words(refused, site, self.cluster.options.user)


def text_of(data: bytes) -> str:
    """Return bytes in base64, as etcd's JSON has them."""
    return b64encode(data).decode()


def range_of(key: bytes, end: bytes | None = None) -> dict[str, Any]:
    """Return the request for a key, or for the keys from it up to ``end``."""
    return {"key": text_of(key)} if end is None else {"key": text_of(key), "range_end": text_of(end)}
