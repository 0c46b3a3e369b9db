"""Follows the ledger while the fork server imports, for the verdict of the node's run, if it ends (rule S6).

An embedded store ends with the agent that hosts it. On such a store the lookout enters a row with its own heartbeat,
which takes part in no round; the store's host waits until it has left the roster.
"""

from __future__ import annotations

import contextlib
import socket
from dataclasses import replace

from elastic_core.errors import ElasticError, RendezvousConnectionError, RendezvousStateError, StoreLostError
from elastic_core.protocol.entries import Closed
from elastic_core.protocol.roster import NodeRow
from elastic_core.rendezvous.backend import Cursor, RendezvousBackend
from elastic_core.session.arrival import Arrival, verdict_since
from elastic_core.session.contact import Backoff
from elastic_core.session.join import Applicant
from elastic_core.session.ledger_reader import load
from elastic_core.session.runtime import Runtime


class Lookout:
    """A thread that reads the ledger over its own connection, from now on until it is closed.

    Args:
        store: What the node reads the ledger over.
        applicant: The node.
        runtime: The node's.
        arrival: What it found when it first read the ledger.
    """

    def __init__(self, store: RendezvousBackend, applicant: Applicant, runtime: Runtime, arrival: Arrival) -> None:
        self._root, self._applicant, self._runtime, self._arrival = store, applicant, runtime, arrival
        self._node_id = runtime.new_id()
        self._found: Closed | StoreLostError | None = None
        self._connection: RendezvousBackend | None = None
        self._stopping, self._entered = runtime.event(), runtime.event()
        self._heard, self._tell = socket.socketpair()
        self._thread = runtime.thread(target=self._run, name="elastic-lookout", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Readable once :meth:`verdict` has something to say."""
        return self._heard.fileno()

    def wait_until_entered(self, timeout: float) -> None:
        """Wait until the host of an embedded store would wait for this node, for ``timeout`` seconds at most."""
        self._entered.wait(timeout)

    def verdict(self) -> Closed | None:
        """Return the verdict on the node's run; None while none is known.

        Raises:
            StoreLostError: The agent that holds the store has gone, and the verdict with it.
        """
        if isinstance(self._found, StoreLostError):
            raise self._found
        return self._found

    def close(self) -> None:
        """End the thread, and take its row out. On the thread that uses the node's own connection."""
        self._stopping.set()
        if (connection := self._connection) is not None:
            with contextlib.suppress(ElasticError):
                connection.close()
        self._thread.join(1.0)
        if self._root.embedded:
            with contextlib.suppress(ElasticError):
                self._root.remove(self._node_id)
        self._heard.close()
        self._tell.close()

    def _run(self) -> None:
        backoff = Backoff()
        while not self._stopping.is_set():
            try:
                self._connection = store = self._root.connect()
                try:
                    if not self._stopping.is_set():  # after close() the row is gone, and close() closes this connection
                        self._found = self._watch(store)
                    return
                finally:
                    store.close()
            except StoreLostError as exc:
                self._found = StoreLostError(
                    f"Run {self._arrival.run}, for which this node came, has ended, or has lost its store, before this "
                    f"node had joined it: {exc.message}",
                    hint="The verdict is in the output of the other nodes. This node has started no worker.",
                )
                return
            except RendezvousConnectionError:
                self._stopping.wait(backoff.failed())
            except RendezvousStateError:
                return  # join() raises the same error, and tells the user
            finally:
                if self._found is not None:
                    with contextlib.suppress(OSError):  # close() may have closed the socket
                        self._tell.send(b"!")

    def _watch(self, store: RendezvousBackend) -> Closed | None:
        heartbeats, interval = 0, self._applicant.settings.timing.beat_interval
        if store.embedded:
            row = NodeRow(info=replace(self._applicant.info, node_id=self._node_id))
            store.enter(self._node_id, self._runtime.codec.encode_row(row))
        self._entered.set()
        while not self._stopping.is_set():
            if (ledger := load(store, self._runtime.now(), self._runtime.codec)) is not None:
                takes, codec = self._applicant.is_taken_by, self._runtime.codec
                verdict = verdict_since(store, self._arrival, ledger, takes, codec)
                if verdict is not None:
                    return verdict
            head = Cursor() if ledger is None else Cursor(ledger.head.index)
            while not self._stopping.is_set() and store.wait(head, roster=False, timeout=interval).head == head.head:
                if store.embedded:
                    heartbeats += 1
                    store.heartbeat(self._node_id, heartbeats)
        return None
