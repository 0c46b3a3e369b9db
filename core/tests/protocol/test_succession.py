"""The choice of the leader, and its time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from views import live, start, then, with_counters

from elastic_core.protocol.entries import Leader
from elastic_core.protocol.failure_detector import LeaderSigns, succession_place, takeover_at
from elastic_core.protocol.repair import compose_resume


@pytest.mark.parametrize(("node", "place"), [("a", 0), ("c", 0), ("b", 1), ("x", 2), ("y", 3), ("stranger", 4)])
def test_members_stand_in_rank_order_then_the_others_in_order_of_arrival(node: str, place: int) -> None:
    assert succession_place(live("acb"), ["x", "b", "a", "c", "y"], node) == place


def test_before_the_first_round_they_stand_in_order_of_arrival() -> None:
    assert succession_place(start(), ["c", "a", "b"], "b") == 1


def test_a_silent_leader_is_given_the_heartbeat_limit_and_each_successor_its_turn() -> None:
    signs = LeaderSigns(heartbeat_changed_at=50.0)
    assert [takeover_at(live("abc"), signs, place) for place in (0, 1)] == [56.0, 56.5]


def test_an_unanswered_incident_is_the_faster_sign() -> None:
    signs = LeaderSigns(heartbeat_changed_at=50.0, reported_at=51.0)
    assert takeover_at(live("abc"), signs, 0) == 52.0
    assert takeover_at(with_counters(live("abc"), worst_seen=1.0), signs, 1) == 54.5


def test_an_incident_does_not_depose_a_leader_that_took_office_after_it() -> None:
    ledger = then(live("abc"), Leader(why="a is gone"), at=51.8, author="b")
    assert takeover_at(ledger, LeaderSigns(heartbeat_changed_at=51.9, reported_at=51.0), 0) == 52.8


@pytest.mark.parametrize("reported_at", [50.5, 53.0])
def test_a_leader_that_may_have_been_cut_off_has_a_full_period_to_answer(reported_at: float) -> None:
    signs = LeaderSigns(heartbeat_changed_at=55.0, reported_at=reported_at, gap_at=51.0)
    assert takeover_at(live("abc"), signs, 0) == 57.0


@pytest.mark.parametrize(("reported_at", "due"), [(51.5, 57.0), (80.0, 81.0)])
def test_a_leader_that_has_just_resumed_the_run_waits_for_who_learns_of_it(reported_at: float, due: float) -> None:
    ledger = live("abc")
    ledger = replace(ledger, head=replace(ledger.head, body=compose_resume(ledger, "it was lost")), head_at=51.0)
    assert takeover_at(ledger, LeaderSigns(heartbeat_changed_at=80.0, reported_at=reported_at), 0) == due
