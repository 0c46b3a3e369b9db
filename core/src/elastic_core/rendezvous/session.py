"""A node's dealings with its store: three threads, so that nothing the store does can hold up the agent.

* The **reader** waits for the ledger to grow and posts what is new. While this node is chair it also waits for the
  roster, and takes the chair's turns.
* The **writer** keeps the node's roster row up to date, reconnects, and does the rare jobs (taking the chair,
  handing it over).
* The **pulse** beats.

Each has a connection of its own. They reconnect for as long as it takes, since losing sight of the store does not
stop healthy workers (rule S4), unless the store is embedded and so gone for good.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from elastic_core.errors import ElasticError, RendezvousConnectionError, RendezvousStateError
from elastic_core.events import Event, Level
from elastic_core.rendezvous.backend import Cursor, RendezvousBackend, RosterRow
from elastic_core.rendezvous.chair import ChairDriver, Judge
from elastic_core.rendezvous.codec import decode_row, encode_entry, encode_row
from elastic_core.rendezvous.join import Clock
from elastic_core.rendezvous.ledger import Chair, Ledger, advance, compose
from elastic_core.rendezvous.node import EntriesRead, NodeEvent, StoreLost
from elastic_core.rendezvous.pulse import Pulse, PulseCalls
from elastic_core.rendezvous.reading import check_head, news
from elastic_core.rendezvous.retry import Backoff
from elastic_core.rendezvous.rows import NodeRow, Phase
from elastic_core.rendezvous.watch import Heard, Observation, Watch, dead, observe

IDLE_WAIT = 60.0
"""Seconds that a follower waits for the ledger at a time; the store wakes it earlier."""


@dataclass(frozen=True, slots=True)
class SessionCalls:
    """What a session tells its agent. All are called from the session's threads and must return at once."""

    post: Callable[[NodeEvent], None]
    publish: Callable[[Event], None]
    judge: Judge
    crashed: Callable[[BaseException], None]
    """A thread met a defect; the agent ends with it."""


class Session:
    """The threads between one node and its store, from joining to leaving."""

    def __init__(
        self, store: RendezvousBackend, node_id: str, ledger: Ledger, clock: Clock, calls: SessionCalls
    ) -> None:
        self._root = store
        self._node_id = node_id
        self._clock = clock
        self._calls = calls
        self._ledger = ledger
        self._chair = ChairDriver(node_id, calls.judge, clock, calls.publish)
        self._heard: Heard | None = None
        self._wake = threading.Condition()
        self._row: NodeRow | None = None
        self._revision = 0
        self._sent = 0
        self._jobs: list[Callable[[RendezvousBackend], None]] = []
        self._stopping = threading.Event()
        self._reading: RendezvousBackend | None = None
        self._writing: RendezvousBackend | None = None
        self.contact_at = clock.now()
        """When a store operation last succeeded, by the monotonic clock."""
        self._unreachable = False
        self._done = threading.Event()
        """Nothing is left to tell the store: this node has left, or there is no store any more."""
        self._lost = False
        """There will be no further entry for this node, for good."""
        pulse_calls = PulseCalls(
            contact=self._contact,
            lost=self._pulse_lost,
            row=self._row_seen,
            take_chair=self._take_chair,
            crashed=calls.crashed,
        )
        self._pulse = Pulse(node_id, store.connect(), ledger, clock.now, pulse_calls)
        self._threads = [
            threading.Thread(target=self._guard, args=(body,), name=f"elastic-{name}", daemon=True)
            for name, body in (("reader", self._read), ("writer", self._write))
        ]

    def start(self) -> None:
        """Start the threads."""
        self._pulse.start()
        for thread in self._threads:
            thread.start()

    def tick(self) -> None:
        """The agent's loop is alive; beats go on only while it says so."""
        self._pulse.tick()

    def publish_row(self, row: NodeRow) -> None:
        """Make the roster say this; returns at once, and the newest row wins."""
        with self._wake:
            if self._is_news(row):
                self._pulse.reported()
            self._row, self._revision = row, self._revision + 1
            self._wake.notify()

    def _is_news(self, row: NodeRow) -> bool:
        """Whether the row has an incident that the chair owes an entry for; the answer may have come before it."""
        if row.incident is None or (self._row is not None and self._row.incident == row.incident):
            return False
        current = self._ledger.round
        return self._ledger.live and current is not None and row.incident.round == current.number

    def ask_finished(self, answer: Callable[[bool], None]) -> None:
        """Find out whether any other member of the round has finished; ``answer`` is called on the writer's thread."""
        ledger = self._ledger

        def look(store: RendezvousBackend) -> None:
            members = [member.node_id for member in ledger.round.members] if ledger.round is not None else []
            rows = _rows(seen for seen in store.roster(members) if seen.node_id != self._node_id)
            answer(ledger.live and any(seen.row.phase is Phase.FINISHED for seen in rows))

        with self._wake:
            self._jobs.append(look)
            self._wake.notify()

    def close(self, timeout: float) -> None:
        """Hand over the chair, bring the row up to date or take it out, stop the threads: ``timeout`` s at most."""
        with self._wake:
            self._jobs.append(lambda store: self._farewell(store, timeout))
            self._wake.notify()
        self._done.wait(timeout)
        self._stopping.set()
        self._pulse.stop()
        with self._wake:
            self._wake.notify()
            busy = [store for store in (self._reading, self._writing) if store is not None]
        for store in busy:  # which ends whatever they wait for
            store.close()
        self._pulse.hang_up()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(1.0)
        self._pulse.close(1.0)

    # The reader ------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        version, backoff = 0, Backoff()
        while not self._stopping.is_set():
            store = self._connected()
            if store is None:
                return
            with self._wake:
                self._reading = store
            try:
                while not self._stopping.is_set():
                    version = self._look(store, version)
                    backoff.worked()
            except RendezvousConnectionError as exc:
                self._store_failed(exc)
                self._stopping.wait(backoff.failed())
            except RendezvousStateError as exc:
                self._give_up(exc)
                return
            finally:
                with self._wake:
                    self._reading = None
                store.close()

    def _look(self, store: RendezvousBackend, version: int) -> int:
        """Read what is new, take the chair's turn if it is ours, and wait for more. Returns the roster's version."""
        now = self._clock.now()
        if entries := news(store, self._ledger):
            ledger = self._ledger
            for entry in entries:
                ledger = advance(ledger, entry, now)
                if ledger.closed is not None:
                    break
            with self._wake:  # together, for who reports meanwhile
                self._ledger = ledger
                self._pulse.follow(ledger)
            self._calls.post(EntriesRead(entries, now))
        self._contact()
        if self._ledger.closed is not None:
            self._stopping.wait()
            return version
        wait = IDLE_WAIT
        chairs = self._ledger.chair == self._node_id
        if chairs:
            if self._chair.watch.read_at is None:
                self._chair.watch = Watch(heard=self._heard)
            at = self._chair.turn(store, self._ledger)
            beat = self._ledger.settings.timing.beat_interval
            wait = beat if at is None else min(beat, max(0.0, at - self._clock.now()))
        elif self._chair.watch.nodes:
            self._chair.watch = Watch()  # deposed: what was seen then must not be judged by later
        cursor = Cursor(self._ledger.head.index, version)
        return store.wait(cursor, roster=chairs, timeout=wait).roster

    # The writer ------------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        store: RendezvousBackend | None = None
        backoff = Backoff()
        while True:
            with self._wake:
                while not (self._stopping.is_set() or self._jobs or self._sent < self._revision):
                    self._wake.wait()
                if self._stopping.is_set():
                    break
                row, revision = self._row, self._revision
                jobs, self._jobs = self._jobs, []
            try:
                store = store or self._connected()
                if store is None:
                    break
                with self._wake:
                    self._writing = store
                if row is not None and self._sent < revision:
                    store.amend(self._node_id, revision, encode_row(row))
                    with self._wake:
                        self._sent = max(self._sent, revision)
                while jobs:
                    jobs[0](store)
                    jobs.pop(0)
                self._contact()
                backoff.worked()
            except RendezvousConnectionError as exc:
                self._store_failed(exc)
                store = self._dropped(store)
                with self._wake:
                    self._jobs = [*jobs, *self._jobs]
                self._stopping.wait(backoff.failed())
            except RendezvousStateError as exc:
                self._give_up(exc)
                break
        self._dropped(store)

    def _farewell(self, store: RendezvousBackend, timeout: float) -> None:
        ledger = self._hand_over(store)
        if ledger.closed is not None:
            if store.embedded and store.hosting:
                self._linger(store, ledger, timeout)
            store.remove(self._node_id)
        elif not ledger.is_member(self._node_id):
            store.remove(self._node_id)  # a member's row stays: it proves that its part of the round is over
        self._done.set()

    def _hand_over(self, store: RendezvousBackend) -> Ledger:
        """Give the chair to somebody else, if we have it; our own reader may be writing an entry at the same time."""
        ledger = self._ledger
        while True:
            for entry in news(store, ledger):
                if ledger.closed is None:
                    ledger = advance(ledger, entry, self._clock.now())
            if ledger.closed is not None or ledger.chair != self._node_id:
                return ledger
            heir = self._chair.successor(ledger)
            if heir is None or self._append_chair(store, ledger, heir, f"{self._node_id} leaves"):
                return ledger

    def _linger(self, store: RendezvousBackend, ledger: Ledger, timeout: float) -> None:
        """The store goes with this agent: stay until every living node has seen CLOSED."""
        watch, version, clock = Watch(), 0, self._clock
        timing, deadline = ledger.settings.timing, self._clock.now() + timeout
        while (now := clock.now()) < deadline:
            rows = _rows(store.roster())
            watch = observe(watch, rows, now)
            present = {row.row.info.node_id for row in rows} - {self._node_id}
            if not any(
                seen.row.head < ledger.head.index and not dead(watch, node_id, timing, now)
                for node_id, seen in watch.nodes.items()
                if node_id in present
            ):
                return
            wait = min(timing.beat_interval, deadline - now)
            version = store.wait(Cursor(ledger.head.index, version), roster=True, timeout=wait).roster

    def _take_chair(self, ledger: Ledger, heard: Heard, why: str) -> None:
        def take(store: RendezvousBackend) -> None:
            self._append_chair(store, ledger, self._node_id, why)

        with self._wake:
            self._heard = heard
            self._jobs.append(take)
            self._wake.notify()

    def _append_chair(self, store: RendezvousBackend, ledger: Ledger, chair: str, why: str) -> bool:
        entry = compose(
            ledger,
            Chair(why=why),
            entry_id=self._clock.new_id(),
            author=self._node_id,
            now=self._clock.now(),
            chair=chair,
        )
        landed = store.append(ledger.head.link, entry.link, encode_entry(entry))
        if landed:
            self._calls.publish(Event("chair_changed", f"{chair} decides from here on: {why}", Level.DEBUG))
        else:
            check_head(store, ledger)  # somebody else was faster, and the reader finds the entry
        return landed

    def _row_seen(self, revision: int | None) -> None:
        """Rule S7: the store is behind what we sent, or lost our row; send again."""
        with self._wake:
            if self._row is None or (revision is not None and revision >= self._sent):
                return
            if revision is None:
                row = self._row
                self._jobs.append(lambda store: self._reenter(store, row))
            self._sent = 0
            self._wake.notify()

    def _reenter(self, store: RendezvousBackend, row: NodeRow) -> None:
        if not self._stopping.is_set():
            store.enter(self._node_id, encode_row(row))

    # Connections -----------------------------------------------------------------------------------------------------

    def _connected(self) -> RendezvousBackend | None:
        """A new connection, however long it takes; None when there is none to be had any more."""
        backoff = Backoff()
        while not (self._stopping.is_set() or self._lost):
            try:
                store = self._root.connect()
            except RendezvousConnectionError as exc:
                if self._root.embedded:
                    self._give_up(exc)
                    return None
                self._store_failed(exc)
                self._stopping.wait(backoff.failed())
            except RendezvousStateError as exc:
                self._give_up(exc)
                return None
            else:
                return store
        return None

    def _pulse_lost(self, exc: RendezvousConnectionError) -> None:
        self._store_failed(exc)
        threading.Thread(target=self._guard, args=(self._mend_pulse,), name="elastic-mend", daemon=True).start()

    def _mend_pulse(self) -> None:
        if (store := self._connected()) is not None:
            self._pulse.reconnected(store)

    def _contact(self) -> None:
        if self._lost:
            return
        self.contact_at = self._clock.now()
        if self._unreachable:
            self._unreachable = False
            self._calls.publish(Event("store_back", "the store answers again"))

    def _store_failed(self, exc: RendezvousConnectionError) -> None:
        if not (self._stopping.is_set() or self._unreachable or self._lost or self._root.embedded):
            self._unreachable = True
            message = f"the store does not answer; workers go on, and we keep trying: {exc.message}"
            self._calls.publish(Event("store_unreachable", message, Level.WARNING))

    def _give_up(self, exc: ElasticError) -> None:
        """There will be no further entry for this node: healthy workers may finish without one.

        Its beats stop, and so does its contact: should others go on without it, they wait for the fence, which stops
        the workers here first (rule S4).
        """
        with self._wake:
            first, self._lost = not (self._lost or self._stopping.is_set()), True
        self._pulse.stop()
        self._done.set()
        if first and self._ledger.closed is None:
            self._calls.publish(Event("store_lost", f"the store is lost: {exc.message}", Level.ERROR))
            self._calls.post(StoreLost())

    def _guard(self, body: Callable[[], None]) -> None:
        try:
            body()
        except Exception as exc:
            self._calls.crashed(exc)

    @staticmethod
    def _dropped(store: RendezvousBackend | None) -> None:
        if store is not None:
            with contextlib.suppress(ElasticError):
                store.close()


def _rows(found: Iterable[RosterRow]) -> list[Observation]:
    """What can be read of these rows; the chair reports what cannot."""
    rows = []
    for seen in found:
        with contextlib.suppress(RendezvousStateError):
            rows.append(Observation(decode_row(seen.value), seen.serial, seen.beat))
    return rows
