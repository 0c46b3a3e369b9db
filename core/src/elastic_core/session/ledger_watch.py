"""Follows the ledger while the starter imports and health checks run: has the run ended (S6), is the node drained?

The watch enters a row with its own heartbeat, which takes part in no round: ``elastic drain`` finds the node by it
(L17), and the agent that hosts an embedded store waits until it has left the roster.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from elastic_core.errors import ElasticError, RendezvousConnectionError, RendezvousStateError, StoreLostError
from elastic_core.protocol.entries import Closed
from elastic_core.protocol.ledger import HistoryChangedError, Ledger
from elastic_core.protocol.roster import NodeRow
from elastic_core.rendezvous.backend import Cursor, RendezvousBackend
from elastic_core.session.contact import Backoff
from elastic_core.session.join import Applicant, Arrival, FormerNode, Joining
from elastic_core.session.ledger_reader import load
from elastic_core.session.runtime import Runtime


class LedgerWatch:
    """A thread that reads the ledger over its own connection, from now on until it is closed.

    ``store`` is what the node reads the ledger over, ``arrival`` what it found there first. The thread calls ``tell``
    once there is a verdict, or the node is drained.
    """

    def __init__(
        self,
        store: RendezvousBackend,
        applicant: Applicant,
        runtime: Runtime,
        arrival: Arrival,
        tell: Callable[[], None] = lambda: None,
    ) -> None:
        self._root, self._applicant, self._runtime, self._arrival = store, applicant, runtime, arrival
        self._tell = tell
        self._row = NodeRow(info=replace(applicant.info, node_id=runtime.new_id()))
        self._revision = 0
        self._former_rows = applicant.former  # nodes whose rows may still be there
        self.former = (*applicant.former, FormerNode(self._row.info.node_id, arrival.place.index))
        """The nodes as which the roster has shown this agent."""
        self.drained = ""
        """Why the node was drained; '' while it is not."""
        self._found: Closed | StoreLostError | None = None
        self._connection: RendezvousBackend | None = None
        self._stopping, self._entered = runtime.event(), runtime.event()
        self._thread = runtime.thread(target=self._run, name="elastic-ledger", daemon=True)
        self._thread.start()

    def wait_until_entered(self, timeout: float) -> None:
        """Wait until the roster shows this node, for ``timeout`` seconds at most."""
        self._entered.wait(timeout)

    def verdict(self) -> Closed | None:
        """Return the verdict on the node's run, if it is known; raise StoreLostError if the store is lost with it."""
        if isinstance(self._found, StoreLostError):
            raise self._found
        return self._found

    def stop(self) -> None:
        """End the thread; its row stays."""
        self._stopping.set()
        if (connection := self._connection) is not None:
            with contextlib.suppress(ElasticError):
                connection.close()
        self._thread.join(1.0)

    def close(self) -> None:
        """End the thread, and take its row out. On the thread that uses the node's own connection."""
        self.stop()
        with contextlib.suppress(ElasticError):
            self._root.remove(self._row.info.node_id)

    def _run(self) -> None:
        backoff = Backoff()
        while not self._stopping.is_set():
            try:
                self._connection = store = self._root.connect()
                try:
                    if not self._stopping.is_set():  # after close() the row is gone, and close() closes this connection
                        self._watch(store)
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
            except (RendezvousConnectionError, HistoryChangedError):
                self._stopping.wait(backoff.failed())
            except RendezvousStateError:
                return  # join() raises the same error, and tells the user
            finally:
                if self._found is not None or self.drained:
                    self._tell()

    def _watch(self, store: RendezvousBackend) -> None:
        """Follow the ledger until the run has ended, the node is drained, or the thread is stopped."""
        codec, interval = self._runtime.codec, self._applicant.settings.timing.beat_interval
        node_id, heartbeats = self._row.info.node_id, 0
        store.enter(node_id, codec.encode_row(self._row))
        self._entered.set()
        while not self._stopping.is_set():
            ledger = load(store, self._runtime.now(), codec)
            if ledger is not None and self._note(store, ledger):
                return
            head = Cursor() if ledger is None else Cursor(ledger.head.index)
            while not self._stopping.is_set() and store.wait(head, roster=False, timeout=interval).head == head.head:
                heartbeats += 1
                if store.heartbeat(node_id, heartbeats).revision is None:  # it was thought lost, or the store lost it
                    store.enter(node_id, codec.encode_row(self._row))

    def _note(self, store: RendezvousBackend, ledger: Ledger) -> bool:
        """Read what is new, and show in the row that it is read; return whether the node is not to join."""
        joining, head = Joining(store, self._applicant, self._runtime), ledger.head
        self._found = joining.verdict_since(self._arrival, ledger)
        if self._found is not None:
            return True
        self.drained = self.drained or joining.drained(ledger, self.former)
        self.former = tuple(replace(node, head=head.index) for node in self.former)
        self._revision += 1
        self._row = replace(self._row, head=head.index, epoch=head.epoch, leaving=bool(self.drained))
        store.amend(self._row.info.node_id, self._revision, self._runtime.codec.encode_row(self._row))
        for node in self._former_rows:  # its agent is this one; the row of a member shows that it has left
            if not ledger.is_member(node.node_id):
                store.remove(node.node_id)
        self._former_rows = tuple(node for node in self._former_rows if ledger.is_member(node.node_id))
        return bool(self.drained)
