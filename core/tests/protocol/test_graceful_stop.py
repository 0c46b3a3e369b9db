"""Graceful stops as the leader decides them, one table row or test each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_leader import NOW, RESTART, body, running, view
from views import RUN, incident, info, live, offer, seen, settings, then

from elastic_core.config.parse import OnNodeLoss
from elastic_core.protocol.entries import Drain, Halt, HaltReason, Plan, Round, StopAt
from elastic_core.protocol.failure_detector import NodeView
from elastic_core.protocol.leader import decide
from elastic_core.protocol.leader_entries import Append, LookAgain
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.limits import MAX_DRAINED_NODES
from elastic_core.protocol.planned_stop import find_drain
from elastic_core.protocol.roster import NodeRow, Phase

PLAN = Plan(round=1, reason=HaltReason.RESIZE, why="host-c joins", deadline=300.0)


def takes(name: str, **more: Any) -> NodeView:
    """A member whose workers have reported steps."""
    return running(name, takes_notices=True, **more)


def planned(*, at: float = NOW - 1) -> Ledger:
    return then(live("ab"), PLAN, at=at)


def told(step: int = 8, *, at: float = NOW - 1) -> Ledger:
    return then(planned(at=at), StopAt(round=1, step=step), at=NOW - 0.5)


def answer(name: str, *steps: int, plan: int = 3, **more: Any) -> NodeView:
    return takes(name, answered=plan, steps=steps, head=more.pop("head", 3), **more)


def down(name: str, **more: Any) -> NodeView:
    """A member whose workers have stopped as they were told."""
    return seen(name, Phase.STOPPED, head=4, stepped_down=True, takes_notices=True, **more)


class TestPlan:
    def test_a_resize_of_workers_that_take_notices_is_planned(self) -> None:
        found = body(decide(view(live("ab"), takes("a"), takes("b"), seen("c", head=2))))
        assert found == Plan(
            round=1, reason=HaltReason.RESIZE, why="host-c joins the 2 node(s) of the round", deadline=300.0
        )

    @pytest.mark.parametrize(
        "other",
        [
            pytest.param(running("b"), id="workers that have reported no step"),
            pytest.param(takes("b", number=7), id="those of another round"),
            pytest.param(seen("b", head=2, takes_notices=True, number=1), id="those of a node that says it has none"),
        ],
    )
    def test_other_workers_are_halted_as_ever(self, other: NodeView) -> None:
        halt = body(decide(view(live("ab"), takes("a"), other, seen("c", head=2))))
        assert (type(halt), halt.reason, halt.planned) == (Halt, HaltReason.RESIZE, True)

    @pytest.mark.parametrize(("grace", "deadline"), [(25.0, 25.0), (500.0, 300.0)])
    def test_a_member_that_announces_its_leaving_is_planned_within_its_grace_and_the_jobs_limit(
        self, grace: float, deadline: float
    ) -> None:
        plan = body(decide(view(live("ab"), takes("a"), takes("b", leaving=True, grace=grace))))
        assert (type(plan), plan.reason, plan.deadline) == (Plan, HaltReason.NODE_LEFT, deadline)

    def test_a_member_that_leaves_at_once_is_not(self) -> None:
        halt = body(decide(view(live("ab"), takes("a"), takes("b", leaving=True))))
        assert (type(halt), halt.planned) == (Halt, False)

    def test_an_announced_leaving_of_other_workers_gives_them_the_time_to_save(self) -> None:
        halt = body(decide(view(live("ab"), running("a"), running("b", leaving=True, grace=25.0))))
        assert (type(halt), halt.reason, halt.planned) == (Halt, HaltReason.NODE_LEFT, True)

    def test_workers_of_whom_the_store_has_lost_the_row_are_halted_as_ever(self) -> None:
        known = view(live("ab"), takes("a"), seen("c", head=2))
        halt = body(decide(replace(known, watch=replace(known.watch, began_at=NOW - 1))))
        assert (type(halt), halt.reason) == (Halt, HaltReason.RESIZE)

    def test_a_leave_after_the_workers_have_stopped_is_not_planned(self) -> None:
        halt = body(decide(view(live("ab"), takes("a"), seen("b", Phase.STOPPED, head=2, leaving=True, grace=25.0))))
        assert (type(halt), halt.reason, halt.planned) == (Halt, HaltReason.NODE_LEFT, False)

    def test_where_somebody_has_finished_nobody_is_planned(self) -> None:
        nodes = [seen("a", Phase.FINISHED, head=2, takes_notices=True), takes("b", leaving=True, grace=25.0)]
        assert type(body(decide(view(live("ab"), *nodes)))) is Halt


class TestStopAt:
    def test_the_step_is_one_more_than_any_rank_has_reported(self) -> None:
        found = body(decide(view(planned(), answer("a", 7, 6), answer("b", 5, 8))))
        assert found == StopAt(round=1, step=9, leaving=False)

    @pytest.mark.parametrize(
        "other",
        [
            pytest.param(takes("b"), id="no answer"),
            pytest.param(answer("b", 5, plan=2), id="to another plan"),
            pytest.param(answer("b"), id="without a step"),
        ],
    )
    def test_all_must_have_answered_this_plan(self, other: NodeView) -> None:
        assert decide(view(planned(), answer("a", 7), other, seen("c", head=3))) == LookAgain(NOW + 6)

    def test_a_finished_node_need_not_answer(self) -> None:
        found = decide(view(planned(), answer("a", 7), seen("b", Phase.FINISHED, head=3)))
        assert body(found) == StopAt(round=1, step=8, leaving=False)

    def test_it_says_that_a_node_leaves_where_that_is_why_it_was_planned(self) -> None:
        ledger = then(live("ab"), replace(PLAN, reason=HaltReason.NODE_LEFT), at=NOW - 1)
        assert body(decide(view(ledger, answer("a", 7), answer("b", 7)))) == StopAt(round=1, step=8, leaving=True)

    def test_it_is_said_once(self) -> None:
        assert isinstance(decide(view(told(), answer("a", 7, head=4), answer("b", 7, head=4))), LookAgain)


class TestTheEndOfAPlan:
    def test_when_all_have_stopped_the_round_is_halted_for_what_was_planned(self) -> None:
        halt = body(decide(view(told(), down("a"), down("b"), seen("c", head=4))))
        assert (halt.reason, halt.why, halt.planned) == (HaltReason.RESIZE, "host-c joins", True)

    def test_a_node_that_has_stopped_is_not_missed_meanwhile_even_if_it_is_gone(self) -> None:
        assert isinstance(decide(view(told(), down("a"), answer("b", 7, head=4))), LookAgain)
        assert isinstance(decide(view(told(), answer("a", 7, head=4), down("b", changed=NOW - 60))), LookAgain)

    @pytest.mark.parametrize(
        "other",
        [
            pytest.param([], id="its row is lost with the store's last second"),
            pytest.param([running("b", head=4, stepped_down=True)], id="its last process is not gone"),
        ],
    )
    def test_the_leader_waits_for_a_node_that_may_not_have_stopped(self, other: list[NodeView]) -> None:
        known = view(told(), down("a"), *other)
        assert decide(replace(known, watch=replace(known.watch, began_at=NOW))) == LookAgain(NOW + 6)

    def test_a_node_that_had_stopped_an_older_round_as_planned_has_fallen_behind(self) -> None:
        ledger = then(live("ab"), Round(number=2, offer=offer("a", 2), same_as=1), at=NOW - 20)
        ledger = then(ledger, replace(PLAN, round=2), at=NOW - 10)
        nodes = [down(name, number=number) for name, number in (("a", 2), ("b", 1))]
        assert isinstance(decide(view(ledger, *nodes)), LookAgain)

    def test_after_the_deadline_it_is_halted_as_it_is(self) -> None:
        halt = body(decide(view(told(8, at=NOW - 300), down("a"), answer("b", 7, head=4))))
        assert (halt.reason, halt.planned) == (HaltReason.RESIZE, True)
        assert halt.why == "host-c joins; host-b had not stopped at step 8 after 300 s"

    @pytest.mark.parametrize(
        ("other", "reason"),
        [
            pytest.param(answer("b", 7, changed=NOW - 60), HaltReason.NODE_LOST, id="lost"),
            pytest.param(answer("b", 7, leaving=True), HaltReason.NODE_LEFT, id="leaving at once"),
            pytest.param(seen("b", Phase.STOPPED, head=4), HaltReason.NODE_LEFT, id="stopped by force"),
            pytest.param(answer("b", 7, incident=incident("b")), HaltReason.FAILURE, id="failed"),
        ],
    )
    def test_another_event_overrides_the_plan(self, other: NodeView, reason: HaltReason) -> None:
        nodes = [answer("a", 7), other, seen("c", head=3)]
        assert body(decide(view(planned(), *nodes, verdict=RESTART))).reason is reason

    def test_a_failure_after_some_have_stopped_takes_a_halt(self) -> None:
        nodes = [down("a"), answer("b", 7, head=4, incident=incident("b"))]
        assert body(decide(view(told(), *nodes, verdict=RESTART))).reason is HaltReason.FAILURE

    def test_a_second_reason_to_stop_is_served_by_the_same_plan(self) -> None:
        nodes = [answer("a", 7, leaving=True, grace=30.0), answer("b", 7)]
        assert body(decide(view(planned(), *nodes))) == StopAt(round=1, step=8, leaving=True)

    def test_a_member_that_stopped_without_a_plan_is_missed(self) -> None:
        ledger = live("ab", settings(on_node_loss=OnNodeLoss.FAIL))
        assert body(decide(view(ledger, down("a"), takes("b")))).reason is HaltReason.NODE_LEFT


class TestDrain:
    def request(self, *node_ids: str) -> NodeView:
        asked = seen("q", head=0, node=info("q", host="desk"), serial=9)
        return NodeView(
            row=NodeRow(info=asked.row.info, drain=node_ids),
            serial=9,
            heartbeat=0,
            arrived_at=NOW,
            changed_at=NOW,
            seen_at=NOW,
        )

    def test_the_agents_of_the_host_are_asked_and_nobody_else(self) -> None:
        found = body(decide(view(live("ab"), running("a"), running("b"), self.request("b"))))
        assert found == Drain(nodes=("b",), why="asked to leave by elastic drain on desk")

    def test_they_are_asked_once(self) -> None:
        ledger = then(live("ab"), Drain(nodes=("b",), why="asked"), at=NOW - 1)
        assert isinstance(decide(view(ledger, running("a"), running("b"), self.request("b"))), LookAgain)

    @pytest.mark.parametrize(
        "node",
        [
            pytest.param(running("b", leaving=True, grace=9.0), id="leaves already"),
            pytest.param(running("b", changed=NOW - 60), id="is lost"),
            pytest.param(replace(seen("b"), row=NodeRow(info=info("b"), release=("a",))), id="is a request"),
            pytest.param(replace(seen("b"), row=replace(seen("b").row, run="old")), id="is of an older run"),
        ],
    )
    def test_a_node_that_goes_anyway_or_was_not_meant_is_not_asked(self, node: NodeView) -> None:
        found = decide(view(live("ab"), running("a"), node, self.request("b")))
        assert not (isinstance(found, Append) and isinstance(found.body, Drain))

    @pytest.mark.parametrize(
        "node",
        [
            pytest.param(replace(seen("b"), row=NodeRow(info=info("b"))), id="is being checked"),
            pytest.param(seen("b", leaving=True, returns=True), id="leaves for its checks"),
        ],
    )
    def test_a_node_that_is_to_enter_is_asked(self, node: NodeView) -> None:
        found = body(decide(view(live("a"), running("a"), node, self.request("b"))))
        assert found.nodes == ("b",)

    def test_a_node_finds_its_drain_by_each_id_that_it_has_had(self) -> None:
        drained = then(live("ab"), Drain(nodes=("b",), why="asked"), at=NOW).head
        assert find_drain([drained], {"a", "b"}) == "asked"
        assert find_drain([drained], {"a"}) == ""

    def test_a_copy_of_a_request_asks_no_node_that_has_come_to_the_host_since(self) -> None:
        """Whatever its serial is, which no node has sealed."""
        copied = replace(self.request("b"), serial=999)
        again = running("b2", node=info("b2", host="host-b"))
        assert isinstance(decide(view(live("a"), running("a"), again, copied)), LookAgain)

    def test_a_host_with_more_agents_than_one_entry_can_name_is_asked_in_turns(self) -> None:
        rows = {i: NodeRow(info=info(f"n{i}", host="host-b"), run=RUN) for i in range(2, MAX_DRAINED_NODES + 4)}
        nodes = [
            NodeView(row=row, serial=i, heartbeat=0, arrived_at=0.0, changed_at=NOW, seen_at=0.0)
            for i, row in rows.items()
        ]
        request = replace(self.request(*(f"n{i}" for i in rows)), serial=MAX_DRAINED_NODES + 9)
        first = body(decide(view(live("a"), running("a"), *nodes, request)))
        assert first.nodes == tuple(f"n{i}" for i in range(2, MAX_DRAINED_NODES + 2))

    def test_a_request_is_no_newcomer(self) -> None:
        assert isinstance(decide(view(live("a"), running("a"), self.request("z"))), LookAgain)

    def test_nodes_that_wait_are_asked_too(self) -> None:
        found = body(decide(view(live("a", settings(max_nodes=1)), running("a"), seen("b"), self.request("b"))))
        assert found.nodes == ("b",)
        assert seen("b").row.run == RUN


@pytest.mark.parametrize(
    "end", [Halt(round=1, reason=HaltReason.FAILURE, why="x"), Round(number=2, offer=offer("a", 2), same_as=1)]
)
def test_a_halt_or_a_round_overrides_a_plan(end: Halt | Round) -> None:
    ledger = then(told(), end, at=NOW)
    assert ledger.planned_stop is None
    assert (ledger.head.anchors.plan, ledger.head.anchors.stop_at) == (0, 0)
