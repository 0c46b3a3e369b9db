"""The chain, and the state that follows from it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from views import RUN, entry, halted, live, members, offer, settings, start, then

from elastic_core.errors import RendezvousStateError
from elastic_core.protocol.entries import (
    Anchors,
    Body,
    Closed,
    Counters,
    Drain,
    Entry,
    Halt,
    HaltReason,
    Leader,
    Open,
    Over,
    Plan,
    Round,
    StopAt,
)
from elastic_core.protocol.ledger import (
    LastResize,
    Ledger,
    advance,
    compose,
    open_ledger,
    restore_ledger,
)
from elastic_core.protocol.repair import compose_resume
from elastic_core.rendezvous.backend import ORIGIN

CLOSED = Closed(success=True, why="done", exit_code=0)


def test_entries_are_chained_and_carry_elapsed_time_not_instants() -> None:
    ledger = live("ab", at=12.5)
    assert (ledger.head.prev, ledger.head.index, ledger.head.elapsed) == ("e1", 2, 12.5)
    first = start(at=7.0).head
    assert (first.elapsed, first.age, first.epoch, first.term) == (0.0, 0.0, 0, 1)


def test_durations_are_told_in_microseconds() -> None:
    ledger = then(halted("a", HaltReason.RESIZE, at=20.0), Leader(why="?"), at=20.12345678)
    assert (ledger.head.elapsed, ledger.head.since_halt, ledger.head.age) == (0.123457, 0.123457, 20.123457)


def test_a_leader_entry_raises_the_term_and_may_name_a_successor() -> None:
    ledger = live("ab")
    took = then(ledger, Leader(why="silent"), at=20.0, author="b")
    assert (took.leader, took.head.term) == ("b", 2)
    handed = then(ledger, Leader(why="leaves"), at=20.0, author="a", leader="b")
    assert (handed.leader, handed.head.author) == ("b", "a")


def test_an_entry_by_a_node_that_does_not_decide_is_refused_and_named() -> None:
    ledger = live("ab")
    for body, words in (
        (Round(number=2, offer=offer("b", 2), same_as=1), "Entry 3 is a ROUND by 'b', but 'a' decides"),
        (Halt(round=1, reason=HaltReason.RESIZE, why="planted"), "a HALT by 'b'"),
        (CLOSED, "a CLOSED by 'b'"),
        (Drain(nodes=("a",), why="planted"), "a DRAIN by 'b'"),
    ):
        planted = entry(ledger, body, at=20.0, author="b")
        with pytest.raises(RendezvousStateError, match=words):
            advance(ledger, planted, 20.0)


def test_only_a_leader_entry_changes_who_decides() -> None:
    ledger = live("ab")
    given = entry(ledger, CLOSED, at=20.0, author="a", leader="b")
    with pytest.raises(RendezvousStateError, match="Entry 3, which makes 'b' the one who decides, is a CLOSED by 'a'"):
        advance(ledger, given, 20.0)
    for_another = entry(ledger, Leader(why="planted"), at=20.0, author="b", leader="c")
    with pytest.raises(RendezvousStateError, match="which makes 'c' the one who decides, is a LEADER by 'b'"):
        advance(ledger, for_another, 20.0)


def test_a_newcomer_refuses_a_newest_entry_by_a_node_that_does_not_decide() -> None:
    ledger = live("ab")
    planted = entry(ledger, CLOSED, at=20.0, author="b", leader="a")
    with pytest.raises(RendezvousStateError, match="a CLOSED by 'b', but 'a' decides"):
        restore_ledger(planted, {}, 20.0)


def test_for_how_long_a_halt_has_stood_goes_along_from_entry_to_entry() -> None:
    ledger = halted("ab", HaltReason.NODE_LOST, at=20.0)
    assert (ledger.head.since_halt, ledger.halted_at) == (0.0, 20.0)
    ledger = then(ledger, Leader(why="no heartbeat"), at=27.0, author="b")
    ledger = then(ledger, Leader(why="no heartbeat"), at=36.5, author="c")
    assert (ledger.head.since_halt, ledger.halted_at) == (16.5, 20.0)
    late = replace(ledger, head_at=1000.0, halt_at=1000.0)  # a newcomer, by a clock of its own
    assert (late.halt_at, late.halted_at) == (1000.0, 983.5)
    lost = compose(ledger, compose_resume(ledger, "lost"), entry_id="r", author="b", now=40.5, store=ORIGIN)
    assert lost.since_halt == 20.5
    assert open_ledger(lost, 100.0).halted_at == 79.5
    sealed = then(ledger, Round(number=2, offer=offer("b"), members=members("bc")), at=40.0)
    assert then(sealed, Leader(why="no heartbeat"), at=50.0, author="b").head.since_halt == 0.0


def test_anchors_follow_from_the_bodies_of_entries_whatever_their_author_wrote() -> None:
    ledger = live("ab")
    planted = replace(entry(ledger, HALT_1, at=20.0), anchors=Anchors(open=2, plan=1, kept=2))
    after = advance(ledger, planted, 20.0).head.anchors
    assert after == Anchors(open=1, leader=1, round=2, latest=2, halt=3, kept=2)


def test_a_same_as_round_is_spelled_out() -> None:
    ledger = then(live("ab"), Round(number=2, offer=offer("a", 2), same_as=1), at=20.0)
    assert ledger.round is not None
    assert (ledger.round.members, ledger.head.anchors.round, ledger.head.anchors.latest) == (members("ab"), 2, 3)
    again = then(ledger, Round(number=3, offer=offer("a", 3), same_as=2), at=30.0).round
    assert again is not None
    assert again.group_ranks is ledger.round.group_ranks, "places are counted once, however often a round restarts"


def test_a_round_is_live_until_halted_or_closed() -> None:
    assert not start().is_live
    assert live("ab").is_live
    assert not halted("ab", HaltReason.RESIZE).is_live
    assert not then(live("ab"), CLOSED, at=20.0).is_live


def test_the_cost_of_a_resize_is_remembered() -> None:
    ledger = then(
        halted("a", HaltReason.RESIZE, at=20.0), Round(number=2, offer=offer("a"), members=members("ab")), at=20.4
    )
    last = ledger.last_resize
    assert last is not None
    assert (last.over_at, round(last.cost, 3)) == (20.4, 0.4)
    other = then(
        halted("a", HaltReason.NODE_LOST, at=20.0), Round(number=2, offer=offer("a"), members=members("a")), at=21
    )
    assert other.last_resize is None
    assert then(ledger, Round(number=3, offer=offer("a", 3), same_as=2), at=30.0).last_resize == last


def test_the_cost_of_a_resize_does_not_depend_on_when_it_is_read() -> None:
    """A node that was cut off, and becomes leader later, would keep newcomers out for ten times that long."""
    before = halted("a", HaltReason.RESIZE, at=20.0)
    drain = entry(before, Drain(nodes=("b",), why="asked"), at=20.3)
    sealed = entry(advance(before, drain, 20.3), Round(number=2, offer=offer("a"), members=members("ab")), at=20.4)
    late = advance(advance(before, drain, 35.0), sealed, 35.0)
    last = late.last_resize
    assert last is not None
    assert (last.over_at, round(last.cost, 3)) == (35.0, 0.4)


def test_a_resize_on_which_a_member_was_lost_cost_what_the_loss_did() -> None:
    ledger = halted("ab", HaltReason.RESIZE, at=20.0)
    ledger = then(ledger, Round(number=2, offer=offer("a", 2), members=members("ac")), at=620.0)
    assert ledger.last_resize == LastResize(620.0, 0.0)


def test_a_resize_on_which_the_leader_was_lost_cost_what_the_loss_did() -> None:
    ledger = then(halted("ab", HaltReason.RESIZE, at=20.0), Leader(why="silent"), at=27.0, author="b")
    ledger = then(ledger, Round(number=2, offer=offer("a", 2), members=members("abc")), at=45.0)
    assert ledger.last_resize == LastResize(45.0, 0.0)
    ledger = then(ledger, Halt(round=2, reason=HaltReason.RESIZE, why="d joins"), at=60.0)
    ledger = then(ledger, Round(number=3, offer=offer("a", 3), members=members("abcd")), at=62.0)
    assert ledger.last_resize == LastResize(62.0, 2.0), "there has been none on this one"


def test_a_resize_for_which_nobody_came_after_all_cost_what_it_took() -> None:
    ledger = halted("ab", HaltReason.RESIZE, at=20.0)
    ledger = then(ledger, Round(number=2, offer=offer("a", 2), members=members("ab")), at=22.0)
    assert ledger.last_resize == LastResize(22.0, 2.0)


def test_a_resize_in_which_the_run_was_resumed_cost_what_the_store_did() -> None:
    before = halted("ab", HaltReason.RESIZE, at=20.0)
    ledger = open_ledger(
        compose(before, compose_resume(before, "lost"), entry_id="r", author="a", now=25.0, store=ORIGIN), 25.0
    )
    ledger = then(ledger, Round(number=2, offer=offer("a", 2), members=members("abc")), at=27.0)
    assert ledger.last_resize == LastResize(27.0, 0.0)


def test_a_newcomer_counts_no_more_of_a_resize_than_it_has_seen() -> None:
    """It cannot know whether it would have been cut off before (L4)."""
    ledger = halted("ab", HaltReason.RESIZE, at=20.0)
    ledger = then(ledger, Drain(nodes=("c",), why="asked"), at=50.0)
    entries = {1: start().head, 2: live("ab").head, 3: halted("ab", HaltReason.RESIZE, at=20.0).head}
    late = restore_ledger(ledger.head, entries, 1000.0)
    sealed = entry(ledger, Round(number=2, offer=offer("a", 2), members=members("abc")), at=51.0)
    assert advance(late, sealed, 1001.5).last_resize == LastResize(1001.5, 1.5)


def broken(ledger: Ledger, **change: object) -> Entry:
    return replace(entry(ledger, Leader(why="?"), at=20.0), **change)  # type: ignore[arg-type]  # deliberately wrong values too


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("another branch", {"prev": "e9"}),
        ("a gap", {"index": 7}),
        ("a term that fell", {"term": 0}),
        ("another run", {"run": "run9"}),
        ("an unknown round", {"body": Round(number=9, offer=offer("a"), same_as=8)}),
        ("a run opened over a running one", {"body": Open(scheduler_uid=None, settings=settings())}),
    ],
)
def test_an_entry_that_does_not_follow_is_refused(what: str, change: dict[str, object]) -> None:
    ledger = live("ab")
    with pytest.raises(RendezvousStateError):
        advance(ledger, broken(ledger, **change), 20.0)


@pytest.mark.parametrize(
    ("ledger", "body", "words"),
    [
        (start(), Plan(round=1, reason=HaltReason.RESIZE, why="x", deadline=5.0), "a PLAN, but no round is live"),
        (
            halted("a", HaltReason.FAILURE),
            Plan(round=1, reason=HaltReason.RESIZE, why="x", deadline=5.0),
            "a PLAN, but",
        ),
        (live("a"), StopAt(round=1, step=7), "a STOP_AT, but no round is live that it is for"),
        (start(), Round(number=2, offer=offer("a"), same_as=1), "the same as round 1, but the newest known is none"),
        (live("a"), Round(number=8, offer=offer("a"), same_as=7), "the same as round 7, but the newest known is 1"),
    ],
)
def test_an_entry_about_a_round_that_is_not_there_is_refused(ledger: Ledger, body: Body, words: str) -> None:
    with pytest.raises(RendezvousStateError, match=words):
        advance(ledger, entry(ledger, body, at=20.0), 20.0)


@pytest.mark.parametrize("deadline", [0.0, -1.0])
def test_a_plan_without_time_is_none(deadline: float) -> None:
    assert replace(PLAN, deadline=0.5).deadline == 0.5
    with pytest.raises(ValueError, match="the deadline of a plan is"):
        replace(PLAN, deadline=deadline)


def test_no_run_begins_with_another_entry() -> None:
    with pytest.raises(RendezvousStateError, match="Entry 2 should open a run; it is a ROUND"):
        open_ledger(live("a").head, 20.0)


def test_nothing_follows_closed_but_another_runs_open() -> None:
    ledger = then(then(live("ab"), HALT_1, at=12.0), CLOSED, at=20.0)
    with pytest.raises(RendezvousStateError, match="is closed"):
        advance(ledger, broken(ledger), 20.0)
    following = compose(
        ledger, Open(scheduler_uid="s2", settings=settings()), entry_id="e4", author="z", now=30.0, run="run2"
    )
    assert (following.term, following.counters, following.prev) == (1, Counters(), ledger.head.id)
    assert (following.since_halt, following.age, following.epoch) == (0.0, 0.0, 0)
    fresh = advance(ledger, following, 30.0)
    assert (fresh.round, fresh.closed, fresh.opened.scheduler_uid, fresh.leader) == (None, None, "s2", "z")


ROUND_2 = Round(number=2, offer=offer("a", 2), same_as=1, charged=True)
HALT_1 = Halt(round=1, reason=HaltReason.FAILURE, why="x")
PLAN = Plan(round=1, reason=HaltReason.RESIZE, why="x", deadline=5.0)
STOP_AT = StopAt(round=1, step=7, leaving=False)
HALT_2 = Halt(round=2, reason=HaltReason.FAILURE, why="x")


@pytest.mark.parametrize(
    ("bodies", "anchors"),
    [
        pytest.param((PLAN, STOP_AT), {"plan": 3, "stop_at": 4}, id="a stop at a step"),
        pytest.param((PLAN, STOP_AT, PLAN), {"plan": 5}, id="another plan, whose step is not known yet"),
        pytest.param((PLAN, STOP_AT, HALT_1), {"halt": 5}, id="a halt"),
        pytest.param((HALT_1, ROUND_2), {"latest": 4}, id="a round"),
        pytest.param((PLAN, STOP_AT, CLOSED), {"halt": 5}, id="the end"),
        pytest.param((HALT_1, Over(round=1), CLOSED), {"halt": 5}, id="the end after a halt"),
    ],
)
def test_an_entry_stands_on_no_entry_that_it_overrides(bodies: tuple[Body, ...], anchors: dict[str, int]) -> None:
    ledger = live("ab")
    for body in bodies:
        ledger = then(ledger, body, at=20.0)
    assert ledger.head.anchors == replace(Anchors(open=1, leader=1, round=2, latest=2), **anchors)


@pytest.mark.parametrize(
    "bodies",
    [
        [],
        [Leader(why="x")],
        [Round(number=1, offer=offer("a"), members=members("ab"))],
        [Round(number=1, offer=offer("a"), members=members("ab")), Leader(why="x")],
        [Round(number=1, offer=offer("a"), members=members("ab")), ROUND_2, HALT_2],
        [Round(number=1, offer=offer("a"), members=members("ab")), ROUND_2, HALT_2, Leader(why="x")],
        [Round(number=1, offer=offer("a"), members=members("ab")), CLOSED],
        [Round(number=1, offer=offer("a"), members=members("ab")), PLAN],
        [Round(number=1, offer=offer("a"), members=members("ab")), PLAN, STOP_AT],
        [Round(number=1, offer=offer("a"), members=members("ab")), PLAN, STOP_AT, Leader(why="x")],
        [Round(number=1, offer=offer("a"), members=members("ab")), PLAN, STOP_AT, HALT_1],
        [Round(number=1, offer=offer("a"), members=members("ab")), PLAN, STOP_AT, ROUND_2],
        [Round(number=1, offer=offer("a"), members=members("ab")), PLAN, STOP_AT, PLAN],
        [Round(number=1, offer=offer("a"), members=members("ab")), HALT_1, ROUND_2],
    ],
)
def test_a_newcomer_knows_the_same_from_the_newest_entry_and_its_anchors(bodies: list[Body]) -> None:
    ledger = start(uid="s1")
    entries = {1: ledger.head}
    for body in bodies:
        entries[ledger.head.index + 1] = entry(ledger, body, at=5.0)
        ledger = then(ledger, body, at=5.0)
    at = ledger.head.anchors
    needed = {i: entries[i] for i in (at.open, at.leader, at.round, at.latest, at.halt, at.plan, at.stop_at) if i}
    new = restore_ledger(ledger.head, needed, 5.0)
    assert (new.head, new.round, new.halt, new.closed) == (ledger.head, ledger.round, ledger.halt, ledger.closed)
    assert (new.settings, new.opened.scheduler_uid, new.leader, new.is_live) == (
        ledger.settings,
        "s1",
        ledger.leader,
        ledger.is_live,
    )
    assert new.planned_stop == (ledger.planned_stop and replace(ledger.planned_stop, read_at=5.0))
    assert new.round_at == (0.0 if ledger.round is None else 5.0)
    assert new.head.run == RUN


@pytest.mark.parametrize("bodies", [[], [PLAN], [PLAN, STOP_AT], [HALT_1]])
def test_a_newcomer_knows_what_a_resumed_run_goes_on_with(bodies: list[Body]) -> None:
    mine = live("ab")
    for body in bodies:
        mine = then(mine, body, at=20.0)
    head = compose(None, compose_resume(mine, "lost"), entry_id="r1", author="a", now=30.0, run=RUN)
    resumed = open_ledger(head, 30.0)
    assert resumed.halt == mine.halt
    assert resumed.planned_stop == (mine.planned_stop and replace(mine.planned_stop, read_at=30.0))
    assert (resumed.round_at, resumed.last_resize) == (30.0, LastResize(30.0))
    assert resumed.halt is None or resumed.halt_at == 30.0
    halted = then(resumed, HALT_1, at=30.0)
    sealed = then(resumed, Round(number=2, offer=offer("a", 2), same_as=1), at=30.0)
    for ledger in (resumed, then(resumed, Leader(why="x"), at=30.0), halted, sealed):
        new = restore_ledger(ledger.head, {head.index: head, ledger.head.index: ledger.head}, 30.0)
        for what in ("round", "round_at", "halt", "planned_stop", "is_live"):
            assert getattr(new, what) == getattr(ledger, what), what
        if ledger.halt is not None:
            assert new.halt_at == 30.0
        assert new.last_resize == LastResize(30.0)


def test_a_newcomer_knows_a_run_that_was_just_opened_from_its_open_alone() -> None:
    assert restore_ledger(start().head, {}, 5.0) == replace(start(), opened_at=5.0, head_at=5.0)


def test_a_newcomer_refuses_a_plan_that_is_none() -> None:
    ledger = then(then(live("ab"), PLAN, at=20.0), Leader(why="silent"), at=20.0, author="b")
    entries = {1: start().head, 2: live("ab").head, 3: start().head}
    with pytest.raises(RendezvousStateError, match=r"stands on entries \[1, 2, 3\], which lead to another state"):
        restore_ledger(ledger.head, entries, 20.0)
    del entries[3]
    with pytest.raises(RendezvousStateError, match="stands on 3, which is missing"):
        restore_ledger(ledger.head, entries, 21.0)


def test_a_newcomer_takes_from_the_newest_entry_where_the_tombstones_end() -> None:
    ledger = then(live("ab"), Leader(why="silent"), at=20.0, author="b", kept=2)
    ledger = then(ledger, Leader(why="silent"), at=21.0, author="a")
    assert ledger.head.anchors.kept == 2
    assert restore_ledger(ledger.head, {1: start().head, 2: live("ab").head}, 22.0).head == ledger.head


def test_a_newcomer_takes_the_last_resize_for_just_now() -> None:
    """L4: should it become leader at once, resizes stay batched all the same."""
    ledger = live("ab")
    assert restore_ledger(ledger.head, {1: start().head, 2: ledger.head}, 5.0).last_resize == LastResize(5.0)
    assert restore_ledger(start().head, {1: start().head}, 5.0).last_resize is None


def test_a_newcomer_refuses_a_history_with_holes() -> None:
    ledger = halted("ab", HaltReason.RESIZE)
    with pytest.raises(RendezvousStateError, match="stands on 2, which is missing"):
        restore_ledger(ledger.head, {ledger.head.index: ledger.head, 1: start().head}, 0.0)
    with pytest.raises(RendezvousStateError, match="Entry 2 should open a run; it is a ROUND"):
        restore_ledger(ledger.head, {1: live("ab").head, 2: live("ab").head}, 0.0)
