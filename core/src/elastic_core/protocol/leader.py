"""The leader's state machine: one pure function from what the leader knows to what it does next.

The driver calls :func:`decide` after every change that it notices, and at every instant that the last decision named.
A run is forming (no round yet), live (a ROUND that no HALT has ended), halted (a HALT that no ROUND has followed), or
closed. A comment cites the rule of ``docs/internals/protocol.md`` that the code below it enforces.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from elastic_core.config.parse import OnNodeLoss
from elastic_core.incidents import Action, Incident, IncidentKind, Verdict, distance_to_cause
from elastic_core.protocol import leader_entries, planned_stop, questions
from elastic_core.protocol.counters import is_charged
from elastic_core.protocol.entries import Halt, HaltReason, Over, Round
from elastic_core.protocol.failure_detector import SUSPICION_FACTOR, NodeView
from elastic_core.protocol.leader_entries import Append, AskPolicies, Decision, LookAgain, SumUp
from elastic_core.protocol.leader_view import (
    LeaderView,
    Suspicion,
    cause_known_at,
    describe_unreachable,
    find_unreachable,
    probes_awaited_until,
)
from elastic_core.protocol.limits import MAX_LEFT_MEMBERS
from elastic_core.protocol.planned_stop import next_admission_at, next_resize
from elastic_core.protocol.roster import Phase, max_row_delay

RESIZE_PAUSE_SECONDS = 10.0  # the time between two planned resizes is at least this long (rule L4)
RESIZE_PAUSE_FACTOR = 10.0
"""The time between two planned resizes is at least this many times the cost of the last one (rule L4)."""
SETTLING_SECONDS = 4.0  # how long an OPEN on a store that can forget waits before its first ROUND (rule S3)
OVER_DELAY_SECONDS = 1.0  # how old the newest entry is when a waiting leader writes an OVER (rule S4)


def decide(view: LeaderView) -> Decision:
    """Return one entry to append, what plugins must answer first, or the instant to look again at."""
    ledger = view.ledger
    decision: Decision
    if ledger.closed is not None:
        return LookAgain(None)
    if (drain := planned_stop.answer_drain_requests(view)) is not None:
        decision = drain
    elif ledger.round is None:
        decision = _decide_forming(view)
    elif ledger.halt is None:
        decision = _decide_live(view, ledger.round)
    else:
        view, halt = leader_entries.with_judged(view, ledger.round, ledger.halt)
        decision = _record_over(view, ledger.round, _decide_halted(view, ledger.round, halt))
    if isinstance(decision, Append):
        counters = ledger.counters if decision.counters is leader_entries.UNCHANGED else decision.counters
        worst = max(counters.worst_seen, _slowest_member_delay(view))
        return replace(decision, counters=replace(counters, worst_seen=worst))
    return decision


def _slowest_member_delay(view: LeaderView) -> float:
    """Return the longest delay, in seconds, with which a member showed that it had read the newest entry (rule L2).

    Skip members that joined after the entry, and entries that the leader itself read late: their delays say nothing
    about the network. Subtract the time for which members may hold back a row about a ROUND. The result is limited, so
    that suspicion never takes longer than a missing heartbeat.
    """
    ledger, head, head_at = view.ledger, view.ledger.head, view.ledger.head_at
    if ledger.round is None or not isinstance(head.body, Round | Halt) or view.watch.gap_at >= head_at:
        return 0.0
    delays = [
        node.seen_at - head_at
        for node in view.node_views(ledger.round)
        if node.row.head == head.index and node.arrived_at <= head_at
    ]
    slowest = max([0.0, *delays]) - (max_row_delay(head.body) if isinstance(head.body, Round) else 0.0)
    return round(min(max(0.0, slowest), view.timing.lost_after / SUSPICION_FACTOR), 3)


# Forming: OPEN, and no ROUND yet -------------------------------------------------------------------------------------


def _decide_forming(view: LeaderView) -> Decision:
    ledger, agreement = view.ledger, view.agreement
    came = view.newcomers()
    deadline = ledger.opened_at + view.timing.join_timeout
    if len(came) >= agreement.min_nodes:
        # Enough nodes are here. On a store that can forget, another run may be live: its nodes get time to restore it
        # (S3). Below the maximum, later nodes get `last_call_timeout` from the last arrival.
        ready = ledger.opened_at + (SETTLING_SECONDS if view.may_forget else 0.0)
        if len(came) < agreement.max_nodes:
            ready = max(ready, max(node.arrived_at for node in came) + view.timing.last_call_timeout)
        if view.now >= ready:
            return leader_entries.append_round(view, came[: agreement.largest_size(len(came))], why="the first round")
        return LookAgain(ready)
    if view.now >= deadline:  # L6: the wait for the minimum is limited
        return leader_entries.close_for_too_few_nodes(view, came, since=ledger.opened_at)
    return LookAgain(view.next_look_at(deadline, nodes=came), *leader_entries.describe_wait(view, came, deadline))


# Live: a ROUND without a HALT ----------------------------------------------------------------------------------------


def _decide_live(view: LeaderView, current: Round) -> Decision:
    ledger, ids = view.ledger, current.group_ranks
    # All members have finished: the job is done. FINISHED stands even for a member that was lost since (L7).
    finished = {node_id for node_id in ids if view.has_finished(current, node_id)}
    if len(finished) == len(ids):
        return leader_entries.close_as_succeeded(current)
    # A worker failed. If every report so far says that a peer is gone, the report of the cause may still be on its way:
    # give it a moment, because the policies judge the cause.
    if incidents := view.incidents(current):
        asked, until = view.judgement_of(current.number), cause_known_at(view, current, incidents)
        if asked is None and view.now < until:
            return LookAgain(until)
        return _decide_failure(view, current, (asked and asked.incident) or incidents[0])
    # A member is lost, leaves, or stopped by itself. A member that has finished is not needed any more.
    for node_id in ids:
        if node_id not in finished and (halt := _departure_halt(view, current, node_id)) is not None:
            return halt
    # A member sends heartbeats and has not shown in time that it read the ROUND: its workers may never start (L2).
    suspicion = Suspicion(view, current)
    late, suspect_at = suspicion.suspectable_members(ledger.head.anchors.latest), suspicion.silence_suspected_at
    if late and view.now >= suspect_at:
        why = f"round {current.number} did not begin in time on {view.describe_nodes(late)}"
        return leader_entries.halt_round(current, HaltReason.UNSEEN, why)
    # The workers are about to stop together, for a resize or because a member leaves.
    if ledger.planned_stop is not None:
        return planned_stop.continue_plan(view, current, ledger.planned_stop, finished)
    looks, put_off = [suspect_at] if late else [], ""
    # A node waits and there is room: resize as soon as L4 and L13 allow it, unless a member has finished, so that the
    # job is about to end (L7), or a slot shows that a member is gone, so that a stop would not be a planned one (S8).
    if view.places(current) and not finished and view.watch.gone.isdisjoint(ids):
        resize_at, put_off = next_resize(view, current)
        resize_at = max(resize_at, _resize_allowed_at(view))
        if view.now >= resize_at:
            who = view.describe_nodes(node.node_id for node in view.newcomers()[: view.places(current)])
            why = f"{who} joins the {len(ids)} node(s) of the round"
            return planned_stop.stop_gracefully(view, current, HaltReason.RESIZE, why, view.timing.plan_timeout)
        looks.append(resize_at)
    elif len(current.members) < view.agreement.max_nodes and (admitted_at := next_admission_at(view)) is not None:
        looks.append(admitted_at)  # L12: a node waits whose host is excluded until then
    # A monitor or a command asks all members something, or their answers are to be summed up (L14).
    asks = questions.ask_or_report(view, current, finished)
    if isinstance(asks, Append | SumUp):
        return asks
    looks += [] if asks is None else [asks]
    return LookAgain(view.next_look_at(*looks, nodes=view.node_views(current)), put_off=put_off)


def _decide_failure(view: LeaderView, current: Round, first: Incident) -> Decision:
    """Answer the failure of a worker in a live round; ``first`` is the root cause as far as it is known.

    Once the policies were asked, it is the incident that they were asked about.
    """
    verdict = view.verdict(current.number)
    if not is_charged(first):  # not the workers' fault, e.g. a port that is taken: restart without asking
        verdict = Verdict(Action.RESTART, first.message)
    elif view.judgement_of(current.number) is None:
        if distance_to_cause(first):  # its cause may be reported until all members have stopped (L9)
            return leader_entries.halt_for_incident(current, first)
        return AskPolicies(first)
    if verdict is None:  # the policies have not answered yet: stop the broken round meanwhile
        return leader_entries.halt_for_incident(current, first)
    if verdict.action is Action.GIVE_UP:
        return leader_entries.halt_for_incident(current, first, HaltReason.GIVING_UP, verdict)
    # If all members stay and no node joins, one ROUND restarts them all. Otherwise a HALT comes first, and the next
    # round has other members.
    whole = _can_restart_all(view, current) and not view.places(current)
    if verdict.action is Action.RESTART and not verdict.delay and whole and find_unreachable(view, current) is None:
        return leader_entries.restart_round(view, current, first)
    return leader_entries.halt_for_incident(current, first)


def _can_restart_all(view: LeaderView, current: Round) -> bool:
    """Return True if every member is here and stays, as far as the leader knows.

    A member that has not read this round yet may still read the next one; if it does not, it is suspected then (L2).
    """
    ids, suspicion = current.group_ranks, Suspicion(view, current)
    if any(view.is_leaving(node_id) or suspicion.is_silent_old_leader(node_id) for node_id in ids):
        return False
    if any(planned_stop.has_stepped_down(current, view.get(node_id)) for node_id in ids):
        return False
    return not any(_departure_halt(view, current, node_id) for node_id in ids)


def _departure_halt(view: LeaderView, current: Round, node_id: str) -> Append | None:
    """Return the HALT (or PLAN) for a member that leaves, is lost, or stopped by itself; None for one that stays."""
    node = view.get(node_id)
    # Its workers stopped as the PLAN wants it. The node may go away now; the HALT follows when all have stopped.
    if view.ledger.planned_stop is not None and planned_stop.has_stepped_down(current, node):
        return None
    if node is not None and node.row.leaving:
        return planned_stop.stop_for_departure(view, current, node)
    if view.is_lost(node_id):
        lost = Incident(
            kind=IncidentKind.NODE_LOST,
            round=current.number,
            node_id=node_id,
            host=view.describe_nodes([node_id]),
            message=_describe_loss(view, node),
        )
        return leader_entries.halt_for_incident(current, lost, HaltReason.NODE_LOST)
    # The store lost the row of a node that still sends heartbeats: the node will enter its row again.
    if node is None:
        return None
    # Its workers stopped without a report of a failure: its fence stopped them, because it had no contact (S4).
    stopped = node.row.phase is Phase.STOPPED and node.row.round == current.number
    if stopped and node.row.incident is None:
        why = f"{view.describe_nodes([node_id])} stopped its workers: it had lost sight of the store"
        return leader_entries.halt_round(current, HaltReason.NODE_LEFT, why)
    return None


def _describe_loss(view: LeaderView, node: NodeView | None) -> str:
    if node is None:
        return "its row in the store is gone"
    if view.is_proved_gone(node):
        return "its last process is gone"
    return f"no heartbeat for {view.now - node.changed_at:.1f} s"


def _resize_allowed_at(view: LeaderView) -> float:
    """Return when the next planned resize may begin (rule L4).

    A leader that was cut off after the last resize began does not know its cost, from its HALT to its ROUND: part of it
    may have been the time without the store.
    """
    if (last := view.ledger.last_resize) is None:
        return view.ledger.round_at
    is_cost_known = view.watch.gap_at < last.over_at - last.cost
    return last.over_at + max(RESIZE_PAUSE_SECONDS, RESIZE_PAUSE_FACTOR * last.cost * is_cost_known)


# Halted: a HALT without a later ROUND --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _HaltedMembers:
    """The members of a halted round, sorted by what became of them. Each is in exactly one of the first four."""

    leaving: list[str]
    lost: list[str]
    suspected: list[str]
    fit: list[str]
    busy: list[str]  # those of ``fit`` that have not shown yet that they read the HALT and stopped their workers
    joining: list[NodeView]
    unreachable: str | None  # one of ``fit`` that the others cannot reach and can do without (rule L5)

    def gone(self, view: LeaderView, old: Round) -> list[str]:
        """Return the members that went away without having finished."""
        out = [] if self.unreachable is None else [self.unreachable]
        return [i for i in (*self.lost, *self.suspected, *out) if not view.has_finished(old, i)]


def _sort_members(suspicion: Suspicion) -> _HaltedMembers:
    view, old = suspicion.view, suspicion.round
    ids, agreement, halt = old.group_ranks, view.agreement, view.ledger.head.anchors.halt
    leaving = [node_id for node_id in ids if view.is_leaving(node_id)]
    lost = [node_id for node_id in ids if not view.is_leaving(node_id) and view.is_lost(node_id)]
    gone = {*leaving, *lost}
    fit = [node_id for node_id in ids if node_id not in gone]
    joining, late = view.waiting_nodes(), suspicion.suspectable_members(halt)
    suspected = [i for i in late if i not in gone and view.now >= suspicion.member_suspected_at(i)]
    # L2: suspicion alone never takes a job below its minimum, nor ends it. The heartbeat limit does.
    enough = len(fit) - len(suspected) + len(joining) >= agreement.min_nodes
    if not enough or agreement.on_node_loss is OnNodeLoss.FAIL:
        suspected = []
    unseen, silent = set(view.members_behind(old, halt)), set(suspected)
    fit = [node_id for node_id in fit if node_id not in silent]
    busy = [i for i in fit if i in unseen or (node := view.get(i)) is None or node.row.phase is Phase.RUNNING]
    out = find_unreachable(view, old) if agreement.on_node_loss is OnNodeLoss.REPLACE else None
    if out not in fit or len(fit) - 1 + len(joining) < agreement.min_nodes:
        out = None
    return _HaltedMembers(
        leaving=leaving, lost=lost, suspected=suspected, fit=fit, busy=busy, joining=joining, unreachable=out
    )


def _decide_halted(view: LeaderView, old: Round, halt: Halt) -> Decision:
    ledger, suspicion = view.ledger, Suspicion(view, old)
    members = _sort_members(suspicion)
    # Every member had finished before it read the HALT: the job is done.
    if all(view.has_finished(old, member.node_id) for member in old.members):
        return leader_entries.close_as_succeeded(old)
    # After a failure the members probe each other; their answers may show that one cannot be reached (L5).
    suspected_at = [suspicion.member_suspected_at(i) for i in members.busy]
    if (until := probes_awaited_until(view, old, halt, members.fit)) is not None:
        return LookAgain(view.next_look_at(until, *suspected_at, nodes=view.node_views(old)))
    if (ending := _close_after_halt(view, old, halt, members)) is not None:
        return ending
    # A member that stays has not stopped yet: wait until it has, or is suspected.
    if members.busy:
        return LookAgain(view.next_look_at(*suspected_at, nodes=view.node_views(old)))
    # Without proof that the old round is over, wait until the fences of its members have stopped all workers (S4).
    fence = max([ledger.halted_at, *(node.sign_at for node in view.node_views(old))]) + view.timing.fence_after
    if view.now < fence and not _is_round_over(view, old):
        return _wait_for_fence(view, old, members, fence)
    # The old round is over. Seal the next one, or wait for the minimum of nodes up to the deadline (L6).
    out = members.unreachable
    survivors = [node for i in members.fit if i != out and (node := view.get(i)) is not None]
    nodes = _choose_nodes(view, halt, survivors, members.joining)
    if len(nodes) >= view.agreement.min_nodes:
        nodes = nodes[: view.agreement.largest_size(len(nodes))]  # L15
        if (delay := _wait_for_delay(view, old, halt, members, nodes)) is not None:
            return delay
        why = _why_restarted(view, old, halt) if out is None else describe_unreachable(view, old, out)
        return leader_entries.append_round(view, nodes, why=why, unreachable=out)
    deadline = ledger.halt_at + view.timing.join_timeout
    if view.now >= deadline:
        return leader_entries.close_for_too_few_nodes(view, nodes, since=ledger.halt_at)
    waiting = () if members.leaving and not nodes else leader_entries.describe_wait(view, nodes, deadline)
    return LookAgain(view.next_look_at(deadline, nodes=nodes), *waiting)


def _why_restarted(view: LeaderView, old: Round, halt: Halt) -> str:
    """Return why the round after ``halt`` begins, with where the ranks were that others may have waited for."""
    others = "" if halt.incident is None else questions.describe_others(view, old, view.first_cause(old, halt.incident))
    return f"{halt.why}; {others}" if others else halt.why


def _close_after_halt(view: LeaderView, old: Round, halt: Halt, members: _HaltedMembers) -> Decision | None:
    """Return the CLOSED that this HALT leads to, or the step before it; None if there is none (yet)."""
    gone = members.gone(view, old)
    if gone and view.agreement.on_node_loss is OnNodeLoss.FAIL:
        why = f"{view.describe_nodes(gone)} is lost, and --on_node_loss=fail ends the job then"
        cause = view.first_cause(old, halt.incident) if is_charged(halt.incident) else halt.incident
        return leader_entries.close_as_failed(why, cause)
    # Workers did not cause the HALT: the job goes on.
    if not is_charged(halt.incident):
        return None
    first = view.first_cause(old, halt.incident)
    first = replace(first, others=questions.describe_others(view, old, first))
    reason, requeue = halt.verdict or "the failure policy gave up", halt.requeue
    if halt.reason is HaltReason.FAILURE:  # a HALT for GIVING_UP has the verdict, for the next leader too
        if view.judgement_of(old.number) is None:
            if distance_to_cause(first) and members.busy:
                return None
            return AskPolicies(first)
        if (verdict := view.verdict(old.number)) is None:  # their answer will call `decide` again
            return LookAgain(None)
        if verdict.action is not Action.GIVE_UP:
            return None
        reason, requeue = verdict.reason, verdict.requeue
    # The verdict is to give up. If a member left or was lost, that counts as the cause, and the job goes on without it.
    if gone or members.leaving:
        return None
    # Wait for the reports of all members: the root cause is among them.
    if members.busy:
        return None
    if (blamed := find_unreachable(view, old)) is not None:
        reason += f"; {describe_unreachable(view, old, blamed)}"
    if (alike := _count_alike(view, old, halt.incident, first)) > 1:
        reason += f"; {alike} of {old.world_size} ranks failed alike"
    early = first.kind is IncidentKind.EXITED_EARLY
    # A node that had finished explains a lost connection: the program ends its ranks at different steps anywhere.
    finished = [node_id for node_id in old.group_ranks if view.has_finished(old, node_id)]
    if finished and first.follows_peer:
        reason += f"; all workers of {view.describe_nodes(finished)} had exited with code 0 before the other ranks"
        early = True
    return leader_entries.close_as_failed(reason, first, requeue=requeue and not early)


def _count_alike(view: LeaderView, old: Round, blamed: Incident, first: Incident) -> int:
    """Return how many ranks failed as the root cause did, ``first``, as far as the members have counted them.

    A member that reports no failure has counted those that failed as the HALT's ``blamed`` one.
    """
    reports = [(node.row.incident or blamed, node.row.alike) for node in view.node_views(old)]
    return sum(n for known, n in reports if (known.round, known.message) == (first.round, first.message))


def _wait_for_delay(
    view: LeaderView, old: Round, halt: Halt, members: _HaltedMembers, nodes: list[NodeView]
) -> LookAgain | None:
    """Wait for the next round of ``nodes`` after a failure, if a verdict delays it; None if it may begin (rule L11).

    The time counts from the HALT. A leader that takes over asks the policies anew, and counts from the same instant. A
    job whose workers failed because a member went away does not wait.
    """
    verdict = view.verdict(halt.round)
    if verdict is None or not verdict.delay or not is_charged(halt.incident):
        return None
    until = view.ledger.halted_at + verdict.delay
    if view.now >= until or members.gone(view, old) or members.leaving:
        return None
    awaited = f"the delay after the failure to pass ({verdict.reason})"
    return LookAgain(view.next_look_at(until, nodes=nodes), *leader_entries.with_limit(awaited, until - view.now))


def _is_round_over(view: LeaderView, old: Round) -> bool:
    """Return True if some member has stopped or lost a rank, so that no other member can train on (rule S4).

    A slot that shows that a member is gone proves it too. What a row said before its node was lost still holds, because
    a rank that is gone stays gone. An OVER says that some leader has read such a row.
    """
    if view.ledger.over is not None:
        return True
    for node in view.node_views(old):
        row = node.row
        stopped = row.round == old.number and row.phase in (Phase.STOPPED, Phase.FINISHED)
        failed = row.incident is not None and row.incident.round == old.number
        idle = row.phase is not Phase.RUNNING and row.head >= view.ledger.head.anchors.halt
        if stopped or failed or idle or view.is_proved_gone(node):
            return True
    return False


def _wait_for_fence(view: LeaderView, old: Round, members: _HaltedMembers, fence: float) -> LookAgain:
    """Wait for the fence of a round that may still be training, and say for which nodes."""
    at, silent = view.next_look_at(fence, nodes=view.node_views(old)), [*members.lost, *members.suspected]
    if not silent:
        return LookAgain(at, f"{view.describe_nodes(members.leaving)} to stop its workers")
    who = f"{view.describe_nodes(silent)}, which may still be training, to answer, or to stop by itself"
    more = f" (--rdzv_conf fence_after={view.timing.fence_after:g})"
    # An operator can vouch only for a host that has a row.
    if hosts := sorted({node.row.info.host for i in silent if (node := view.get(i)) is not None}):
        more += f", or until you say that it is gone for good: elastic release {hosts[0]}"
    return LookAgain(at, *leader_entries.with_limit(who, fence - view.now, more), tuple(silent))


def _record_over(view: LeaderView, old: Round, decision: Decision) -> Decision:
    """Replace a wait by the OVER of a round that is over, if the store can lose the rows that prove it (rule S4)."""
    if not isinstance(decision, LookAgain) or not view.may_forget or not _is_round_over(view, old):
        return decision
    left, over = tuple(filter(view.is_leaving, old.group_ranks))[:MAX_LEFT_MEMBERS], view.ledger.over
    if over is not None and over.left == left:
        return decision
    due = view.ledger.head_at + OVER_DELAY_SECONDS
    if view.now >= due:
        return Append(Over(round=old.number, left=left))
    return replace(decision, at=due if decision.at is None else min(due, decision.at))


def _choose_nodes(view: LeaderView, halt: Halt, survivors: list[NodeView], joining: list[NodeView]) -> list[NodeView]:
    """Return the nodes of the next round, without bad hosts if the rest are enough (rule L4).

    Survivors come first, so that rank 0 is a node that has the training state. After a resize all of them stay: their
    hosts were not lost now.
    """
    if halt.reason is HaltReason.RESIZE:
        return [*survivors, *view.drop_bad_hosts(joining, survivors)]
    nodes = [*survivors, *joining]
    verdict = view.verdict(halt.round)
    if verdict is not None and verdict.action is Action.EXCLUDE_HOST and halt.incident is not None:
        others = [node for node in nodes if node.node_id != halt.incident.node_id]
        nodes = others if len(others) >= view.agreement.min_nodes else nodes
    return view.drop_bad_hosts(nodes)
