"""Graceful stops, the leader's part: a PLAN, the members' answers, STOP_AT, and the HALT when all have stopped.

An agent that reads the PLAN writes the notice to its workers and *then* reads their reports; a worker reports its step
and *then* reads its notices. So a rank whose last report is step s holds at step s + 1, outside of any collective, and
no rank can have gone beyond T = max(s) + 1 (``docs/internals/protocol.md``, "Graceful stops").
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from elastic_core.protocol.entries import Drain, Entry, HaltReason, Plan, Round, StopAt
from elastic_core.protocol.failure_detector import NodeView
from elastic_core.protocol.leader_entries import Append, Decision, LookAgain, halt_round
from elastic_core.protocol.leader_view import LeaderView
from elastic_core.protocol.ledger import PlannedStop
from elastic_core.protocol.limits import MAX_DRAINED_NODES, list_names
from elastic_core.protocol.roster import Phase


def can_take_notices(view: LeaderView, current: Round) -> bool:
    """Return True if the workers of every member take notices, so that a PLAN can reach them."""
    rows = [node.row for node in view.node_views(current) if node.row.round == current.number]
    return sum(row.phase is Phase.RUNNING and row.takes_notices for row in rows) == len(current.members)


def stop_gracefully(view: LeaderView, current: Round, reason: HaltReason, why: str, deadline: float) -> Append:
    """Return the PLAN for a healthy round if its workers take notices; else a HALT that gives them time to save."""
    if not can_take_notices(view, current):
        return halt_round(current, reason, why, planned=True)
    deadline = min(deadline, view.timing.plan_timeout)
    return Append(Plan(round=current.number, reason=reason, why=why, deadline=deadline))


def stop_for_departure(view: LeaderView, current: Round, node: NodeView) -> Append | None:
    """Return the PLAN or HALT for a member that leaves; None while a PLAN already stops all members together."""
    why = f"{view.describe_nodes([node.node_id])} leaves"
    if not node.row.grace or node.row.phase is not Phase.RUNNING:
        return halt_round(current, HaltReason.NODE_LEFT, why)
    if view.ledger.planned_stop is not None:
        return None
    return stop_gracefully(view, current, HaltReason.NODE_LEFT, why, node.row.grace)


def has_stepped_down(current: Round, node: NodeView | None) -> bool:
    """Return True if a member's workers have stopped by themselves, as STOP_AT told them, and are gone."""
    if node is None or node.row.round != current.number:
        return False
    return node.row.phase is Phase.STOPPED and node.row.stepped_down


def continue_plan(view: LeaderView, current: Round, stop: PlannedStop, finished: set[str]) -> Decision:
    """Return the next step of a PLAN: STOP_AT when all have answered, HALT when all have stopped or at the deadline."""
    plan = stop.plan
    ids = [node_id for node_id in current.group_ranks if node_id not in finished]
    left = [node_id for node_id in ids if not has_stepped_down(current, view.get(node_id))]
    if not left:
        return halt_round(current, plan.reason, plan.why, planned=True)
    deadline = stop.read_at + plan.deadline
    if view.now >= deadline:
        where = "" if stop.stop_at is None else f" at step {stop.stop_at.step}"
        why = f"{plan.why}; {view.describe_nodes(left)} had not stopped{where} after {plan.deadline:g} s"
        return halt_round(current, plan.reason, why, planned=True)
    if stop.stop_at is None and (steps := _reported_steps(view, ids)) is not None:
        leaving = plan.reason is not HaltReason.RESIZE or any(map(view.is_leaving, current.group_ranks))
        return Append(StopAt(round=current.number, step=max(steps) + 1, leaving=leaving))
    return LookAgain(view.next_look_at(deadline, nodes=view.node_views(current)))


def _reported_steps(view: LeaderView, ids: list[str]) -> list[int] | None:
    """Return the reported steps of all ranks; None until every member has answered this PLAN."""
    rows = [node.row for node_id in ids if (node := view.get(node_id)) is not None]
    answered = [row for row in rows if row.answered == view.ledger.head.anchors.plan and row.steps]
    return [step for row in answered for step in row.steps] if len(answered) == len(ids) else None


def answer_drain_requests(view: LeaderView) -> Append | None:
    """Return the DRAIN for nodes that ``elastic drain`` asks to leave and no DRAIN has named yet; None without any.

    A request is a row, so it takes write access to the store. It names nodes by their ids, which no other node ever
    has: if the command is killed, its row stays for a while, and must not send away the nodes that replace them; nor
    may a copy of it. It also concerns a node that is being checked and is in no run yet, or that leaves for its checks
    (rule L17).
    """
    requests = {node_id: node for node in view.watch.nodes.values() for node_id in node.row.drain}
    nodes = tuple(
        node.node_id
        for node in view.watch.nodes.values()
        if node.node_id in requests
        and not node.row.is_departing
        and not node.row.is_request
        and node.row.run in (view.ledger.head.run, "")
        and node.node_id not in view.ledger.asked
        and not view.is_lost(node.node_id)
    )[:MAX_DRAINED_NODES]
    if not nodes:
        return None
    asked = {requests[node_id].row.info.host for node_id in nodes}
    why = f"asked to leave by elastic drain on {list_names(sorted(asked))}"
    return Append(Drain(nodes=nodes, why=why))


def find_drain(entries: Iterable[Entry], node_ids: Collection[str]) -> str:
    """Return why these entries drain a node, which has these ids; '' if they do not."""
    asked = [entry.body for entry in entries if isinstance(entry.body, Drain)]
    return next((drain.why for drain in reversed(asked) if not set(drain.nodes).isdisjoint(node_ids)), "")
