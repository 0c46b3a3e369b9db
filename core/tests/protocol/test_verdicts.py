"""The fields of a verdict besides its action: a delay of the next round (L11), and an exclusion that ends (L12)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_leader_edges import EXCLUDE, GIVE_UP, NOW, RESTART, outcome, running, stopped, view
from views import halted, incident, live, seen, settings, then, watch, with_counters

from elastic_core.incidents import Verdict
from elastic_core.protocol.entries import Counters, Exclusion, Halt, HaltReason, Leader, Plan, Round
from elastic_core.protocol.failure_detector import NodeView
from elastic_core.protocol.leader import decide
from elastic_core.protocol.leader_entries import Append, AskPolicies, LookAgain
from elastic_core.protocol.leader_view import Judgement, LeaderView
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.planned_stop import next_admission_at

BLAME = incident("b")
LATER = replace(RESTART, delay=8.0, reason="back-off")


def failed(age: float, *, names: str = "ab", min_nodes: int = 1) -> Ledger:
    """A run whose first round was halted ``age`` seconds before NOW."""
    return halted(names, HaltReason.FAILURE, settings(min_nodes), at=NOW - age, blame=BLAME)


def nodes_of(names: str = "ab") -> list[NodeView]:
    return [stopped(name, incident=BLAME if name == "b" else None) for name in names]


def judged(ledger: Ledger, verdict: Verdict, names: str = "ab") -> LeaderView:
    return view(ledger, *nodes_of(names), verdict=verdict)


# L11: a delay --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdict", "kind"),
    [(RESTART, Round), (LATER, Halt), (EXCLUDE, Halt), (GIVE_UP, Halt)],
    ids=["at once", "later", "without a host", "never"],
)
def test_a_verdict_with_a_delay_halts_the_broken_round_at_once(verdict: Verdict, kind: type) -> None:
    known = view(live("ab"), running("a"), running("b", incident=BLAME), verdict=verdict)
    decision = decide(known)
    assert isinstance(decision, Append)
    assert type(decision.body) is kind


def test_the_ledger_says_which_policy_allowed_a_restart_and_why() -> None:
    verdict = replace(RESTART, reason="restart 1 of budget=2/1h", policy="budget")
    at_once = decide(view(live("ab"), running("a"), running("b", incident=BLAME), verdict=verdict))
    after_a_halt = decide(judged(failed(0.5), verdict))
    for decision in (at_once, after_a_halt):
        assert isinstance(decision, Append)
        assert isinstance(decision.body, Round)
        assert decision.body.verdict == "budget: restart 1 of budget=2/1h"
    resized = decide(view(halted("ab", HaltReason.RESIZE), stopped("a"), stopped("b")))
    assert isinstance(resized, Append)
    assert isinstance(resized.body, Round)
    assert resized.body.verdict == "", "no policy was asked"
    without_b = decide(view(failed(0.5), stopped("a"), stopped("b", leaving=True), verdict=verdict))
    assert isinstance(without_b, Append)
    assert isinstance(without_b.body, Round)
    assert without_b.body.verdict == "", "a round without b spends no restart"


def test_a_verdict_without_a_delay_lets_the_round_begin_although_the_halt_was_read_after_the_rows() -> None:
    assert outcome(judged(failed(-0.1), RESTART)) == "ab"


def test_a_verdict_with_a_delay_puts_off_no_round_after_a_halt_that_workers_did_not_cause() -> None:
    assert outcome(judged(halted("ab", HaltReason.NODE_LEFT, at=NOW - 0.5), LATER)) == "ab"


@pytest.mark.parametrize(("age", "then_"), [(2.5, NOW + 5.5), (7.5, NOW + 0.5), (8.0, "ab"), (60.0, "ab")])
def test_the_next_round_waits_for_the_delay_since_the_halt(age: float, then_: object) -> None:
    decision = outcome(judged(failed(age), LATER))
    assert decision == (pytest.approx(then_) if isinstance(then_, float) else then_)


def test_people_are_told_of_the_delay_and_its_reason() -> None:
    decision = decide(judged(failed(3.0), LATER))
    assert isinstance(decision, LookAgain)
    assert decision.waiting == "the delay after the failure to pass (back-off), for up to 5 s"


def test_a_leader_that_takes_over_asks_again_and_counts_from_the_halt() -> None:
    ledger = then(failed(6.0), Leader(why="no heartbeat"), at=NOW, author="b")
    newcomer = replace(ledger, halt_at=NOW, head_at=NOW)  # read just now
    nodes = [stopped("a", head=4), stopped("b", head=4, incident=BLAME)]
    assert decide(view(newcomer, *nodes)) == AskPolicies(BLAME)
    assert outcome(view(newcomer, *nodes, verdict=LATER)) == pytest.approx(NOW + 2.0)


@pytest.mark.parametrize(
    "b",
    [stopped("b", changed=0.0), stopped("b", leaving=True)],
    ids=["lost", "leaving"],
)
def test_a_job_whose_workers_failed_because_a_node_went_away_does_not_wait(b: NodeView) -> None:
    assert outcome(view(failed(0.5), stopped("a"), b, verdict=LATER)) == "a"


def test_the_delay_passes_while_the_job_waits_for_nodes_too() -> None:
    ledger = failed(5.0, min_nodes=3)
    waits = decide(judged(ledger, LATER))
    assert isinstance(waits, LookAgain)
    assert waits.waiting.startswith("1 more node(s)")
    joined = view(ledger, *nodes_of(), seen("c", head=3), verdict=LATER)
    assert outcome(joined) == pytest.approx(NOW + 3.0)


# L12: an exclusion that ends -----------------------------------------------------------------------------------------


def excluded(known: LeaderView) -> tuple[Exclusion, ...]:
    decision = decide(known)
    assert isinstance(decision, Append)
    assert isinstance(decision.body, Round)
    return decision.counters.excluded


def test_a_host_is_excluded_until_an_age_of_the_run() -> None:
    known = judged(failed(0.5), replace(EXCLUDE, exclude_for=30.0))
    assert outcome(known) == "a"
    assert excluded(known) == (Exclusion("id-host-b", 130),)


@pytest.mark.parametrize(
    ("before", "span", "until"),
    [(None, 30.0, None), (120, None, None), (120, 30.0, 130), (500, 30.0, 500), (90, 5.0, 105)],
    ids=["for good", "from now on for good", "the later end", "its old end", "again"],
)
def test_a_host_that_is_excluded_twice_stays_out_until_the_later_end(
    before: int | None, span: float | None, until: int | None
) -> None:
    ledger = with_counters(failed(0.5), excluded=(Exclusion("id-host-b", before),))
    assert excluded(judged(ledger, replace(EXCLUDE, exclude_for=span))) == (Exclusion("id-host-b", until),)


def test_an_exclusion_that_is_over_is_forgotten() -> None:
    ledger = with_counters(failed(0.5), excluded=(Exclusion("x", 99), Exclusion("y", 101), Exclusion("z")))
    assert excluded(judged(ledger, RESTART)) == (Exclusion("y", 101), Exclusion("z"))


@pytest.mark.parametrize(("age", "bad"), [(9.9, {"x", "y"}), (10.0, {"y"})])
def test_a_host_is_bad_until_the_end_of_its_exclusion(age: float, bad: set[str]) -> None:
    assert Counters(excluded=(Exclusion("x", 10), Exclusion("y"))).bad_hosts(age) == bad


@pytest.mark.parametrize(
    ("until", "result"),
    [(130, NOW + 30.0), (100, "joins"), (None, None)],
    ids=["it looks again at the end", "the end has come", "never"],
)
def test_a_waiting_node_is_admitted_when_the_exclusion_of_its_host_ends(until: int | None, result: object) -> None:
    ledger = with_counters(live("a", settings(max_nodes=2)), excluded=(Exclusion("id-host-b", until),))
    known = LeaderView(ledger=ledger, watch=watch(running("a"), seen("b", head=2), now=NOW), now=NOW)
    decision = decide(known)
    if result == "joins":
        assert isinstance(decision, Append)
        assert isinstance(decision.body, Halt | Plan)
        assert decision.body.reason is HaltReason.RESIZE
    else:
        assert isinstance(decision, LookAgain)
        silence = NOW + ledger.settings.timing.lost_after
        assert decision.at == silence
        assert next_admission_at(known) == result


@pytest.mark.parametrize(("max_nodes", "at"), [(2, 103.0), (1, NOW + 6)], ids=["there is room", "the round is full"])
def test_a_leader_looks_at_the_end_of_an_exclusion_if_nothing_is_due_before(max_nodes: int, at: float) -> None:
    ledger = with_counters(live("a", settings(max_nodes=max_nodes)), excluded=(Exclusion("id-host-b", 103),))
    decision = decide(LeaderView(ledger=ledger, watch=watch(running("a"), seen("b", head=2), now=NOW), now=NOW))
    assert isinstance(decision, LookAgain)
    assert decision.at == pytest.approx(at)


def test_the_next_admission_is_that_of_the_first_host_with_a_node_that_waits() -> None:
    excluded = tuple(Exclusion(f"id-host-{name}", until) for name, until in (("b", 130), ("c", 120), ("d", 110)))
    ledger = with_counters(live("a", settings(max_nodes=2)), excluded=excluded)
    assert next_admission_at(view(ledger, running("a"), seen("b", head=2), seen("c", head=2))) == NOW + 20.0


def test_nodes_of_an_excluded_host_are_taken_where_the_others_are_too_few() -> None:
    ledger = failed(0.5, min_nodes=2)
    assert outcome(judged(ledger, replace(EXCLUDE, exclude_for=30.0))) == "ab"


def test_a_judgement_of_another_round_delays_nothing() -> None:
    known = replace(judged(failed(0.5), LATER), judgement=Judgement(round=2, verdict=LATER))
    assert decide(known) == AskPolicies(BLAME)
