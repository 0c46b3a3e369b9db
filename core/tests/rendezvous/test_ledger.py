"""The chain, and the state that follows from it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scenes import RUN, entry, halted, live, members, offer, settings, start, then

from elastic_core.errors import RendezvousStateError
from elastic_core.rendezvous.ledger import (
    Body,
    Chair,
    Closed,
    Counters,
    Drain,
    Entry,
    Halt,
    HaltReason,
    Ledger,
    Open,
    Round,
    advance,
    compose,
    restored,
)

CLOSED = Closed(success=True, why="done", exit_code=0)


def test_entries_are_chained_and_carry_elapsed_time_not_instants() -> None:
    ledger = live("ab", at=12.5)
    assert (ledger.head.prev, ledger.head.index, ledger.head.elapsed) == ("e1", 2, 12.5)


def test_a_chair_entry_raises_the_term_and_may_name_a_successor() -> None:
    ledger = live("ab")
    took = then(ledger, Chair(why="silent"), at=20.0, author="b")
    assert (took.chair, took.head.term) == ("b", 2)
    handed = then(ledger, Chair(why="leaves"), at=20.0, author="a", chair="b")
    assert (handed.chair, handed.head.author) == ("b", "a")


def test_a_same_as_round_is_spelled_out() -> None:
    ledger = then(live("ab"), Round(number=2, offer=offer("a", 2), same_as=1), at=20.0)
    assert ledger.round is not None
    assert (ledger.round.members, ledger.head.anchors.round, ledger.head.anchors.latest) == (members("ab"), 2, 3)


def test_a_round_is_live_until_halted_or_closed() -> None:
    assert live("ab").live
    assert not halted("ab", HaltReason.RESIZE).live
    assert not then(live("ab"), CLOSED, at=20.0).live


def test_the_cost_of_a_resize_is_remembered() -> None:
    ledger = then(
        halted("a", HaltReason.RESIZE, at=20.0), Round(number=2, offer=offer("a"), members=members("ab")), at=20.4
    )
    assert (ledger.resized_at, round(ledger.resize_cost, 3)) == (20.4, 0.4)
    other = then(
        halted("a", HaltReason.NODE_LOST, at=20.0), Round(number=2, offer=offer("a"), members=members("a")), at=21
    )
    assert other.resized_at is None


def test_what_a_resize_cost_does_not_depend_on_when_it_is_read() -> None:
    """A node that was cut off, and becomes chair later, would keep newcomers out for ten times that long."""
    before = halted("a", HaltReason.RESIZE, at=20.0)
    drain = entry(before, Drain(nodes=("b",), why="asked"), at=20.3)
    sealed = entry(advance(before, drain, 20.3), Round(number=2, offer=offer("a"), members=members("ab")), at=20.4)
    late = advance(advance(before, drain, 35.0), sealed, 35.0)
    assert (late.resized_at, round(late.resize_cost, 3)) == (35.0, 0.4)


def test_a_resize_on_which_a_member_was_lost_cost_what_the_loss_did() -> None:
    ledger = halted("ab", HaltReason.RESIZE, at=20.0)
    ledger = then(ledger, Round(number=2, offer=offer("a", 2), members=members("ac")), at=620.0)
    assert (ledger.resized_at, ledger.resize_cost) == (620.0, 0.0)


def test_a_resize_on_which_the_chair_was_lost_cost_what_the_loss_did() -> None:
    ledger = then(halted("ab", HaltReason.RESIZE, at=20.0), Chair(why="silent"), at=27.0, author="b")
    ledger = then(ledger, Round(number=2, offer=offer("a", 2), members=members("abc")), at=45.0)
    assert (ledger.resized_at, ledger.resize_cost) == (45.0, 0.0)
    ledger = then(ledger, Halt(round=2, reason=HaltReason.RESIZE, why="d joins"), at=60.0)
    ledger = then(ledger, Round(number=3, offer=offer("a", 3), members=members("abcd")), at=62.0)
    assert (ledger.resized_at, ledger.resize_cost) == (62.0, 2.0), "there has been none on this one"


def broken(ledger: Ledger, **change: object) -> Entry:
    return replace(entry(ledger, Chair(why="?"), at=20.0), **change)  # type: ignore[arg-type]  # deliberately wrong values too


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


def test_nothing_follows_closed_but_another_runs_open() -> None:
    ledger = then(live("ab"), CLOSED, at=20.0)
    with pytest.raises(RendezvousStateError, match="is closed"):
        advance(ledger, broken(ledger), 20.0)
    following = compose(
        ledger, Open(scheduler_uid="s2", settings=settings()), entry_id="e4", author="z", now=30.0, run="run2"
    )
    assert (following.term, following.counters, following.prev) == (1, Counters(), ledger.head.id)
    fresh = advance(ledger, following, 30.0)
    assert (fresh.round, fresh.closed, fresh.scheduler_uid, fresh.chair) == (None, None, "s2", "z")


ROUND_2 = Round(number=2, offer=offer("a", 2), same_as=1, charged=True)
HALT_2 = Halt(round=2, reason=HaltReason.FAILURE, why="x")


@pytest.mark.parametrize(
    "bodies",
    [
        [],
        [Chair(why="x")],
        [Round(number=1, offer=offer("a"), members=members("ab"))],
        [Round(number=1, offer=offer("a"), members=members("ab")), Chair(why="x")],
        [Round(number=1, offer=offer("a"), members=members("ab")), ROUND_2, HALT_2],
        [Round(number=1, offer=offer("a"), members=members("ab")), ROUND_2, HALT_2, Chair(why="x")],
        [Round(number=1, offer=offer("a"), members=members("ab")), CLOSED],
    ],
)
def test_a_newcomer_knows_the_same_from_the_newest_entry_and_its_anchors(bodies: list[Body]) -> None:
    ledger = start(uid="s1")
    entries = {1: ledger.head}
    for body in bodies:
        entries[ledger.head.index + 1] = entry(ledger, body, at=5.0)
        ledger = then(ledger, body, at=5.0)
    at = ledger.head.anchors
    needed = {i: entries[i] for i in (at.open, at.chair, at.round, at.latest, at.halt) if i}
    new = restored(ledger.head, needed, 5.0)
    assert (new.head, new.round, new.halt, new.closed) == (ledger.head, ledger.round, ledger.halt, ledger.closed)
    assert (new.settings, new.scheduler_uid, new.chair, new.live) == (ledger.settings, "s1", ledger.chair, ledger.live)
    assert new.head.run == RUN


def test_a_newcomer_takes_the_last_resize_for_just_now() -> None:
    """L4: should it become chair at once, resizes stay batched all the same."""
    ledger = live("ab")
    assert restored(ledger.head, {1: start().head, 2: ledger.head}, 5.0).resized_at == 5.0
    assert restored(start().head, {1: start().head}, 5.0).resized_at is None


def test_a_newcomer_refuses_a_history_with_holes() -> None:
    ledger = halted("ab", HaltReason.RESIZE)
    with pytest.raises(RendezvousStateError, match="which is not a"):
        restored(ledger.head, {ledger.head.index: ledger.head, 1: start().head}, 0.0)
