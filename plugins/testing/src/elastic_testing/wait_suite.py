"""The waiters' part of the contract: no waiter misses a change, and each can be released."""

# ruff: noqa: D102  (a test's name says what it checks)

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle

import pytest

from elastic_core.errors import RendezvousConnectionError
from elastic_core.rendezvous import ORIGIN, Cursor, Link, RendezvousBackend
from elastic_testing.connections import Connect, Connections, chain, long_wait, woken
from elastic_testing.race import RACERS, race


class WaitConformance(Connections):
    """Waiters learn of what happened, before or while they wait, and can be let go."""

    def test_a_wait_that_nothing_ends_times_out_unchanged(self, store: RendezvousBackend) -> None:
        store.enter("node", b"")
        assert store.append(ORIGIN, Link(1, "first"), b"1")
        now = store.wait(Cursor(), roster=True, timeout=0)
        assert store.wait(now, roster=True, timeout=0.05) == now
        assert store.wait(now, roster=False, timeout=0.05).head == now.head

    def test_a_change_before_the_call_returns_at_once(self, store: RendezvousBackend, connect: Connect) -> None:
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

    def test_a_row_that_came_and_went_is_a_change(self, store: RendezvousBackend, connect: Connect) -> None:
        waiter = connect()
        for node_id in ("one", "another"):
            before = waiter.wait(Cursor(), roster=True, timeout=0)
            store.enter(node_id, b"")
            store.remove(node_id)
            assert waiter.wait(before, roster=True, timeout=0).roster != before.roster

    def test_a_change_is_reported_once(self, store: RendezvousBackend, connect: Connect) -> None:
        store.enter("node", b"")
        waiter = connect()
        cursor = waiter.wait(Cursor(), roster=True, timeout=0)
        assert waiter.wait(cursor, roster=True, timeout=0) == cursor
        assert connect().wait(cursor, roster=True, timeout=0) == cursor, (
            "the version is the store's, not the connection's"
        )

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

    def test_an_append_wakes_a_waiter_that_watches_the_roster_too(
        self, store: RendezvousBackend, connect: Connect
    ) -> None:
        waiter = connect()
        cursor = waiter.wait(Cursor(), roster=True, timeout=0)
        waiting = long_wait(waiter, cursor, roster=True)
        assert store.append(ORIGIN, Link(1, "first"), b"1")
        assert woken(waiting, "append()") == Cursor(head=1, roster=cursor.roster)

    def test_one_append_wakes_every_waiter(self, store: RendezvousBackend, connect: Connect) -> None:
        waiters = [connect() for _ in range(RACERS)]
        waiting = [long_wait(waiter, Cursor(), roster=False) for waiter in waiters]
        assert store.append(ORIGIN, Link(1, "first"), b"1")
        assert [woken(each, "append()").head for each in waiting] == [1] * RACERS

    def test_no_append_is_missed_that_comes_while_a_waiter_looks(self, connect: Connect) -> None:
        """Two connections take turns as fast as they can, so that many a change comes just before the sleep."""
        links = chain(40)

        def play(store: RendezvousBackend, remainder: int) -> None:
            for prev, entry in links:
                if entry.index % 2 == remainder:
                    assert store.append(prev, entry, b"entry")
                else:
                    woken(long_wait(store, Cursor(prev.index), roster=False, settled=False), "append()")

        race(partial(play, connect(), remainder) for remainder in (0, 1))

    def test_no_roster_change_is_missed_that_comes_while_a_waiter_looks(self, connect: Connect) -> None:
        """A node and a leader take turns as fast as they can."""
        links = chain(30)

        def node(store: RendezvousBackend) -> None:
            changes = cycle(roster_changes(store).values())
            for (prev, entry), change in zip(links, changes, strict=False):
                change()
                woken(long_wait(store, Cursor(prev.index), roster=False, settled=False), "append()")
                assert store.read(entry.index) is not None

        def leader(store: RendezvousBackend, cursor: Cursor) -> None:
            for prev, entry in links:
                cursor = Cursor(prev.index, cursor.roster)
                cursor = woken(long_wait(store, cursor, roster=True, settled=False), "a change of the roster")
                assert store.append(prev, entry, b"entry")

        leaders = connect()
        race([partial(node, connect()), partial(leader, leaders, leaders.wait(Cursor(), roster=True, timeout=0))])

    def test_a_waiter_that_ignores_the_roster_still_hears_of_appends(
        self, store: RendezvousBackend, connect: Connect
    ) -> None:
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

    def test_close_is_private_to_its_connection_and_may_be_repeated(
        self, store: RendezvousBackend, connect: Connect
    ) -> None:
        one, other = connect(), connect()
        waiting = long_wait(other, Cursor(), roster=False)
        one.close()
        one.close()
        assert store.append(ORIGIN, Link(1, "first"), b"1")
        assert woken(waiting, "append()").head == 1
        assert connect().read(1) == b"1"


def roster_changes(store: RendezvousBackend) -> dict[str, Callable[[], object]]:
    """One of each kind of change that the roster's version counts, by name, to be made in this order."""
    return {
        "enter()": lambda: store.enter("node", b"0"),
        "amend()": lambda: store.amend("node", 1, b"1"),
        "remove()": lambda: store.remove("node"),
    }
