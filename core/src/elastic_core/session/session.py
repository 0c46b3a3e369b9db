"""A node's dealings with its store: threads of their own, so that nothing the store does can hold up the agent.

* The **reader** waits for the ledger to grow and posts what is new. While this node is leader it also waits for the
  roster, and becomes the leader's turns.
* The **writer** (``writer``) keeps the node's roster row up to date, and does the rare jobs (becoming the leader,
  handing it over).
* The **heartbeat** heartbeats.
* Where a store's server can be replaced behind its back, a fourth thread has it confirmed now and then (rule S4).

Each of the three has a connection of its own. They reconnect for as long as it takes, since losing sight of the store
does not stop healthy workers (rule S4), unless the store is embedded and so gone for good.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from elastic_core.errors import (
    ElasticError,
    RendezvousConnectionError,
    RendezvousStateError,
    StoreLostError,
)
from elastic_core.events import Event, Level
from elastic_core.incidents import Incident
from elastic_core.protocol.failure_detector import (
    DeposedLeader,
    NodeView,
    Watch,
    is_lost,
    look_interval,
    mark_interrupted,
)
from elastic_core.protocol.ledger import HistoryChangedError, Ledger, advance
from elastic_core.protocol.node import EntriesRead, HistoryReplaced, NodeEvent, RunReplaced, StoreLost
from elastic_core.protocol.repair import Memory, Rejoin
from elastic_core.protocol.roster import NodeInfo, NodeRow
from elastic_core.protocol.row_delay import row_delay
from elastic_core.rendezvous.backend import Cursor, RendezvousBackend
from elastic_core.session.callbacks import SessionCalls
from elastic_core.session.contact import FENCE_SHARE, Contact
from elastic_core.session.heartbeat import Heartbeat, HeartbeatCalls
from elastic_core.session.join import Clock, Joined
from elastic_core.session.leader_driver import LeaderDriver
from elastic_core.session.leave import append_leader, others_finished, part, readable
from elastic_core.session.ledger_reader import MissingHeadError, missing_entry, news
from elastic_core.session.repair import restore
from elastic_core.session.retry import RETRY_FIRST, RETRY_MOST, Backoff
from elastic_core.session.row_check import RowCheck
from elastic_core.session.row_writer import Writer, WriterCalls
from elastic_core.session.store_calls import ANSWER_WITHIN_SECONDS, StoreCall, call_of, may_be_renewed, unanswered

__all__ = ["Session", "SessionCalls"]

CONFIRMED_SHARE = 0.25
"""Part of ``fence_after`` after which the server that takes the heartbeats has to be confirmed again."""
ASKED_SHARE = 0.5
"""Part of the time that the fence takes after which a node without contact asks the store before a round begins: it may
have workers to stop first, and the fence must not stop the new ones meanwhile."""
IDLE_WAIT = 60.0
"""Seconds that a follower waits for the ledger at a time; the store wakes it earlier."""
UNTOLD = 0.2
"""Seconds between two attempts to read on, up to which nothing is said: others may be mending the store just then."""
PROOF = 1.0
"""Seconds of the first wait after a failure: that it can read does not show that it can wait."""
REST = 0.0001
"""Seconds that the leader lets things happen after a look, for each row that it looked at: when a thousand rows change
one after another, looking at all of them for each change would keep their store from taking the changes."""

_UNNAMED = "with Redis, a majority of the sentinels in --rdzv_endpoint must answer and name it as the master"


class Session:
    """The threads between one node and its store, from joining to leaving.

    Args:
        store: What the node joined over; each thread connects anew.
        joined: The run, and what the roster says of the node.
        clock: Time and randomness.
        calls: What the session asks and tells the agent.
    """

    def __init__(self, store: RendezvousBackend, joined: Joined, clock: Clock, calls: SessionCalls) -> None:
        ledger, node_id = joined.ledger, joined.row.info.node_id
        self._root = store
        self._node_id = node_id
        self._clock = clock
        self._calls = calls
        self._ledger = ledger
        self._memory = Memory((ledger.head,))
        self._doubt = False
        """Whether the store may have lost entries: the reader compares on its next connection, or does so now (S3)."""
        self._known: dict[str, NodeInfo] = {}
        """The nodes that were looked up last, by id. The writer's."""
        self._unread: HistoryChangedError | None = None
        """Why the reader could not read on from where it is."""
        self._missing_since: tuple[bool, float] | None = None
        """Whether the store's newest entry is missing, or one that it stands on, and since when, as far as nothing else
        was read meanwhile; None where neither is. The reader's."""
        self._leader = LeaderDriver(node_id, calls.judge, clock, calls.publish, calls.node_gone)
        self._heard: DeposedLeader | None = None
        self._wake = threading.Condition()
        self._stopping = threading.Event()
        self._reading: RendezvousBackend | None = None
        self._connecting: dict[str, float | None] = dict.fromkeys(("reader", "writer", "heartbeat"))
        """Since when each of the three makes a connection; None while it does not."""
        self._hung_up: dict[str, RendezvousBackend] = {}
        """The connection of each thread that was closed last because nothing came over it."""
        self._checked_at = self._heartbeat_at = clock.now()
        """When answers were last checked, and when the last heartbeat that was answered began."""
        self._unread_since: float | None = None
        """Since when heartbeats bring that the store has other entries than this node has read."""
        self.contact = Contact(clock.now(), calls.publish, confirms=store.stale_reads)
        """What the operations of the three came to."""
        self._row_check = RowCheck(node_id, calls.publish)
        self._unconfirmed = threading.Event()
        """Set when heartbeats go to another server, which has to be confirmed."""
        self._first_confirmed = threading.Event()
        """Set when a server was confirmed for the first time, and when nothing will be decided any more."""
        self._unconfirmed_since: float | None = None
        """Since when this node would decide, if its server were confirmed. The reader's."""
        self._back_at = -math.inf
        """When the reader last had a connection again after it had lost one."""
        self.store_gone = False
        """Whether an embedded store is known to be gone, so that nobody can go on elsewhere (rule S4)."""
        self._lost = False  # whether there will be no further entry for this node, for good
        writer_calls = WriterCalls(
            connected=partial(self._connected, "writer"),
            worked=partial(self.contact.worked, "writer"),
            failed=partial(self._store_failed, "writer"),
            doubtful=self._compare,
            given_up=self._give_up,
            is_owed=self._is_owed,
            reported=lambda: self._heartbeat.reported(),
            cut_off=self._cut_off,
        )
        self._writer = Writer(joined.row, clock, self._wake, self._stopping, writer_calls)
        heartbeat_calls = HeartbeatCalls(
            contact=self._heartbeat_answered,
            lost=self._heartbeat_lost,
            row=self._writer.row_seen,
            behind=self._compare,
            take_leader=self._take_leader,
            given_up=self._give_up,
            crashed=calls.crashed,
        )
        self._heartbeat = Heartbeat(node_id, _connection_to(store), ledger, clock.now, heartbeat_calls)
        bodies = {"reader": self._read, "writer": self._writer.run}
        if store.stale_reads:
            bodies["confirmer"] = self._confirm
        self._closing_watch: Watch | None = None
        """What this node saw as leader, if it was one when it began to leave."""
        self._threads = [
            threading.Thread(target=self._guard, args=(body,), name=f"elastic-{name}", daemon=True)
            for name, body in bodies.items()
        ]

    def start(self) -> None:
        """Start the threads."""
        if self._heartbeat.store is None:
            self._start_mending()
        self._heartbeat.start()
        for thread in self._threads:
            thread.start()

    def tick(self) -> None:
        """The agent's loop is alive; heartbeats go on only while it says so."""
        self._heartbeat.tick()

    def check_answers(self, endpoint: str, *, within: float = ANSWER_WITHIN_SECONDS) -> None:
        """Say so once if a call has had no answer for long, and close a connection that alone has none for longer.

        To be called again and again, by the agent's loop: the store's own threads may all be waiting. The store at
        ``endpoint`` may accept connections and be stopped, or what goes there may be dropped.
        """
        now, timing = self._clock.now(), self._ledger.settings.timing
        before, self._checked_at = self._checked_at, now
        if now - before >= 2 * timing.beat_interval + 1.0:  # this agent was frozen, and not the store
            return
        for call in self._calls_under_way():
            if (silence := now - call.due) < within:
                continue
            error = unanswered(call, silence, endpoint, FENCE_SHARE * timing.fence_after)
            self.contact.failed(call.who, error, surely=True)
            if may_be_renewed(call, silence, self._heartbeat_at, within=within):
                self._hang_up(call)

    def _calls_under_way(self) -> list[StoreCall]:
        reading, writing, unread_since = self._reading, self._writer.connection, self._unread_since
        made = [StoreCall(who, began) for who, began in self._connecting.items() if began is not None]
        calls = [
            call_of("reader", reading, unread_since),
            call_of("writer", writing),
            call_of("heartbeat", self._heartbeat.store),
        ]
        return [*made, *filter(None, calls)]

    def _hang_up(self, call: StoreCall) -> None:
        """Close the connection, once, on a thread of its own: that may take long where nobody answers."""
        if call.store is not None and self._hung_up.get(call.who) is not call.store:
            self._hung_up[call.who] = call.store
            threading.Thread(target=self._guard, args=(call.store.close,), name="elastic-hang-up", daemon=True).start()

    @property
    def node_views(self) -> Mapping[str, NodeView]:
        """The nodes that this one, as leader, sees in the roster, by id; empty where another one leads."""
        return self._leader.watch.nodes

    def lost(self, node_ids: Iterable[str]) -> set[str]:
        """Which of these nodes were lost at this one's newest look as leader; none where it was deposed, or never led.

        A node that leaves gives the leadership away, perhaps to one that leaves too, and still knows what it saw.
        """
        watch, timing = self._closing_watch or self._leader.watch, self._ledger.settings.timing
        if watch.read_at is None:
            return set()
        return {node_id for node_id in node_ids if is_lost(watch, node_id, timing, watch.read_at)}

    @property
    def waiting_for(self) -> str:
        """Whom the job waits for, where this node leads and knows it; else ''."""
        return self._leader.waiting_for if self._leader.watch.nodes else ""

    def publish_row(self, row: NodeRow) -> None:
        """Make the roster say this, at once or soon, as the news is; returns at once, and the newest row wins."""
        self._writer.publish(row, row_delay(row, self._ledger))

    def ask_finished(self, answer: Callable[[bool], None]) -> None:
        """Find out whether any other member of the round has finished; ``answer`` is called on the writer's thread."""
        ledger = self._ledger
        self._writer.later(lambda store: answer(others_finished(store, ledger, self._node_id)))

    def look_up(self, node_ids: Sequence[str], answer: Callable[[list[NodeInfo]], None]) -> None:
        """Find out what nodes say of themselves; ``answer`` is called on the writer's thread.

        The store is asked about those only that were not in the last answer, since none ever says anything else.
        """

        def look(store: RendezvousBackend) -> None:
            known = {node_id: self._known[node_id] for node_id in node_ids if node_id in self._known}
            if unknown := [node_id for node_id in node_ids if node_id not in known]:
                known |= {seen.row.info.node_id: seen.row.info for seen in readable(store.roster(unknown))}
            self._known = known
            answer(list(known.values()))

        self._writer.later(look)

    def close(self, timeout: float) -> None:
        """Hand over the leader, bring the row up to date or take it out, stop the threads: ``timeout`` s at most."""
        self._closing_watch = self._leader.watch
        self._writer.later(lambda store: self._farewell(store, timeout))
        self._writer.done.wait(timeout)
        self._stopping.set()
        self._unconfirmed.set()
        self._first_confirmed.set()
        self._heartbeat.stop()
        with self._wake:
            self._wake.notify()
            busy = [store for store in (self._reading, self._writer.connection) if store is not None]
        for store in busy:  # which ends whatever they wait for
            store.close()
        self._heartbeat.hang_up()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(1.0)
        self._heartbeat.close(1.0)

    # The reader ------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        backoff, connected_before = Backoff(), False
        while not self._stopping.is_set():
            store = self._connected("reader")
            if store is None:
                return
            with self._wake:
                self._reading = store
            if connected_before:
                self._back_at = self._clock.now()
            connected_before = True
            self._leader.watch = mark_interrupted(self._leader.watch)
            try:
                if self._doubt or self._unread is not None or not store.embedded:
                    self._restore(store)
                seen: Cursor | None = Cursor(self._ledger.head.index)
                while not self._stopping.is_set() and not self._lost:
                    before = self._ledger.position
                    seen = self._look(store, seen)
                    if self._ledger.position != before or (seen is not None and seen.head == self._ledger.head.index):
                        backoff.worked()
                        self._missing_since = None
                    elif seen is None:  # what was put back cannot be read yet: the store answers with an older state
                        self._stopping.wait(backoff.failed())
            except HistoryChangedError as exc:
                self._unread = exc  # a new connection begins with a comparison
                if self._is_lost(exc):
                    self._give_up(exc)
                    return
                if (pause := backoff.failed()) > UNTOLD:
                    self._store_failed("reader", exc)
                self._stopping.wait(pause)
            except RendezvousConnectionError as exc:
                self._missing_since = None
                if not self._doubt:
                    self._store_failed("reader", exc)
                    self._stopping.wait(backoff.failed())
            except RendezvousStateError as exc:
                self._give_up(exc)
                return
            finally:
                with self._wake:
                    self._reading = None
                store.close()

    def _is_lost(self, exc: HistoryChangedError) -> bool:
        """Whether an entry has been missing for so long that nobody is about to put it there.

        A store may tell of its newest entry before all of its servers have it; what it tells for ``lost_after``, nobody
        has written. One that the newest stands on may be put back by who has read it, if not for ``fence_after``.
        """
        now, timing, newest = self._clock.now(), self._ledger.settings.timing, isinstance(exc, MissingHeadError)
        if self._missing_since is None or self._missing_since[0] is not newest:
            self._missing_since = newest, now
        return now - self._missing_since[1] >= (timing.lost_after if newest else timing.fence_after)

    def _look(self, store: RendezvousBackend, seen: Cursor | None) -> Cursor | None:
        """Read what is new, become the leader's turn if it is ours, and wait for more.

        ``seen`` is what the last look returned: how far the store has come, None where that is not known.
        """
        if entries := news(store, self._ledger, None if seen is None else seen.head):
            ledger, now = self._ledger, self._clock.now()  # after reading: they were written by then (rule S4)
            for entry in entries:
                ledger = advance(ledger, entry, now)
                if ledger.closed is not None:
                    break
            self._have_contact(store, ledger)  # if that fails, the entries are read again
            self._memory = self._memory.and_then(entries)
            self._follow(ledger)
            self._calls.post(EntriesRead(entries, now))
        elif seen is not None and seen.head > self._ledger.head.index:
            self._check_gap(store)
        if self._ledger.closed is not None:
            self._stopping.wait()
            return seen
        wait, rest = IDLE_WAIT, 0.0
        leaders = self._ledger.leader == self._node_id
        if leaders and not (self.contact.ever_confirmed or self._await_confirmation()):
            return seen
        if leaders and store.stale_reads and self._cut_off():
            wait = self._ledger.settings.timing.beat_interval
        elif leaders:
            if self._leader.watch.read_at is None:
                self._leader.watch = Watch(deposed=self._heard, gap_at=max(self._heartbeat.gap_at, self._back_at))
            looked_at = self._clock.now()
            at = self._leader.turn(store, self._ledger)
            self._writer.publish_unread(self._leader.unread)
            now, rest = self._clock.now(), REST * len(self._leader.watch.nodes)
            if not self._leader.alone(self._ledger):  # their heartbeats, or that there is none, wake nobody
                wait = max(rest, looked_at + look_interval(self._ledger.settings.timing) - now)
            wait = wait if at is None else min(wait, max(0.0, at - now))
            rest = min(rest, wait)
        elif self._leader.watch.nodes:
            self._leader.watch = Watch()  # deposed: what was seen then must not be judged by later
            self._writer.publish_unread(())
        if "reader" in self.contact.failing:
            wait = min(wait, PROOF)
        cursor = Cursor(self._ledger.head.index, 0 if seen is None else seen.roster)
        rests_at = self._clock.now()
        if rest:
            self._stopping.wait(rest)
        waits_at = self._clock.now()
        seen = store.wait(cursor, roster=leaders, timeout=max(0.0, wait - rest))
        self._leader.slept = min(self._clock.now() - rests_at, wait)
        if seen.head <= cursor.head:  # else there is more to be read
            self.contact.worked("reader")
        if seen.head == cursor.head and not store.stale_reads:
            self.contact.current(waits_at)
        if seen.head < cursor.head:
            self._restore(store)
            return None
        return seen

    def _have_contact(self, store: RendezvousBackend, ledger: Ledger) -> None:
        """Have contact before a round begins that may be this node's: its fence would stop the workers at once (S4).

        Raises:
            RendezvousConnectionError: The store does not answer.
        """
        if not (ledger.is_live and self._cut_off(ASKED_SHARE)) or store.stale_reads:
            return
        asked, head = self._clock.now(), ledger.head.index
        if store.wait(Cursor(head), roster=False, timeout=0.0).head == head:  # else there is more to be read first
            self.contact.current(asked)

    def _check_gap(self, store: RendezvousBackend) -> None:
        """The next entry is not there, though a newer one is said to be: that may have been a bell's word alone.

        Raises:
            HistoryChangedError: It was not.
        """
        index = self._ledger.head.index + 1
        if store.wait(Cursor(), roster=False, timeout=0).head >= index and store.read(index) is None:
            raise missing_entry(index)

    def _follow(self, ledger: Ledger) -> None:
        with self._wake:  # together, for who reports meanwhile
            self._ledger, self._unread_since = ledger, None
            self.contact.live(ledger.is_live)
            self._heartbeat.follow(ledger)

    def _restore(self, store: RendezvousBackend) -> None:
        """Compare the store's history with ours, and make them one (rule S3)."""
        unread, self._unread = self._unread, None
        self._doubt = True  # and whoever has doubts meanwhile must let this comparison come to its end
        try:
            found = restore(store, self._ledger, self._memory, self._node_id, self._clock, unread=unread)
            if isinstance(found, tuple) and found[1] is not None:
                self._have_contact(store, found[1])  # if that fails, the histories are compared again
        except RendezvousConnectionError:
            self._unread = unread
            raise
        finally:
            self._doubt = False
        if isinstance(found, Rejoin):
            self._end_for(
                RunReplaced(found.why), Event("outrun", f"{found.why}: joining again as a new node", Level.WARNING)
            )
        elif found is not None:
            lost, ledger = found
            self._writer.row_seen(None)  # what has lost entries has lost rows, too
            what = "this node has put back what it had read" if ledger is None else "the run goes on"
            self._calls.publish(Event("history_restored", f"{lost}; {what}", Level.WARNING))
            if ledger is not None:
                if ledger.head.epoch == self._ledger.head.epoch:  # what rows said was of another branch
                    self._leader.watch, self._heard = Watch(), None
                self._memory = Memory((ledger.head,))
                self._follow(ledger)
                self._calls.post(HistoryReplaced(ledger))

    def _compare(self) -> None:
        """Have the reader compare the store's history with ours, on a new connection: it may be asleep on this one."""
        with self._wake:
            reading, self._doubt = (None if self._doubt else self._reading), True
        if reading is not None:
            reading.close()

    # The writer's jobs -----------------------------------------------------------------------------------------------

    def _farewell(self, store: RendezvousBackend, timeout: float) -> None:
        try:
            part(
                store,
                self._ledger,
                self._leader.successor,
                lambda heir: self._leader_changed(heir, f"{self._node_id} leaves"),
                timeout,
                node_id=self._node_id,
                clock=self._clock,
            )
        except RendezvousConnectionError:
            raise  # and tried again
        except HistoryChangedError:
            self._writer.later(partial(self._farewell_again, timeout=timeout))
            raise  # which has the reader compare
        except RendezvousStateError:
            self._writer.done.set()  # there is nobody to say goodbye to
            raise
        self._writer.done.set()

    def _farewell_again(self, store: RendezvousBackend, timeout: float) -> None:
        if not self._stopping.wait(RETRY_FIRST):
            self._farewell(store, timeout)

    def _take_leader(self, ledger: Ledger, heard: DeposedLeader, why: str) -> None:
        def take(store: RendezvousBackend) -> None:
            if append_leader(store, ledger, self._node_id, why, author=self._node_id, clock=self._clock):
                self._leader_changed(self._node_id, why)

        with self._wake:
            self._heard = heard
            self._writer.later(take)

    def _leader_changed(self, leader: str, why: str) -> None:
        self._calls.publish(Event("leader_changed", f"{leader} decides from here on: {why}", Level.DEBUG))

    def _is_owed(self, incident: Incident) -> bool:
        """Whether the leader owes an entry for an incident; the answer may have come before the store had the
        report."""
        current = self._ledger.round
        return self._ledger.is_live and current is not None and incident.round == current.number

    # Contact ---------------------------------------------------------------------------------------------------------

    def _heartbeat_answered(self, began: float, current: bool) -> None:
        self.contact.worked("heartbeat")
        self._heartbeat_at = began
        if current:
            self._unread_since = None
            self.contact.current(began)
        elif self._unread_since is None:
            self._unread_since = began
        if self._row_check.is_due(ledger := self._ledger, self._clock.now()):
            self._writer.later(lambda store: self._row_check.look(store, ledger))

    def _cut_off(self, share: float = 1.0) -> bool:
        """Whether this node has had no contact for as long as its fence takes: it decides nothing then, nor asks for a
        place (rule S4). With ``share``, whether it has had none for that part of the time."""
        fence_after = self._ledger.settings.timing.fence_after
        return self._clock.now() - self.contact.known_at >= share * FENCE_SHARE * fence_after

    def _await_confirmation(self) -> bool:
        """Wait until the server is confirmed for the first time: nothing is decided before (rule S4). Whether it is."""
        timing, now = self._ledger.settings.timing, self._clock.now()
        if (since := self._unconfirmed_since) is None:
            self._unconfirmed_since = now
        self._first_confirmed.wait(timing.beat_interval)
        if (confirmed := self.contact.ever_confirmed) or self._stopping.is_set() or self._lost:
            return confirmed
        if since is None:
            message = f"the store does not confirm that this is its current server, so that no round begins; {_UNNAMED}"
            self._calls.publish(Event("store_unconfirmed", message, Level.WARNING))
        elif self._ledger.round is None and now - since >= timing.join_timeout:
            what = f"The store has not confirmed for {timing.join_timeout:g} s that this is its current server."
            self._give_up(RendezvousStateError(what, hint=f"{_UNNAMED[0].upper()}{_UNNAMED[1:]}."))
        return False

    def _confirm(self) -> None:
        """Have the server confirmed to which the heartbeats go, again and again (rule S4)."""
        while not (self._stopping.is_set() or self._lost):
            self._unconfirmed.clear()
            began, store, confirmed = self._clock.now(), self._heartbeat.store, False
            with contextlib.suppress(RendezvousConnectionError):
                confirmed = store is not None and store.confirm()
            if confirmed and self._heartbeat.store is store:
                self.contact.confirmed(began)
                self._first_confirmed.set()
            timing = self._ledger.settings.timing
            self._unconfirmed.wait(CONFIRMED_SHARE * timing.fence_after if confirmed else timing.beat_interval)

    # Connections -----------------------------------------------------------------------------------------------------

    def _connected(self, who: str) -> RendezvousBackend | None:
        """A new connection, however long it takes; None when there is none to be had any more.

        A leader that finds the store back first gives others ``lost_after`` to be back (rule L1): they try more often.
        """
        backoff = Backoff(most=min(RETRY_MOST, self._ledger.settings.timing.lost_after / 3))
        while not (self._stopping.is_set() or self._lost):
            try:
                self._connecting[who] = self._clock.now()
                try:
                    store = self._root.connect()
                finally:
                    self._connecting[who] = None
            except RendezvousConnectionError as exc:
                if self._root.embedded:
                    self.store_gone = self.store_gone or isinstance(exc, StoreLostError)
                    self._give_up(exc)
                    return None
                self._store_failed(who, exc)
                self._stopping.wait(backoff.failed())
            except RendezvousStateError as exc:
                self._give_up(exc)
                return None
            else:
                return store
        return None

    def _heartbeat_lost(self, exc: RendezvousConnectionError) -> None:
        self._store_failed("heartbeat", exc)
        self._start_mending()

    def _start_mending(self) -> None:
        threading.Thread(target=self._guard, args=(self._mend_heartbeat,), name="elastic-mend", daemon=True).start()

    def _mend_heartbeat(self) -> None:
        if (store := self._connected("heartbeat")) is not None:
            self.contact.moved()
            self._heartbeat.reconnected(store)
            self._unconfirmed.set()

    def _store_failed(self, who: str, exc: ElasticError) -> None:
        if not (self._stopping.is_set() or self._root.embedded):
            self.contact.failed(who, exc)

    def _give_up(self, exc: ElasticError) -> None:
        """There will be no further entry for this node: healthy workers may finish without one."""
        what = " ".join(filter(None, [exc.message, exc.hint]))
        self._end_for(StoreLost(), Event("store_lost", f"the store is lost: {what}", Level.ERROR))

    def _end_for(self, end: NodeEvent, told: Event) -> None:
        """Deal with the store no more.

        Heartbeats stop, and so does contact: should others go on without this node, they wait for the fence, which
        stops the workers here first (rule S4).
        """
        with self._wake:
            first, self._lost = not (self._lost or self._stopping.is_set()), True
            self._wake.notify()
        self.contact.end()
        self._unconfirmed.set()
        self._first_confirmed.set()
        self._heartbeat.stop()
        self._writer.done.set()
        if first and self._ledger.closed is None:
            self._calls.publish(told)
            self._calls.post(end)

    def _guard(self, body: Callable[[], None]) -> None:
        try:
            body()
        except Exception as exc:
            self._calls.crashed(exc)


def _connection_to(store: RendezvousBackend) -> RendezvousBackend | None:
    """A connection; None where there is none now, and whoever needs it tries again."""
    try:
        return store.connect()
    except RendezvousConnectionError:
        return None
