"""Describes the state of an agent, for users who ask why nothing happens. Pure functions."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from elastic_core.agent.worker import Worker
from elastic_core.config.run import RunConfig, describe_limit
from elastic_core.errors import without_passwords
from elastic_core.exit_codes import describe_exit
from elastic_core.host.terminal import printable
from elastic_core.incidents import Incident
from elastic_core.progress import Progress
from elastic_core.protocol.entries import Member
from elastic_core.protocol.failure_detector import NodeView
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.node import NodeState
from elastic_core.protocol.node_events import Work
from elastic_core.protocol.ranks import place
from elastic_core.protocol.roster import NodeInfo

ShowState: TypeAlias = "Callable[[Callable[[], str]], None]"
"""Takes a function that describes the state, for SIGQUIT."""
SHOWN_NODES = 64  # how many nodes of a round are listed


@dataclass(frozen=True, kw_only=True)
class Status:
    """What an agent knows at one instant besides its state. Instants are its monotonic clock, in seconds."""

    job: str  # the job's id
    store: str  # its backend and endpoint, without passwords
    pid: int  # of the agent
    now: float  # this instant
    since: float  # when the agent's state last changed
    workers: Sequence[Worker] = ()  # of its newest round
    started_at: float = 0.0  # when those were started
    progress: Mapping[int, tuple[Progress, float]] = field(default_factory=dict)
    """The progress of workers by rank, and how many seconds ago it last moved."""
    checkpoint: tuple[int | None, float] | None = (
        None  # the step of the last checkpoint, if known, and its age in seconds
    )
    contact_at: float | None = None  # when it last knew all that the store had taken
    failing: Collection[str] = ()  # the threads whose last operation on the store failed
    node_views: Mapping[str, NodeView] = field(default_factory=dict)  # the rows of the roster, if the node leads
    waiting_for: str = ""  # the nodes for which the job waits, if the node leads and knows them
    incident: Incident | None = None  # the newest failure that it knows of

    @classmethod
    def of(cls, config: RunConfig) -> Status:
        """Return the status of an agent that begins now."""
        now = time.monotonic()
        at = f" at {without_passwords(config.rdzv_endpoint)}" if config.rdzv_endpoint else ""
        return cls(job=repr(config.rdzv_id), store=f"{config.rdzv_backend}{at}", pid=os.getpid(), now=now, since=now)

    def describe_joining(self) -> str:
        """Return the state now of an agent that has waited to join its job since :attr:`since`."""
        status = replace(self, now=time.monotonic())
        rows = [("waits for", status.describe_wait("the store, to join the job"))]
        return _text(f"the agent with pid {self.pid}", status, rows)

    def describe_wait(self, what: str) -> str:
        """Return what the agent waits for, and for how long it has."""
        return f"{what}, for {_age(self.since, self)}"


def describe_node(state: NodeState, status: Status) -> str:
    """Return the state of an agent that follows a ledger."""
    ledger, info = state.ledger, state.info
    head = ledger.head
    leads = "this node" if ledger.leader == info.node_id else _named(ledger.leader, status.node_views)
    rows = [
        ("run", f"{head.run}, known here for {_age(ledger.opened_at, status)}"),
        ("decides", f"{leads}, term {head.term}"),
        ("entry", f"{head.index} is the newest, {head.kind}, read {_age(ledger.head_at, status)} ago"),
        ("round", _round(ledger, status)),
        ("restarts", f"{ledger.counters.restarts}{describe_limit(ledger.settings.agreement.max_restarts)} spent"),
        ("waits for", status.describe_wait(_waits_for(state, status))),
    ]
    if state.leaving is not None:
        rows.append(("leaves", state.leaving.why))
    members = () if ledger.round is None else ledger.round.members
    who = f"{info} (node {info.node_id}, pid {status.pid})"
    return _text(who, status, rows, _nodes(info, members, status))


def _text(who: str, status: Status, rows: Sequence[tuple[str, str]], nodes: Iterable[tuple[str, str]] = ()) -> str:
    lines = [("job", f"{status.job} over {status.store}"), *rows, *nodes]
    lines += [(f"rank {worker.assignment.rank}", _worker(worker, status)) for worker in status.workers]
    if status.checkpoint is not None:
        step, age = status.checkpoint
        lines.append(("checkpoint", f"{'' if step is None else f'of step {step}, '}saved {age:.1f} s ago"))
    if status.contact_at is not None:
        failing = f"; failing: {', '.join(sorted(status.failing))}" if status.failing else ""
        lines.append(("store", f"last contact {_age(status.contact_at, status)} ago{failing}"))
    if status.incident is not None:
        lines.append(("failure", f"the newest: {_failure(status.incident)}"))
    head = f"[elastic] the state of {printable(who)}; it goes on\n"
    return head + "".join(f"  {label:<10} {printable(text)}\n" for label, text in lines)


def _round(ledger: Ledger, status: Status) -> str:
    current = ledger.round
    if ledger.closed is not None:
        return f"none any more: the job is closed: {ledger.closed.why}"
    if current is None:
        return "none yet"
    if ledger.halt is not None:
        halted = f"halted {_age(ledger.halt_at, status)} ago: {ledger.halt.why}"
        return f"{current.number}, {halted}"
    return f"{current.number}, live for {_age(ledger.round_at, status)} ({current.why})"


def _waits_for(state: NodeState, status: Status) -> str:
    ledger, number = state.ledger, state.round
    member = ledger.is_member(state.info.node_id)
    if ledger.closed is not None:
        return "its own end: the job is closed"
    if status.waiting_for:
        return status.waiting_for
    if state.work is Work.STOPPING:
        return f"the processes of round {number} to end"
    if state.work is Work.RUNNING and ledger.plan is not None:
        at = "" if ledger.stop_at is None else f" at step {ledger.stop_at.step}"
        return f"the workers of round {number} to stop together{at}"
    if state.work is Work.RUNNING:
        return "nothing: the workers run"
    if state.work is Work.DONE:
        return "the other nodes: all workers here have exited with 0"
    if ledger.is_live and member:
        return "the workers of the round to be started"
    if ledger.is_live:
        return "a place in the job, whose round runs without this node"
    return "the next round to begin"


def _nodes(info: NodeInfo, members: tuple[Member, ...], status: Status) -> Iterator[tuple[str, str]]:
    """Yield the nodes of the newest round in rank order, and then the nodes that are in no round."""
    for member in members[:SHOWN_NODES]:
        first = place(members, member.node_id).first_rank
        size = member.local_world_size
        ranks = f"rank {first}" if size == 1 else f"ranks {first} to {first + size - 1}"
        own = member.node_id == info.node_id
        seen = status.node_views.get(member.node_id)
        where = f"{info}, this node" if own else _seen(member.node_id, seen, status)
        yield "member", f"{ranks} on {where}"
    if len(members) > SHOWN_NODES:
        yield "", f"and {len(members) - SHOWN_NODES} more members"
    known = {member.node_id for member in members}
    others = [seen for node_id, seen in status.node_views.items() if node_id not in known and node_id != info.node_id]
    for seen in others[:SHOWN_NODES]:
        yield "other node", _seen(seen.node_id, seen, status)
    if len(others) > SHOWN_NODES:
        yield "", f"and {len(others) - SHOWN_NODES} more nodes"


def _seen(node_id: str, seen: NodeView | None, status: Status) -> str:
    if seen is None:
        return f"node {node_id}"
    row = seen.row
    of = f" round {row.round}" if row.round else ""
    leaving = ", leaving" if row.leaving else ""
    return f"{row.info}, {row.phase.value}{of}{leaving}, last sign of life {_age(seen.changed_at, status)} ago"


def _named(node_id: str, node_views: Mapping[str, NodeView]) -> str:
    seen = node_views.get(node_id)
    return f"node {node_id}" if seen is None else f"{seen.row.info} (node {node_id})"


def _worker(worker: Worker, status: Status) -> str:
    if worker.exit_code is not None:
        ended = describe_exit(worker.exit_code)
        return f"pid {worker.pid}, {ended} {_age(worker.ended_at, status)} ago"
    if worker.pid is None:
        return f"being started, for {_age(status.started_at, status)}"
    group = ", in its process group" if worker.initialized else ""
    progress, ago = status.progress.get(worker.assignment.rank, (Progress(), 0.0))
    words = progress.describe() or ("moving" if worker.assignment.rank in status.progress else "")
    reached = f", {words}, last progress {ago:.1f} s ago" if words else ""
    return f"pid {worker.pid}, started {_age(status.started_at, status)} ago{group}{reached}"


def _failure(incident: Incident) -> str:
    who = "" if incident.rank is None else f"rank {incident.rank} on "
    error = f": {incident.message}" if incident.message and incident.message != incident.cause() else ""
    return f"round {incident.round}, {who}{incident.host}: {incident.cause()}{error}"


def _age(instant: float, status: Status) -> str:
    return f"{max(0.0, status.now - instant):.1f} s"
