"""Edges of the leader's rules, each of which a machine's mutant of ``decide`` or ``scene`` crossed unnoticed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from scenes import halted, incident, info, live, members, offer, seen, settings, start, then, watch

from elastic_core.config import OnNodeLoss
from elastic_core.incidents import Action, Incident, IncidentKind, Verdict
from elastic_core.rendezvous.decide import Append, Ask, LookAgain, decide
from elastic_core.rendezvous.ledger import Halt, HaltReason, Ledger, Round
from elastic_core.rendezvous.rows import Phase
from elastic_core.rendezvous.scene import Judgement, Scene
from elastic_core.rendezvous.watch import Sighting

NOW = 100.0
RESTART = Verdict(Action.RESTART, "restarts are left")
GIVE_UP = Verdict(Action.GIVE_UP, "no restart is left")
EXCLUDE = Verdict(Action.EXCLUDE_HOST, "its GPU fell off the bus")


def scene(ledger: Ledger, *nodes: Sighting, now: float = NOW, verdict: Verdict | None = None, **more: Any) -> Scene:
    if verdict is not None:
        more["judgement"] = Judgement(round=1, verdict=verdict)
    return Scene(ledger=ledger, watch=watch(*nodes, now=now), now=now, **more)


def outcome(known: Scene) -> Any:
    """The members of the ROUND, the entry, or when to look again."""
    decision = decide(known)
    if isinstance(decision, LookAgain):
        return decision.at
    if isinstance(decision, Append) and isinstance(decision.body, Round) and not decision.body.same_as:
        return "".join(member.node_id for member in decision.body.members)
    return decision.body if isinstance(decision, Append) else decision


def running(name: str, head: int = 2, **more: Any) -> Sighting:
    return seen(name, Phase.RUNNING, head=head, **more)


def stopped(name: str, head: int = 3, **more: Any) -> Sighting:
    return seen(name, Phase.STOPPED, head=head, **more)


def test_the_last_call_counts_from_the_newest_arrival() -> None:
    ledger = start(settings(min_nodes=1, max_nodes=3, last_call_timeout=1.5))
    assert outcome(scene(ledger, seen("a", arrived=NOW - 1.4), seen("b", arrived=NOW - 0.2))) == NOW + 1.3


def test_a_store_that_cannot_forget_needs_no_time_to_settle() -> None:
    ledger = start(settings(min_nodes=1, max_nodes=1))
    assert outcome(scene(ledger, seen("a", now=0.5), now=0.5)) == "a"


def test_ranks_that_were_given_by_hand_order_the_members_and_are_given_once() -> None:
    nodes = [seen(name, node=replace(info(name), node_rank=rank)) for name, rank in (("a", 1), ("b", 0), ("c", 1))]
    assert outcome(scene(start(settings(max_nodes=2)), *nodes)) == "ba"
    assert outcome(scene(start(settings(max_nodes=3)), *nodes)) == "ba"


@pytest.mark.parametrize(
    ("b", "worst"),
    [
        pytest.param({"seen_at": 11.002}, 1.0, id="it answered"),
        pytest.param({"seen_at": 40.0}, 2.0, id="no longer than what is judged sooner by beats"),
        pytest.param({"seen_at": 11.002, "arrived": 10.5}, 0.0, id="it came after the entry"),
        pytest.param({"seen_at": 11.002, "head": 1}, 0.0, id="it answered an older entry"),
    ],
)
def test_how_fast_a_member_answers_is_told_by_its_answer_to_the_newest_entry(b: dict[str, Any], worst: float) -> None:
    decision = decide(scene(live("ab"), running("a", changed=0.0), running("b", leaving=True, **b)))
    assert isinstance(decision, Append)
    assert decision.counters.worst_seen == pytest.approx(worst)


def test_an_answer_to_a_halt_counts_in_full() -> None:
    ledger = halted("a", HaltReason.NODE_LEFT, at=20.0)
    decision = decide(scene(ledger, stopped("a", seen_at=20.1234)))
    assert isinstance(decision, Append)
    assert decision.counters.worst_seen == 0.123


def test_nobody_is_waited_for_who_has_answered() -> None:
    assert outcome(scene(live("ab", at=NOW - 0.2), running("a"), running("b"))) == NOW + 6


def test_the_leader_looks_again_when_the_next_resize_may_begin() -> None:
    ledger = halted("a", HaltReason.RESIZE, at=NOW - 7)
    ledger = then(ledger, Round(number=2, offer=offer("a", 2), members=members("ab")), at=NOW - 5)
    now = NOW + 13
    nodes = [running(name, number=2, head=4, now=now, offer=offer(name, 3)) for name in "ab"]
    assert outcome(scene(ledger, *nodes, seen("c", head=4, now=now), now=now)) == NOW + 15


@pytest.mark.parametrize(
    "a",
    [
        pytest.param(seen("a", Phase.FINISHED, head=2, changed=0.0), id="finished and is lost"),
        pytest.param(seen("a", Phase.FINISHED, head=2, leaving=True), id="finished and leaves"),
        pytest.param(stopped("a", head=2), id="has fenced itself"),
    ],
)
def test_a_failed_round_is_halted_when_a_member(a: Sighting) -> None:
    found = outcome(scene(live("ab"), a, running("b", incident=incident("b")), verdict=RESTART))
    assert isinstance(found, Halt)
    assert found.reason is HaltReason.FAILURE


def test_a_failed_round_is_halted_to_leave_out_a_host() -> None:
    found = outcome(scene(live("ab"), running("a"), running("b", incident=incident("b")), verdict=EXCLUDE))
    assert isinstance(found, Halt)


def test_who_had_stopped_an_older_round_has_not_stopped_this_one() -> None:
    assert outcome(scene(live("ab"), running("a"), stopped("b", number=0, head=2))) == NOW + 6


def test_a_member_whose_row_the_store_lost_is_waited_for() -> None:
    known = scene(halted("ab", HaltReason.NODE_LEFT), stopped("a"))
    assert outcome(replace(known, watch=replace(known.watch, began_at=NOW - 1))) == NOW + 5


def test_a_newcomer_makes_up_for_a_member_that_is_suspected() -> None:
    ledger = halted("ab", HaltReason.UNSEEN, settings(min_nodes=2), at=NOW - 5)
    assert outcome(scene(ledger, stopped("a"), running("b", head=2), seen("c", head=3))) == "ac"


def test_a_member_that_the_job_cannot_do_without_is_waited_for_until_its_beat_stops() -> None:
    ledger = halted("ab", HaltReason.UNSEEN, settings(min_nodes=2), at=NOW - 5)
    decision = decide(scene(ledger, stopped("a"), running("b", head=2)))
    assert isinstance(decision, LookAgain)
    assert decision.waiting == ""


def test_who_is_waited_for_while_it_leaves_is_named() -> None:
    ledger = halted("a", HaltReason.NODE_LEFT, at=NOW - 5)
    decision = decide(scene(ledger, running("a", head=3, leaving=True), seen("c", head=3)))
    assert isinstance(decision, LookAgain)
    assert decision.waiting == "host-a to stop its workers"


def test_who_stopped_for_newcomers_has_no_more_of_them_than_there_is_room_for() -> None:
    ledger = halted("ab", HaltReason.RESIZE, settings(1, 2))
    assert outcome(scene(ledger, stopped("a"), stopped("b"), seen("c", head=3))) == "ab"


class TestFailures:
    def ledger(self, reason: HaltReason, blame: Incident, **more: Any) -> Ledger:
        return halted("ab", reason, settings(**more), at=NOW - 0.5, blame=blame)

    def test_of_a_halt_are_asked_about_by_a_leader_that_has_not_asked(self) -> None:
        blame = incident("b")
        nodes = [stopped("a"), stopped("b", incident=blame)]
        assert outcome(scene(self.ledger(HaltReason.FAILURE, blame), *nodes)) == Ask(blame)

    def test_of_workers_end_no_job_that_a_node_leaves_at_the_same_time(self) -> None:
        blame = incident("b")
        nodes = [stopped("a", leaving=True), stopped("b", incident=blame)]
        assert outcome(scene(self.ledger(HaltReason.GIVING_UP, blame), *nodes, verdict=GIVE_UP)) == "b"

    def test_a_lost_node_that_comes_back_is_none(self) -> None:
        blame = incident("b", kind=IncidentKind.NODE_LOST)
        assert outcome(scene(self.ledger(HaltReason.NODE_LOST, blame), stopped("a"), stopped("b"))) == "ab"

    def test_a_host_stays_that_the_job_cannot_do_without(self) -> None:
        blame = incident("b")
        nodes = [stopped("a"), stopped("b", incident=blame)]
        assert outcome(scene(self.ledger(HaltReason.FAILURE, blame, min_nodes=2), *nodes, verdict=EXCLUDE)) == "ab"

    def test_a_node_that_is_lost_after_it_finished_ends_no_job(self) -> None:
        blame = incident("b")
        nodes = [seen("a", Phase.FINISHED, head=2, changed=0.0), stopped("b", incident=blame)]
        ledger = self.ledger(HaltReason.FAILURE, blame, on_node_loss=OnNodeLoss.FAIL)
        assert outcome(scene(ledger, *nodes, verdict=RESTART)) == "b"


@pytest.mark.parametrize(
    ("a", "over"),
    [
        pytest.param(stopped("a", number=1, head=4, changed=0.0), False, id="it had stopped an older round"),
        pytest.param(running("a", number=2, head=4, changed=0.0, incident=incident("a")), False, id="an older failure"),
        pytest.param(
            seen("a", head=4, changed=0.0), False, id="it may have started since it read the HALT's forerunner"
        ),
        pytest.param(seen("a", head=5, changed=0.0), True, id="it has read the HALT and has no workers"),
        pytest.param(running("a", number=2, head=5, changed=0.0), False, id="it has read the HALT and has workers"),
        pytest.param(stopped("a", number=2, head=4, changed=0.0), True, id="it had stopped this round"),
    ],
)
def test_a_round_is_over_by_what_a_member_said_of_this_round(a: Sighting, over: bool) -> None:
    """S4: without such a proof nothing follows before the fence."""
    ledger = halted("ab", HaltReason.NODE_LEFT, settings(fence_after=200), at=5.0)
    ledger = then(ledger, Round(number=2, offer=offer("a", 2), members=members("ab")), at=6.0)
    ledger = then(ledger, Halt(round=2, reason=HaltReason.NODE_LOST, why="it was"), at=20.0)
    nodes = [a, running("b", number=2, head=4, changed=0.0), seen("c", head=5)]
    assert (outcome(scene(ledger, *nodes)) == "c") is over
