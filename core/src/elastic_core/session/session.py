"""The threads between a node and its store, so that nothing the store does can hold up the agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from functools import partial

from elastic_core.errors import RendezvousStateError
from elastic_core.protocol.failure_detector import Watch, contact_gap, is_lost, observe
from elastic_core.protocol.ledger import HistoryChangedError, Ledger, advance
from elastic_core.protocol.roster import NodeInfo, NodeRow, Phase, row_delay
from elastic_core.rendezvous.backend import Cursor, RendezvousBackend
from elastic_core.session.contact import ANSWER_WITHIN_SECONDS, RETRY_FIRST, Contact
from elastic_core.session.heartbeat import Heartbeat
from elastic_core.session.join import Joined
from elastic_core.session.leader_driver import LeaderDriver
from elastic_core.session.ledger_reader import news, readable
from elastic_core.session.reader import StoreReader
from elastic_core.session.runtime import Runtime
from elastic_core.session.state import SessionCalls, SessionState
from elastic_core.threads import bounded


class Session:
    """The threads between one node and its store, from joining to leaving; see the package's docstring."""

    def __init__(self, store: RendezvousBackend, joined: Joined, runtime: Runtime, calls: SessionCalls) -> None:
        state = self._state = SessionState(store, joined, runtime, calls)
        self._known: dict[str, NodeInfo] = {}  # The nodes that were looked up last, by id. The writer's.
        self._leader = LeaderDriver(state.node_id, runtime, calls)
        self._closing_watch: Watch | None = None  # what this node saw as leader, if it was one when it began to leave
        self._returns = False  # whether the agent enters again
        self._heartbeat = Heartbeat(state)
        self._threads = [
            state.thread("heartbeat", self._heartbeat.run),
            state.thread("reader", StoreReader(state, self._leader).run),
            state.thread("writer", state.writer.run),
        ]

    @property
    def ledger(self) -> Ledger:
        """The ledger as far as this node has read it."""
        return self._state.ledger

    @property
    def contact(self) -> Contact:
        """The record of whether the store serves this node, and up to when the node knows what the store had taken."""
        return self._state.contact

    @property
    def store_gone(self) -> bool:
        """True if an embedded store is known to be gone, so that no node can go on elsewhere (rule S4)."""
        return self._state.connections.store_gone

    @property
    def watch(self) -> Watch:
        """The nodes that this node, as leader, sees in the roster; empty where another one leads."""
        return self._leader.watch

    @property
    def waiting_for(self) -> str:
        """The nodes that the job waits for, where this node leads and knows it; else ''."""
        return self._leader.waiting_for if self._leader.watch.nodes else ""

    @property
    def heartbeats(self) -> tuple[int, float]:
        """The count of the heartbeats, and how many seconds the store took to answer the newest."""
        return self._heartbeat.count, self._heartbeat.answered_in

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def tick(self) -> None:
        """Record that the agent's loop is alive, without which heartbeats stop."""
        self._heartbeat.tick()

    def check_answers(self, endpoint: str, *, within: float = ANSWER_WITHIN_SECONDS) -> None:
        """Tell people once of a call without an answer, and close a connection that alone has had none for longer.

        To be called again and again, by the agent's loop: the session's own threads may all be waiting. The store at
        ``endpoint`` may accept connections and be stopped, or packets to it may be dropped.
        """
        self._state.connections.check_answers(endpoint, within)

    def lost(self, node_ids: Iterable[str]) -> set[str]:
        """Return the nodes among these that were lost at this one's newest look as leader; none where it never led.

        A node that leaves gives the leadership away, perhaps to one that leaves too, and still knows what it saw.
        """
        watch, timing = self._closing_watch or self._leader.watch, self.ledger.settings.timing
        if watch.read_at is None:
            return set()
        return {node_id for node_id in node_ids if is_lost(watch, node_id, timing, watch.read_at)}

    def any_stays(self, node_ids: set[str], timeout: float) -> bool:
        """Return True if another of these nodes has a row that does not say that it leaves; False without an answer."""
        others = node_ids - {self._state.node_id}

        def ask() -> bool:
            with closing(self._state.store.connect()) as store:
                rows = readable(store.roster(staying)) if (staying := others - self.lost(others)) else []
                return any(not seen.row.leaving for seen in rows)

        with suppress(Exception):
            return bounded(ask, timeout)
        return False

    def publish_row(self, row: NodeRow) -> None:
        """Make the roster say this, at once or soon, as the news is; returns at once, and the newest row wins."""
        self._state.writer.publish(row, row_delay(row, self.ledger))

    def ask_finished(self, answer: Callable[[bool], None]) -> None:
        """Have the writer answer whether all workers of another member of the live round have exited with 0 (L7)."""
        state, ledger = self._state, self.ledger
        others = {*(ledger.ranks if ledger.is_live else ())} - {state.node_id}

        def ask(store: RendezvousBackend) -> None:
            rows = readable(store.roster(others), state.runtime.codec) if others else []
            answer(any(seen.row.phase is Phase.FINISHED for seen in rows))

        state.writer.later(ask)

    def look_up(self, node_ids: Sequence[str], answer: Callable[[list[NodeInfo]], None]) -> None:
        """Find out what nodes say of themselves; ``answer`` is called on the writer's thread.

        The store is asked about those only that were not in the last answer, since a node's ``info`` never changes.
        """

        def look(store: RendezvousBackend) -> None:
            known = {node_id: self._known[node_id] for node_id in node_ids if node_id in self._known}
            if unknown := [node_id for node_id in node_ids if node_id not in known]:
                found = readable(store.roster(unknown), self._state.runtime.codec)
                known |= {seen.row.info.node_id: seen.row.info for seen in found}
            self._known = known
            answer(list(known.values()))

        self._state.writer.later(look)

    def close(self, timeout: float, *, returns: bool = False) -> None:
        """Hand over the leader, bring the row up to date or take it out, stop the threads: ``timeout`` s at most.

        The row of a node that ``returns`` stays until its agent is in the roster as another one (rule L17).
        """
        state = self._state
        self._closing_watch, self._returns = self._leader.watch, returns
        state.writer.later(lambda store: self._leave(store, timeout))
        state.writer.done.wait(timeout)
        state.stopping.set()
        with state.wake, state.pulse:
            state.wake.notify()
            state.pulse.notify()
            busy = [store for store in self._state.connections.made.values() if store is not None]
        for store in busy:  # which ends whatever they wait for
            store.close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(1.0)

    # The writer's jobs -----------------------------------------------------------------------------------------------

    def _leave(self, store: RendezvousBackend, timeout: float) -> None:
        """Leave; the writer begins again with its next connection if this one breaks."""
        try:
            self._part(store, timeout)
        except HistoryChangedError:
            self._state.writer.later(partial(self._leave_again, timeout=timeout))
            raise  # which has the reader compare
        except RendezvousStateError:
            self._state.writer.done.set()  # there is no store to leave
            raise
        self._state.writer.done.set()

    def _leave_again(self, store: RendezvousBackend, timeout: float) -> None:
        if not self._state.stopping.wait(RETRY_FIRST):
            self._leave(store, timeout)

    def _part(self, store: RendezvousBackend, timeout: float) -> None:
        """Give the leadership away, wait for nodes that need this node's store, take the row out."""
        node_id, ledger = self._state.node_id, self._hand_over(store)
        if store.embedded and store.hosting:
            self._linger(store, ledger, timeout)
        if ledger.closed is not None or not (self._returns or ledger.is_member(node_id)):
            store.remove(node_id)  # a member's row stays: it proves that its part of the round is over

    def _hand_over(self, store: RendezvousBackend) -> Ledger:
        """Give the leadership to another node, if this one has it; its reader may be writing at the same time.

        Return the ledger, without the LEADER entry.
        """
        state, ledger = self._state, self._state.ledger
        while True:
            for entry in news(store, ledger, codec=state.runtime.codec):
                if ledger.closed is None:
                    ledger = advance(ledger, entry, state.runtime.now())
            if ledger.closed is not None or ledger.leader != state.node_id:
                return ledger
            heir = self._leader.successor(ledger)
            if heir is None or state.append_leader(store, ledger, heir, f"{state.node_id} leaves"):
                return ledger

    def _linger(self, store: RendezvousBackend, ledger: Ledger, timeout: float) -> None:
        """Stay until the others have read this ledger, for ``timeout`` s at most: the store ends with this agent.

        Its newest entry may be a CLOSED, or a DRAIN that also names other nodes. A node that leaves at once, and for
        good, ends with its own exit code.
        """
        runtime, watch, cursor = self._state.runtime, self._closing_watch or Watch(), Cursor()
        timing, deadline = ledger.settings.timing, runtime.now() + timeout
        while (now := runtime.now()) < deadline:
            rows = readable(store.roster(), runtime.codec)
            watch = observe(watch, rows, now, gap=contact_gap(timing))
            others = [seen.row for seen in rows if seen.row.info.node_id != self._state.node_id]
            behind = [
                watch.nodes[row.info.node_id]
                for row in others
                if not (row.head >= ledger.head.index or row.is_request or (row.is_departing and not row.grace))
            ]
            if all(is_lost(watch, node.node_id, timing, now) for node in behind):
                return
            cursor = store.wait(cursor, roster=True, timeout=min(timing.beat_interval, deadline - now))
