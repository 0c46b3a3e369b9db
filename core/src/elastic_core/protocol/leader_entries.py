"""The entries that change what runs: a ROUND with its books, a HALT, and CLOSED with its reason."""

from __future__ import annotations

from elastic_core.exit_codes import ExitCode
from elastic_core.incidents import Incident, IncidentKind, by_cause
from elastic_core.protocol.counters import counters_after_halt, counters_after_restart
from elastic_core.protocol.decisions import Append, Decision, LookAgain
from elastic_core.protocol.failure_detector import NodeView
from elastic_core.protocol.leader_view import LeaderView, sort_by_rank, head_patience
from elastic_core.protocol.ledger import Closed, Halt, HaltReason, Member, Round
from elastic_core.protocol.limits import HOSTS_BYTES, fit_names, list_names

MAX_BARREN_ROUNDS = 10
"""Rounds in a row without progress that end the job (rule L4)."""


def halt_round(
    view: LeaderView,
    current: Round,
    reason: HaltReason,
    why: str,
    incident: Incident | None = None,
    *,
    planned: bool = False,
) -> Append:
    """The HALT of a live round."""
    halt = Halt(round=current.number, reason=reason, why=why, incident=incident, planned=planned)
    return Append(halt, view.ledger.counters)


def halt_for_incident(view: LeaderView, current: Round, reason: HaltReason, incident: Incident) -> Append:
    """The HALT of a live round, for what an incident tells."""
    return halt_round(view, current, reason, _describe_incident(incident), incident)


def _describe_incident(incident: Incident) -> str:
    """An incident in one clause."""
    if incident.kind is IncidentKind.NODE_LOST:
        return f"{incident.host} is lost: {incident.message}"
    if incident.rank is None:
        return f"{incident.message} on {incident.host}"
    return f"rank {incident.rank} on {incident.host} {incident.cause()}"


def describe_wait(view: LeaderView, here: list[NodeView], deadline: float) -> str:
    """Whom the job waits for, for people."""
    missing = _describe_missing(view, here)
    who = f" to replace {missing}" if missing else ""
    more = view.agreement.min_nodes - len(here)
    return f"{more} more node(s){who}, for up to {deadline - view.now:.0f} s"


def _describe_missing(view: LeaderView, here: list[NodeView]) -> str:
    """Members of the newest round that are not here any more, or ''."""
    old = view.ledger.round.members if view.ledger.round is not None else ()
    present = {seen.node_id for seen in here}
    absent = [member.node_id for member in old if member.node_id not in present]
    return view.names(absent) if absent else ""


def seal_round(view: LeaderView, nodes: list[NodeView], *, why: str, unreachable: str | None = None) -> Decision:
    """A ROUND of ``nodes`` in this order, with the books brought up to date; without one that is unreachable (L5)."""
    old, halt = view.ledger.round, view.ledger.halt
    nodes = sort_by_rank(nodes)
    offer = nodes[0].row.offer
    if offer is None or (old is not None and offer == old.offer):
        return LookAgain(view.look(nodes=nodes))  # rank 0's next offer is on its way; its row's change wakes us
    members = tuple(Member(seen.node_id, seen.row.info.local_world_size, seen.row.info.role) for seen in nodes)
    hosts = fit_names((seen.row.info.host for seen in nodes), HOSTS_BYTES)
    if old is None or halt is None:
        return Append(Round(number=1, offer=offer, members=members, hosts=hosts, why=why), view.ledger.counters)
    counters, spends = counters_after_halt(view, old, halt, unreachable)
    body = Round(number=old.number + 1, offer=offer, members=members, hosts=hosts, charged=spends, why=why)
    return _close_if_barren(view, old, Append(body, counters))


def restart_round(view: LeaderView, current: Round, incident: Incident) -> Decision:
    """``ROUND(same as k)``: everybody is here and stays."""
    host = view.seen(current.members[0].node_id)
    offer = host.row.offer if host is not None else None
    if offer is None or offer == current.offer:
        # Who reported it gives the leader twice that, and does not know of the leader's gaps (rule L2).
        offered_by = view.ledger.round_at + head_patience(view.ledger) / 2
        if view.now < offered_by:
            return LookAgain(offered_by)
        return halt_for_incident(view, current, HaltReason.FAILURE, incident)
    shared = offer != current.offer and (offer.address, offer.port) == (current.offer.address, current.offer.port)
    if shared and len(current.members) > 1:  # the workers of this round must be gone everywhere before the next begins
        return halt_for_incident(view, current, HaltReason.FAILURE, incident)
    counters, spends = counters_after_restart(view, current, incident)
    number, why = current.number + 1, _describe_incident(incident)
    body = Round(number=number, offer=offer, same_as=current.number, charged=spends, why=why)
    return _close_if_barren(view, current, Append(body, counters))


def _close_if_barren(view: LeaderView, old: Round, sealed: Append) -> Append:
    """Rule L4: rounds that never get anywhere end the job, whatever their cause."""
    if sealed.counters.barren < MAX_BARREN_ROUNDS:
        return sealed
    why = (
        f"{MAX_BARREN_ROUNDS} rounds in a row ended without progress: no report from a worker, "
        "and never all of them alive for 30 s"
    )
    halt = view.ledger.halt
    first = [*view.incidents(old), *([halt.incident] if halt is not None and halt.incident is not None else [])]
    return close_as_failed(view, why, min(first, key=by_cause, default=None))


def close_as_succeeded(view: LeaderView, current: Round) -> Append:
    """The CLOSED of a job that is done."""
    why = f"all workers of round {current.number} exited with 0"
    return Append(Closed(success=True, why=why, exit_code=ExitCode.SUCCESS), view.ledger.counters)


def close_as_failed(view: LeaderView, why: str, incident: Incident | None, *, requeue: bool = False) -> Append:
    """The CLOSED of a job that has failed."""
    closed = Closed(success=False, why=why, exit_code=ExitCode.JOB_FAILED, incident=incident, requeue=requeue)
    return Append(closed, view.ledger.counters)


def close_for_too_few_nodes(view: LeaderView, came: list[NodeView], since: float) -> Append:
    """The CLOSED of a job that has waited for more nodes ``since`` then, in vain (rule L6)."""
    here = list_names(str(seen.row.info) for seen in came) or "nobody"
    missing = _describe_missing(view, came)
    who = f"missing: {missing}" if missing else f"{view.agreement.min_nodes - len(came)} more never came"
    why = (
        f"{len(came)} of at least {view.agreement.min_nodes} nodes are here after {view.now - since:.0f} s "
        f"({here}); {who}"
    )
    return Append(Closed(success=False, why=why, exit_code=ExitCode.TOO_FEW_NODES), view.ledger.counters)
