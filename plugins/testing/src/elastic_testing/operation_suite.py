"""The contract of each operation of a backend: the ledger, jobs, the roster and its heartbeats, and waiters."""

# ruff: noqa: D102  (a test's name says what it checks)

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle

import pytest

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_core.rendezvous import ORIGIN, TOMBSTONE, Cursor, HeartbeatReply, Link, RosterRow
from elastic_testing.connections import ALL_BYTES, Connect, Connections, MakeBackend, Store, chain, long_wait, woken
from elastic_testing.race import PATIENCE, RACERS, background, outcome, race


class LedgerConformance(Connections):
    """Entries are written once, in a chain."""

    def test_an_empty_ledger_has_no_entries(self, store: Store) -> None:
        assert [store.read(index) for index in (0, 1, 2)] == [None, None, None]
        assert store.wait(Cursor(), roster=False, timeout=0).head == 0

    def test_entries_are_read_back_by_every_connection(self, store: Store, connect: Connect) -> None:
        other = connect()
        links = chain(3)
        for number, (prev, entry) in enumerate(links):
            assert (store, other)[number % 2].append(prev, entry, entry.id.encode())
        for backend in (store, other, connect()):
            assert [backend.read(index) for index in range(1, 5)] == [*(entry.id.encode() for _, entry in links), None]
            assert backend.wait(Cursor(), roster=False, timeout=0).head == 3

    def test_an_entry_never_changes(self, store: Store, connect: Connect) -> None:
        first, second = Link(1, "first"), Link(1, "second")
        assert store.append(ORIGIN, first, b"first")
        for backend in (store, connect()):
            assert not backend.append(ORIGIN, second, b"second")
            assert backend.read(1) == b"first"

    def test_an_append_repeated_after_a_lost_reply_succeeds(self, store: Store, connect: Connect) -> None:
        first, second = Link(1, "first"), Link(2, "second")
        assert store.append(ORIGIN, first, b"1")
        assert store.append(ORIGIN, first, b"1")
        assert store.append(first, second, b"2")
        assert connect().append(ORIGIN, first, b"1"), "also when others have built on it by then"
        assert [store.read(1), store.read(2), store.read(3)] == [b"1", b"2", None]

    @pytest.mark.parametrize(
        ("prev", "entry"),
        [
            pytest.param(Link(1, "other"), Link(2, "new"), id="built on another entry"),
            pytest.param(Link(2, "second"), Link(3, "new"), id="built on an entry that is not there"),
            pytest.param(ORIGIN, Link(1, "new"), id="built on nothing, with the ledger begun"),
        ],
    )
    def test_the_chain_cannot_fork(self, store: Store, connect: Connect, prev: Link, entry: Link) -> None:
        assert store.append(ORIGIN, Link(1, "first"), b"1")
        other = connect()
        assert not other.append(prev, entry, b"new")
        assert [other.read(index) for index in (1, 2, 3)] == [b"1", None, None]

    def test_an_index_has_one_winner_among_threads(self, connect: Connect) -> None:
        connections = [connect() for _ in range(RACERS)]
        prev = ORIGIN
        for index in range(1, 11):
            entries = [Link(index, f"{index}-{racer}") for racer in range(RACERS)]
            racers = zip(connections, entries, strict=True)
            won = race(partial(store.append, prev, entry, entry.id.encode()) for store, entry in racers)
            winners = [entry for entry, success in zip(entries, won, strict=True) if success]
            assert len(winners) == 1, f"entry {index} was won {len(winners)} times"
            (prev,) = winners
            assert {store.read(index) for store in connections} == {prev.id.encode()}

    def test_an_old_entry_shrinks_and_its_place_stays_taken(
        self, store: Store, connect: Connect, full_value: bytes
    ) -> None:
        links = chain(4)
        for prev, entry in links:
            assert store.append(prev, entry, full_value)
        ghost, reader = connect(), connect()
        for index in (1, 2, 2, 9):
            store.shrink(index)
        assert [reader.read(index) in (TOMBSTONE, full_value) for index in (1, 2)] == [True, True]
        assert [reader.read(index) for index in (3, 4)] == [full_value] * 2
        assert reader.wait(Cursor(), roster=False, timeout=0).head == 4
        for prev, entry in links[:2]:
            assert not ghost.append(prev, Link(entry.index, "ghost"), b"ghost"), "a place is never free again"
            assert ghost.append(prev, entry, full_value), "the very same entry, repeated after a lost reply"
        assert store.append(links[3][1], Link(5, "next"), b"5")
        assert [connect().read(index) for index in (0, 5, 6)] == [None, b"5", None]

    def test_an_entry_of_no_bytes_is_an_entry(self, store: Store, connect: Connect) -> None:
        assert store.append(ORIGIN, Link(1, "first"), TOMBSTONE)
        assert connect().read(1) == TOMBSTONE
        assert not connect().append(ORIGIN, Link(1, "other"), b"other")
        assert connect().append(Link(1, "first"), Link(2, "second"), b"2")

    def test_values_of_the_full_size_fit(self, store: Store, connect: Connect, full_value: bytes) -> None:
        assert store.append(ORIGIN, Link(1, "first"), full_value)
        assert connect().read(1) == full_value

    def test_an_oversized_entry_is_refused(self, store: Store, full_value: bytes) -> None:
        with pytest.raises(RendezvousStateError):
            store.append(ORIGIN, Link(1, "first"), full_value + b"!")
        assert store.read(1) is None


class JobConformance(Connections):
    """One store serves many jobs."""

    @pytest.mark.parametrize("name", ["JOB", "job/1", "job 1", "job%2F1", "../job", ".", "größe:7*", "j" * 300])
    def test_two_jobs_do_not_see_each_other(self, open_job: MakeBackend, name: str) -> None:
        one, other = open_job("job"), open_job(name)
        before = other.wait(Cursor(), roster=True, timeout=0)
        assert one.enter("node", b"one") == 1
        assert one.append(ORIGIN, Link(1, "one"), b"one")
        assert (other.roster(), other.read(1), other.heartbeat("node", 1).revision) == ([], None, None)
        assert other.wait(before, roster=True, timeout=0) == before
        assert other.enter("node", b"other") == 1
        assert other.append(ORIGIN, Link(1, "other"), b"other")
        other.remove("node")
        assert [row.value for row in one.roster()] == [b"one"]
        assert one.read(1) == b"one"
        again = open_job(name)
        assert again.read(1) == b"other"

    def test_an_erased_job_has_never_been_or_is_untouched_and_others_stay(self, open_job: MakeBackend) -> None:
        other, trial = open_job("job"), open_job("job/1")
        for store in (other, trial):
            assert store.enter("node", b"here") == 1
            store.amend("node", 1, b"here")
            assert store.append(ORIGIN, Link(1, "one"), b"one")
            assert store.append(Link(1, "one"), Link(2, "two"), b"two")
            store.shrink(1)
        erased, again = trial.erase(), open_job("job/1")
        if not erased:  # a backend need not be able to
            assert ([row.value for row in again.roster()], again.read(2)) == ([b"here"], b"two")
            return
        assert (again.roster(), again.read(1), again.read(2), again.heartbeat("node", 1).head) == ([], None, None, 0)
        assert again.enter("node", b"again") == 1
        assert again.append(ORIGIN, Link(1, "another"), b"another")
        assert ([row.value for row in other.roster()], other.read(2)) == ([b"here"], b"two")
        assert open_job("job/2").erase(), "what has never been is erased, too"


class RosterConformance(Connections):
    """Rows come, are amended by their owners, heartbeat, and go."""

    def test_a_row_is_seen_by_every_connection(self, store: Store, connect: Connect) -> None:
        store.enter("node", ALL_BYTES)
        expected = [RosterRow(node_id="node", serial=1, revision=0, value=ALL_BYTES, heartbeat=0)]
        assert store.roster() == expected
        assert connect().roster() == expected

    def test_serials_follow_the_order_of_arrival(self, store: Store, connect: Connect) -> None:
        other = connect()
        assert [store.enter("c", b"c"), other.enter("a", b"a"), store.enter("b", b"b")] == [1, 2, 3]
        assert [(row.serial, row.node_id) for row in other.roster()] == [(1, "c"), (2, "a"), (3, "b")]

    def test_a_serial_is_never_used_again(self, store: Store, connect: Connect) -> None:
        assert [store.enter("a", b"a"), store.enter("b", b"b")] == [1, 2]
        store.remove("a")
        store.remove("b")
        assert [connect().enter("c", b"c"), store.enter("d", b"d")] == [3, 4]

    def test_enter_repeated_after_a_lost_reply_makes_no_second_row(self, store: Store, connect: Connect) -> None:
        serial = store.enter("node", b"value")
        assert store.enter("node", b"value") == serial
        assert connect().enter("node", b"value") == serial
        assert [row.serial for row in store.roster()] == [serial]

    def test_enter_repeated_late_does_not_undo_an_amendment(self, store: Store) -> None:
        store.enter("node", b"old")
        store.amend("node", 1, b"new")
        store.enter("node", b"old")
        assert [(row.revision, row.value) for row in store.roster()] == [(1, b"new")]

    def test_a_removed_node_can_enter_again(self, store: Store) -> None:
        store.enter("node", b"old")
        store.amend("node", 5, b"older")
        store.remove("node")
        other = store.enter("other", b"other")
        assert store.enter("node", b"new") != other
        rows = {row.node_id: (row.revision, row.value, row.heartbeat) for row in store.roster()}
        assert rows["node"] == (0, b"new", 0)

    def test_rows_entered_by_threads_have_serials_of_their_own(self, connect: Connect) -> None:
        names = [f"node-{racer}" for racer in range(RACERS)]
        stores = [connect() for _ in names]
        serials = race(partial(store.enter, name, b"") for store, name in zip(stores, names, strict=True))
        assert len(set(serials)) == RACERS
        rows = stores[0].roster()
        assert [row.serial for row in rows] == sorted(serials)
        assert {row.node_id: row.serial for row in rows} == dict(zip(names, serials, strict=True))

    @pytest.mark.parametrize(
        ("revisions", "kept"),
        [
            pytest.param((1, 2), 2, id="newer"),
            pytest.param((2, 1), 2, id="an older one that comes late"),
            pytest.param((0,), 0, id="the first again"),
            pytest.param((7, 3, 9, 8), 9, id="in disorder"),
        ],
    )
    def test_an_amendment_never_goes_back(
        self, store: Store, connect: Connect, revisions: Sequence[int], kept: int
    ) -> None:
        store.enter("node", b"revision 0")
        stores = (connect(), store)
        for turn, revision in enumerate(revisions):
            stores[turn % 2].amend("node", revision, b"revision %d" % revision)
        assert [(row.revision, row.value) for row in store.roster()] == [(kept, b"revision %d" % kept)]

    def test_a_revision_is_written_once(self, store: Store) -> None:
        store.enter("node", b"0")
        store.amend("node", 1, b"first")
        store.amend("node", 1, b"second")
        assert [row.value for row in store.roster()] == [b"first"]

    def test_of_racing_amendments_the_newest_stays(self, store: Store, connect: Connect) -> None:
        store.enter("node", b"0")
        stores = [connect() for _ in range(RACERS)]
        for base in range(0, 5 * RACERS, RACERS):
            newest = base + RACERS
            revisions = range(base + 1, newest + 1)
            race(partial(s.amend, "node", each, b"%d" % each) for s, each in zip(stores, revisions, strict=True))
            assert [(row.revision, row.value) for row in store.roster()] == [(newest, b"%d" % newest)]

    def test_readers_are_not_disturbed_by_rows_that_come_and_go(self, connect: Connect) -> None:
        def live(store: Store, node_id: str) -> None:
            for _ in range(5):
                store.enter(node_id, b"0")
                for revision in range(1, 6):
                    store.amend(node_id, revision, b"%d" % revision)
                    store.heartbeat(node_id, revision)
                store.remove(node_id)

        def read(store: Store) -> None:
            while not over.is_set():
                rows = store.roster()
                assert [row.value for row in rows] == [b"%d" % row.revision for row in rows]
                assert [row.serial for row in rows] == sorted({row.serial for row in rows})

        over = threading.Event()
        readers = [background(partial(read, connect())) for _ in range(2)]
        try:
            race(partial(live, connect(), f"node-{racer}") for racer in range(RACERS - 2))
        finally:
            over.set()
        for reader in readers:
            outcome(reader, PATIENCE, f"a reader of the roster was not done within {PATIENCE:g} s")

    def test_an_amendment_of_a_removed_row_is_dropped(self, store: Store, connect: Connect) -> None:
        store.enter("node", b"0")
        ghost = connect()
        ghost.amend("node", 1, b"1")
        store.remove("node")
        ghost.amend("node", 2, b"2")
        ghost.amend("unheard of", 1, b"1")
        assert store.roster() == []

    def test_removing_what_is_not_there_is_no_error(self, store: Store, connect: Connect) -> None:
        store.remove("node")
        store.enter("node", b"")
        store.enter("other", b"")
        connect().remove("node")
        store.remove("node")
        assert [row.node_id for row in store.roster()] == ["other"]

    @pytest.mark.parametrize(
        ("ids", "found"),
        [
            pytest.param(None, ["c", "a", "b"], id="all"),
            pytest.param((), [], id="none"),
            pytest.param(("b", "c"), ["c", "b"], id="two, in order of serial"),
            pytest.param(("a", "unheard of"), ["a"], id="one that is not there"),
        ],
    )
    def test_the_roster_can_be_asked_for_some(
        self, store: Store, ids: Sequence[str] | None, found: Sequence[str]
    ) -> None:
        for node_id in ("c", "a", "b"):
            store.enter(node_id, node_id.encode())
        assert [row.node_id for row in store.roster(ids)] == found
        assert [row.value for row in store.roster(ids)] == [node_id.encode() for node_id in found]

    def test_values_of_the_full_size_fit_a_row(self, store: Store, connect: Connect, full_value: bytes) -> None:
        store.enter("node", full_value)
        assert connect().roster()[0].value == full_value
        store.amend("node", 1, full_value[::-1])
        assert connect().roster()[0].value == full_value[::-1]

    def test_an_oversized_row_is_refused(self, store: Store, full_value: bytes) -> None:
        with pytest.raises(RendezvousStateError):
            store.enter("large", full_value + b"!")
        store.enter("node", b"small")
        with pytest.raises(RendezvousStateError):
            store.amend("node", 1, full_value + b"!")
        assert [(row.node_id, row.revision, row.value) for row in store.roster()] == [("node", 0, b"small")]


class HeartbeatConformance(Connections):
    """A heartbeat touches nothing but the heartbeat, and brings back what a node must know."""

    def test_others_see_a_heartbeat(self, store: Store, connect: Connect) -> None:
        store.enter("node", b"value")
        other = connect()
        for count in (1, 2, 7):
            store.heartbeat("node", count)
            assert [row.heartbeat for row in other.roster()] == [count]

    def test_a_heartbeat_leaves_value_and_revision_alone(self, store: Store, connect: Connect) -> None:
        store.enter("node", b"0")
        connect().amend("node", 3, b"3")
        store.heartbeat("node", 9)
        connect().amend("node", 4, b"4")
        assert store.roster() == [RosterRow(node_id="node", serial=1, revision=4, value=b"4", heartbeat=9)]

    def test_the_reply_tells_head_revision_and_the_watched_heartbeat(self, store: Store, connect: Connect) -> None:
        leader = connect()
        leader.enter("leader", b"")
        store.enter("node", b"")
        assert store.heartbeat("node", 1, "leader") == HeartbeatReply(head=0, revision=0, watched=0)
        for prev, entry in chain(3):
            assert leader.append(prev, entry, b"entry")
        leader.heartbeat("leader", 12)
        store.amend("node", 4, b"4")
        assert store.heartbeat("node", 2, "leader") == HeartbeatReply(head=3, revision=4, watched=12)
        assert connect().heartbeat("node", 3, "leader") == HeartbeatReply(head=3, revision=4, watched=12)

    @pytest.mark.parametrize("watch", [None, "unheard of", "gone"])
    def test_a_missing_watched_node_is_reported_as_none(self, store: Store, watch: str | None) -> None:
        store.enter("node", b"")
        store.enter("gone", b"")
        store.heartbeat("gone", 1)
        store.remove("gone")
        assert store.heartbeat("node", 1, watch) == HeartbeatReply(head=0, revision=0, watched=None)

    def test_a_heartbeat_does_not_bring_a_removed_row_back(self, store: Store, connect: Connect) -> None:
        store.enter("node", b"")
        store.heartbeat("node", 1)
        connect().remove("node")
        assert store.heartbeat("node", 2).revision is None
        assert store.heartbeat("unheard of", 1).revision is None
        assert store.roster() == []
        assert connect().heartbeat("other", 1, "node").watched is None

    def test_a_heartbeat_does_not_move_the_roster_version(self, store: Store, connect: Connect) -> None:
        store.enter("node", b"")
        before = connect().wait(Cursor(), roster=True, timeout=0)
        for count in (1, 2, 3):
            store.heartbeat("node", count, "node")
        waiter = connect()
        assert waiter.wait(before, roster=True, timeout=0) == before
        assert store.wait(before, roster=True, timeout=0) == before


class WaitConformance(Connections):
    """Waiters learn of what happened, before or while they wait, and can be let go."""

    def test_a_wait_that_nothing_ends_times_out_unchanged(self, store: Store) -> None:
        store.enter("node", b"")
        assert store.append(ORIGIN, Link(1, "first"), b"1")
        now = store.wait(Cursor(), roster=True, timeout=0)
        assert store.wait(now, roster=True, timeout=0.05) == now
        assert store.wait(now, roster=False, timeout=0.05).head == now.head

    def test_a_change_before_the_call_returns_at_once(self, store: Store, connect: Connect) -> None:
        waiter = connect()
        cursor = waiter.wait(Cursor(), roster=True, timeout=0)
        for name, change in roster_changes(store).items():
            change()
            seen = woken(long_wait(waiter, cursor, roster=True), f"an earlier {name}")
            assert seen.roster != cursor.roster
            cursor = seen
        assert store.append(ORIGIN, Link(1, "first"), b"1")
        seen = woken(long_wait(waiter, cursor, roster=True), "an earlier append()")
        assert seen == Cursor(head=1, roster=cursor.roster)

    def test_a_row_that_came_and_went_is_a_change(self, store: Store, connect: Connect) -> None:
        waiter = connect()
        for node_id in ("one", "another"):
            before = waiter.wait(Cursor(), roster=True, timeout=0)
            store.enter(node_id, b"")
            store.remove(node_id)
            assert waiter.wait(before, roster=True, timeout=0).roster != before.roster

    def test_a_change_is_reported_once(self, store: Store, connect: Connect) -> None:
        store.enter("node", b"")
        waiter = connect()
        cursor = waiter.wait(Cursor(), roster=True, timeout=0)
        assert waiter.wait(cursor, roster=True, timeout=0) == cursor
        seen = connect().wait(cursor, roster=True, timeout=0)
        assert seen == cursor, "the version is the store's, not the connection's"

    def test_an_append_wakes_a_waiter(self, connect: Connect) -> None:
        stores = [connect(), connect()]
        for prev, entry in chain(4):
            writer, waiter = stores
            waiting = long_wait(waiter, Cursor(prev.index), roster=False)
            assert writer.append(prev, entry, b"entry")
            assert woken(waiting, "append()").head == entry.index
            stores.reverse()

    def test_a_roster_change_wakes_a_waiter_that_asks_for_them(self, connect: Connect) -> None:
        node, leader = connect(), connect()
        cursor = leader.wait(Cursor(), roster=True, timeout=0)
        for name, change in roster_changes(node).items():
            waiting = long_wait(leader, cursor, roster=True)
            change()
            cursor = woken(waiting, name)

    def test_an_append_wakes_a_waiter_that_watches_the_roster_too(self, store: Store, connect: Connect) -> None:
        waiter = connect()
        cursor = waiter.wait(Cursor(), roster=True, timeout=0)
        waiting = long_wait(waiter, cursor, roster=True)
        assert store.append(ORIGIN, Link(1, "first"), b"1")
        assert woken(waiting, "append()") == Cursor(head=1, roster=cursor.roster)

    def test_one_append_wakes_every_waiter(self, store: Store, connect: Connect) -> None:
        waiters = [connect() for _ in range(RACERS)]
        waiting = [long_wait(waiter, Cursor(), roster=False) for waiter in waiters]
        assert store.append(ORIGIN, Link(1, "first"), b"1")
        assert [woken(each, "append()").head for each in waiting] == [1] * RACERS

    def test_no_append_is_missed_that_comes_while_a_waiter_looks(self, connect: Connect) -> None:
        """Two connections take turns as fast as they can, so that many a change comes just before the sleep."""
        links = chain(40)

        def play(store: Store, remainder: int) -> None:
            for prev, entry in links:
                if entry.index % 2 == remainder:
                    assert store.append(prev, entry, b"entry")
                else:
                    woken(long_wait(store, Cursor(prev.index), roster=False, settled=False), "append()")

        race(partial(play, connect(), remainder) for remainder in (0, 1))

    def test_no_roster_change_is_missed_that_comes_while_a_waiter_looks(self, connect: Connect) -> None:
        """A node and a leader take turns as fast as they can."""
        links = chain(30)

        def node(store: Store) -> None:
            changes = cycle(roster_changes(store).values())
            for (prev, entry), change in zip(links, changes, strict=False):
                change()
                woken(long_wait(store, Cursor(prev.index), roster=False, settled=False), "append()")
                assert store.read(entry.index) is not None

        def leader(store: Store, cursor: Cursor) -> None:
            for prev, entry in links:
                cursor = Cursor(prev.index, cursor.roster)
                cursor = woken(long_wait(store, cursor, roster=True, settled=False), "a change of the roster")
                assert store.append(prev, entry, b"entry")

        leaders = connect()
        race([partial(node, connect()), partial(leader, leaders, leaders.wait(Cursor(), roster=True, timeout=0))])

    def test_a_waiter_that_ignores_the_roster_still_hears_of_appends(self, store: Store, connect: Connect) -> None:
        waiter = connect()
        waiter.wait(Cursor(), roster=True, timeout=0.01)
        waiting = long_wait(waiter, Cursor(), roster=False)
        for change in roster_changes(store).values():
            change()
        assert store.append(ORIGIN, Link(1, "first"), b"1")
        woken(waiting, "append()")

    @pytest.mark.parametrize("roster", [False, True])
    def test_close_unblocks_a_wait(self, connect: Connect, roster: bool) -> None:
        waiter = connect()
        cursor = waiter.wait(Cursor(), roster=True, timeout=0)
        waiting = long_wait(waiter, cursor, roster=roster)
        waiter.close()
        with pytest.raises(RendezvousConnectionError):
            woken(waiting, "close()")

    def test_a_wait_on_a_closed_connection_does_not_begin(self, connect: Connect) -> None:
        waiter = connect()
        waiter.close()
        with pytest.raises(RendezvousConnectionError):
            woken(long_wait(waiter, Cursor(), roster=False), "an earlier close()")

    def test_close_is_private_to_its_connection_and_may_be_repeated(self, store: Store, connect: Connect) -> None:
        one, other = connect(), connect()
        waiting = long_wait(other, Cursor(), roster=False)
        one.close()
        one.close()
        assert store.append(ORIGIN, Link(1, "first"), b"1")
        assert woken(waiting, "append()").head == 1
        assert connect().read(1) == b"1"


def roster_changes(store: Store) -> dict[str, Callable[[], object]]:
    """One of each kind of change that the roster's version counts, by name, to be made in this order."""
    return {
        "enter()": lambda: store.enter("node", b"0"),
        "amend()": lambda: store.amend("node", 1, b"1"),
        "remove()": lambda: store.remove("node"),
    }
