"""Edges of the leader's rules, each of which a machine's mutant of ``decide`` or ``view`` crossed unnoticed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from views import halted, incident, info, live, members, offer, seen, settings, start, then, watch, with_counters

from elastic_core.config.parse import OnNodeLoss
from elastic_core.exit_codes import ExitCode
from elastic_core.incidents import Action, Incident, IncidentKind, Verdict
from elastic_core.protocol.entries import Closed, Halt, HaltReason, HostLosses, Leader, Plan, Round, StopAt
from elastic_core.protocol.failure_detector import NodeView
from elastic_core.protocol.leader import decide
from elastic_core.protocol.leader_entries import Append, AskPolicies, LookAgain
from elastic_core.protocol.leader_view import Judgement, LeaderView
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.roster import Phase

NOW = 100.0
RESTART = Verdict(Action.RESTART, "restarts are left")
GIVE_UP = Verdict(Action.GIVE_UP, "no restart is left")
EXCLUDE = Verdict(Action.EXCLUDE_HOST, "its GPU fell off the bus")


def view(ledger: Ledger, *nodes: NodeView, now: float = NOW, verdict: Verdict | None = None, **more: Any) -> LeaderView:
    if verdict is not None:
        more["judgement"] = Judgement(round=1, verdict=verdict)
    return LeaderView(ledger=ledger, watch=watch(*nodes, now=now), now=now, **more)


def outcome(known: LeaderView) -> Any:
    """The members of the ROUND, the entry, or when to look again."""
    decision = decide(known)
    if isinstance(decision, LookAgain):
        return decision.at
    if isinstance(decision, Append) and isinstance(decision.body, Round) and not decision.body.same_as:
        return "".join(member.node_id for member in decision.body.members)
    return decision.body if isinstance(decision, Append) else decision


def began(known: LeaderView, at: float) -> LeaderView:
    """The same, by a leader that first looked at the nodes at this instant."""
    return replace(known, watch=replace(known.watch, began_at=at))


def running(name: str, head: int = 2, **more: Any) -> NodeView:
    return seen(name, Phase.RUNNING, head=head, **more)


def stopped(name: str, head: int = 3, **more: Any) -> NodeView:
    return seen(name, Phase.STOPPED, head=head, **more)


def test_the_last_call_counts_from_the_newest_arrival() -> None:
    ledger = start(settings(min_nodes=1, max_nodes=3, last_call_timeout=1.5))
    assert outcome(view(ledger, seen("a", arrived=NOW - 1.4), seen("b", arrived=NOW - 0.2))) == NOW + 1.3


def test_a_store_that_cannot_forget_needs_no_time_to_settle() -> None:
    ledger = start(settings(min_nodes=1, max_nodes=1))
    assert outcome(view(ledger, seen("a", now=0.5), now=0.5)) == "a"


def test_ranks_that_were_given_by_hand_order_the_members_and_are_given_once() -> None:
    nodes = [seen(name, node=replace(info(name), node_rank=rank)) for name, rank in (("a", 1), ("b", 0), ("c", 1))]
    assert outcome(view(start(settings(max_nodes=2)), *nodes)) == "ba"
    assert outcome(view(start(settings(max_nodes=3)), *nodes)) == "ba"


@pytest.mark.parametrize(
    ("b", "worst"),
    [
        pytest.param({"seen_at": 11.002}, 1.0, id="it answered"),
        pytest.param({"seen_at": 40.0}, 2.0, id="no longer than what is judged sooner by heartbeats"),
        pytest.param({"seen_at": 11.002, "arrived": 10.5}, 0.0, id="it came after the entry"),
        pytest.param({"seen_at": 11.002, "arrived": 10.0}, 1.0, id="it was there when the entry came"),
        pytest.param({"seen_at": 11.002, "head": 1}, 0.0, id="it answered an older entry"),
    ],
)
def test_how_fast_a_member_answers_is_told_by_its_answer_to_the_newest_entry(b: dict[str, Any], worst: float) -> None:
    decision = decide(view(live("ab"), running("a", changed=0.0), running("b", leaving=True, **b)))
    assert isinstance(decision, Append)
    assert decision.counters.worst_seen == pytest.approx(worst)


@pytest.mark.parametrize(("gap_at", "worst"), [(9.9, 1.0), (10.0, 0.0)])
def test_a_leader_that_read_an_entry_late_does_not_know_how_fast_members_answered_it(
    gap_at: float, worst: float
) -> None:
    known = view(live("ab"), running("a", seen_at=11.002), running("b", leaving=True))
    decision = decide(replace(known, watch=replace(known.watch, gap_at=gap_at)))
    assert isinstance(decision, Append)
    assert decision.counters.worst_seen == pytest.approx(worst)


def test_no_node_has_to_answer_a_change_of_the_leader() -> None:
    ledger = then(live("ab"), Leader(why="no heartbeat"), at=20.0, author="b")
    decision = decide(view(ledger, running("a", head=3, seen_at=25.0), running("b", head=3, leaving=True)))
    assert isinstance(decision, Append)
    assert decision.counters.worst_seen == 0.0


def test_an_answer_to_a_halt_counts_in_full() -> None:
    ledger = halted("a", HaltReason.NODE_LEFT, at=20.0)
    decision = decide(view(ledger, stopped("a", seen_at=20.1234)))
    assert isinstance(decision, Append)
    assert decision.counters.worst_seen == 0.123


def test_the_leader_waits_for_no_node_that_has_answered() -> None:
    assert outcome(view(live("ab", at=NOW - 0.2), running("a"), running("b"))) == NOW + 6


@pytest.mark.parametrize(
    ("gap_at", "again"),
    [
        pytest.param(NOW - 7.1, NOW + 15, id="ten times what the last one cost"),
        pytest.param(NOW - 7, NOW + 5, id="whose cost a leader that read its HALT late does not know"),
    ],
)
def test_the_leader_looks_again_when_the_next_resize_may_begin(gap_at: float, again: float) -> None:
    ledger = halted("a", HaltReason.RESIZE, at=NOW - 7)
    ledger = then(ledger, Round(number=2, offer=offer("a", 2), members=members("ab")), at=NOW - 5)
    now = again - 2
    nodes = [running(name, number=2, head=4, now=now, offer=offer(name, 3)) for name in "ab"]
    known = view(ledger, *nodes, seen("c", head=4, now=now), now=now)
    assert outcome(replace(known, watch=replace(known.watch, gap_at=gap_at))) == again


@pytest.mark.parametrize(
    "a",
    [
        pytest.param(seen("a", Phase.FINISHED, head=2, changed=0.0), id="finished and is lost"),
        pytest.param(seen("a", Phase.FINISHED, head=2, leaving=True), id="finished and leaves"),
        pytest.param(stopped("a", head=2), id="has fenced itself"),
    ],
)
def test_a_failed_round_is_halted_when_a_member(a: NodeView) -> None:
    found = outcome(view(live("ab"), a, running("b", incident=incident("b")), verdict=RESTART))
    assert isinstance(found, Halt)
    assert found.reason is HaltReason.FAILURE


def test_a_failed_round_is_halted_when_a_member_leaves_as_planned() -> None:
    ledger = then(live("ab"), Plan(round=1, reason=HaltReason.NODE_LEFT, why="b leaves", deadline=300.0), at=NOW - 1)
    nodes = [running("a", head=3, incident=incident("a")), running("b", head=3, leaving=True, grace=30.0)]
    found = outcome(view(ledger, *nodes, verdict=RESTART))
    assert isinstance(found, Halt)
    assert found.reason is HaltReason.FAILURE


def test_a_failed_round_is_halted_to_leave_out_a_host() -> None:
    found = outcome(view(live("ab"), running("a"), running("b", incident=incident("b")), verdict=EXCLUDE))
    assert isinstance(found, Halt)


def test_a_node_that_had_stopped_an_older_round_has_not_stopped_this_one() -> None:
    assert outcome(view(live("ab"), running("a"), stopped("b", number=0, head=2))) == NOW + 6


def test_a_member_whose_row_the_store_lost_is_waited_for() -> None:
    assert outcome(began(view(halted("ab", HaltReason.NODE_LEFT), stopped("a")), NOW - 1)) == NOW + 5
    assert outcome(began(view(live("ab"), running("a")), NOW - 1)) == NOW + 5
    assert outcome(began(view(live("ab"), running("a"), running("b")), NOW - 1)) == NOW + 6, "all are there"


def test_a_member_whose_row_is_an_older_one_is_not_suspected() -> None:
    """The store has gone back to a copy of itself; what the member has said since will be there again."""
    older = replace(seen("b", head=1, changed=NOW - 2), listed=False)
    assert outcome(view(live("ab", at=NOW - 5), running("a"), older)) == NOW + 4


def test_only_an_answer_to_the_newest_entry_shows_that_others_still_answer() -> None:
    """The row of b was entered or renewed just now, and does not show that it saw the round."""
    nodes = [running("a", seen_at=NOW - 5), seen("b", head=1, seen_at=NOW - 0.2)]
    found = outcome(view(live("ab", at=NOW - 5), *nodes))
    assert isinstance(found, Halt)
    assert found.reason is HaltReason.UNSEEN


def test_a_node_that_leaves_as_planned_need_not_show_that_it_saw_the_round() -> None:
    plan = Plan(round=1, reason=HaltReason.NODE_LEFT, why="host-b leaves", deadline=300.0)
    ledger = then(live("ab", at=NOW - 20), plan, at=NOW - 19)
    a, b = (running(name, head=3, takes_notices=True, answered=3, steps=(7, 7)) for name in "ab")
    b = replace(b, row=replace(b.row, head=0, leaving=True, grace=30.0))
    assert outcome(view(ledger, a, b)) == StopAt(round=1, step=8, leaving=True)


@pytest.mark.parametrize(
    "b",
    [
        pytest.param(running("b", number=2, head=4, incident=incident("b")), id="a failure of an older round"),
        pytest.param(seen("b", Phase.FINISHED, number=1, head=4), id="has finished an older round"),
    ],
)
def test_a_row_about_an_older_round_changes_nothing(b: NodeView) -> None:
    ledger = then(live("ab"), Halt(round=1, reason=HaltReason.RESIZE, why="c joins"), at=20.0)
    ledger = then(ledger, Round(number=2, offer=offer("a", 2), members=members("ab")), at=21.0)
    assert outcome(view(ledger, seen("a", Phase.FINISHED, number=2, head=4), b)) == NOW + 6


def test_a_verdict_about_an_older_round_judges_no_failure_of_this_one() -> None:
    ledger = then(live("ab"), Round(number=2, offer=offer("a", 2), same_as=1), at=20.0)
    broken = incident("b", number=2)
    nodes = [running("a", number=2, head=3), running("b", number=2, head=3, incident=broken)]
    assert outcome(view(ledger, *nodes, verdict=GIVE_UP)) == AskPolicies(broken)


def test_a_member_whose_workers_are_gone_already_is_restarted_with_the_others() -> None:
    nodes = [running("a"), stopped("b", head=2, incident=incident("b"))]
    decision = decide(view(live("ab"), *nodes, verdict=RESTART))
    assert isinstance(decision, Append)
    assert isinstance(decision.body, Round)
    assert (decision.body.same_as, decision.counters.barren) == (1, 1)


@pytest.mark.parametrize(
    ("now", "expected"),
    [(NOW + 0.2, NOW + 0.3), (NOW + 0.3, HaltReason.FAILURE)],
    ids=["for half of what whoever reported it waits for an answer", "then the round is halted"],
)
@pytest.mark.parametrize("a", [[running("a", offer=offer("a", 1))], []], ids=["used", "with its row lost"])
def test_a_restart_waits_for_an_offer_of_rank_0(a: list[NodeView], now: float, expected: object) -> None:
    known = view(live("ab", at=NOW - 0.2), *a, running("b", incident=incident("b")), now=now, verdict=RESTART)
    found = outcome(began(known, NOW - 1))
    assert (found.reason if isinstance(found, Halt) else found) == expected


@pytest.mark.parametrize("used", [None, offer("a", 1)], ids=["none", "that of the round before"])
def test_a_round_that_follows_a_halt_waits_for_an_offer_of_rank_0(used: Any) -> None:
    assert outcome(view(halted("ab", HaltReason.NODE_LEFT), stopped("a", offer=used), stopped("b"))) == NOW + 6


@pytest.mark.parametrize("read", [1, 2], ids=["not read", "read"])
def test_a_node_gets_a_place_once_it_has_read_all_rounds_each_of_which_may_have_used_its_offer(read: int) -> None:
    """It may have had a place in one of them, and lost it before it read of that."""
    found = outcome(view(halted("a", HaltReason.NODE_LEFT), stopped("a", leaving=True), seen("c", head=read)))
    assert (found == "c") is (read == 2)


def test_a_node_that_still_stops_the_workers_of_an_older_round_is_no_newcomer() -> None:
    assert outcome(view(live("a"), running("a"), running("c", number=7, head=2))) == NOW + 6


def test_too_few_nodes_may_be_none() -> None:
    found = outcome(view(start(settings(min_nodes=2, join_timeout=100))))
    assert found.why == "0 of at least 2 nodes are here after 100 s (no node); 2 more never came"


@pytest.mark.parametrize("reason", [HaltReason.NODE_LOST, HaltReason.FAILURE])
def test_too_few_nodes_after_a_loss_have_the_loss_as_their_cause(reason: HaltReason) -> None:
    lost = incident("b", kind=IncidentKind.NODE_LOST)
    ledger = halted("ab", reason, settings(min_nodes=2, join_timeout=10), blame=lost)
    found = outcome(view(ledger, stopped("a")))
    assert found.exit_code == ExitCode.TOO_FEW_NODES
    assert found.incident == (lost if reason is HaltReason.NODE_LOST else None)


def test_a_member_whose_row_is_lost_counts_when_a_bad_host_is_left_out() -> None:
    ledger = with_counters(live("ab", settings(min_nodes=2)), losses={"id-host-c": HostLosses(3, 0.0)})
    assert outcome(began(view(ledger, running("a"), seen("c", head=2)), NOW - 1)) == NOW + 5


@pytest.mark.parametrize(
    ("b", "expected"),
    [
        pytest.param({}, "ab", id="which stays"),
        pytest.param({"leaving": True}, "ac", id="which leaves"),
        pytest.param({"changed": 0.0}, "ac", id="which is lost"),
    ],
)
def test_a_newcomer_takes_the_node_rank_of_a_member(b: dict[str, Any], expected: str) -> None:
    ranked = {name: replace(info(name), node_rank=rank) for name, rank in (("a", 0), ("b", 1), ("c", 1))}
    nodes = [stopped("a", node=ranked["a"]), stopped("b", node=ranked["b"], **b), seen("c", head=3, node=ranked["c"])]
    assert outcome(view(halted("ab", HaltReason.NODE_LEFT), *nodes)) == expected


def test_a_newcomer_makes_up_for_a_member_that_is_suspected() -> None:
    ledger = halted("ab", HaltReason.UNSEEN, settings(min_nodes=2), at=NOW - 5)
    assert outcome(view(ledger, stopped("a"), running("b", head=2), seen("c", head=3))) == "ac"


def test_a_member_that_is_lost_counts_once_where_another_is_suspected() -> None:
    ledger = halted("abc", HaltReason.UNSEEN, at=NOW - 5)
    assert outcome(view(ledger, stopped("a"), running("b", head=2), running("c", head=2, changed=0.0))) == "a"


@pytest.mark.parametrize("ago", [1.0, 5.0], ids=["just suspected", "long suspected"])
def test_a_member_that_the_job_cannot_do_without_is_waited_for_until_its_heartbeat_stops(ago: float) -> None:
    ledger = halted("ab", HaltReason.UNSEEN, settings(min_nodes=2), at=NOW - ago)
    decision = decide(view(ledger, stopped("a"), running("b", head=2)))
    assert isinstance(decision, LookAgain)
    assert (decision.at, decision.waiting) == (NOW + 6, "")


def test_a_member_that_is_suspected_counts_as_lost_with_its_host() -> None:
    ledger = halted("ab", HaltReason.UNSEEN, at=NOW - 5)
    decision = decide(view(ledger, stopped("a"), running("b", head=2)))
    assert isinstance(decision, Append)
    assert isinstance(decision.body, Round)
    assert decision.body.number == 2
    assert decision.counters.losses.keys() == {"id-host-b"}


def test_a_member_that_stops_its_workers_and_then_dies_is_lost() -> None:
    decision = decide(view(halted("ab", HaltReason.FAILURE), stopped("a"), stopped("b", changed=0.0)))
    assert isinstance(decision, Append)
    assert decision.counters.losses.keys() == {"id-host-b"}


def test_a_member_that_leaves_and_then_dies_has_left() -> None:
    ledger = halted("ab", HaltReason.NODE_LEFT, settings(on_node_loss=OnNodeLoss.FAIL))
    decision = decide(view(ledger, stopped("a"), running("b", leaving=True, changed=0.0)))
    assert isinstance(decision, Append)
    assert isinstance(decision.body, Round), "which is no loss of a node, and does not end the job"
    assert decision.counters.losses == {}


def test_the_message_of_the_wait_names_the_silent_host_to_release() -> None:
    decision = decide(view(halted("a", HaltReason.NODE_LOST), running("a", changed=0.0), seen("c", head=3)))
    assert isinstance(decision, LookAgain)
    assert decision.waiting.endswith("elastic release host-a")


def test_a_round_whose_members_have_all_left_goes_on_with_the_newcomers() -> None:
    assert outcome(view(halted("a", HaltReason.RESIZE), stopped("a", leaving=True), seen("b", head=3))) == "b"


def test_the_message_of_the_wait_names_a_leaving_node() -> None:
    ledger = halted("a", HaltReason.NODE_LEFT, at=NOW - 5)
    decision = decide(view(ledger, running("a", head=3, leaving=True), seen("c", head=3)))
    assert isinstance(decision, LookAgain)
    assert decision.waiting == "host-a to stop its workers"


@pytest.mark.parametrize(
    ("others", "waiting"),
    [
        ([], ""),
        ([stopped("b", leaving=True)], ""),
        ([stopped("b")], "1 more node(s) to replace host-a, for up to 598 s"),
    ],
)
def test_a_job_all_of_whose_nodes_leave_waits_for_no_other_node(others: list[NodeView], waiting: str) -> None:
    ledger = halted("ab" if others else "a", HaltReason.NODE_LEFT, settings(2 if others else 1, 2), at=NOW - 2)
    decision = decide(view(ledger, stopped("a", leaving=True), *others))
    assert isinstance(decision, LookAgain)
    assert decision.waiting == waiting


def test_the_message_of_the_wait_says_how_many_nodes_are_missing_where_all_were_lost() -> None:
    decision = decide(view(halted("a", HaltReason.NODE_LOST, at=NOW - 2), stopped("a", changed=0.0)))
    assert isinstance(decision, LookAgain)
    assert decision.waiting == "1 more node(s) to replace host-a, for up to 598 s"


def test_a_round_that_stopped_for_newcomers_takes_no_more_than_there_is_room_for() -> None:
    ledger = halted("ab", HaltReason.RESIZE, settings(1, 2))
    assert outcome(view(ledger, stopped("a"), stopped("b"), seen("c", head=3))) == "ab"


class TestFailures:
    def ledger(self, reason: HaltReason, blame: Incident, **more: Any) -> Ledger:
        return halted("ab", reason, settings(**more), at=NOW - 0.5, blame=blame)

    def test_of_a_halt_are_asked_about_by_a_leader_that_has_not_asked(self) -> None:
        blame = incident("b")
        nodes = [stopped("a"), stopped("b", incident=blame)]
        assert outcome(view(self.ledger(HaltReason.FAILURE, blame), *nodes)) == AskPolicies(blame)

    def test_of_workers_end_no_job_that_a_node_leaves_at_the_same_time(self) -> None:
        blame = incident("b")
        nodes = [stopped("a", leaving=True), stopped("b", incident=blame)]
        known = view(self.ledger(HaltReason.GIVING_UP, blame), *nodes, verdict=GIVE_UP)
        assert outcome(known) == "b"
        decision = decide(known)
        assert isinstance(decision, Append)
        assert decision.counters.restarts == 0, "nor do they spend a restart"

    def test_of_workers_spend_one_restart_and_leave_out_nobody(self) -> None:
        blame = incident("b")
        nodes = [stopped("a"), stopped("b", incident=blame)]
        decision = decide(view(self.ledger(HaltReason.FAILURE, blame), *nodes, verdict=RESTART))
        assert isinstance(decision, Append)
        assert (decision.counters.restarts, decision.counters.excluded) == (1, ())

    def test_end_the_job_when_the_policies_give_up_after_the_halt(self) -> None:
        blame = incident("b")
        nodes = [stopped("a"), stopped("b", incident=blame)]
        closed = outcome(view(self.ledger(HaltReason.FAILURE, blame), *nodes, verdict=GIVE_UP))
        assert (closed.exit_code, closed.incident) == (ExitCode.JOB_FAILED, blame)

    def test_end_the_job_for_a_reason_that_is_not_that_of_an_older_round(self) -> None:
        """A leader that has judged round 1, and took over again when another one had given up on round 2."""
        ledger = then(live("a"), Round(number=2, offer=offer("a", 2), same_as=1), at=20.0)
        blame = incident("a", number=2)
        ledger = then(ledger, Halt(round=2, reason=HaltReason.GIVING_UP, why="x", incident=blame), at=30.0)
        closed = outcome(view(ledger, stopped("a", number=2, head=4), verdict=RESTART))
        assert closed.why == "the failure policy gave up"

    @pytest.mark.parametrize("blame", [incident("b", kind=IncidentKind.NODE_LOST), None], ids=["lost", "suspected"])
    def test_of_workers_do_not_hide_that_a_lost_node_ends_the_job(self, blame: Incident | None) -> None:
        ledger = halted("ab", HaltReason.NODE_LOST, settings(on_node_loss=OnNodeLoss.FAIL), at=NOW - 9, blame=blame)
        closed = outcome(view(ledger, stopped("a", incident=incident("a")), running("b", changed=0.0)))
        assert isinstance(closed, Closed)
        assert closed.incident == blame

    def test_of_workers_that_end_a_job_with_a_lost_node_are_named_by_the_root_cause(self) -> None:
        first, blame = incident("a", after=5.0), incident("b", after=5.2)
        ledger = self.ledger(HaltReason.FAILURE, blame, on_node_loss=OnNodeLoss.FAIL)
        nodes = [stopped("a", incident=first), running("b", changed=0.0, incident=blame)]
        assert outcome(view(ledger, *nodes)).incident == first

    def test_that_a_halt_does_not_name_leave_out_no_host(self) -> None:
        """The policies were asked, and something else ended the round."""
        nodes = [stopped("a"), stopped("b")]
        assert outcome(view(halted("ab", HaltReason.NODE_LEFT), *nodes, verdict=EXCLUDE)) == "ab"

    def test_a_lost_node_that_comes_back_is_none(self) -> None:
        blame = incident("b", kind=IncidentKind.NODE_LOST)
        assert outcome(view(self.ledger(HaltReason.NODE_LOST, blame), stopped("a"), stopped("b"))) == "ab"

    def test_a_host_stays_that_the_job_cannot_do_without(self) -> None:
        blame = incident("b")
        nodes = [stopped("a"), stopped("b", incident=blame)]
        assert outcome(view(self.ledger(HaltReason.FAILURE, blame, min_nodes=2), *nodes, verdict=EXCLUDE)) == "ab"

    def test_a_node_that_is_lost_after_it_finished_ends_no_job(self) -> None:
        blame = incident("b")
        nodes = [seen("a", Phase.FINISHED, head=2, changed=0.0), stopped("b", incident=blame)]
        ledger = self.ledger(HaltReason.FAILURE, blame, on_node_loss=OnNodeLoss.FAIL)
        assert outcome(view(ledger, *nodes, verdict=RESTART)) == "b"


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
def test_a_round_is_over_by_what_a_member_said_of_this_round(a: NodeView, over: bool) -> None:
    """S4: without such a proof nothing follows before the fence."""
    ledger = halted("ab", HaltReason.NODE_LEFT, settings(fence_after=200), at=5.0)
    ledger = then(ledger, Round(number=2, offer=offer("a", 2), members=members("ab")), at=6.0)
    ledger = then(ledger, Halt(round=2, reason=HaltReason.NODE_LOST, why="it was"), at=20.0)
    nodes = [a, running("b", number=2, head=4, changed=0.0), seen("c", head=5)]
    assert (outcome(view(ledger, *nodes)) == "c") is over
