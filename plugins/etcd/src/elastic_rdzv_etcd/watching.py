"""A watch: one stream from one member, and a thread that listens to it, so that a wait can be given up at any time.

What a watch says is a hint. It says that something changed after a revision of the store; what that is, the waiter
reads. When the stream ends (its member is gone, or has lost its cluster, or has compacted what it was to tell), the
waiter reads, and begins another one from there.
"""

from __future__ import annotations

import threading
from base64 import b64encode
from typing import Any

from elastic_core.errors import RendezvousConnectionError
from elastic_rdzv_etcd.client import Client
from elastic_rdzv_etcd.gateway import Unreachable
from elastic_rdzv_etcd.refusals import Refusal

WATCH = "/v3/watch"


class Watch:
    """What happens to some keys from some revision on.

    Args:
        client: Whose cluster; the stream has a connection of its own.
        first: The first key, or the only one.
        end: The key after the last one; None for one key.
        revision: The first revision that matters.

    Raises:
        RendezvousConnectionError: No member answers, or none lets us in.
        RendezvousStateError: They refuse it.
    """

    def __init__(self, client: Client, first: bytes, end: bytes | None, revision: int) -> None:
        asked: dict[str, Any] = {"key": b64encode(first).decode(), "start_revision": str(revision)}
        if end is not None:
            asked["range_end"] = b64encode(end).decode()
        self._gateway, self._messages = client.stream(WATCH, {"create_request": asked})
        self.keys = first, end
        self._changed = threading.Condition()
        self._newest = 0
        self._ended: str | None = None
        self._compacted = False
        self._thread = threading.Thread(target=self._listen, name="elastic-etcd-watch", daemon=True)
        self._thread.start()

    @property
    def told(self) -> bool:
        """Whether it has told of anything, or has ended only because it began too early."""
        return self._newest > 0 or self._compacted

    @property
    def ended(self) -> str | None:
        """Why nothing will come any more; None while something may."""
        return self._ended

    def sleep(self, revision: int, timeout: float) -> None:
        """Return once something has happened after ``revision``, or nothing will any more, or after ``timeout`` s."""
        with self._changed:
            self._changed.wait_for(lambda: self._newest > revision or self._ended is not None, timeout)

    def close(self) -> None:
        """End the stream; the sleep of another thread ends. May be repeated."""
        self._gateway.close()
        with self._changed:
            self._ended = self._ended or "it was closed"
            self._changed.notify_all()

    def bury(self) -> None:
        """Wait for the thread, which ends with the stream."""
        self._thread.join(1.0)

    def _listen(self) -> None:
        why = "it has ended the stream"
        try:
            for message in self._messages:
                if message.get("canceled") or "compact_revision" in message:
                    self._compacted = "compact_revision" in message
                    why = str(message.get("cancel_reason", "the revision is compacted"))
                    break
                if events := message.get("events"):
                    newest = max(int(event["kv"]["mod_revision"]) for event in events)
                    with self._changed:
                        self._newest = max(self._newest, newest)
                        self._changed.notify_all()
        except (Unreachable, Refusal) as exc:
            why = str(exc)
        except (KeyError, TypeError, ValueError):
            why = "it tells of something that cannot be"
        finally:
            self._gateway.discard()
            with self._changed:
                self._ended = self._ended or why
                self._changed.notify_all()


class Watcher:
    """The watch of one connection: kept over many waits, and begun anew when it has ended.

    Args:
        client: Whose cluster.
    """

    PATIENCE = 5
    """Watches in a row that may end without having told of anything."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._watch: Watch | None = None
        self._closed = threading.Event()
        self._barren = 0

    def sleep(self, first: bytes, end: bytes | None, revision: int, timeout: float) -> None:
        """Return once these keys have changed after ``revision``, or might have, or after ``timeout`` seconds.

        Raises:
            RendezvousConnectionError: Watches end as soon as they begin, or this was closed.
            RendezvousStateError: They are refused.
        """
        watch = self._watch
        if watch is None or watch.keys != (first, end):
            self._drop()
            watch = self._watch = Watch(self._client, first, end, revision + 1)
            if self._closed.is_set():
                watch.close()
        watch.sleep(revision, timeout)
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

    def close(self) -> None:
        """End a sleep in another thread. May be repeated."""
        self._closed.set()
        if (watch := self._watch) is not None:
            watch.close()

    def _drop(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch.bury()
            self._watch = None
