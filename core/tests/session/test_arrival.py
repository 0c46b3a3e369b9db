"""Which run a node belongs to, by what it found when it first read the ledger (rule S6)."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from test_session import CLOCK, quick
from views import entry, halted, info, live, members, offer, seen

from elastic_core.errors import RendezvousRefusedError, RendezvousTimeoutError, UsageError
from elastic_core.exit_codes import ExitCode
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.protocol.codec import decode_entry, encode_entry, encode_row
from elastic_core.protocol.entries import Body, Closed, Counters, Drain, Exclusion, HaltReason, Leader, Open, Round
from elastic_core.protocol.ledger import Ledger, advance, compose, open_ledger
from elastic_core.protocol.limits import MAX_FORMER_RUNS, OPEN_BYTES
from elastic_core.protocol.roster import NodeInfo, NodeRow
from elastic_core.protocol.settings import Command, Settings
from elastic_core.rendezvous.backend import ORIGIN, Cursor, Link
from elastic_core.session.join import Applicant, Arrival, FormerNode, Joined, Joining, arrive, join
from elastic_core.session.runtime import Runtime

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

    def says(self, *bodies: Body, **more: Any) -> None:
        for body in bodies:
            if isinstance(body, Open):
                self.runs += 1
                new = compose(
                    self.ledger, body, entry_id=f"open{self.runs}", author="a", now=0.0, run=f"run{self.runs}"
                )
            else:
                assert self.ledger is not None
                new = entry(self.ledger, body, at=0.0, **more)
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


IMPATIENT = replace(CLOCK, sleep=lambda _: pytest.fail("it waits"))


@pytest.mark.parametrize(
    ("bodies", "uid", "again"),
    [
        pytest.param([DONE], None, False, id="it is over"),
        pytest.param([], "s2", True, id="it comes again"),
        pytest.param([], None, False, id="it takes the node"),
    ],
)
def test_a_node_that_arrives_does_not_look_whether_others_are_alive_where(
    bodies: list[Body], uid: str | None, again: bool
) -> None:
    job = Job()
    job.says(begins("s1"), *bodies)
    job.store.enter("a", encode_row(seen("a").row))
    assert arrive(job.store, late(uid), IMPATIENT, again=again).run == "run1"


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


def test_a_drain_before_a_node_entered_does_not_concern_it() -> None:
    job = Job()
    job.says(begins("s1"), ROUND, Drain(nodes=("b",), why="asked"), DONE)
    found = join(job.store, late("s2"), CLOCK)
    assert isinstance(found, Joined)
    assert found.drained == ""


def living(store: LocalBackend, node: NodeInfo, run: str = "run1") -> Runtime:
    """Return the runtime of a newcomer in whose view this node of the run is alive."""
    heartbeats = itertools.count(1)
    store.enter(node.node_id, encode_row(NodeRow(info=node, run=run)))

    def sleep(_seconds: float) -> None:
        store.heartbeat(node.node_id, next(heartbeats))

    return replace(CLOCK, sleep=sleep)


def test_a_node_that_a_living_job_does_not_take_is_refused_at_its_arrival() -> None:
    job = Job()
    job.says(begins("s1", replace(quick(1, 3), command=Command(name="a.py"))))
    clock = living(job.store, info("a"))
    with pytest.raises(RendezvousRefusedError, match="max_nodes: 4 here, 3 there"):
        arrive(job.store, late(), clock)
    with pytest.raises(RendezvousRefusedError, match="s1, is alive under this job id on host-a; this one is s2"):
        arrive(job.store, replace(late("s2"), settings=replace(quick(1, 3), command=Command(name="b.py"))), clock)


@pytest.mark.parametrize(
    ("change", "most", "spares", "refused"),
    [
        pytest.param({}, 1, 0, True, id="it is most likely another job"),
        pytest.param({"unnamed": False}, 1, 0, False, id="the job has a name"),
        pytest.param({}, 2, 0, False, id="the job takes two nodes"),
        pytest.param({}, 1, 1, False, id="it is a spare"),
        pytest.param({"former": (FormerNode("a", 1),)}, 1, 0, False, id="the other one is itself, as it was before"),
        pytest.param({"info": info("a")}, 1, 0, False, id="no other one is there"),
    ],
)
def test_a_second_node_of_a_job_of_one_node_without_a_name_is_refused(
    change: dict[str, Any], most: int, spares: int, refused: bool
) -> None:
    job, both = Job(), quick(1, most)
    both = replace(both, agreement=replace(both.agreement, spares=spares))
    job.says(begins(settings=both))
    clock = living(job.store, info("a"))
    applicant = replace(Applicant(info=info("b"), settings=both, unnamed=True), **change)
    if refused:
        with pytest.raises(RendezvousRefusedError, match="without an --rdzv_id, is running at this endpoint on host-a"):
            arrive(job.store, applicant, clock)
    else:
        assert arrive(job.store, applicant, clock).belongs


# Who opens a run ------------------------------------------------------------------------------------------------------


class Guest(LocalBackend):
    """A connection to the store in another agent, which writes its first entries while this one waits for them."""

    embedded, hosting = True, False

    def __init__(self, *bodies: Body) -> None:
        memory = MemoryStore()
        super().__init__(memory)
        self.host, self.bodies, self.looks = Job(), [bodies], 0
        self.host.store = LocalBackend(memory)

    def wait(self, cursor: Cursor, *, roster: bool, timeout: float) -> Cursor:
        self.looks += 1
        assert self.looks < 9, "it looks again and again"
        if timeout:
            assert (cursor, roster, timeout) == (Cursor(), False, quick().timing.join_timeout)
            self.host.says(*self.bodies.pop())
        return Cursor(self._store.head)

    def append(self, prev: Link, entry: Link, data: bytes) -> bool:
        return pytest.fail("only the host of a store opens its first run")


def test_a_node_waits_for_the_first_run_of_a_store_in_another_agent() -> None:
    found = join(Guest(begins("s1")), late(), CLOCK)
    assert isinstance(found, Joined)
    assert found.ledger.head.run == "run1"
    assert join(Guest(begins("s1"), ROUND, DONE), late(), CLOCK) == DONE
    with pytest.raises(RendezvousTimeoutError, match="did not open the run within 15 s"):
        join(Guest(), late(), CLOCK)


def test_its_node_rank_may_be_taken_by_then() -> None:
    guest = Guest(begins())
    clock = living(guest.host.store, replace(info("a"), node_rank=0))
    with pytest.raises(RendezvousRefusedError, match="--node_rank=0"):
        join(guest, replace(late(), info=replace(info("b"), node_rank=0)), clock)


@pytest.mark.parametrize(("embedded", "hosting"), [(True, True), (False, True), (False, False)])
def test_any_other_node_opens_it_and_looks_for_nobody(embedded: bool, hosting: bool) -> None:
    store = LocalBackend(MemoryStore())
    store.embedded, store.hosting = embedded, hosting
    store.enter("c", encode_row(NodeRow(info=replace(info("c"), node_rank=0))))
    found = join(store, replace(late(), info=replace(info("b"), node_rank=0)), IMPATIENT)
    assert isinstance(found, Joined)
    assert found.ledger.head.author == "b"


def test_the_settings_of_a_run_have_a_limit() -> None:
    agreement, clock = quick().agreement, replace(CLOCK, new_id=lambda: "x")

    def size(plugin: int) -> int:
        store, named = LocalBackend(MemoryStore()), replace(agreement, worker_plugins=("p" * plugin,))
        join(store, replace(late(), settings=replace(quick(), agreement=named)), clock)
        return len(store.read(1) or b"")

    most = OPEN_BYTES - size(0)
    assert size(most) == OPEN_BYTES
    with pytest.raises(UsageError, match=f"take {OPEN_BYTES + 1} bytes; at most {OPEN_BYTES} are allowed"):
        size(most + 1)


def test_an_abandoned_run_is_closed_however_much_it_remembers_and_the_next_one_knows_of_those_before() -> None:
    job, former = Job(), tuple(f"before {number}" for number in range(MAX_FORMER_RUNS))
    many = Counters(excluded=tuple(Exclusion(f"{number:064}") for number in range(256)))
    job.says(replace(begins("s1"), former=former), Leader(why="x"), counters=many)
    found = join(job.store, late("s2"), CLOCK)
    assert isinstance(found, Joined)
    assert found.ledger.opened.former == ("run1", *former[:-1])
    closed = decode_entry(job.store.read(found.ledger.head.index - 1) or b"").body
    assert isinstance(closed, Closed)
    assert (closed.success, closed.abandoned, closed.exit_code) == (False, True, ExitCode.JOB_FAILED)


class Raced(LocalBackend):
    """A store to which another node writes just before one of this node's entries."""

    def __init__(self, store: LocalBackend, nth: int, clock: Runtime) -> None:
        super().__init__(store._store)
        self.shared, self.left, self.clock = store, nth, clock

    def append(self, prev: Link, entry: Link, data: bytes) -> bool:
        if not self.left:
            assert isinstance(join(self.shared, replace(late("s2"), info=info("c")), self.clock), Joined)
        self.left -= 1
        return super().append(prev, entry, data)


@pytest.mark.parametrize("nth", [0, 1, 2], ids=["at once", "before it is closed", "before the next one is opened"])
def test_of_two_nodes_that_replace_an_abandoned_run_one_joins_that_of_the_other(nth: int) -> None:
    job, slept = Job(), list[float]()
    job.says(begins("s1"))
    clock = replace(CLOCK, now=lambda: sum(slept), sleep=slept.append)
    found = join(Raced(job.store, nth, clock), late("s2"), clock)
    assert isinstance(found, Joined)
    assert (found.ledger.head.author, found.ledger.opened.scheduler_uid) == ("c", "s2")
