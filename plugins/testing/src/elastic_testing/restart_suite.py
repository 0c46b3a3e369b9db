"""The same contract for a store with a life of its own: it is restarted with its data, an older copy, or nothing."""

# ruff: noqa: D102  (a test's name says what it checks)

from __future__ import annotations

import pytest

from elastic_core.errors import RendezvousConnectionError
from elastic_core.rendezvous import ORIGIN, Cursor, Link
from elastic_testing.connections import ALL_BYTES, Connect, MakeBackend, Store, chain, long_wait
from elastic_testing.faults import Data, Keeper
from elastic_testing.linearizability_suite import LinearizabilityConformance
from elastic_testing.race import PATIENCE, outcome


class RestartConformance(LinearizabilityConformance):
    """Not for embedded stores, whose loss is final. Override ``make_backend``, and ``keeper`` for the same store."""

    @pytest.fixture
    def keeper(self) -> Keeper:
        """To be overridden: what restarts the store of ``make_backend``."""
        raise NotImplementedError(f"{type(self).__name__} must override the fixture keeper")

    @pytest.fixture
    def begun(self, store: Store) -> Store:
        """``store``, with three entries, and a row that has been amended and has sent a heartbeat."""
        store.enter("gone", b"")
        store.enter("node", b"0")
        store.remove("gone")
        store.amend("node", 3, ALL_BYTES)
        store.heartbeat("node", 7)
        for prev, entry in chain(3):
            assert store.append(prev, entry, entry.id.encode())
        return store

    def test_acknowledged_writes_survive_a_restart(self, begun: Store, connect: Connect, keeper: Keeper) -> None:
        before = begun.roster()
        keeper.restart(Data.KEPT)
        store = connect()
        assert store.roster() == before
        assert [store.read(index) for index in (1, 2, 3, 4)] == [b"entry 1", b"entry 2", b"entry 3", None]
        assert store.enter("another", b"") == 3
        assert store.append(Link(3, "entry 3"), Link(4, "entry 4"), b"4")
        assert store.heartbeat("node", 8, "another").head == 4

    def test_an_empty_store_is_a_new_one(self, begun: Store, connect: Connect, keeper: Keeper) -> None:
        keeper.restart(Data.EMPTY)
        store = connect()
        assert (store.roster(), store.read(1), store.read(3)) == ([], None, None)
        assert store.wait(Cursor(3, 1), roster=True, timeout=10 * PATIENCE).head == 0, "the head has changed"
        reply = store.heartbeat("node", 8, "node")
        assert (reply.head, reply.revision, reply.watched) == (0, None, None)
        store.amend("node", 4, b"4")
        assert store.roster() == [], "an amendment makes no row"
        assert not store.append(Link(3, "entry 3"), Link(4, "entry 4"), b"4"), "what it was built on is gone"
        assert store.enter("node", b"again") == 1
        assert store.append(ORIGIN, Link(1, "other"), b"other")
        assert store.wait(Cursor(), roster=False, timeout=0).head == 1

    def test_the_last_writes_may_be_gone_and_are_put_back(self, begun: Store, connect: Connect, keeper: Keeper) -> None:
        keeper.copy()
        links = chain(6)
        for prev, entry in links[3:]:
            assert begun.append(prev, entry, entry.id.encode())
        begun.amend("node", 9, b"9")
        begun.enter("late", b"")
        keeper.restart(Data.COPY)
        store, other = connect(), connect()
        assert store.heartbeat("node", 8).head == 3
        assert [(row.node_id, row.revision) for row in store.roster()] == [("node", 3)]
        assert store.wait(Cursor(6), roster=False, timeout=10 * PATIENCE).head == 3, "the head has changed"
        assert not store.append(*links[5], b"a gap"), "what it was built on is gone"
        for prev, entry in links[3:]:
            assert (store, other)[entry.index % 2].append(prev, entry, entry.id.encode())
            assert store.append(prev, entry, entry.id.encode()), "several nodes may put the same back"
        assert [other.read(index) for index in range(4, 8)] == [b"entry 4", b"entry 5", b"entry 6", None]
        store.amend("node", 9, b"9")
        assert [(row.revision, row.value) for row in other.roster()] == [(9, b"9")]

    def test_a_history_that_went_another_way_cannot_be_built_on(
        self, begun: Store, connect: Connect, keeper: Keeper
    ) -> None:
        keeper.copy()
        assert begun.append(Link(3, "entry 3"), Link(4, "mine"), b"mine")
        keeper.restart(Data.COPY)
        mine, theirs = connect(), connect()
        assert theirs.append(Link(3, "entry 3"), Link(4, "theirs"), b"theirs")
        assert not mine.append(Link(3, "entry 3"), Link(4, "mine"), b"mine")
        assert not mine.append(Link(4, "mine"), Link(5, "next"), b"next")
        assert [mine.read(index) for index in (3, 4, 5)] == [b"entry 3", b"theirs", None]

    @pytest.mark.parametrize("data", list(Data))
    def test_a_waiter_survives_a_restart_or_is_told(
        self, begun: Store, connect: Connect, keeper: Keeper, data: Data
    ) -> None:
        """It is woken by what changes, or learns that its connection is broken; what it must not do is sleep on."""
        keeper.copy()
        waiter = connect()
        waiting = long_wait(waiter, Cursor(3), roster=False)
        keeper.restart(data)
        store = connect()
        links = chain(4) if data is Data.EMPTY else chain(4)[3:]
        for prev, entry in links:
            assert store.append(prev, entry, b"entry")
        try:
            assert outcome(waiting, PATIENCE, "a waiter slept through a restart and what came after it").head != 3
        except RendezvousConnectionError:
            assert store.wait(Cursor(3), roster=False, timeout=0).head == 4

    def test_jobs_do_not_mix_when_a_store_begins_anew(self, open_job: MakeBackend, keeper: Keeper) -> None:
        one, other = open_job("one"), open_job("other")
        one.enter("node", b"one")
        assert other.append(ORIGIN, Link(1, "other"), b"other")
        keeper.restart(Data.EMPTY)
        one, other = one.connect(), other.connect()
        assert one.append(ORIGIN, Link(1, "one"), b"one")
        assert (other.read(1), other.roster()) == (None, [])
        one.close()
        other.close()
