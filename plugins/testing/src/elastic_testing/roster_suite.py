"""The roster's part of the contract: rows, amendments, heartbeats."""

# ruff: noqa: D102  (a test's name says what it checks)

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

import pytest

from elastic_core.errors import RendezvousStateError
from elastic_core.rendezvous import Cursor, HeartbeatReply, RendezvousBackend, RosterRow
from elastic_testing.connections import ALL_BYTES, Connect, Connections, chain
from elastic_testing.race import PATIENCE, RACERS, background, outcome, race


class RosterConformance(Connections):
    """Rows come, are amended by their owners, heartbeat, and go."""

    def test_a_row_is_seen_by_every_connection(self, store: RendezvousBackend, connect: Connect) -> None:
        store.enter("node", ALL_BYTES)
        expected = [RosterRow(node_id="node", serial=1, revision=0, value=ALL_BYTES, heartbeat=0)]
        assert store.roster() == expected
        assert connect().roster() == expected

    def test_serials_follow_the_order_of_arrival(self, store: RendezvousBackend, connect: Connect) -> None:
        other = connect()
        assert [store.enter("c", b"c"), other.enter("a", b"a"), store.enter("b", b"b")] == [1, 2, 3]
        assert [(row.serial, row.node_id) for row in other.roster()] == [(1, "c"), (2, "a"), (3, "b")]

    def test_a_serial_is_never_used_again(self, store: RendezvousBackend, connect: Connect) -> None:
        assert [store.enter("a", b"a"), store.enter("b", b"b")] == [1, 2]
        store.remove("a")
        store.remove("b")
        assert [connect().enter("c", b"c"), store.enter("d", b"d")] == [3, 4]

    def test_enter_repeated_after_a_lost_reply_makes_no_second_row(
        self, store: RendezvousBackend, connect: Connect
    ) -> None:
        serial = store.enter("node", b"value")
        assert store.enter("node", b"value") == serial
        assert connect().enter("node", b"value") == serial
        assert [row.serial for row in store.roster()] == [serial]

    def test_enter_repeated_late_does_not_undo_an_amendment(self, store: RendezvousBackend) -> None:
        store.enter("node", b"old")
        store.amend("node", 1, b"new")
        store.enter("node", b"old")
        assert [(row.revision, row.value) for row in store.roster()] == [(1, b"new")]

    def test_a_removed_node_can_enter_again(self, store: RendezvousBackend) -> None:
        store.enter("node", b"old")
        store.amend("node", 5, b"older")
        store.remove("node")
        other = store.enter("other", b"other")
        assert store.enter("node", b"new") != other
        assert {row.node_id: (row.revision, row.value, row.heartbeat) for row in store.roster()}["node"] == (
            0,
            b"new",
            0,
        )

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
        self, store: RendezvousBackend, connect: Connect, revisions: Sequence[int], kept: int
    ) -> None:
        store.enter("node", b"revision 0")
        stores = (connect(), store)
        for turn, revision in enumerate(revisions):
            stores[turn % 2].amend("node", revision, b"revision %d" % revision)
        assert [(row.revision, row.value) for row in store.roster()] == [(kept, b"revision %d" % kept)]

    def test_a_revision_is_written_once(self, store: RendezvousBackend) -> None:
        store.enter("node", b"0")
        store.amend("node", 1, b"first")
        store.amend("node", 1, b"second")
        assert [row.value for row in store.roster()] == [b"first"]

    def test_of_racing_amendments_the_newest_stays(self, store: RendezvousBackend, connect: Connect) -> None:
        store.enter("node", b"0")
        stores = [connect() for _ in range(RACERS)]
        for base in range(0, 5 * RACERS, RACERS):
            race(
                partial(s.amend, "node", base + place, b"%d" % (base + place))
                for place, s in enumerate(stores, start=1)
            )
            newest = base + RACERS
            assert [(row.revision, row.value) for row in store.roster()] == [(newest, b"%d" % newest)]

    def test_readers_are_not_disturbed_by_rows_that_come_and_go(self, connect: Connect) -> None:
        def live(store: RendezvousBackend, node_id: str) -> None:
            for _ in range(5):
                store.enter(node_id, b"0")
                for revision in range(1, 6):
                    store.amend(node_id, revision, b"%d" % revision)
                    store.heartbeat(node_id, revision)
                store.remove(node_id)

        def read(store: RendezvousBackend) -> None:
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

    def test_an_amendment_of_a_removed_row_is_dropped(self, store: RendezvousBackend, connect: Connect) -> None:
        store.enter("node", b"0")
        ghost = connect()
        ghost.amend("node", 1, b"1")
        store.remove("node")
        ghost.amend("node", 2, b"2")
        ghost.amend("unheard of", 1, b"1")
        assert store.roster() == []

    def test_removing_what_is_not_there_is_no_error(self, store: RendezvousBackend, connect: Connect) -> None:
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
        self, store: RendezvousBackend, ids: Sequence[str] | None, found: Sequence[str]
    ) -> None:
        for node_id in ("c", "a", "b"):
            store.enter(node_id, node_id.encode())
        assert [row.node_id for row in store.roster(ids)] == found
        assert [row.value for row in store.roster(ids)] == [node_id.encode() for node_id in found]

    def test_values_of_the_full_size_fit_a_row(
        self, store: RendezvousBackend, connect: Connect, full_value: bytes
    ) -> None:
        store.enter("node", full_value)
        assert connect().roster()[0].value == full_value
        store.amend("node", 1, full_value[::-1])
        assert connect().roster()[0].value == full_value[::-1]

    def test_an_oversized_row_is_refused(self, store: RendezvousBackend, full_value: bytes) -> None:
        with pytest.raises(RendezvousStateError):
            store.enter("large", full_value + b"!")
        store.enter("node", b"small")
        with pytest.raises(RendezvousStateError):
            store.amend("node", 1, full_value + b"!")
        assert [(row.node_id, row.revision, row.value) for row in store.roster()] == [("node", 0, b"small")]


class HeartbeatConformance(Connections):
    """A heartbeat touches nothing but the heartbeat, and brings back what a node must know."""

    def test_others_see_a_heartbeat(self, store: RendezvousBackend, connect: Connect) -> None:
        store.enter("node", b"value")
        other = connect()
        for count in (1, 2, 7):
            store.heartbeat("node", count)
            assert [row.heartbeat for row in other.roster()] == [count]

    def test_a_heartbeat_leaves_value_and_revision_alone(self, store: RendezvousBackend, connect: Connect) -> None:
        store.enter("node", b"0")
        connect().amend("node", 3, b"3")
        store.heartbeat("node", 9)
        connect().amend("node", 4, b"4")
        assert store.roster() == [RosterRow(node_id="node", serial=1, revision=4, value=b"4", heartbeat=9)]

    def test_the_reply_tells_head_revision_and_the_watched_heartbeat(
        self, store: RendezvousBackend, connect: Connect
    ) -> None:
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
    def test_a_missing_watched_node_is_reported_as_none(self, store: RendezvousBackend, watch: str | None) -> None:
        store.enter("node", b"")
        store.enter("gone", b"")
        store.heartbeat("gone", 1)
        store.remove("gone")
        assert store.heartbeat("node", 1, watch) == HeartbeatReply(head=0, revision=0, watched=None)

    def test_a_heartbeat_does_not_bring_a_removed_row_back(self, store: RendezvousBackend, connect: Connect) -> None:
        store.enter("node", b"")
        store.heartbeat("node", 1)
        connect().remove("node")
        assert store.heartbeat("node", 2).revision is None
        assert store.heartbeat("unheard of", 1).revision is None
        assert store.roster() == []
        assert connect().heartbeat("other", 1, "node").watched is None

    def test_a_heartbeat_does_not_move_the_roster_version(self, store: RendezvousBackend, connect: Connect) -> None:
        store.enter("node", b"")
        before = connect().wait(Cursor(), roster=True, timeout=0)
        for count in (1, 2, 3):
            store.heartbeat("node", count, "node")
        waiter = connect()
        assert waiter.wait(before, roster=True, timeout=0) == before
        assert store.wait(before, roster=True, timeout=0) == before
