"""Planned stops, the leader's part: how a healthy round stops gracefully, and when one makes room for waiting nodes.

A graceful stop is a PLAN, the members' answers, STOP_AT, and the HALT when all have stopped. Why no rank can have gone
beyond the step of STOP_AT is in ``docs/internals/protocol.md`` ("Graceful stops"), as is the table of the rule of
resizes (L13), which waits for a moment at which a stop repeats little work, and never for longer than a limit.
``docs/internals/simulator.md`` has that rule's results on traces of spot machines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from elastic_core.events import describe_duration
from elastic_core.protocol.entries import Counters, Drain, Entry, HaltReason, Plan, Round, StopAt
from elastic_core.protocol.failure_detector import NodeView
from elastic_core.protocol.leader_entries import Append, Decision, LookAgain, halt_round
from elastic_core.protocol.leader_view import LeaderView
from elastic_core.protocol.ledger import PlannedStop
from elastic_core.protocol.limits import MAX_DRAINED_NODES, list_names
from elastic_core.protocol.roster import Phase

# For a resize:
SETTLE_SECONDS = 2.0  # how old a checkpoint is when it counts: other ranks may still be writing their part of it
FRESH_SECONDS = 10.0  # how old it is at most, so that little work is lost
ANNOUNCE_SECONDS = 5.0  # how long a node has waited when users are told why
MAX_WAIT_FACTOR = 30.0  # a node waits for a place for at most this many times ``resize_wait``
OFTEN = 2  # losses of hosts and failures within an hour, after which the next one is worth waiting for
OFTEN_SECONDS = 3600.0


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


# When a round makes room for waiting nodes: the rule of resizes (L13) ------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeCase:
    """The facts from which the rule decides. Times are in seconds."""

    waited: float  # since the first of the nodes that would get a place could have had it
    round_age: float
    takes_notices: bool = False  # whether the workers of all nodes save when they are told to stop
    at_stake: float | None = None  # since the script's last checkpoint, or the round's start; None if not known
    restarts_often: bool = False  # whether a loss or a failure is likely to restart the round soon
    resize_wait: float  # ``--rdzv_conf resize_wait``


def seconds_until_resize(case: ResizeCase) -> float:
    """Return for how long the resize is put off, if nothing changes until then; 0 to resize now."""
    longest = MAX_WAIT_FACTOR * case.resize_wait
    if case.takes_notices or case.waited >= longest:
        return 0.0
    if case.at_stake is not None:
        fresh = case.at_stake <= FRESH_SECONDS
        return max(0.0, SETTLE_SECONDS - case.at_stake) if fresh else longest - case.waited
    if case.round_age <= case.resize_wait:
        return 0.0  # all work of a young round is at stake, and that is little
    return max(0.0, (longest if case.restarts_often else case.resize_wait) - case.waited)


def restarts_often(counters: Counters, age: float) -> bool:
    """Return whether hosts were lost or workers failed ``OFTEN`` times within the last hour of a run of this age."""
    ages = [lost.age for lost in counters.losses.values()] + [failed.age for failed in counters.failures]
    return sum(age - one < OFTEN_SECONDS for one in ages) >= OFTEN


def next_resize(view: LeaderView, current: Round) -> tuple[float, str]:
    """Return when the rule lets a live round with room for a waiting node be resized, or is to be asked again.

    Also return why not now, as a text for users.
    """
    case = _case(view, current)
    seconds = seconds_until_resize(case)
    is_told = seconds and case.waited >= ANNOUNCE_SECONDS
    return view.now + seconds, _describe_wait(view, current, case) if is_told else ""


def next_admission_at(view: LeaderView) -> float | None:
    """Return when the next waiting node's host is admitted again (rule L12); None if none waits for that."""
    waiting = {node.row.info.host_id for node in view.waiting_nodes()}
    excluded = view.ledger.counters.excluded_at(view.age)
    ends = [until for host, until in excluded.items() if until is not None and host in waiting]
    return view.now + min(ends) - view.age if ends else None


def _describe_wait(view: LeaderView, current: Round, case: ResizeCase) -> str:
    """Return when waiting nodes get a place, and what they wait for."""
    who = view.describe_nodes(node.node_id for node in view.newcomers()[: view.places(current)])
    longest = describe_duration(MAX_WAIT_FACTOR * case.resize_wait - case.waited)
    if case.at_stake is not None:
        when, lost = f"at the next checkpoint or restart, in {longest} at most", f"{case.at_stake:.0f} s of work"
    elif case.restarts_often:
        when, lost = f"with the next restart, in {longest} at most", "the work since the last checkpoint"
    else:
        when = f"in about {case.resize_wait - case.waited:.0f} s, or with the next restart"
        lost = "the work since the last checkpoint"
    return (
        f"{who} joins {when}: to stop the workers of {len(current.members)} node(s) now would lose {lost}. "
        f"Scripts that call elastic.should_checkpoint() make room at once (--rdzv_conf "
        f"resize_wait={case.resize_wait:g})"
    )


def _case(view: LeaderView, current: Round) -> ResizeCase:
    began_at = view.ledger.round_at
    # Before so many nodes had come, none of them could have had a place.
    needed = (view.agreement.next_size(len(current.members)) or 0) - len(current.members)
    arrivals = sorted(node.arrived_at for node in view.newcomers())
    return ResizeCase(
        waited=view.now - max(began_at, arrivals[:needed][-1]),
        round_age=view.now - began_at,
        takes_notices=can_take_notices(view, current),
        at_stake=_work_at_stake(view, current),
        restarts_often=restarts_often(view.ledger.counters, view.age),
        resize_wait=view.timing.resize_wait,
    )


def _work_at_stake(view: LeaderView, current: Round) -> float | None:
    """Return the seconds of work since the last checkpoint; None if no node notices checkpoints.

    Often only rank 0 saves, and only its node sees that. If several nodes have saved in this round, their parts make
    one checkpoint, so the oldest counts.
    """
    rows = [node.row for node in view.node_views(current) if node.row.round == current.number]
    seen = [row.checkpoint for row in rows if row.checkpoint is not None]
    at = min([one.at for one in seen if one.saved] or [one.at for one in seen], default=None)
    return None if at is None else max(0.0, view.age - at)
