"""A watch: one stream from one member, and a thread that listens to it, so that a wait can be given up at any time.

A watch begins after a look at its keys, and tells of every change since. What was seen, and what the watch has told, is
a :class:`View`: how the keys were at one revision of the store, which may be an old one by now. When the stream ends
(its member is gone, or has lost its cluster, or has compacted what it was to tell), there is no view any more: the
waiter looks again, and begins another one from there.
"""

from __future__ import annotations

import threading
from base64 import b64decode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from elastic_core.errors import RendezvousConnectionError
from elastic_rdzv_etcd.client import RANGE, Client, range_of
from elastic_rdzv_etcd.gateway import Refusal, Unreachable

WATCH = "/v3/watch"


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
    """A watch of some keys.

    ``end`` is the key after the last one; None for one key.

    Raises:
        RendezvousConnectionError: No member answers, or none lets us in.
        RendezvousStateError: They refuse it.
    """

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
    """The watch of one connection: kept over many waits, and begun anew when it has ended."""

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

        Raises:
            RendezvousConnectionError: No member answered in time.
            RendezvousStateError: They refuse it.
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
        """Return these keys once they are no longer as in ``view``; None where that is not known, after ``timeout``
        seconds.

        Raises:
            RendezvousConnectionError: Watches end as soon as they begin, or this was closed.
            RendezvousStateError: They are refused.
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
