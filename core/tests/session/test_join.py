"""The row with which a node enters, and what its session makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_arrival import living
from test_session import CLOCK, PATIENCE, quick, restart
from views import entry, info

from elastic_core.errors import RendezvousRefusedError
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.protocol.codec import decode_row, encode_entry, encode_row
from elastic_core.protocol.entries import Closed, Drain, Leader, Offer
from elastic_core.protocol.ledger import HistoryChangedError, compose
from elastic_core.protocol.roster import NodeRow, Slots
from elastic_core.protocol.settings import Command
from elastic_core.rendezvous.backend import Cursor, RosterRow
from elastic_core.session.join import Applicant, Joined, arrive, join
from elastic_core.session.runtime import Runtime
from elastic_core.session.session import Session
from elastic_core.session.state import SessionCalls

PLACE = Offer("10.0.0.2", 29500, "the first")


def joined(store: LocalBackend, name: str, *, node_rank: int | None = None) -> Joined:
    applicant = Applicant(info=replace(info(name), node_rank=node_rank), settings=quick(), offer=PLACE)
    found = join(store, applicant, CLOCK)
    assert isinstance(found, Joined)
    return found


def row_in(store: LocalBackend, name: str) -> RosterRow:
    [row] = store.roster([name])
    return row


def test_the_first_row_of_who_finds_the_run_says_all_that_there_is_to_say() -> None:
    store = LocalBackend(MemoryStore())
    joined(store, "a")
    found, seen = joined(store, "b"), row_in(store, "b")
    assert (decode_row(seen.value), seen.revision) == (found.row, 0)
    head = found.ledger.head
    assert (found.row.run, found.row.head, found.row.epoch, found.row.offer) == (head.run, head.index, 0, PLACE)


@pytest.mark.parametrize(("name", "node_rank"), [("the first of all", None), ("one with a rank", 1)])
def test_a_node_that_has_to_look_around_first_offers_nothing_until_it_has(name: str, node_rank: int | None) -> None:
    """A round that it was given meanwhile would begin without it."""
    store = LocalBackend(MemoryStore())
    if node_rank is not None:
        joined(store, "a", node_rank=0)
    found = joined(store, name, node_rank=node_rank)
    assert found.row.offer is None
    assert decode_row(row_in(store, name).value) == found.row


class Losing(LocalBackend):
    """A store that lacks its first entry for some reads, though it has newer ones."""

    missing = 0

    def read(self, index: int) -> bytes | None:
        if index == 1 and self.missing:
            self.missing -= 1
            return None
        return super().read(index)


@pytest.mark.parametrize("missing", [2, 1000])
def test_a_newcomer_waits_until_lost_entries_are_put_back_but_not_for_ever(missing: int) -> None:
    memory, now = MemoryStore(), 0.0
    ledger = joined(LocalBackend(memory), "a").ledger
    leader = entry(ledger, Leader(why="?"), at=5.0)
    assert LocalBackend(memory).append(ledger.head.link, leader.link, encode_entry(leader))

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    store, clock = Losing(memory), Runtime(now=lambda: now, sleep=sleep)
    store.missing = missing
    applicant = Applicant(info=info("b"), settings=quick(lost_after=0.6), offer=PLACE)
    if missing == 2:
        found = join(store, applicant, clock)
        assert isinstance(found, Joined)
        assert found.ledger.head == leader
        return
    with pytest.raises(HistoryChangedError, match="Entry 1 is missing from the store"):
        join(store, applicant, clock)
    assert now == pytest.approx(0.6)


def test_a_node_that_waits_has_written_one_row_and_enters_it_anew_when_it_is_lost() -> None:
    store, errors = LocalBackend(MemoryStore()), list[BaseException]()
    joined(store, "a")
    found = joined(store, "b")
    calls = SessionCalls(post=lambda event: None, publish=lambda event: None, judge=restart, crashed=errors.append)
    session = Session(store, found, CLOCK, calls)
    try:
        session.start()
        before = row_in(store, "b")
        store.remove("b")
        seen = store.wait(Cursor(), roster=True, timeout=0)
        while not store.roster(["b"]):
            seen, before_wait = store.wait(seen, roster=True, timeout=PATIENCE), seen
            assert seen != before_wait, "the row does not come back"
        after = row_in(store, "b")
    finally:
        session.close(PATIENCE)
    assert (before.value, before.revision) == (after.value, after.revision)
    assert (decode_row(after.value), after.revision) == (found.row, 0)
    assert not errors


@pytest.mark.parametrize("alive", [True, False])
def test_a_run_is_not_abandoned_whose_node_heartbeats_though_its_slot_proves_it_gone(alive: bool) -> None:
    """Two machines may have one host id (rule S8)."""
    store, now, heartbeats = LocalBackend(MemoryStore()), [0.0], [0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if alive:
            heartbeats[0] += 1
            store.heartbeat("a", heartbeats[0], "a")

    clock = Runtime(now=lambda: now[0], sleep=sleep, new_id=CLOCK.new_id)
    first, twin = (info(name, host="h", slots=Slots(at)) for name, at in (("a", 100), ("b", 200)))
    opened = join(store, Applicant(info=first, settings=quick(), scheduler_uid="1"), clock)
    assert isinstance(opened, Joined)
    store.amend("a", 1, encode_row(replace(opened.row, run=opened.ledger.head.run)))
    if alive:
        with pytest.raises(RendezvousRefusedError, match="is alive under this job id"):
            join(store, Applicant(info=twin, settings=quick(), scheduler_uid="2"), clock)
    else:
        found = join(store, Applicant(info=twin, settings=quick(), scheduler_uid="2"), clock)
        assert isinstance(found, Joined)
        assert found.ledger.opened.scheduler_uid == "2"
        assert now[0] < quick().timing.lost_after


@pytest.mark.parametrize("differs", ["uid", "flags"])
def test_a_node_that_is_being_checked_does_not_keep_a_dead_run_alive(differs: str) -> None:
    """Its row is in no run, and has a heartbeat (rule L17)."""
    store, now = LocalBackend(MemoryStore()), [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        store.heartbeat("checked", round(now[0] * 1000))

    clock = Runtime(now=lambda: now[0], sleep=sleep, new_id=CLOCK.new_id)
    first = Applicant(info=info("a"), settings=quick(), scheduler_uid="1", offer=PLACE)
    assert isinstance(join(store, first, clock), Joined)
    store.enter("checked", encode_row(NodeRow(info=info("checked"))))
    if differs == "uid":
        second = replace(first, info=info("b"), scheduler_uid="2")
    else:
        second = replace(first, info=info("b"), settings=quick(1, 3))
        arrive(store, second, clock)
    found = join(store, second, clock)
    assert isinstance(found, Joined)
    assert (found.ledger.settings, found.ledger.opened.scheduler_uid) == (second.settings, second.scheduler_uid)
    assert now[0] >= quick().timing.lost_after, "it may be about to join"


def test_the_rank_of_a_node_that_is_being_checked_is_free() -> None:
    store, now = LocalBackend(MemoryStore()), [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        store.heartbeat("checked", round(now[0] * 1000))

    clock = Runtime(now=lambda: now[0], sleep=sleep, new_id=CLOCK.new_id)
    assert isinstance(join(store, Applicant(info=info("a"), settings=quick(), offer=PLACE), clock), Joined)
    store.enter("checked", encode_row(NodeRow(info=replace(info("checked"), node_rank=1))))
    second = Applicant(info=replace(info("b"), node_rank=1), settings=quick(), offer=PLACE)
    assert isinstance(join(store, second, clock), Joined)


@pytest.mark.parametrize(
    ("of_both", "of_second", "says"),
    [
        pytest.param({"info": info("a")}, {"unnamed": True}, "without an --rdzv_id, is running", id="of one node"),
        pytest.param(
            {"info": replace(info("a"), node_rank=0)}, {}, "has --node_rank=0, and so has host-a", id="a rank"
        ),
    ],
)
def test_a_node_whose_place_a_living_one_has_is_refused_and_leaves_no_row(
    of_both: dict[str, Any], of_second: dict[str, Any], says: str
) -> None:
    store = LocalBackend(MemoryStore())
    first = Applicant(settings=quick(1, 1), **of_both)
    opened = join(store, first, CLOCK)
    assert isinstance(opened, Joined)
    store.remove("a")
    clock = living(store, first.info, opened.ledger.head.run)
    second = replace(first, info=replace(first.info, node_id="b"), **of_second)
    with pytest.raises(RendezvousRefusedError, match=says):
        join(store, second, clock)
    assert store.roster(["b"]) == []


def test_a_drain_of_a_node_that_still_looks_for_its_run_is_not_lost() -> None:
    """Meanwhile another node opens the run, which that node reads only together with the DRAIN."""
    store, now, opened = LocalBackend(MemoryStore()), [0.0], list[Joined]()

    def pass_time(seconds: float) -> None:
        now[0] += seconds

    def sleep(seconds: float) -> None:
        pass_time(seconds)
        if not opened:
            found = join(store, replace(first, info=info("c"), scheduler_uid="2"), replace(clock, sleep=pass_time))
            assert isinstance(found, Joined)
            opened.append(found)
            drain = entry(found.ledger, Drain(nodes=("b",), why="asked to leave"), at=now[0])
            assert store.append(found.ledger.head.link, drain.link, encode_entry(drain))

    clock = Runtime(now=lambda: now[0], sleep=sleep, new_id=CLOCK.new_id)
    first = Applicant(info=info("a"), settings=quick(), scheduler_uid="1", offer=PLACE)
    assert isinstance(join(store, first, replace(clock, sleep=pass_time)), Joined)
    found = join(store, replace(first, info=info("b"), scheduler_uid="2"), clock)
    assert isinstance(found, Joined)
    assert found.ledger.head.run == opened[0].ledger.head.run
    assert found.drained == "asked to leave"


@pytest.mark.parametrize(("name", "opens"), [("a.py", False), ("b.py", True)])
def test_a_program_after_another_one_of_the_same_scheduler_uid_has_a_run_of_its_own(name: str, opens: bool) -> None:
    """One allocation of a scheduler may run one program after the other, each with a verdict of its own."""
    store = LocalBackend(MemoryStore())
    first = Applicant(info=info("a"), settings=replace(quick(), command=Command(name="a.py")), scheduler_uid="1")
    ran = join(store, first, CLOCK)
    assert isinstance(ran, Joined)
    verdict = Closed(success=True, why="all have finished", exit_code=0)
    closed = compose(ran.ledger, verdict, entry_id="the end", author="a", now=CLOCK.now())
    assert store.append(ran.ledger.head.link, closed.link, encode_entry(closed))
    store.remove("a")
    second = replace(first, info=info("b"), settings=replace(quick(), command=Command(name=name)))
    found = join(store, second, CLOCK)
    if opens:
        assert isinstance(found, Joined)
        assert found.ledger.head.run != ran.ledger.head.run
    else:
        assert found == verdict
