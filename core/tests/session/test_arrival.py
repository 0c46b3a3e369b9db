"""Which run a node belongs to, by what it found when it first read the ledger (rule S6)."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from test_session import CLOCK, quick
from views import entry, halted, info, live, members, offer, seen

from elastic_core.errors import RendezvousRefusedError
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.protocol.codec import encode_entry, encode_row
from elastic_core.protocol.entries import Body, Closed, Drain, HaltReason, Open, Round
from elastic_core.protocol.ledger import Ledger, advance, compose, open_ledger
from elastic_core.protocol.settings import Settings
from elastic_core.rendezvous.backend import ORIGIN
from elastic_core.session.join import Applicant, Arrival, FormerNode, Joined, Joining, arrive, join

DONE = Closed(success=True, why="all workers of round 1 exited with 0", exit_code=0)
FAILED = Closed(success=False, why="no restart is left", exit_code=1)
ABANDONED = replace(FAILED, why="abandoned", abandoned=True)
ROUND = Round(number=1, offer=offer("a"), members=members("a"))


class Job:
    """A ledger in a store, written by a node ``a`` that has no row any more."""

    def __init__(self) -> None:
        self.store, self.ledger = LocalBackend(MemoryStore()), None
        self.runs = 0

    ledger: Ledger | None

    def says(self, *bodies: Body) -> None:
        for body in bodies:
            if isinstance(body, Open):
                self.runs += 1
                new = compose(
                    self.ledger, body, entry_id=f"open{self.runs}", author="a", now=0.0, run=f"run{self.runs}"
                )
            else:
                assert self.ledger is not None
                new = entry(self.ledger, body, at=0.0)
            prev = ORIGIN if self.ledger is None else self.ledger.head.link
            assert self.store.append(prev, new.link, encode_entry(new))
            self.ledger = open_ledger(new, 0.0) if self.ledger is None else advance(self.ledger, new, 0.0)


def begins(uid: str | None = None, settings: Settings | None = None) -> Open:
    return Open(scheduler_uid=uid, settings=settings or quick(1, 4))


def late(uid: str | None = None) -> Applicant:
    return Applicant(info=info("b"), settings=quick(1, 4), scheduler_uid=uid, offer=offer("b"))


@pytest.mark.parametrize("uid", [None, "s1"])
@pytest.mark.parametrize(
    ("before", "meanwhile", "verdict"),
    [
        ([begins("s1"), ROUND], [DONE], DONE),
        ([begins("s1")], [ROUND, FAILED], FAILED),
        ([begins("s1"), ROUND], [DONE, begins("s1"), FAILED], DONE),
        ([begins("s1"), ROUND], [DONE, begins("s1"), ROUND], DONE),
        ([begins("s1"), DONE], [begins("s1"), ROUND, FAILED], FAILED),
        ([], [begins("s1"), ROUND, FAILED], FAILED),
    ],
    ids=[
        "its_run_ends",
        "a_run_without_a_round_ends",
        "and_another_one_ends",
        "and_another_one_is_under_way",
        "the_run_after_one_that_was_over",
        "the_first_run_of_all",
    ],
)
def test_a_node_reports_the_verdict_on_the_run_that_it_came_for(
    uid: str | None, before: list[Body], meanwhile: list[Body], verdict: Closed
) -> None:
    job = Job()
    job.says(*before)
    arrival = arrive(job.store, late(uid), CLOCK)
    job.says(*meanwhile)
    assert join(job.store, late(uid), CLOCK, arrival) == verdict
    assert job.store.roster() == [], "who only reports has no row"


@pytest.mark.parametrize(
    ("before", "meanwhile"),
    [
        ([begins("s1"), DONE], []),
        ([begins("s1"), ROUND], [ABANDONED]),
        ([begins("s1"), ROUND], [ABANDONED, begins("s1"), ROUND]),
        ([begins("s1", quick(1, 3)), ROUND], [DONE]),
        ([begins("s1"), DONE], [begins("s1", quick(1, 3)), ROUND, DONE]),
        ([begins("s1"), ROUND], []),
    ],
    ids=[
        "over_before_it_came",
        "abandoned",
        "abandoned_and_opened_again",
        "it_would_have_been_refused",
        "a_run_that_refuses_it_ends",
        "the_run_goes_on",
    ],
)
def test_a_node_takes_part_in_what_follows_a_run_that_was_not_its_own(
    before: list[Body], meanwhile: list[Body]
) -> None:
    job = Job()
    job.says(*before)
    arrival = arrive(job.store, late(), CLOCK)
    job.says(*meanwhile)
    found = join(job.store, late(), CLOCK, arrival)
    assert isinstance(found, Joined)
    assert found.ledger.closed is None


def test_another_schedulers_run_that_ends_meanwhile_is_nothing_to_a_node() -> None:
    job = Job()
    job.says(begins("s1"), ROUND)
    arrival = arrive(job.store, late("s2"), CLOCK)
    job.says(DONE)
    found = join(job.store, late("s2"), CLOCK, arrival)
    assert isinstance(found, Joined)
    assert found.ledger.opened.scheduler_uid == "s2"


@pytest.mark.parametrize("again", [False, True])
def test_a_node_that_begins_again_after_a_run_of_the_job_opens_no_run_after_one_that_is_over(again: bool) -> None:
    job = Job()
    job.says(begins(), ROUND, DONE)
    found = join(job.store, late(), CLOCK, arrive(job.store, late(), CLOCK, again=again))
    assert (found == DONE) is again


def test_a_node_that_begins_again_takes_part_in_a_run_that_others_have_opened_since() -> None:
    job = Job()
    job.says(begins(), ROUND, DONE)
    arrival = arrive(job.store, late(), CLOCK, again=True)
    job.says(begins(), ROUND)
    assert isinstance(join(job.store, late(), CLOCK, arrival), Joined)


def test_nothing_is_known_of_a_run_that_a_shorter_history_has_taken_the_place_of() -> None:
    job, fresh = Job(), Job()
    job.says(begins(), ROUND)
    arrival = arrive(job.store, late(), CLOCK)
    fresh.runs = 1
    fresh.says(begins())
    found = join(fresh.store, late(), CLOCK, arrival)
    assert isinstance(found, Joined)
    assert found.ledger.head.run == "run2"


def test_a_verdict_is_found_behind_tombstones_and_none_is_in_a_history_that_was_lost() -> None:
    job = Job()
    job.says(begins(), ROUND)
    arrival = arrive(job.store, late(), CLOCK)
    job.says(DONE, begins(), ROUND)
    found = join(job.store, late(), CLOCK, replace(arrival, place=replace(arrival.place, id="lost")))
    assert isinstance(found, Joined)
    job.store.remove("b")
    for index in (1, 2):
        job.store.shrink(index)
    assert join(job.store, late(), CLOCK, arrival) == DONE


def test_a_node_learns_at_its_arrival_that_a_round_is_live_and_that_it_is_refused() -> None:
    job = Job()
    assert arrive(job.store, late(), CLOCK) == Arrival(ORIGIN)
    job.says(begins())
    assert arrive(job.store, late(), CLOCK).round == 0
    job.says(ROUND)
    assert job.ledger is not None
    assert arrive(job.store, late(), CLOCK) == Arrival(job.ledger.head.link, "run1", belongs=True, round=1)


@pytest.mark.parametrize(
    ("ledger", "uid", "number"),
    [
        pytest.param(live("ab", quick(1, 4)), None, 1, id="it has a part in it"),
        pytest.param(live("ab", quick(1, 4)), "s2", 0, id="of another run of the scheduler"),
        pytest.param(halted("ab", HaltReason.NODE_LEFT, quick(1, 4)), None, 0, id="halted"),
    ],
)
def test_a_node_that_arrives_interrupts_only_a_live_round_of_its_own_run(
    ledger: Ledger, uid: str | None, number: int
) -> None:
    assert Arrival.at(ledger, late(uid)).round == number


@pytest.mark.parametrize(("bodies", "again"), [([DONE], False), ([], True)], ids=["it is over", "it comes again"])
def test_a_node_that_arrives_does_not_look_whether_others_are_alive_where(bodies: list[Body], again: bool) -> None:
    job = Job()
    job.says(begins("s1"), *bodies)
    job.store.enter("a", encode_row(seen("a").row))
    arrival = arrive(job.store, late("s2"), replace(CLOCK, sleep=lambda _: pytest.fail("it waits")), again=again)
    assert (arrival.run, arrival.belongs) == ("run1", False)


def test_a_node_that_reads_the_ledger_first_when_the_run_is_over_has_no_row_after_its_report() -> None:
    job = Job()
    job.says(begins("s1"), ROUND, DONE)
    assert join(job.store, late("s1"), CLOCK) == DONE
    assert job.store.roster() == []


@pytest.mark.parametrize(("read", "why"), [(2, "asked"), (3, "")])
def test_a_node_that_enters_again_is_told_of_a_drain_that_it_had_not_read(read: int, why: str) -> None:
    job, node = Job(), replace(late(), former=(FormerNode("old", read),))
    job.says(begins(), ROUND)
    before = job.ledger
    job.says(Drain(nodes=("old",), why="asked"))
    found = join(job.store, node, CLOCK)
    assert isinstance(found, Joined)
    assert found.drained == why
    assert before is not None
    assert not Joining(job.store, node, CLOCK).drained(before, node.former), "of what came since its session reads"


def test_a_drain_that_was_asked_before_a_node_entered_does_not_drain_it() -> None:
    job = Job()
    job.says(begins("s1"), ROUND, Drain(nodes=("b",), why="asked"), DONE)
    found = join(job.store, late("s2"), CLOCK)
    assert isinstance(found, Joined)
    assert found.drained == ""


def test_a_node_that_a_living_job_does_not_take_is_refused_at_its_arrival() -> None:
    store, heartbeats = LocalBackend(MemoryStore()), itertools.count(1)
    first = Applicant(info=info("a"), settings=quick(1, 3), offer=offer("a"))
    opened = join(store, first, CLOCK)
    assert isinstance(opened, Joined)
    store.amend("a", 1, encode_row(replace(opened.row, run=opened.ledger.head.run)))

    def sleep(_seconds: float) -> None:
        store.heartbeat("a", next(heartbeats))

    with pytest.raises(RendezvousRefusedError, match="max_nodes: 4 here, 3 there"):
        arrive(store, late(), replace(CLOCK, sleep=sleep))
