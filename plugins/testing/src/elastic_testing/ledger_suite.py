"""The ledger's part of the contract, and that one store serves many jobs."""

# ruff: noqa: D102  (a test's name says what it checks)

from __future__ import annotations

from functools import partial

import pytest

from elastic_core.errors import RendezvousStateError
from elastic_core.rendezvous import ORIGIN, TOMBSTONE, Cursor, Link, RendezvousBackend
from elastic_testing.connections import Connect, Connections, MakeBackend, chain
from elastic_testing.race import RACERS, race


class LedgerConformance(Connections):
    """Entries are written once, in a chain."""

    def test_an_empty_ledger_has_no_entries(self, store: RendezvousBackend) -> None:
        assert [store.read(index) for index in (0, 1, 2)] == [None, None, None]
        assert store.wait(Cursor(), roster=False, timeout=0).head == 0

    def test_entries_are_read_back_by_every_connection(self, store: RendezvousBackend, connect: Connect) -> None:
        other = connect()
        links = chain(3)
        for number, (prev, entry) in enumerate(links):
            assert (store, other)[number % 2].append(prev, entry, entry.id.encode())
        for backend in (store, other, connect()):
            assert [backend.read(index) for index in range(1, 5)] == [*(entry.id.encode() for _, entry in links), None]
            assert backend.wait(Cursor(), roster=False, timeout=0).head == 3

    def test_an_entry_never_changes(self, store: RendezvousBackend, connect: Connect) -> None:
        first, second = Link(1, "first"), Link(1, "second")
        assert store.append(ORIGIN, first, b"first")
        for backend in (store, connect()):
            assert not backend.append(ORIGIN, second, b"second")
            assert backend.read(1) == b"first"

    def test_an_append_repeated_after_a_lost_reply_succeeds(self, store: RendezvousBackend, connect: Connect) -> None:
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
    def test_the_chain_cannot_fork(self, store: RendezvousBackend, connect: Connect, prev: Link, entry: Link) -> None:
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
        self, store: RendezvousBackend, connect: Connect, full_value: bytes
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

    def test_an_entry_of_no_bytes_is_an_entry(self, store: RendezvousBackend, connect: Connect) -> None:
        assert store.append(ORIGIN, Link(1, "first"), TOMBSTONE)
        assert connect().read(1) == TOMBSTONE
        assert not connect().append(ORIGIN, Link(1, "other"), b"other")
        assert connect().append(Link(1, "first"), Link(2, "second"), b"2")

    def test_values_of_the_full_size_fit(self, store: RendezvousBackend, connect: Connect, full_value: bytes) -> None:
        assert store.append(ORIGIN, Link(1, "first"), full_value)
        assert connect().read(1) == full_value

    def test_an_oversized_entry_is_refused(self, store: RendezvousBackend, full_value: bytes) -> None:
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
