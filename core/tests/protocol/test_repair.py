"""A store that has lost history: what a node that remembers it does, clause by clause."""

from __future__ import annotations

from dataclasses import replace

import pytest
from views import after_runs, halted, incident, live, members, offer, settings, start, then

from elastic_core.errors import RendezvousStateError
from elastic_core.incidents import Incident
from elastic_core.protocol.codec import decode_entry, encode_entry
from elastic_core.protocol.entries import (
    Anchors,
    Closed,
    Counters,
    Entry,
    Exclusion,
    Halt,
    HaltReason,
    Leader,
    Resume,
    Round,
)
from elastic_core.protocol.ledger import HistoryChangedError, Ledger, advance, compose, open_ledger, restore_ledger
from elastic_core.protocol.repair import (
    ENTRIES_REMEMBERED,
    Memory,
    Overlap,
    Rejoin,
    Settlement,
    can_follow,
    compose_resume,
    describe_loss,
    lighten,
    overlap,
    remember,
    settle,
)
from elastic_core.rendezvous.backend import ORIGIN, Link

SUCCESS = Closed(success=True, why="all is well", exit_code=0)


def told(*ledgers: Ledger) -> Memory:
    """Return the memory of a node that has read all of these."""
    return tuple(ledger.head for ledger in ledgers)


def history(length: int) -> list[Ledger]:
    """A run of nodes a and b, as it was after each entry: OPEN, ROUND, ROUND and so on."""
    ledgers = [start()]
    for number in range(1, length):
        spelled = {"members": members("ab")} if number == 1 else {"same_as": number - 1}
        body = Round(number=number, offer=offer("a", number), **spelled)
        ledgers.append(then(ledgers[-1], body, at=float(number)))
    return ledgers


RUN = history(6)
MEMORY = told(*RUN)
MINE = RUN[-1]


def other(ledger: Ledger) -> Entry:
    """Another entry in the same place."""
    return replace(ledger.head, id="other")


def resumed(ledger: Ledger, *, on: Link = ORIGIN, entry_id: str = "r1") -> Ledger:
    """The ledger after a node has resumed it on a store that lost it."""
    body = compose_resume(ledger, "it was lost")
    return open_ledger(compose(ledger, body, entry_id=entry_id, author="b", leader="a", now=50.0, store=on), 50.0)


def of_run(ledger: Ledger, run: str) -> Ledger:
    return replace(ledger, head=replace(ledger.head, run=run, id="foreign"))


@pytest.mark.parametrize(
    ("head", "at", "expected"),
    [
        pytest.param(6, MINE.head, Overlap.INTACT, id="all is there"),
        pytest.param(9, MINE.head, Overlap.INTACT, id="and more"),
        pytest.param(6, other(MINE), Overlap.DIVERGED, id="another entry at the same index"),
        pytest.param(9, other(MINE), Overlap.DIVERGED, id="another entry, and more"),
        pytest.param(5, RUN[4].head, Overlap.BEHIND, id="the last one is gone"),
        pytest.param(2, RUN[1].head, Overlap.BEHIND, id="the last four are gone"),
        pytest.param(4, other(RUN[3]), Overlap.DIVERGED, id="behind, and it went another way"),
        pytest.param(0, None, Overlap.DIVERGED, id="empty"),
        pytest.param(9, None, Overlap.DIVERGED, id="nothing in the place of the newest that was read"),
        pytest.param(5, None, Overlap.DIVERGED, id="behind, and its newest is a tombstone"),
    ],
)
def test_the_overlap_of_a_ledger_that_was_read_with_the_store(head: int, at: Entry | None, expected: Overlap) -> None:
    assert overlap(MINE, MEMORY, head, at) == expected


def test_entries_from_before_one_joined_cannot_be_put_back() -> None:
    assert overlap(MINE, told(*RUN[3:]), 2, RUN[1].head) == Overlap.DIVERGED


def test_a_tombstone_in_the_place_of_what_was_read_shows_that_the_others_have_long_passed_it() -> None:
    """The run may be over, and the next one begun: nothing was lost that would have to be resumed."""
    assert overlap(MINE, MEMORY, 9, None, shrunk=True) == Overlap.PASSED


def test_a_run_that_is_over_is_let_go() -> None:
    closed = then(MINE, SUCCESS, at=9.0)
    assert overlap(closed, told(closed), 0, None) == Overlap.INTACT


FRESH = of_run(start(), "fresh")
FOREIGN = of_run(live("cd"), "foreign")
ONCE = resumed(MINE)
LED = then(MINE, Leader(why="x"), at=7.0, author="b")
OUSTED = then(RUN[1], Leader(why="x"), at=2.0, author="d")
OUSTED = then(OUSTED, Halt(round=1, reason=HaltReason.NODE_LOST, why="a is lost"), at=3.0)
DECIDED = then(ONCE, Halt(round=5, reason=HaltReason.FAILURE, why="a failed"), at=60.0)


@pytest.mark.parametrize(
    ("mine", "memory", "theirs", "expected"),
    [
        pytest.param(MINE, MEMORY, None, Settlement.RESUME, id="an empty store"),
        pytest.param(MINE, MEMORY, FRESH, Settlement.RESUME, id="a newcomer's OPEN without a ROUND is outranked"),
        pytest.param(
            MINE,
            MEMORY,
            of_run(then(start(), Leader(why="x"), at=1.0, author="d"), "fresh"),
            Settlement.RESUME,
            id="a LEADER changes nothing in that",
        ),
        pytest.param(
            MINE,
            MEMORY,
            FOREIGN,
            Rejoin("the store was lost, and run foreign has begun there since", if_alive=True),
            id="another run's ROUND is not, if a node of it is alive",
        ),
        pytest.param(
            after_runs(MINE, ("older", "foreign")),
            MEMORY,
            FOREIGN,
            Settlement.RESUME,
            id="unless it came before this one",
        ),
        pytest.param(
            MINE,
            MEMORY,
            after_runs(FOREIGN, (MINE.head.run,)),
            Rejoin("the store was lost, and run foreign has begun there since"),
            id="and it came after this one for certain",
        ),
        pytest.param(
            MINE,
            MEMORY,
            of_run(then(live("cd"), SUCCESS, at=11.0), "foreign"),
            Settlement.RESUME,
            id="unless that is over",
        ),
        pytest.param(MINE, MEMORY, ONCE, Settlement.ADOPT, id="another survivor has resumed the run"),
        pytest.param(MINE, MEMORY, DECIDED, Settlement.ADOPT, id="and the run has gone on since"),
        pytest.param(MINE, MEMORY, resumed(RUN[2]), Settlement.RESUME, id="by one that knew less"),
        pytest.param(ONCE, told(ONCE), resumed(RUN[2]), Settlement.RESUME, id="after this node had resumed it"),
        pytest.param(
            ONCE,
            told(ONCE),
            resumed(MINE, entry_id="r2"),
            Settlement.ADOPT,
            id="two who resumed the same: the store's it is",
        ),
        pytest.param(
            MINE, MEMORY, resumed(DECIDED), Settlement.ADOPT, id="who was cut off for long knows less, not more"
        ),
        pytest.param(DECIDED, told(DECIDED), ONCE, Settlement.RESUME, id="a survivor that knew less has resumed it"),
        pytest.param(
            then(DECIDED, Round(number=6, offer=offer("b", 9), members=members("b")), at=61.0),
            told(DECIDED),
            then(resumed(RUN[2]), Halt(round=2, reason=HaltReason.FAILURE, why="b failed"), at=61.0),
            Settlement.ADOPT,
            id="and has decided since: two live rounds must not be",
        ),
        pytest.param(DECIDED, told(DECIDED), MINE, Settlement.RESUME, id="a copy from before the run was resumed"),
        pytest.param(
            MINE,
            told(*RUN[4:]),
            RUN[2],
            Settlement.RESUME,
            id="a copy from before this node came, which cannot put back the exact entries",
        ),
        pytest.param(
            MINE,
            told(*RUN[4:]),
            OUSTED,
            Settlement.ADOPT,
            id="unless a leader has decided there that this node never heard of",
        ),
        pytest.param(
            LED,
            told(LED),
            OUSTED,
            Settlement.ADOPT,
            id="be it at the same time as another that it has heard of",
        ),
        pytest.param(LED, told(LED), RUN[2], Settlement.RESUME, id="that there was an older leader shows nothing"),
        pytest.param(
            MINE,
            MEMORY,
            then(RUN[2], Halt(round=2, reason=HaltReason.FAILURE, why="b failed"), at=3.0),
            Settlement.ADOPT,
            id="what others have decided on an older copy stands",
        ),
        pytest.param(
            start(),
            told(start()),
            None,
            Rejoin("the store has lost the run before its first round"),
            id="a run without a round has nothing to lose",
        ),
        pytest.param(
            start(), told(start()), live("ab"), Settlement.ADOPT, id="nor has it when the run went on without it"
        ),
        pytest.param(
            start(),
            told(start()),
            FRESH,
            Rejoin("the store has lost the run before its first round"),
            id="two newcomers' runs: the store's it is",
        ),
    ],
)
def test_two_histories_are_settled(mine: Ledger, memory: Memory, theirs: Ledger | None, expected: Settlement) -> None:
    assert settle(mine, memory, theirs) == expected


def next_run(open_at: int) -> Ledger:
    """Another run, opened by this entry."""
    ledger = of_run(start(), "next")
    return replace(ledger, head=replace(ledger.head, index=open_at + 3, anchors=Anchors(open=open_at)))


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        pytest.param(MINE, True, id="the same"),
        pytest.param(LED, True, id="later entries"),
        pytest.param(RUN[4], False, id="an older history"),
        pytest.param(resumed(RUN[2]), True, id="a later epoch, however short"),
        pytest.param(next_run(7), True, id="another run that was opened after all that was read"),
        pytest.param(next_run(6), False, id="or in the place of what was read"),
    ],
)
def test_the_entries_of_a_store_with_tombstones_may_have_followed(theirs: Ledger, expected: bool) -> None:
    assert can_follow(MINE, theirs) is expected


def test_a_run_that_came_before_this_one_has_not_followed_it() -> None:
    """A copy of it came back, behind tombstones in the place of what was read."""
    earlier = next_run(7)
    assert not can_follow(after_runs(MINE, (earlier.head.run,)), earlier)


def test_survivors_settle_on_one_history_whoever_comes_first() -> None:
    """One that knew less resumes first; one that knew more outranks it; both end with the same."""
    first = resumed(RUN[3])
    assert settle(MINE, MEMORY, first) == Settlement.RESUME
    again = resumed(MINE, on=first.head.link, entry_id="r2")
    assert advance(first, again.head, 51.0).round == again.round
    for ledger, memory in ((RUN[3], told(*RUN[:4])), (MINE, MEMORY), (again, told(again))):
        assert settle(ledger, memory, again) == Settlement.ADOPT


@pytest.mark.parametrize(
    "ledger",
    [
        pytest.param(live("abc", settings(max_restarts=7)), id="live"),
        pytest.param(MINE, id="a round whose entry does not spell out its members"),
        pytest.param(halted("ab", HaltReason.FAILURE, blame=incident("b")), id="halted"),
    ],
)
def test_a_run_that_is_resumed_is_as_it_was(ledger: Ledger) -> None:
    after = resumed(ledger, on=Link(4, "x"))
    entry = decode_entry(encode_entry(after.head))
    assert entry == after.head
    assert (entry.index, entry.prev, entry.epoch, entry.leader, entry.author) == (5, "x", 1, "a", "b")
    assert entry.counters == ledger.counters
    assert isinstance(entry.body, Resume)
    assert entry.body.round.same_as == 0, "its members are spelled out"
    for now in (
        after,
        restore_ledger(entry, {entry.index: entry}, 50.0),
        advance(replace(ledger, head=before(entry)), entry, 50.0),
    ):
        assert now.round is not None
        assert ledger.round is not None
        assert now.round.members == ledger.round.members
        assert (now.round.number, now.round.offer, now.halt) == (ledger.round.number, ledger.round.offer, ledger.halt)
        assert (now.settings, now.head.run, now.is_live) == (ledger.settings, ledger.head.run, ledger.is_live)


DETAILED = replace(incident("b"), detail="Traceback")


@pytest.mark.parametrize(
    ("ledger", "lighter"),
    [
        pytest.param(live("ab"), None, id="live"),
        pytest.param(halted("ab", HaltReason.NODE_LEFT), None, id="a node left"),
        pytest.param(halted("ab", HaltReason.FAILURE, blame=DETAILED), replace(DETAILED, detail=""), id="halted"),
    ],
)
def test_a_resume_goes_without_what_only_messages_show_and_then_without_the_policies_memory(
    ledger: Ledger, lighter: Incident | None
) -> None:
    counters = Counters(restarts=2, barren=3, worst_seen=0.5, excluded=(Exclusion("id-host-c"),))
    resume = compose_resume(ledger, "lost")
    resume = replace(resume, round=replace(resume.round, hosts=("host-a", "host-b")))
    first, second, third = lighten(resume, counters)
    assert first == (resume, counters)
    halt = None if resume.halt is None else replace(resume.halt, incident=lighter)
    shown = replace(resume, halt=halt, round=replace(resume.round, hosts=()))
    assert [replace(body, why="lost") for body, _ in (second, third)] == [shown, shown]
    assert (second[1], third[1]) == (counters, replace(counters, excluded=()))
    assert second[0].why == (
        "lost; one entry is too small for all of the run's state, so it goes on without the traceback of the last "
        "failure and the names of the members' hosts"
    )
    assert third[0].why == f"{second[0].why}, and without the past failures, lost hosts and excluded hosts"


def before(entry: Entry) -> Entry:
    """An entry that ``entry`` may follow."""
    return replace(entry, index=entry.index - 1, id=entry.prev, epoch=0)


def test_a_resumed_run_goes_on_and_newcomers_find_it() -> None:
    ledger = resumed(halted("ab", HaltReason.NODE_LOST))
    after = then(ledger, Round(number=2, offer=offer("b"), members=members("b")), at=60.0)
    after = then(after, Round(number=3, offer=offer("b", 3), same_as=2), at=61.0)
    entries = {1: ledger.head, 2: decode_entry(encode_entry(then(ledger, after_body(2), at=60.0).head)), 3: after.head}
    found = restore_ledger(after.head, entries, 70.0)
    assert found.round is not None
    assert (found.round.number, found.round.members, found.head.epoch) == (3, members("b"), 1)
    assert found.settings == ledger.settings


def after_body(number: int) -> Round:
    return Round(number=number, offer=offer("b"), members=members("b"))


def test_a_run_that_another_one_resumes_over_is_told_so() -> None:
    fresh = of_run(start(), "fresh")
    entry = resumed(MINE, on=fresh.head.link).head
    with pytest.raises(HistoryChangedError, match="Run run1 goes on here; this node is in run fresh"):
        advance(fresh, entry, 51.0)


def test_a_resume_that_names_no_round_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to resume"):
        compose_resume(start(), "x")
    head = replace(then(ONCE, Halt(round=5, reason=HaltReason.FAILURE, why="x"), at=60.0).head)
    with pytest.raises(RendezvousStateError, match="which lead to another state"):
        restore_ledger(head, {head.index: head, 1: start().head}, 0.0)


def test_memory_has_an_end() -> None:
    memory = remember(told(RUN[0]), [ledger.head for ledger in RUN[1:]])
    assert memory == MEMORY
    assert len(remember(memory, [MINE.head] * ENTRIES_REMEMBERED)) == ENTRIES_REMEMBERED


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (0, "the store came back empty"),
        (5, "the store has lost its last entry"),
        (2, "the store has lost its last 4 entries"),
        (7, "the store came back without the run's history"),
    ],
)
def test_the_lost_entries_are_described(head: int, words: str) -> None:
    assert describe_loss(head, MINE) == words
