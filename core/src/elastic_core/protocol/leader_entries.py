"""The leader's decisions, and builders of the entries that change what runs: ROUND, HALT and CLOSED."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from elastic_core.exit_codes import ExitCode
from elastic_core.incidents import Incident, IncidentKind, Verdict, by_cause
from elastic_core.protocol.counters import next_counters
from elastic_core.protocol.entries import Body, Closed, Counters, Halt, HaltReason, Member, Round
from elastic_core.protocol.failure_detector import NodeView, head_patience
from elastic_core.protocol.leader_view import LeaderView, is_at_loopback, sort_by_rank
from elastic_core.protocol.limits import HOSTS_BYTES, fit_names, list_names
from elastic_core.questions import AskedQuestion, NodeAnswer

MAX_BARREN_ROUNDS = 10  # rounds in a row without progress that end the job (rule L4)
UNCHANGED = Counters()


@dataclass(frozen=True, slots=True)
class Append:
    """Append an entry with this body and these counters to the ledger."""

    body: Body
    counters: Counters = UNCHANGED  # :func:`~elastic_core.protocol.leader.decide` replaces UNCHANGED by the newest ones


@dataclass(frozen=True, slots=True)
class AskPolicies:
    """Ask the failure policies about this incident, and decide again with their verdict."""

    incident: Incident


@dataclass(frozen=True, slots=True)
class SumUp:
    """Have the plugins sum up the answers to a QUESTION, and decide again with their report."""

    question: AskedQuestion
    answers: tuple[NodeAnswer, ...]


@dataclass(frozen=True, slots=True)
class LookAgain:
    """Do nothing before this instant or the next change; None: before the next change."""

    at: float | None
    waiting: str = ""  # what the job waits for, as a text for users, if it cannot go on without
    awaited: str = ""  # the same without the time that is left, which changes at every look; '' where it has none
    silent: tuple[str, ...] = ()
    """Nodes that may still train, for whose fence the job waits: plugins or operators may vouch that they are gone."""
    put_off: str = ""  # why a node that waits gets no place yet, as a text for users (rule L13)


Decision: TypeAlias = "Append | AskPolicies | SumUp | LookAgain"


# HALT ----------------------------------------------------------------------------------------------------------------


def halt_round(current: Round, reason: HaltReason, why: str, *, planned: bool = False) -> Append:
    """Return the HALT of a live round."""
    return Append(Halt(round=current.number, reason=reason, why=why, planned=planned))


def halt_for_incident(
    current: Round, incident: Incident, reason: HaltReason = HaltReason.FAILURE, verdict: Verdict | None = None
) -> Append:
    """Return the HALT of a live round that an incident ends, with the verdict to give up, for a later leader."""
    halt = Halt(
        round=current.number,
        reason=reason,
        why=_describe_incident(incident),
        incident=incident,
        verdict="" if verdict is None else verdict.reason,
        requeue=verdict is not None and verdict.requeue,
    )
    return Append(halt)


def with_judged(view: LeaderView, old: Round, halt: Halt) -> tuple[LeaderView, Halt]:
    """Return the view and the HALT of a failure with the incident that the policies were asked about.

    That may have been reported after the HALT. The next round names it, counts it and leaves its host out.
    """
    judged = None if (asked := view.judgement_of(old.number)) is None else asked.incident
    if judged is None or halt.reason is not HaltReason.FAILURE or judged == halt.incident:
        return view, halt
    halt = replace(halt, incident=judged, why=_describe_incident(judged))
    return replace(view, ledger=replace(view.ledger, halt=halt)), halt


def _describe_incident(incident: Incident) -> str:
    """Describe an incident in one clause."""
    if incident.kind is IncidentKind.NODE_LOST:
        return f"{incident.host} is lost: {incident.message}"
    if incident.rank is None:
        return f"{incident.message} on {incident.host}"
    return f"rank {incident.rank} on {incident.host} {incident.describe()}"


# ROUND ---------------------------------------------------------------------------------------------------------------


def append_round(view: LeaderView, nodes: list[NodeView], *, why: str, unreachable: str | None = None) -> Decision:
    """Return a ROUND of ``nodes`` in this order, with updated counters; ``unreachable`` was left out of it (L5)."""
    old, halt = view.ledger.round, view.ledger.halt
    nodes = sort_by_rank(nodes, view.ledger.ranks)
    offer = nodes[0].row.offer
    if offer is None or (old is not None and offer == old.offer):
        return LookAgain(view.next_look_at(nodes=nodes))  # the row with rank 0's next offer will call `decide` again
    members = tuple(Member(node.node_id, node.row.info.local_world_size, node.row.info.role) for node in nodes)
    hosts = fit_names((node.row.info.host for node in nodes), HOSTS_BYTES)
    if old is None or halt is None:
        return Append(Round(number=1, offer=offer, members=members, hosts=hosts, why=why))
    counters, spends = next_counters(view, old, halt.incident, unreachable)
    made = Round(number=old.number + 1, offer=offer, members=members, hosts=hosts, charged=spends, why=why)
    return _append_round(view, old, replace(made, verdict=_describe_verdict(view, old) if spends else ""), counters)


def restart_round(view: LeaderView, current: Round, incident: Incident) -> Decision:
    """Return a ROUND with the same members as ``current``; a HALT if they cannot meet in another store at once."""
    host = view.get(current.members[0].node_id)
    offer = host.row.offer if host is not None else None
    if offer is None or offer == current.offer:
        # Rank 0 has made no new offer yet. Wait for half as long as the node that reported the incident waits before
        # it deposes the leader, because it does not know of the leader's gaps (L2). Then a HALT answers the incident.
        offered_by = view.ledger.round_at + head_patience(view.ledger) / 2
        if view.now < offered_by:
            return LookAgain(offered_by)
        return halt_for_incident(current, incident)
    # The new store has the address of the old one: all workers must be gone before it can be used again.
    shared = offer != current.offer and (offer.address, offer.port) == (current.offer.address, current.offer.port)
    if shared and len(current.members) > 1:
        return halt_for_incident(current, incident)
    counters, spends = next_counters(view, current, incident)
    number, why = current.number + 1, _describe_incident(incident)
    verdict = _describe_verdict(view, current)
    body = Round(number=number, offer=offer, same_as=current.number, charged=spends, why=why, verdict=verdict)
    return _append_round(view, current, body, counters)


def _describe_verdict(view: LeaderView, old: Round) -> str:
    """Return the policy that allowed a restart after ``old``, and its reason; '' if the policies were not asked."""
    verdict = view.verdict(old.number)
    return "" if verdict is None else f"{verdict.policy}: {verdict.reason}"


def _append_round(view: LeaderView, old: Round, body: Round, counters: Counters) -> Append:
    """Return the ROUND, or CLOSED if too many rounds in a row made no progress, whatever ended them (rule L4)."""
    if counters.barren < MAX_BARREN_ROUNDS:
        return Append(body, counters)
    why = (
        f"{MAX_BARREN_ROUNDS} rounds in a row ended without progress: no report from a worker, "
        "and never all of them alive for 30 s"
    )
    halt = view.ledger.halt
    first = [*view.incidents(old), *([halt.incident] if halt is not None and halt.incident is not None else [])]
    return close_as_failed(why, min(first, key=by_cause, default=None))


# CLOSED --------------------------------------------------------------------------------------------------------------


def close_as_succeeded(current: Round) -> Append:
    """Return the CLOSED of a job whose workers have all exited with 0."""
    why = f"all workers of round {current.number} exited with 0"
    return Append(Closed(success=True, why=why, exit_code=ExitCode.SUCCESS))


def close_as_failed(why: str, incident: Incident | None, *, requeue: bool = False) -> Append:
    """Return the CLOSED of a job that has failed; ``incident`` is the root cause."""
    code = ExitCode.REQUEUE if requeue else ExitCode.JOB_FAILED
    return Append(Closed(success=False, why=why, exit_code=code, incident=incident, requeue=requeue))


def close_for_too_few_nodes(view: LeaderView, came: list[NodeView], since: float) -> Append:
    """Return the CLOSED of a job that has waited for the minimum of nodes since ``since`` in vain (rule L6)."""
    here = list_names(str(node.row.info) for node in came) or "no node"
    missing = _describe_missing(view, came)
    who = f"missing: {missing}" if missing else f"{view.agreement.min_nodes - len(came)} more never came"
    who = _describe_loopback(view) or who
    why = (
        f"{len(came)} of at least {view.agreement.min_nodes} nodes are here after {view.now - since:.0f} s "
        f"({here}); {who}"
    )
    halt = view.ledger.halt
    cause = halt.incident if halt is not None and halt.reason is HaltReason.NODE_LOST else None
    return Append(Closed(success=False, why=why, exit_code=ExitCode.TOO_FEW_NODES, incident=cause))


def describe_wait(view: LeaderView, here: list[NodeView], deadline: float) -> tuple[str, str]:
    """Return for how many nodes the job waits, and until when (rule L6); and the same without the time."""
    missing = _describe_missing(view, here)
    who = f" to replace {missing}" if missing else ""
    more = view.agreement.min_nodes - len(here)
    if closed := _describe_loopback(view):
        who += f" ({closed})"
    return with_limit(f"{more} more node(s){who}", deadline - view.now)


def with_limit(awaited: str, seconds: float, more: str = "") -> tuple[str, str]:
    """Return what the job waits for with the seconds that it waits at most, and without."""
    return f"{awaited}, for up to {seconds:.0f} s{more}", awaited


def _describe_loopback(view: LeaderView) -> str:
    """Name the nodes whose address leads other nodes that are here to themselves; '' if there are none."""
    nodes = [node for node in view.watch.nodes.values() if node.listed]
    loops = [node for node in nodes if is_at_loopback(node)]
    if not loops or len({node.row.info.network for node in nodes} - {""}) < 2:
        return ""
    who, at = view.describe_nodes(node.node_id for node in loops), loops[0].row.info.address
    return f"no other host reaches {who} at {at}: start it with --local_addr=ADDRESS"


def _describe_missing(view: LeaderView, here: list[NodeView]) -> str:
    """Name the members of the newest round that are not ``here``; '' if there are none."""
    present = {node.node_id for node in here}
    absent = [node_id for node_id in view.ledger.ranks if node_id not in present]
    return view.describe_nodes(absent) if absent else ""
