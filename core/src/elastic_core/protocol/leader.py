"""The leader's decision: one pure function from what it knows to what it does next.

:func:`decide` is called after every change that the leader notices and at every instant that it asked to be called
at. It answers with one ledger entry to append, with the question that the failure policies must answer first, or
with when to look again. The rules that it follows are named S1-S8 and L1-L9 in ``docs/protocol.md``; a comment
names the rule where one is obeyed.

Three situations: no round yet (:func:`_decide_forming`), a live round (:func:`_decide_live`), a round that was halted
(:func:`_decide_halted`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from elastic_core.config.run import OnNodeLoss
from elastic_core.incidents import Action, Incident, IncidentKind, Verdict, by_cause
from elastic_core.protocol.counters import is_charged
from elastic_core.protocol.decisions import Append, AskPolicies, Decision, LookAgain
from elastic_core.protocol.failure_detector import NodeView
from elastic_core.protocol.graceful_stop import (
    stop_for_departure,
    answer_drain_requests,
    continue_plan,
    has_stepped_down,
    stop_gracefully,
)
from elastic_core.protocol.leader_entries import (
    MAX_BARREN_ROUNDS,
    halt_round,
    halt_for_incident,
    close_as_failed,
    seal_round,
    restart_round,
    close_as_succeeded,
    close_for_too_few_nodes,
    describe_wait,
)
from elastic_core.protocol.leader_view import SUSPICION_FACTOR, LeaderView
from elastic_core.protocol.ledger import Halt, HaltReason, Over, Round
from elastic_core.protocol.limits import MAX_LEFT_MEMBERS
from elastic_core.protocol.reachability import find_unreachable, describe_unreachable, probes_awaited_until
from elastic_core.protocol.roster import Phase
from elastic_core.protocol.row_delay import max_row_delay

__all__ = ["MAX_BARREN_ROUNDS", "Append", "AskPolicies", "Decision", "LookAgain", "decide"]

RESIZE_PAUSE_SECONDS = 10.0
"""Seconds between two planned resizes, at least (rule L4)."""
RESIZE_PAUSE_FACTOR = 10.0
"""… or this many times what the last one cost, if that is longer."""
SETTLING_SECONDS = 4.0
"""Seconds that an OPEN on a store that can forget waits before its first ROUND (rule S3)."""
OVER_DELAY_SECONDS = 1.0
"""Seconds without an entry after which a leader that waits writes an OVER (rule S4); the wait is told no sooner."""


def decide(view: LeaderView) -> Decision:
    """What the leader does next; see the module's docstring."""
    ledger = view.ledger
    if ledger.closed is not None:
        return LookAgain(None)
    decision: Decision
    if (asked := answer_drain_requests(view)) is not None:
        decision = asked
    elif ledger.round is None:
        decision = _decide_forming(view)
    elif ledger.halt is None:
        decision = _decide_live(view, ledger.round)
    else:
        decision = _record_over(view, ledger.round, _decide_halted(view, ledger.round, ledger.halt))
    if isinstance(decision, Append):
        worst = max(decision.counters.worst_seen, _slowest_member_delay(view))
        return replace(decision, counters=replace(decision.counters, worst_seen=worst))
    return decision


def _slowest_member_delay(view: LeaderView) -> float:
    """The longest that a member took to show that it saw the head, in seconds; never so long that heartbeats judge
    sooner.

    Who came later saw it later, and what the leader itself saw late says nothing of others. For how long members keep a
    ROUND to themselves is no slowness.
    """
    ledger, head, head_at = view.ledger, view.ledger.head, view.ledger.head_at
    if ledger.round is None or not isinstance(head.body, Round | Halt) or view.watch.gap_at >= head_at:
        return 0.0
    delays = [
        seen.seen_at - head_at
        for seen in view.node_views(ledger.round)
        if seen.row.head == head.index and seen.arrived_at <= head_at
    ]
    slowest = max([0.0, *delays]) - (max_row_delay(head.body) if isinstance(head.body, Round) else 0.0)
    return round(min(max(0.0, slowest), view.timing.lost_after / SUSPICION_FACTOR), 3)


# Forming the first round ---------------------------------------------------------------------------------------------


def _decide_forming(view: LeaderView) -> Decision:
    ledger, agreement = view.ledger, view.agreement
    came = view.newcomers()
    deadline = ledger.opened_at + view.timing.join_timeout
    if len(came) >= agreement.min_nodes:
        ready = ledger.opened_at + (SETTLING_SECONDS if view.may_forget else 0.0)
        if len(came) < agreement.max_nodes:
            ready = max(ready, max(seen.arrived_at for seen in came) + view.timing.last_call_timeout)
        if view.now >= ready:
            return seal_round(view, came[: agreement.max_nodes], why="the first round")
        return LookAgain(ready)
    if view.now >= deadline:
        return close_for_too_few_nodes(view, came, since=ledger.opened_at)
    return LookAgain(view.look(deadline, nodes=came), describe_wait(view, came, deadline))


# A live round --------------------------------------------------------------------------------------------------------


def _decide_live(view: LeaderView, current: Round) -> Decision:
    ledger, ids = view.ledger, current.group_ranks
    finished = {node_id for node_id in ids if view.finished(current, node_id)}
    if len(finished) == len(ids):
        return close_as_succeeded(view, current)
    if incidents := view.incidents(current):
        if not view.judged(current.number) and view.now < (until := view.cause_known_at(current)):
            return LookAgain(until)
        return _decide_failure(view, current, incidents[0])
    for node_id in ids:
        if node_id not in finished and (halt := _departure_halt(view, current, node_id)) is not None:
            return halt
    late, suspect_at = view.late(current, ledger.head.anchors.latest), view.suspected_at
    if late and view.now >= suspect_at:
        why = f"{view.names(late)} did not show that it saw round {current.number}"
        return halt_round(view, current, HaltReason.UNSEEN, why)
    if ledger.plan is not None:
        return continue_plan(view, current, ledger.plan, finished)
    looks = [suspect_at] if late else []
    # L7: after the first FINISHED nobody joins. S8: while a member may be gone, this is no planned stop.
    if view.room(current) and not finished and view.watch.gone.isdisjoint(ids):
        resize_at = _resize_allowed_at(view)
        if view.now >= resize_at:
            who = view.names(seen.node_id for seen in view.newcomers())
            why = f"{who} joins the {len(ids)} node(s) of the round"
            return stop_gracefully(view, current, HaltReason.RESIZE, why, view.timing.plan_timeout)
        looks.append(resize_at)
    return LookAgain(view.look(*looks, nodes=view.node_views(current)))


def _decide_failure(view: LeaderView, current: Round, first: Incident) -> Decision:
    """A worker failed in a live round."""
    verdict = view.verdict(current.number)
    if not is_charged(first):
        verdict = Verdict(Action.RESTART, first.message)
    elif not view.judged(current.number):
        return AskPolicies(first)
    if verdict is None:  # they still think: the broken round need not go on meanwhile
        return halt_for_incident(view, current, HaltReason.FAILURE, first)
    if verdict.action is Action.GIVE_UP:
        return halt_for_incident(view, current, HaltReason.GIVING_UP, first)
    whole = _can_restart_all(view, current) and not view.room(current)
    if verdict.action is Action.RESTART and whole and find_unreachable(view, current) is None:
        return restart_round(view, current, first)
    return halt_for_incident(view, current, HaltReason.FAILURE, first)


def _can_restart_all(view: LeaderView, current: Round) -> bool:
    """Whether every member is here and stays, as far as is known: then one entry restarts them all.

    Who has not seen this round yet may see the next one as well; who does not is suspected then (rule L2).
    """
    ids = current.group_ranks
    if any(view.leaving(node_id) or view.owed_answer(node_id) for node_id in ids):
        return False
    if any(has_stepped_down(current, view.seen(node_id)) for node_id in ids):
        return False
    return not any(_departure_halt(view, current, node_id) for node_id in ids)


def _departure_halt(view: LeaderView, current: Round, node_id: str) -> Append | None:
    """The HALT for a member that is lost, leaves, or stopped its workers by itself; None for one that stays.

    That it leaves can be a PLAN as well. Who has stopped as a PLAN wants it may be gone.
    """
    seen = view.seen(node_id)
    if view.ledger.plan is not None and has_stepped_down(current, seen):
        return None
    if seen is not None and seen.row.leaving:
        return stop_for_departure(view, current, seen)
    if view.dead(node_id):
        lost = Incident(
            kind=IncidentKind.NODE_LOST,
            round=current.number,
            node_id=node_id,
            host=view.names([node_id]),
            message=_describe_loss(view, seen),
        )
        return halt_for_incident(view, current, HaltReason.NODE_LOST, lost)
    if seen is None:  # the store lost its row, and it will be back
        return None
    stopped = seen.row.phase is Phase.STOPPED and seen.row.round == current.number
    if stopped and seen.row.incident is None:
        return halt_round(
            view,
            current,
            HaltReason.NODE_LEFT,
            f"{view.names([node_id])} stopped its workers: it had lost sight of the store",
        )
    return None


def _describe_loss(view: LeaderView, seen: NodeView | None) -> str:
    if seen is None:
        return "its roster row is gone"
    if view.proved(seen):
        return "its slot on the host is free, or a newer agent's, or somebody vouches for it: its last process is gone"
    return f"no heartbeat for {view.now - seen.changed_at:.1f} s"


def _resize_allowed_at(view: LeaderView) -> float:
    """When the next planned resize may begin (rule L4).

    A leader that was cut off since the last one began does not know what that cost: it may have been the time without
    the store.
    """
    ledger = view.ledger
    if ledger.resized_at is None:
        return ledger.round_at
    cost = ledger.resize_cost if view.watch.gap_at < ledger.resized_at - ledger.resize_cost else 0.0
    return ledger.resized_at + max(RESIZE_PAUSE_SECONDS, RESIZE_PAUSE_FACTOR * cost)


# After a HALT --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _HaltedMembers:
    """Who of a halted round is where. Every member is in exactly one of the first four."""

    leaving: list[str]
    lost: list[str]
    suspected: list[str]
    fit: list[str]
    busy: list[str]
    """Those of ``fit`` that have not yet answered SEEN and STOPPED."""
    joining: list[NodeView]
    unreachable: str | None
    """One of ``fit`` that the others cannot reach and can do without (rule L5)."""

    def gone(self, view: LeaderView, old: Round) -> list[str]:
        """Members that went away without having finished."""
        out = [] if self.unreachable is None else [self.unreachable]
        return [i for i in (*self.lost, *self.suspected, *out) if not view.finished(old, i)]


def _sort_members(view: LeaderView, old: Round) -> _HaltedMembers:
    ids = old.group_ranks
    leaving = [node_id for node_id in ids if view.leaving(node_id)]
    lost = [node_id for node_id in ids if not view.leaving(node_id) and view.dead(node_id)]
    gone = {*leaving, *lost}
    fit = [node_id for node_id in ids if node_id not in gone]
    unseen = set(view.unseen(old, view.ledger.head.anchors.halt))
    joining = view.waiting()
    late = set(view.late(old, view.ledger.head.anchors.halt))
    suspected = [node_id for node_id in fit if node_id in late and view.now >= view.suspect_at(node_id)]
    enough = len(fit) - len(suspected) + len(joining) >= view.agreement.min_nodes
    if not enough or view.agreement.on_node_loss is OnNodeLoss.FAIL:
        suspected = []  # L2: suspicion never takes a job below min, nor ends it; the heartbeat limit does
    gone |= set(suspected)
    fit = [node_id for node_id in fit if node_id not in gone]
    busy = [node_id for node_id in fit if node_id in unseen or view.running(node_id) or view.seen(node_id) is None]
    out = find_unreachable(view, old) if view.agreement.on_node_loss is OnNodeLoss.REPLACE else None
    if out not in fit or len(fit) - 1 + len(joining) < view.agreement.min_nodes:
        out = None
    return _HaltedMembers(
        leaving=leaving, lost=lost, suspected=suspected, fit=fit, busy=busy, joining=joining, unreachable=out
    )


def _decide_halted(view: LeaderView, old: Round, halt: Halt) -> Decision:
    ledger, muster = view.ledger, _sort_members(view, old)
    if all(view.finished(old, member.node_id) for member in old.members):  # the HALT came too late
        return close_as_succeeded(view, old)
    if (until := probes_awaited_until(view, old, halt, muster.fit)) is not None:
        return LookAgain(view.look(until, nodes=view.node_views(old)))
    if (ending := _close_after_halt(view, old, halt, muster)) is not None:
        return ending
    if muster.busy:
        return LookAgain(view.look(*map(view.suspect_at, muster.busy), nodes=view.node_views(old)))
    fence = max([ledger.halted_at, *(seen.sign_at for seen in view.node_views(old))]) + view.timing.fence_after
    if view.now < fence and not _is_round_over(view, old):
        silent = [*muster.lost, *muster.suspected]
        if not silent:
            return LookAgain(
                view.look(fence, nodes=view.node_views(old)), f"{view.names(muster.leaving)} to stop its workers"
            )
        hosts = sorted({seen.row.info.host for node_id in silent if (seen := view.seen(node_id)) is not None})
        who = (
            f"{view.names(silent)}, which may still be training, to answer or be fenced off, "
            f"for up to {fence - view.now:.0f} s (--rdzv_conf fence_after={view.timing.fence_after:g})"
        )
        if hosts:  # nobody can be vouched for without a row
            who += f", or until somebody says that it is gone for good: elastic release {hosts[0]}"
        return LookAgain(view.look(fence, nodes=view.node_views(old)), who, tuple(silent))
    out = muster.unreachable
    survivors = [seen for i in muster.fit if i != out and (seen := view.seen(i)) is not None]
    nodes = _choose_nodes(view, halt, survivors, muster.joining)[: view.agreement.max_nodes]
    if len(nodes) >= view.agreement.min_nodes:
        why = halt.why if out is None else describe_unreachable(view, old, out)
        return seal_round(view, nodes, why=why, unreachable=out)
    deadline = ledger.halt_at + view.timing.join_timeout
    if view.now >= deadline:
        return close_for_too_few_nodes(view, nodes, since=ledger.halt_at)
    return LookAgain(view.look(deadline, nodes=nodes), describe_wait(view, nodes, deadline))


def _close_after_halt(view: LeaderView, old: Round, halt: Halt, muster: _HaltedMembers) -> Decision | None:
    """The CLOSED (or the question before it) that this HALT leads to; None when the job goes on, or has yet to stop."""
    gone = muster.gone(view, old)
    if gone and view.agreement.on_node_loss is OnNodeLoss.FAIL:
        why = f"{view.names(gone)} is lost, and --on_node_loss=fail ends the job then"
        return close_as_failed(view, why, _first_cause(view, old, halt))
    if not is_charged(halt.incident):
        return None
    verdict = view.verdict(old.number)
    if halt.reason is HaltReason.FAILURE:
        if not view.judged(old.number):
            return AskPolicies(halt.incident)
        if verdict is None:
            return LookAgain(None)  # they still think, and their answer wakes us
        if verdict.action is not Action.GIVE_UP:
            return None
    if gone or muster.leaving:  # the workers failed because a peer went away: the job goes on without that node
        return None
    if muster.busy:  # every follower's report first: the first cause is found among them
        return None
    reason = verdict.reason if verdict is not None else "the failure policy gave up"
    if (blamed := find_unreachable(view, old)) is not None:
        reason += f"; {describe_unreachable(view, old, blamed)}"
    return close_as_failed(view, reason, _first_cause(view, old, halt), requeue=verdict is not None and verdict.requeue)


def _first_cause(view: LeaderView, old: Round, halt: Halt) -> Incident | None:
    """The incident of a HALT, or a member's report that explains more."""
    if not is_charged(halt.incident):
        return halt.incident
    return min((*view.incidents(old), halt.incident), key=by_cause)


def _is_round_over(view: LeaderView, old: Round) -> bool:
    """Rule S4: some member of the old round has stopped or lost a rank, so that training cannot go on behind our back.

    That it is gone from its slot proves it as well. What a row said before its node was lost still holds: a rank that
    is gone stays gone. An OVER says that some leader has seen such a row.
    """
    if view.ledger.over is not None:
        return True
    for seen in view.node_views(old):
        row = seen.row
        stopped = row.round == old.number and row.phase in (Phase.STOPPED, Phase.FINISHED)
        failed = row.incident is not None and row.incident.round == old.number
        idle = row.phase is not Phase.RUNNING and row.head >= view.ledger.head.anchors.halt
        if stopped or failed or idle or view.proved(seen):
            return True
    return False


def _record_over(view: LeaderView, old: Round, decision: Decision) -> Decision:
    """Instead of a wait the OVER of a round that is over (rule S4), where the store can lose the rows that prove it."""
    if not isinstance(decision, LookAgain) or not view.may_forget or not _is_round_over(view, old):
        return decision
    left, over = tuple(filter(view.leaving, old.group_ranks))[:MAX_LEFT_MEMBERS], view.ledger.over
    if over is not None and over.left == left:
        return decision
    due = view.ledger.head_at + OVER_DELAY_SECONDS
    if view.now >= due:
        return Append(Over(round=old.number, left=left), view.ledger.counters)
    return replace(decision, at=due if decision.at is None else min(due, decision.at))


def _choose_nodes(view: LeaderView, halt: Halt, survivors: list[NodeView], joining: list[NodeView]) -> list[NodeView]:
    """Leave out bad hosts if that can be; the order stays, so that rank 0 is somebody who has the state.

    Those who have stopped for newcomers have that state, and stay: their host was not lost now.
    """
    if halt.reason is HaltReason.RESIZE:
        return [*survivors, *view.without_bad_hosts(joining, survivors)]
    nodes = [*survivors, *joining]
    verdict = view.verdict(halt.round)
    if verdict is not None and verdict.action is Action.EXCLUDE_HOST and halt.incident is not None:
        others = [seen for seen in nodes if seen.node_id != halt.incident.node_id]
        nodes = others if len(others) >= view.agreement.min_nodes else nodes
    return view.without_bad_hosts(nodes)
