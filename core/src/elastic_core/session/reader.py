"""The session's reader: reads the ledger as it grows, and takes the leader's turns while this node is leader.

It has its own thread and connection. What it has read it posts to the agent. It also puts back what a store has lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from typing import TypeAlias

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_core.events import Event, Level
from elastic_core.protocol import repair
from elastic_core.protocol.codec import Codec, OversizedError
from elastic_core.protocol.entries import Entry
from elastic_core.protocol.failure_detector import Watch, mark_interrupted, roster_read_interval
from elastic_core.protocol.ledger import HistoryChangedError, Ledger, advance, compose, open_ledger
from elastic_core.protocol.node_events import EntriesRead, HistoryReplaced, RunReplaced
from elastic_core.protocol.repair import Memory, Rejoin
from elastic_core.protocol.roster import NodeInfo
from elastic_core.rendezvous.backend import ORIGIN, TOMBSTONE, Cursor, Link, RendezvousBackend, confirmed_at
from elastic_core.session.contact import Backoff
from elastic_core.session.leader_driver import LeaderDriver
from elastic_core.session.ledger_reader import (
    MissingHeadError,
    check_head,
    living_hosts,
    load_now,
    missing_entry,
    news,
    peek,
)
from elastic_core.session.runtime import Runtime
from elastic_core.session.state import SessionState

ASKED_SHARE = 0.5
"""The share of the fence's time after which a node without contact asks the store before a round begins. It may have
workers to stop first, and the fence must not stop the new ones meanwhile."""
IDLE_WAIT_SECONDS = 60.0  # how long a follower waits for the ledger at a time; the store wakes it earlier
QUIET_RETRY_SECONDS = 0.2
"""While retries are at most this far apart, no failure is reported: other nodes may be repairing the store."""
FIRST_WAIT_SECONDS = 1.0
"""The length of the first wait after a failure: a read that succeeds does not show that a wait does."""
REST_SECONDS_PER_ROW = 0.0001
"""The pause of the leader after a read of the roster, for each row. When a thousand rows change one after another,
reading all of them for each change would keep the store from taking the changes."""
REPAIR_ATTEMPTS_MAX = 8
"""The number of reads after other nodes have written meanwhile; then the next heartbeat tries again."""
AWAY = "this node was away for long"  # why a node goes on from another entry than the next

Restored: TypeAlias = "tuple[str, Ledger | None] | repair.Rejoin | None"


class StoreReader:
    """The reader's thread."""

    def __init__(self, state: SessionState, leader: LeaderDriver) -> None:
        self._state, self._leader = state, leader
        self._memory: Memory = (state.ledger.head,)
        self._unread: HistoryChangedError | None = None  # why the reader could not read on from where it is
        self._missing_since: tuple[bool, float] | None = None
        """True if the missing entry is the newest, False for one that it stands on; and since when none was read."""
        self._back_at = -math.inf  # when the reader last had a connection again after it had lost one

    def run(self) -> None:
        """Read, lead and wait until the session is over; the thread's body."""
        state, backoff, connected_before = self._state, Backoff(), False
        while not state.stopping.is_set():
            if (store := state.connections.connect("reader")) is None:
                return
            if connected_before:
                self._back_at = state.runtime.now()
            connected_before = True
            self._leader.watch = mark_interrupted(self._leader.watch)
            try:
                if state.connections.doubt or self._unread is not None or not store.embedded:
                    self._restore(store)
                seen: Cursor | None = Cursor(state.ledger.head.index)
                while not state.over:
                    before = state.ledger.position
                    seen = self._look(store, seen)
                    if state.ledger.position != before or (seen is not None and seen.head == state.ledger.head.index):
                        backoff.worked()
                        self._missing_since = None
                    elif seen is None:  # what was put back cannot be read yet: the store answers with an older state
                        state.stopping.wait(backoff.failed())
            except HistoryChangedError as exc:
                self._unread = exc  # a new connection begins with a comparison
                if self._is_missing_too_long(exc):
                    state.give_up(exc)
                    return
                if (pause := backoff.failed()) > QUIET_RETRY_SECONDS:
                    state.connections.failed("reader", exc)
                state.stopping.wait(pause)
            except RendezvousConnectionError as exc:
                self._missing_since = None
                if not state.connections.doubt:
                    state.connections.failed("reader", exc)
                    state.stopping.wait(backoff.failed())
            except (RendezvousStateError, OversizedError) as exc:  # OversizedError: its state fits into no entry (L8)
                state.give_up(exc)
                return
            finally:
                state.connections.close("reader")

    def _is_missing_too_long(self, exc: HistoryChangedError) -> bool:
        """Return True if an entry has been missing for so long that no node is about to put it there.

        A store may tell of its newest entry before all of its servers have it. If the entry is missing for
        ``lost_after``, no node has written it. An entry that the newest one stands on may be put back by a node that
        has read it, within ``fence_after``.
        """
        now, timing = self._state.runtime.now(), self._state.ledger.settings.timing
        newest = isinstance(exc, MissingHeadError)
        if self._missing_since is None or self._missing_since[0] is not newest:
            self._missing_since = newest, now
        return now - self._missing_since[1] >= (timing.lost_after if newest else timing.fence_after)

    def _look(self, store: RendezvousBackend, seen: Cursor | None) -> Cursor | None:
        """Read what is new, take the leader's turn if this node is leader, and wait for more.

        ``seen`` is what the last look returned: how far the store has come, None where that is not known.
        """
        state, runtime = self._state, self._state.runtime
        self._read_on(store, seen)
        if state.ledger.closed is not None:
            state.stopping.wait()
            return seen
        leads = state.ledger.leader == state.node_id
        wait, rest = self._lead(store) if leads else self._follow_leader()
        if "reader" in state.contact.failing:
            wait = min(wait, FIRST_WAIT_SECONDS)
        cursor = Cursor(state.ledger.head.index, 0 if seen is None else seen.roster)
        rests_at = runtime.now()
        if rest:
            state.stopping.wait(rest)
        waits_at = runtime.now()
        seen = store.wait(cursor, roster=leads, timeout=max(0.0, wait - rest))
        self._leader.slept = min(runtime.now() - rests_at, wait)
        if seen.head <= cursor.head:  # else there is more to be read
            state.contact.worked("reader")
        if seen.head == cursor.head:
            state.contact.current(min(waits_at, confirmed_at(store)))
        if seen.head < cursor.head:
            self._restore(store)
            return None
        return seen

    def _read_on(self, store: RendezvousBackend, seen: Cursor | None) -> None:
        """Read the entries that are new, and post them."""
        state, runtime = self._state, self._state.runtime
        if entries := news(store, state.ledger, None if seen is None else seen.head, runtime.codec):
            ledger, now = state.ledger, runtime.now()  # after reading: they were written by then (rule S4)
            for entry in entries:
                ledger = advance(ledger, entry, now)
                if ledger.closed is not None:
                    break
            self._have_contact(store, ledger)  # if that fails, the entries are read again
            self._memory = repair.remember(self._memory, entries)
            state.follow(ledger)
            state.calls.post(EntriesRead(entries, now))
        elif seen is not None and seen.head > state.ledger.head.index:
            self._check_gap(store)

    def _lead(self, store: RendezvousBackend) -> tuple[float, float]:
        """Take the leader's turn. Returns the seconds until the next look, and for how many of them to rest."""
        ledger, runtime = self._state.ledger, self._state.runtime
        if self._state.is_cut_off():
            return ledger.settings.timing.beat_interval, 0.0
        if self._leader.watch.read_at is None:
            self._leader.watch = Watch(deposed=self._state.heard, gap_at=max(self._state.gap_at, self._back_at))
        looked_at = runtime.now()
        at = self._leader.turn(store, ledger)
        self._state.writer.publish_unread(self._leader.roster.unread)
        now, wait, rest = runtime.now(), IDLE_WAIT_SECONDS, REST_SECONDS_PER_ROW * len(self._leader.watch.nodes)
        if not self._leader.alone(ledger):  # the other nodes' heartbeats, and their silence, wake no reader
            wait = max(rest, looked_at + roster_read_interval(ledger.settings.timing) - now)
        wait = wait if at is None else min(wait, max(0.0, at - now))
        return wait, min(rest, wait)

    def _follow_leader(self) -> tuple[float, float]:
        """Forget the roster, if this node was deposed: what it saw as leader must not be judged by later."""
        if self._leader.watch.nodes:
            self._leader.watch = Watch()
            self._state.writer.publish_unread(())
        return IDLE_WAIT_SECONDS, 0.0

    def _have_contact(self, store: RendezvousBackend, ledger: Ledger) -> None:
        """Have contact before a round begins that may be this node's: its fence would stop the workers at once (S4)."""
        if not (ledger.is_live and self._state.is_cut_off(ASKED_SHARE)):
            return
        asked, head = self._state.runtime.now(), ledger.head.index
        if store.wait(Cursor(head), roster=False, timeout=0.0).head == head:  # else there is more to be read first
            self._state.contact.current(min(asked, confirmed_at(store)))

    def _check_gap(self, store: RendezvousBackend) -> None:
        """Raise HistoryChangedError if the next entry is missing; that there is a newer one may have been a hint."""
        index = self._state.ledger.head.index + 1
        if store.wait(Cursor(), roster=False, timeout=0).head >= index and store.read(index) is None:
            raise missing_entry(index)

    def _restore(self, store: RendezvousBackend) -> None:
        """Compare the store's history with this node's, and make them one (rule S3)."""
        state = self._state
        unread, self._unread = self._unread, None
        state.connections.doubt = True  # a thread that has doubts meanwhile must let this comparison come to its end
        try:
            found = restore(store, state.ledger, self._memory, state.info, state.runtime, unread=unread)
            if isinstance(found, tuple) and found[1] is not None:
                self._have_contact(store, found[1])  # if that fails, the histories are compared again
        except RendezvousConnectionError:
            self._unread = unread
            raise
        finally:
            state.connections.doubt = False
        if isinstance(found, Rejoin):
            state.end(
                RunReplaced(found.why), Event("outrun", f"{found.why}: joining again as a new node", Level.WARNING)
            )
        elif found is not None:
            lost, ledger = found
            state.writer.row_seen(None)  # what has lost entries has lost rows, too
            what = "this node has put back what it had read" if ledger is None else "the run goes on"
            state.calls.publish(Event("history_restored", f"{lost}; {what}", Level.WARNING))
            if ledger is not None:
                if ledger.head.epoch == state.ledger.head.epoch:  # what rows said was of another branch
                    self._leader.watch, state.heard = Watch(), None
                self._memory = (ledger.head,)
                state.follow(ledger)
                state.calls.post(HistoryReplaced(ledger))


# Putting back what a store has lost: the driver of ``protocol.repair`` (rule S3) -------------------------------------


def restore(
    store: RendezvousBackend,
    mine: Ledger,
    memory: Memory,
    me: NodeInfo,
    runtime: Runtime,
    *,
    unread: HistoryChangedError | None = None,
) -> Restored:
    """Make the store's history and this node's one again.

    ``mine`` is what the node ``me`` has read, ``memory`` the newest entries of that, ``unread`` why it could not read
    on. It takes ``lost_after`` longer where the store has another run, of which this node cannot tell whether it came
    before its own.

    Returns:
        None where they are one already, or change too fast to tell. Else what was lost, for people, and the ledger to
        go on from (None: the one that this node has); or a Rejoin where it cannot go on.

    Raises:
        HistoryChangedError: The store has lost what its newest entry stands on, or loses entries at this very moment.
        OversizedError: The run's state is too large for one entry, whatever is left out.
    """
    lost, gone, codec = None, None, runtime.codec
    for _ in range(REPAIR_ATTEMPTS_MAX):
        head = store.wait(Cursor(), roster=False, timeout=0).head
        at = peek(store, index := min(head, mine.head.index), codec)
        shrunk = at is None and index > 0 and store.read(index) == TOMBSTONE
        match what := repair.overlap(mine, memory, head, at, shrunk=shrunk):
            case repair.Overlap.INTACT if unread is None or mine.closed is not None:
                return None if lost is None else (lost, None)
            case repair.Overlap.BEHIND if at is not None:
                lost = lost or repair.describe_loss(head, mine)
                _put_back(store, at.link, [entry for entry in memory if entry.index > head], codec)
                continue
        try:
            theirs = load_now(store, runtime)
        except HistoryChangedError as exc:
            gone = exc
            continue  # entries are deleted or restored at this very moment
        passed = what is repair.Overlap.PASSED
        if (passed or what is repair.Overlap.INTACT) and theirs is not None and repair.can_follow(mine, theirs):
            found = _onward(store, mine, theirs, None if passed else unread, codec)
            return (lost, None) if found is None and lost is not None else found
        match repair.settle(mine, memory, theirs):
            case repair.Rejoin(why, if_alive) if not if_alive or (theirs and living_hosts(store, theirs, me, runtime)):
                return repair.Rejoin(why)
            case repair.Settlement.ADOPT:
                return lost or "the store had lost entries, or this node was away", theirs
        lost = lost or repair.describe_loss(head, mine)
        prev = ORIGIN if theirs is None else theirs.head.link
        if (resumed := _resume(store, mine, lost, me.node_id, prev, runtime)) is not None:
            return resumed
    if gone is not None:
        raise gone
    return None


def _resume(
    store: RendezvousBackend, mine: Ledger, lost: str, node_id: str, prev: Link, runtime: Runtime
) -> tuple[str, Ledger] | None:
    """Append the RESUME of ``mine`` after ``prev``, with as many parts as fit into a value (rule L8).

    Return what was lost, and the ledger; None if another node was faster.
    """
    now, new_id = runtime.now(), runtime.new_id()
    for body, counters in repair.lighten(repair.compose_resume(mine, lost), mine.counters):
        entry = compose(
            mine, body, entry_id=new_id, author=node_id, now=now, counters=counters, leader=mine.leader, store=prev
        )
        with suppress(OversizedError):
            appended = store.append(prev, entry.link, runtime.codec.encode_entry(entry))
            return (body.why, open_ledger(entry, now)) if appended else None
    raise OversizedError(
        f"The state of run {mine.head.run} is too large for one value of the store, whatever is left out.",
        hint="Give the nodes of the job fewer --role names, or shorter ones.",
    )


def _onward(
    store: RendezvousBackend, mine: Ledger, theirs: Ledger, unread: HistoryChangedError | None, codec: Codec
) -> Restored:
    """Go on from what this node has read to the store's newest entry; ``unread`` is why it cannot just read on.

    Raises:
        HistoryChangedError: The store has lost entries at this very moment.
        RendezvousStateError: The chain is broken, which no store that lost entries has brought about.
    """
    if theirs.head.run != mine.head.run:
        return repair.Rejoin("another run has begun since this node was here" if unread is None else unread.message)
    if unread is None:
        return AWAY, theirs
    try:
        between = news(store, mine, theirs.head.index, codec)
    except HistoryChangedError:
        return AWAY, theirs  # over tombstones; entries before them may be whole, in a store that has lost shrinks
    if len(between) < theirs.head.index - mine.head.index:
        return "the store has lost entries that this node has not read", theirs
    ledger = mine
    for entry in between:
        if (entry.prev, entry.index) != (ledger.head.id, ledger.head.index + 1):
            check_head(store, mine, codec)
            hint = "Something else writes to the store; use another --rdzv_id."
            raise RendezvousStateError(unread.message, hint=hint)
        try:
            ledger = advance(ledger, entry, theirs.head_at)
        except HistoryChangedError:
            return "another run has been there meanwhile", theirs
        if ledger.closed is not None:
            break
    return None  # other nodes have put back meanwhile what could not be read


def _put_back(store: RendezvousBackend, prev: Link, entries: Iterable[Entry], codec: Codec) -> None:
    """Append the entries, until another node appends there: the same entries, or others."""
    for entry in entries:
        if not store.append(prev, entry.link, codec.encode_entry(entry)):
            return
        prev = entry.link
