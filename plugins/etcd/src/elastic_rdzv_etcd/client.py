"""A cluster over API v3, and one connection to it: requests, the token that they carry, and watches.

A token is what etcd gives for a user and a password. It is lost when a member restarts or some minutes pass unused, so
the first thread whose token is refused asks for a new one, for all connections of an agent.

A watch is one stream from one member, and a thread that listens to it, so that a wait can be given up at any time. It
begins after a look at its keys, and tells of every change since. What was seen, and what the watch has told, is a
:class:`View`: how the keys were at one revision of the store, which may be an old one by now. When the stream ends (its
member is gone, or has lost its cluster, or has compacted what it was to tell), there is no view any more: the waiter
looks again, and begins another one from there.
"""

from __future__ import annotations

import json
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from elastic_core.errors import RendezvousConnectionError
from elastic_rdzv_etcd.connection import PAUSE, Connection, Members
from elastic_rdzv_etcd.gateway import Gateway, Kind, Refusal, Unreachable, in_words
from elastic_rdzv_etcd.options import Endpoint, Options, Site

AUTHENTICATE = "/v3/auth/authenticate"
RANGE, WATCH = "/v3/kv/range", "/v3/watch"
_T = TypeVar("_T")


class Cluster(Members):
    """The members, and the token.

    Who asks for a token gets a Refusal where the member does not let us in, and Unreachable where it did not answer.
    """

    def __init__(self, endpoints: Sequence[Endpoint], options: Options) -> None:
        super().__init__(endpoints, options)
        self._authenticating = threading.Lock()
        self._token: str | None = None
        self.passwords = options.password is not None
        """True if a token is needed; not while the cluster asks for no password."""

    def token(self, gateway: Gateway, timeout: float) -> str | None:
        """Return the token, asked for if there is none; None where none is needed."""
        if not self.passwords:
            return None
        return self._token or self.another_token(gateway, timeout, None)

    def another_token(self, gateway: Gateway, timeout: float, worn_out: str | None) -> str | None:
        """Return a token newer than ``worn_out``, asked for unless there is one; None where none is needed.

        ``worn_out`` is the token that a member has refused; None where it was given none, and wants one.
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


class Lost(Exception):
    """The job's lease is not there. Never leaves this distribution."""


class Client(Connection):
    """One connection at a time, made when it is needed.

    Methods that ask a member raise RendezvousConnectionError where no member answered in time, or none lets us in,
    or this connection is closed; and RendezvousStateError where they refuse it for what it is.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.cluster = cluster
        self._gateway: Gateway | None = None

    def call(self, path: str, request: Mapping[str, Any], *, reaching: bool = False) -> dict[str, Any]:
        """Ask, and read the answer; raise Lost if the lease that the request names is not there.

        ``reaching`` says that it is the first question, which has a time of its own.
        """
        body = json.dumps(request).encode()

        def ask(gateway: Gateway, token: str | None, timeout: float) -> dict[str, Any]:
            return gateway.post(path, body, token, timeout)

        return self._ask_any(partial(self._ask, ask), reaching=reaching)

    def stream(self, path: str, request: Mapping[str, Any]) -> tuple[Gateway, Iterator[dict[str, Any]]]:
        """Ask over a connection of its own for a stream of messages; the caller closes the connection."""
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
            if exc.kind in (Kind.NO_LEASE, Kind.LEASE_THERE):
                raise Lost(exc.text) from exc
            raise in_words(exc, site, self.cluster.options.user) from exc

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


def text_of(data: bytes) -> str:
    """Return bytes in base64, as etcd's JSON has them."""
    return b64encode(data).decode()


def range_of(key: bytes, end: bytes | None = None) -> dict[str, Any]:
    """Return the request for a key, or for the keys from it up to ``end``."""
    return {"key": text_of(key)} if end is None else {"key": text_of(key), "range_end": text_of(end)}


@dataclass(frozen=True, slots=True)
class Held:
    """The value of a key, and the revision at which it was written."""

    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class View:
    """Some keys, as they were at a revision; those that were not there are missing."""

    revision: int
    keys: Mapping[bytes, Held]

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> View:
        """Return what a range answers."""
        keys = dict(map(_held, answer.get("kvs", ())))
        return cls(int(answer["header"]["revision"]), keys)

    def after(self, events: Iterable[Mapping[str, Any]]) -> View:
        """Return the view when these have happened; those that it shows already change nothing."""
        keys, newest = dict(self.keys), self.revision
        for event in events:
            key, held = _held(event["kv"])
            if held.revision <= self.revision:
                continue
            newest = max(newest, held.revision)
            if event.get("type") == "DELETE":
                keys.pop(key, None)
            else:
                keys[key] = held
        return View(newest, keys)


class Watch:
    """A watch of keys, up to but not with ``end``, or of one key without that. Raises what :class:`Client` does."""

    def __init__(self, client: Client, first: bytes, end: bytes | None, view: View) -> None:
        asked = {**range_of(first, end), "start_revision": str(view.revision + 1)}
        self._gateway, self._messages = client.stream(WATCH, {"create_request": asked})
        self.keys = first, end
        self._changed = threading.Condition()
        self.view = view  # the keys, as far as the watch has told
        self.told = False  # whether the watch has had an event, or has ended only because it began too early
        self.ended: str | None = None  # the reason why nothing will come any more; None while something may
        self._thread = threading.Thread(target=self._listen, name="elastic-etcd-watch", daemon=True)
        self._thread.start()

    def saw(self, view: View) -> None:
        """Take what a caller has read, which may be newer than what this watch has reported."""
        with self._changed:
            if view.revision > self.view.revision:
                self.view = view

    def sleep(self, revision: int, timeout: float) -> None:
        """Return once something has happened after ``revision``, or nothing will any more, or after ``timeout`` s."""
        with self._changed:
            self._changed.wait_for(lambda: self.view.revision > revision or self.ended is not None, timeout)

    def close(self) -> None:
        """End the stream; the sleep of another thread ends. May be repeated."""
        self._gateway.close()
        self._end("it was closed")

    def bury(self) -> None:
        """Close the watch, and wait for its thread, which ends with the stream."""
        self.close()
        self._thread.join(1.0)

    def _end(self, why: str) -> None:
        with self._changed:
            self.ended = self.ended or why
            self._changed.notify_all()

    def _listen(self) -> None:
        why = "it has ended the stream"
        try:
            for message in self._messages:
                if message.get("canceled") or "compact_revision" in message:
                    self.told = self.told or "compact_revision" in message
                    why = str(message.get("cancel_reason", "the revision is compacted"))
                    break
                if events := message.get("events"):
                    with self._changed:
                        self.view = self.view.after(events)
                        self.told = True
                        self._changed.notify_all()
        except (Unreachable, Refusal) as exc:
            why = str(exc)
        except (KeyError, TypeError, ValueError, AttributeError):
            why = "it tells of something that cannot be"
        finally:
            self._gateway.discard()
            self._end(why)


class Watcher:
    """The watch of one connection: kept over many waits, and begun anew when it has ended.

    Methods raise as those of :class:`Client`.
    """

    PATIENCE = 5  # watches in a row that may end without having told of anything

    def __init__(self, client: Client) -> None:
        self._client = client
        self._watch: Watch | None = None
        self._seen: tuple[tuple[bytes, bytes | None], View] | None = None
        self._closed = threading.Event()
        self._barren = 0

    def look(self, first: bytes, end: bytes | None) -> View:
        """Return these keys as they are now: one round trip.

        A look that finds less than a watch has told of before shows a store that has gone back. That watch would tell
        of nothing until the store has come as far again, and what it has told is no longer so.
        """
        told = 0 if self._watch is None else self._watch.view.revision
        view = View.of(self._client.call(RANGE, range_of(first, end)))
        if view.revision < told:
            self._drop()
        self._seen = (first, end), view
        return view

    def view(self, first: bytes, end: bytes | None) -> View | None:
        """Return these keys as last told; None where no watch reports them, and no caller has just read them."""
        watch, seen, self._seen = self._watch, self._seen, None
        if watch is not None and watch.keys == (first, end) and watch.ended is None:
            return watch.view
        return seen[1] if seen is not None and seen[0] == (first, end) else None

    def sleep(self, first: bytes, end: bytes | None, view: View, timeout: float) -> View | None:
        """Return these keys once they are no longer as in ``view``; None where that is not known after ``timeout`` s.

        Raise RendezvousConnectionError also where watches end as soon as they begin, or this was closed.
        """
        watch = self._watch
        if watch is None or watch.keys != (first, end):
            self._drop()
            watch = self._watch = Watch(self._client, first, end, view)
            if self._closed.is_set():
                watch.close()
        watch.saw(view)
        watch.sleep(view.revision, timeout)
        if self._closed.is_set():
            self._drop()
            raise RendezvousConnectionError(f"This connection to etcd at {self._client.cluster} is closed.")
        if watch.ended is not None:
            self._drop()
            self._barren = 0 if watch.told else self._barren + 1
            if self._barren >= self.PATIENCE:
                self._barren = 0
                raise RendezvousConnectionError(f"etcd at {self._client.cluster} ends every watch: {watch.ended}.")
            if not watch.told:
                self._client.leave()
                self._closed.wait(min(timeout, 0.1 * self._barren))
            return None
        return watch.view if watch.view.revision > view.revision else None

    def close(self) -> None:
        """End a sleep in another thread. May be repeated."""
        self._closed.set()
        if (watch := self._watch) is not None:
            watch.close()

    def _drop(self) -> None:
        if self._watch is not None:
            self._watch.bury()
            self._watch = None


def _held(kv: Mapping[str, Any]) -> tuple[bytes, Held]:
    return b64decode(kv["key"]), Held(b64decode(kv.get("value", "")), int(kv["mod_revision"]))
