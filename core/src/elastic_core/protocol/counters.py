"""The counters of a job after each new round.

One incident spends one restart, when its ROUND is sealed. A failure that comes with the loss of a node spends none. A
restart is given back if a member that is dropped afterwards never saw that ROUND: its loss was the cause.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

from elastic_core.incidents import ENDED_EARLY, PEER_LOST, SPENDS_A_RESTART, Action, Failure, Incident, IncidentKind
from elastic_core.protocol.entries import Counters, Exclusion, HostLosses, Round, SpentRestart
from elastic_core.protocol.leader_view import LeaderView
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.limits import FAILURE_TEXT_BYTES, MAX_FAILURES, MAX_HOSTS, clip
from elastic_core.protocol.roster import NodeRow, Reached

LOSSES_KEPT_SECONDS = 3600.0  # how long the ledger remembers the losses of a host that has no row


def is_charged(incident: Incident | None) -> TypeGuard[Incident]:
    """Return True if an incident spends a restart: only failures of workers do."""
    return incident is not None and incident.kind in SPENDS_A_RESTART


def next_counters(
    view: LeaderView, old: Round, incident: Incident | None, unreachable: str | None = None
) -> tuple[Counters, bool]:
    """Return the counters after the round that follows ``old``, and whether that round spends a restart.

    Members that leave or are lost are not in that round, nor is the host of the ``unreachable`` one while other nodes
    are enough (L5). A live round is only followed at once by another one if there are none of these: no ``HALT`` is
    there to be read then, so that no member counts as behind.
    """
    anchors, counters = view.ledger.head.anchors, view.ledger.counters
    unseen = view.members_behind(old, anchors.halt)
    left = [node_id for node_id in old.group_ranks if view.is_leaving(node_id)]
    silent = [node_id for node_id in old.group_ranks if node_id in unseen or view.is_lost(node_id)]
    lost = [node_id for node_id in silent if node_id not in left]
    node_views = [node for node_id in lost if (node := view.get(node_id)) is not None]
    spends = is_charged(incident) and not lost and not left and unreachable is None
    # Indices from before a RESUME cannot be compared, so the number of the round counts as well.
    never_saw = [node for node in node_views if node.row.head < anchors.latest and node.row.round < old.number]
    given_back = old.charged and bool(never_saw)
    after = replace(
        counters,
        restarts=counters.restarts + spends - given_back,
        failures=counters.failures[: len(counters.failures) - given_back],
        barren=_barren_rounds(view, old),
        losses=_losses_by_host(view, [node.row.info.host_id for node in node_views]),
        excluded=_excluded_hosts(view, old, incident, unreachable),
    )
    return (after if incident is None or not spends else _with_failure(after, view, old, incident)), spends


def past_failures(ledger: Ledger, now: float, rows: Sequence[NodeRow] = ()) -> tuple[Failure, ...]:
    """Return the failures that the ledger remembers, as policies see them at ``now`` (rule L10).

    By ``rows``, a round may have come further than the ledger says: it is written before the last nodes have stopped.
    """
    age, past = ledger.age(now), ledger.counters.failures
    return tuple(replace(_with_progress(one.failure, rows), seconds_ago=max(0.0, age - one.age)) for one in past)


def as_record(incident: Incident) -> Failure:
    """Return what the ledger remembers of an incident that spends a restart, each text in its share."""
    digest = ENDED_EARLY if incident.kind is IncidentKind.EXITED_EARLY else incident.digest
    return Failure(
        round=incident.round,
        rank=incident.rank,
        host=clip(incident.host, FAILURE_TEXT_BYTES),
        exception=clip(incident.exception, FAILURE_TEXT_BYTES),
        exit_code=incident.exit_code,
        step=incident.step if incident.counts_on else None,
        place=clip(incident.place, FAILURE_TEXT_BYTES),
        digest=PEER_LOST if incident.follows_peer else digest,
        after=round(incident.after, 1),
        checkpoint=clip(incident.checkpoint.rpartition("/")[2], FAILURE_TEXT_BYTES),
        failure_class=incident.failure_class,
        hosts_fault=incident.explanation.hosts_fault,
    )


def progress_of(number: int, rows: Sequence[NodeRow], own: Reached | None = None) -> Reached:
    """Return how far round ``number`` has come, as far as the nodes and the leader itself (``own``) have noticed."""
    told = [one for one in (own, *(row.reached for row in rows)) if one is not None and one.round == number]
    step = _newest(*(one.step for one in told))
    noticed = any(row.round == number and row.checkpoint is not None and row.checkpoint.newer for row in rows)
    return Reached(number, step, any(one.moved for one in told), noticed or any(one.saved for one in told))


def judged_progress(
    incident: Incident, rows: Sequence[NodeRow], own: Reached | None, past: Sequence[Failure]
) -> Reached:
    """Return how far the round of an incident has come, as of the judgement, with the step that counts there.

    The node of the incident and the leader (``own``) know what their own ranks have reached. The rows of the others may
    be seconds old: their step proves progress, but a step that is not newer than those of the past proves nothing.
    """
    found = progress_of(incident.round, rows, own)
    known = _newest(as_record(incident).step, progress_of(incident.round, (), own).step)
    newest = _newest(*(one.step for one in past))
    is_old = known is None and newest is not None and found.step is not None and found.step <= newest
    return replace(found, step=None if is_old else _newest(known, found.step))


def _newest(*steps: int | None) -> int | None:
    return max((step for step in steps if step is not None), default=None)


def _with_failure(counters: Counters, view: LeaderView, old: Round, incident: Incident) -> Counters:
    """Return the counters with the failure of round ``old``, and with newer steps of the failures before it."""
    rows = [node.row for node in view.node_views(old)]
    spent = (*counters.failures, SpentRestart(failure=as_record(incident), age=round(view.age, 1)))[-MAX_FAILURES:]
    return replace(counters, failures=tuple(replace(one, failure=_with_progress(one.failure, rows)) for one in spent))


def _with_progress(failure: Failure, rows: Sequence[NodeRow]) -> Failure:
    """Return a failure of the past with what the rows say of its round."""
    reached = progress_of(failure.round, rows)
    return replace(
        failure,
        step=_newest(failure.step, reached.step),
        moved=failure.moved or reached.moved,
        new_checkpoint=failure.new_checkpoint or reached.saved,
    )


def _hosts_with_rows(view: LeaderView) -> set[str]:
    """Return the ids of the hosts that have a row."""
    return {node.row.info.host_id for node in view.watch.nodes.values() if node.listed}


def _losses_by_host(view: LeaderView, lost: list[str]) -> dict[str, HostLosses]:
    """Return the losses by host after these hosts were lost (a host is listed twice if two of its nodes were).

    Hosts that have a row, or were lost within the last hour, are kept. If they are too many, those with the most losses
    stay, and among equals those that were lost last.
    """
    age = view.age
    losses = dict(view.ledger.counters.losses)
    for host in lost:
        before = losses.get(host)
        losses[host] = HostLosses(1 if before is None else before.count + 1, round(age, 1))
    here = _hosts_with_rows(view)
    kept = [(host, one) for host, one in losses.items() if host in here or age - one.age < LOSSES_KEPT_SECONDS]
    return dict(sorted(kept, key=lambda item: (item[1].count, item[1].age))[-MAX_HOSTS:])


def _barren_rounds(view: LeaderView, old: Round) -> int:
    """Return the number of rounds in a row without progress, after ``old`` (rule L4).

    The progress of the round before may have become known only after it was counted.
    """
    rows = [node.row for node in view.node_views(old)]
    if any(row.progressed and row.round == old.number for row in rows) or _has_advanced(view, old.number, rows):
        return 0
    return 1 + (0 if _has_advanced(view, old.number - 1, rows) else view.ledger.counters.barren)


def _has_advanced(view: LeaderView, number: int, rows: Sequence[NodeRow]) -> bool:
    """Return whether a rank came from one step to another in a round, or beyond the steps of earlier rounds."""
    reached = progress_of(number, rows)
    before = _newest(*(one.failure.step for one in view.ledger.counters.failures if one.failure.round < number))
    return reached.moved or (before is not None and reached.step is not None and reached.step > before)


def _excluded_hosts(
    view: LeaderView, old: Round, incident: Incident | None, unreachable: str | None
) -> tuple[Exclusion, ...]:
    """Return the excluded hosts after round ``old``, without those whose time is over, each with its end (rule L12).

    A host that is excluded twice stays out until the later of both ends. If they are too many, those that have a row
    stay, and among equals the newest.
    """
    age, verdict = view.age, view.verdict(old.number)
    every, here = view.ledger.counters.excluded_at(age), _hosts_with_rows(view)
    out: dict[str | None, int | None] = {}
    if verdict is not None and verdict.action is Action.EXCLUDE_HOST and incident is not None:
        out[incident.node_id] = None if verdict.exclude_for is None else math.ceil(age + verdict.exclude_for)
    out[unreachable] = None  # None for no such node, since no node has that id
    for node in view.watch.nodes.values():
        if node.node_id in out:
            host, until = node.row.info.host_id, out[node.node_id]
            before = every.get(host, 0)
            every[host] = None if before is None or until is None else max(before, until)
    excluded = [Exclusion(host, until) for host, until in every.items()]
    if len(excluded) > MAX_HOSTS:
        excluded = sorted(excluded, key=lambda one: one.host_id in here)[-MAX_HOSTS:]  # stable: the newest stay
    return tuple(excluded)
