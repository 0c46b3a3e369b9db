"""One look at a store that has lost history, over the store in memory: what is written, and what is read."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from test_repair import MEMORY, MINE, RUN, SUCCESS, of_run, resumed, told
from views import after_runs, halted, incident, info, live, members, offer, seen, start, then, with_counters

from elastic_core.errors import RendezvousStateError
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.protocol.codec import Codec, OversizedError, decode_entry, encode_entry, encode_row
from elastic_core.protocol.entries import Entry, Exclusion, Halt, HaltReason, Leader, Resume, Round
from elastic_core.protocol.ledger import HistoryChangedError, Ledger, advance
from elastic_core.protocol.repair import Memory, Rejoin
from elastic_core.rendezvous.backend import ORIGIN, Link
from elastic_core.session.ledger_reader import missing_entry, news
from elastic_core.session.reader import REPAIR_ATTEMPTS_MAX, Restored, restore
from elastic_core.session.runtime import Runtime

_ids = count(1)
CLOCK = Runtime(now=lambda: 70.0, new_id=lambda: f"new {next(_ids)}")


def holding(*ledgers: Ledger) -> LocalBackend:
    """A store with the newest entry of each, one on top of the other."""
    store, prev = LocalBackend(MemoryStore()), ORIGIN
    for ledger in ledgers:
        assert store.append(prev, ledger.head.link, encode_entry(ledger.head))
        prev = ledger.head.link
    return store


def entries(store: LocalBackend) -> list[Entry]:
    """Return the entries of a store."""
    return [decode_entry(data) for _, data in store._store.entries]


def look(store: LocalBackend, mine: Ledger = MINE, memory: Memory = MEMORY) -> Restored:
    return restore(store, mine, memory, info("b"), CLOCK)


def test_a_store_that_has_everything_is_left_alone() -> None:
    store = holding(*RUN)
    assert look(store) is None
    assert entries(store) == [ledger.head for ledger in RUN]


@pytest.mark.parametrize("left", range(1, 6))
def test_the_last_entries_are_put_back(left: int) -> None:
    store = holding(*RUN[:left])
    found = look(store)
    assert isinstance(found, tuple)
    assert found[1] is None
    assert entries(store) == [ledger.head for ledger in RUN]


def test_several_put_the_same_back() -> None:
    store = holding(*RUN[:2])

    class Raced(LocalBackend):
        """Another node is always a step ahead."""

        def append(self, prev: Link, entry: Link, data: bytes) -> bool:
            assert store.append(prev, entry, data)
            return super().append(prev, entry, data)

    found = restore(Raced(store._store), MINE, MEMORY, info("b"), CLOCK)
    assert isinstance(found, tuple)
    assert entries(store) == [ledger.head for ledger in RUN]


def test_an_empty_store_gets_the_state_in_one_entry_and_the_next_node_adopts_it() -> None:
    store = holding()
    found = look(store)
    assert isinstance(found, tuple)
    (entry,) = entries(store)
    assert isinstance(entry.body, Resume)
    assert (found[1] is not None, entry.body.why) == (True, "the store came back empty")
    again = look(store)
    assert isinstance(again, tuple)
    assert again[1] is not None
    assert again[1].head == entry
    assert len(entries(store)) == 1


def test_a_run_whose_state_is_too_large_for_a_value_goes_on_without_what_it_can_do_without() -> None:
    failed = halted("ab", HaltReason.FAILURE, blame=replace(incident("a"), detail=4000 * "d"))
    mine, store = with_counters(failed, restarts=2, excluded=(Exclusion("host-c"),)), holding()
    most = len(encode_entry(mine.head)) - 1000
    small = replace(CLOCK, codec=Codec(encode_entry=lambda entry: encode_entry(entry, most)))
    found = restore(store, mine, told(mine), info("b"), small)
    assert isinstance(found, tuple)
    (entry,) = entries(store)
    assert isinstance(entry.body, Resume)
    assert found[0] == entry.body.why
    assert found[0].startswith("the store came back empty; ")
    assert found[0].endswith("without the traceback of the last failure and the names of the members' hosts")
    assert entry.body.halt is not None
    assert entry.body.halt.incident == incident("a")
    assert entry.counters == mine.counters
    with pytest.raises(OversizedError, match="is too large for one value of the store"):
        restore(
            holding(),
            mine,
            told(mine),
            info("b"),
            replace(CLOCK, codec=Codec(encode_entry=lambda e: encode_entry(e, 500))),
        )


def test_a_newcomers_open_is_outranked_also_when_it_comes_first() -> None:
    store = LocalBackend(MemoryStore())
    fresh = of_run(start(), "fresh")

    class Heartbeat(LocalBackend):
        """The newcomer opens its run between the look and the write."""

        def append(self, prev: Link, entry: Link, data: bytes) -> bool:
            store.append(ORIGIN, fresh.head.link, encode_entry(fresh.head))
            return super().append(prev, entry, data)

    assert isinstance(restore(Heartbeat(store._store), MINE, MEMORY, info("b"), CLOCK), tuple)
    first, second = entries(store)
    assert first == fresh.head
    assert isinstance(second.body, Resume)
    with pytest.raises(HistoryChangedError) as caught:
        then_reads(fresh, store)
    assert restore(store, fresh, told(fresh), info("c"), CLOCK, unread=caught.value) == Rejoin(caught.value.message)


def then_reads(ledger: Ledger, store: LocalBackend) -> None:
    """Read on, as a session does."""
    for entry in news(store, ledger):
        ledger = advance(ledger, entry, 70.0)


@pytest.mark.parametrize(
    ("moves", "former"),
    [
        pytest.param(True, (), id="a node of it is alive"),
        pytest.param(False, (), id="all its nodes are silent"),
        pytest.param(True, ("foreign",), id="it came before, whatever its rows show"),
    ],
)
def test_another_run_is_written_over_unless_a_node_of_it_is_alive(moves: bool, former: tuple[str, ...]) -> None:
    foreign = of_run(live("cd"), "foreign")
    store = holding(of_run(start(), "foreign"), replace(foreign, head=replace(foreign.head, id="f2")))
    store.enter("c", encode_row(replace(seen("c").row, run="foreign")))
    slept: list[float] = []
    before = entries(store)

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        store.heartbeat("c", len(slept) if moves else 0, None)

    runtime = replace(CLOCK, now=lambda: 70.0 + sum(slept), sleep=sleep)
    found = restore(store, after_runs(MINE, former), MEMORY, info("b"), runtime)
    assert (len(slept) == 0) == bool(former)
    if moves and not former:
        assert isinstance(found, Rejoin)
        assert entries(store) == before
    else:
        body = entries(store)[-1].body
        assert isinstance(body, Resume)
        assert body.opened.former == former


def test_a_node_that_joins_another_run_as_the_look_at_it_ends_does_not_keep_this_one_from_being_resumed() -> None:
    foreign = of_run(live("cd"), "foreign")
    store = holding(of_run(start(), "foreign"), replace(foreign, head=replace(foreign.head, id="f2")))
    store.enter("c", encode_row(replace(seen("c").row, run="foreign")))
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if sum(slept) >= foreign.settings.timing.lost_after:
            store.enter("d", encode_row(replace(seen("d").row, run="foreign")))
            store.heartbeat("d", 1, None)

    restore(store, MINE, MEMORY, info("b"), replace(CLOCK, now=lambda: 70.0 + sum(slept), sleep=sleep))
    assert {row.node_id for row in store.roster()} == {"c", "d"}
    assert isinstance(entries(store)[-1].body, Resume)


def test_a_node_that_was_away_for_long_leaps_over_tombstones() -> None:
    store = holding(*RUN)
    for index in (3, 4, 5):
        store.shrink(index)
    mine = RUN[1]
    with pytest.raises(HistoryChangedError, match="Entry 3 was shrunk before it was read") as caught:
        news(store, mine)
    found = restore(store, mine, told(mine), info("b"), CLOCK, unread=caught.value)
    assert isinstance(found, tuple)
    assert found[1] is not None
    assert (found[1].head, found[1].round) == (MINE.head, MINE.round)


def test_tombstones_are_leapt_over_from_entries_that_are_whole() -> None:
    """The store lost the last entries that were shrunk, and the leader went on with those after them."""
    store = holding(*RUN)
    for index in (4, 5):
        store.shrink(index)
    mine = RUN[1]
    with pytest.raises(HistoryChangedError, match="Entry 4 was shrunk before it was read") as caught:
        news(store, mine)
    found = restore(store, mine, told(mine), info("b"), CLOCK, unread=caught.value)
    assert isinstance(found, tuple)
    assert found[1] is not None
    assert (found[0], found[1].head) == ("this node was away for long", MINE.head)


def test_an_entry_that_was_deleted_by_hand_is_leapt_over() -> None:
    class Holed(LocalBackend):
        def read(self, index: int) -> bytes | None:
            return None if index == 4 else super().read(index)

    mine = RUN[1]
    unread = missing_entry(4)
    found = restore(Holed(holding(*RUN)._store), mine, told(mine), info("b"), CLOCK, unread=unread)
    assert isinstance(found, tuple)
    assert found[1] is not None
    assert (found[0], found[1].head) == ("the store has lost entries that this node has not read", MINE.head)


def test_a_run_that_others_have_resumed_over_another_is_leapt_to() -> None:
    """The next entry is the other run's, which this node can never read; what follows it is its own again."""
    ours, theirs = RUN[1], of_run(RUN[1], "theirs")
    between = resumed(theirs, on=ours.head.link, entry_id="r3")
    after = resumed(ours, on=between.head.link, entry_id="r4")
    store = holding(RUN[0], ours, between, after)
    with pytest.raises(HistoryChangedError, match="goes on here; this node is in run") as caught:
        then_reads(ours, store)
    found = restore(store, ours, told(ours), info("b"), CLOCK, unread=caught.value)
    assert isinstance(found, tuple)
    assert found[1] is not None
    assert (found[0], found[1].head) == ("another run has been there meanwhile", after.head)


def test_a_tombstone_of_an_older_history_does_not_pass_for_news() -> None:
    """The store forgot all, the run was resumed there, and then the store has the older and longer history again."""
    store = holding(*RUN)
    for index in (3, 4, 5):
        store.shrink(index)
    mine = then(resumed(MINE), Halt(round=5, reason=HaltReason.FAILURE, why="a failed"), at=60.0)
    mine = then(mine, Round(number=6, offer=offer("a", 9), same_as=5), at=61.0)
    found = look(store, mine, told(mine))
    assert isinstance(found, tuple)
    assert found[1] is not None
    assert isinstance(found[1].head.body, Resume)
    assert (found[1].head.body.round.number, found[1].head.index, found[1].head.epoch) == (6, 7, 2)


def test_an_older_history_behind_what_was_read_is_resumed_over() -> None:
    """A copy of the store's files came back beside those that it had got since."""
    led = then(start(), Leader(why="x"), at=2.0)
    old = then(led, Round(number=1, offer=offer("a"), members=members("ab")), at=3.0)
    older = then(old, Halt(round=1, reason=HaltReason.FAILURE, why="a failed"), at=4.0)
    again = resumed(old)
    mine = then(again, Halt(round=1, reason=HaltReason.FAILURE, why="b failed"), at=60.0)
    mine = replace(mine, head=replace(mine.head, id="h2"))
    store = holding(again, mine)
    store._store.entries.extend((one.head.id, encode_entry(one.head)) for one in (old, older))
    with pytest.raises(HistoryChangedError, match="Entry 3 follows") as caught:
        then_reads(mine, store)
    found = restore(store, mine, told(mine), info("b"), CLOCK, unread=caught.value)
    assert isinstance(found, tuple)
    assert found[1] is not None
    assert (found[1].halt, found[1].head.index, found[1].head.epoch) == (mine.halt, 5, 2)


def test_entries_that_others_have_put_back_meanwhile_are_read_on() -> None:
    """An entry could not be written, since the one before was gone; when this node looks, all is there again."""
    unread = HistoryChangedError("Entry 3 is not the one that was read before.")
    assert restore(holding(*RUN), RUN[2], told(RUN[2]), info("b"), CLOCK, unread=unread) is None


def test_a_chain_that_was_broken_by_hand_is_refused() -> None:
    store = holding(*RUN)
    store._store.entries.append(("planted", encode_entry(replace(MINE.head, index=7, id="planted", prev="nothing"))))
    with pytest.raises(HistoryChangedError, match="Entry 7 follows 'nothing'") as caught:
        then_reads(MINE, store)
    with pytest.raises(RendezvousStateError, match="Entry 7 follows"):
        restore(store, MINE, MEMORY, info("b"), CLOCK, unread=caught.value)
    with pytest.raises(RendezvousStateError, match="Entry 7 follows"):  # also by who has yet to read up to there
        restore(store, RUN[2], told(RUN[2]), info("b"), CLOCK, unread=caught.value)


def test_entries_that_go_one_by_one_are_looked_at_again() -> None:
    """A directory is deleted file by file: the newest is still there, and what it stands on is not."""
    store = holding(*RUN)
    for index in range(1, 6):
        store.shrink(index)
    looks = 0

    class Counted(LocalBackend):
        def read(self, index: int) -> bytes | None:
            nonlocal looks
            looks += index == 6
            return super().read(index)

    other = replace(MINE, head=replace(MINE.head, id="mine"))
    with pytest.raises(HistoryChangedError, match="Entry 1 is missing from the store"):
        restore(Counted(store._store), other, (other.head,), info("b"), CLOCK)
    assert looks == 2 * REPAIR_ATTEMPTS_MAX


def test_a_run_that_is_over_is_not_brought_back() -> None:
    closed = then(resumed(MINE), SUCCESS, at=60.0)
    assert look(holding(), closed, told(closed)) is None
    assert look(holding(start()), closed, told(closed)) is None
