"""A look at a job from outside: what its store says of it, without taking part. ``elastic status`` prints it.

It costs the store one read of the newest entry and of the few on which that stands, and one of the roster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from elastic_core.incidents import Failure
from elastic_core.protocol import Ledger, NodeRow, Observation, Phase, Round, SavedStep, past_failures, place
from elastic_core.rendezvous import RendezvousBackend
from elastic_core.session import load, readable
from elastic_operate.job_request import require_agent


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One rank of the newest round; None for what is not known."""

    rank: int  # its RANK
    pid: int | None = None  # its process on its host
    step: int | None = None  # the newest step that it is known to have reached
    age_s: float | None = None  # seconds since it last made progress


@dataclass(frozen=True, slots=True)
class SavedStatus:
    """A saved state of the training: its step, None if that is not known, and its age in seconds."""

    step: int | None
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One node of the job."""

    node_id: str  # its id
    host: str  # the name of its host
    ranks: tuple[int, int] | None
    """The first and the last rank that it has in the newest round; None for a node without a place in it."""
    phase: str  # ``running``, ``waiting``, ``stopped`` or ``finished``; ``silent`` for a member without a row
    leads: bool  # whether it decides for the job
    leaving: bool  # whether it has said that it leaves
    workers: tuple[WorkerStatus, ...] = ()
    """Its ranks in that round while they run, as it last told of them: every 5 s, or 0.03 s for each node if that is
    more. Ages count on by its heartbeats.
    """
    snapshot: SavedStatus | None = None  # the newest snapshot in its memory; None if there is none
    checkpoint: SavedStatus | None = None  # the newest checkpoint that it has noticed; None if it has noticed none
    store_s: float | None = None  # seconds that the store took to answer its heartbeat; None if it has not said so
    notes: dict[str, str] = field(default_factory=dict)  # what its monitors have noted of this round, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job as its store shows it."""

    job: str  # its id
    run: str  # the run's own id
    state: str  # in one word: ``forming``, ``running``, ``restarting``, ``succeeded`` or ``failed``
    why: str  # why it is in that state, for a failure or a halt; '' for none
    round: int  # the number of the newest round; 0 before the first
    world_size: int  # its workers
    age_s: float
    """Seconds since the run was opened, to a few seconds: that of the newest entry, or as many as a node has counted
    heartbeats.
    """
    restarts: int  # restarts spent
    max_restarts: int | None  # of how many; None for no limit
    failures: tuple[Failure, ...]  # the newest failures that spent a restart, the oldest first
    host_losses: dict[str, int]  # how often each host was lost, by host id
    nodes: tuple[NodeStatus, ...]  # members in rank order, then the others
    store_s: float  # seconds that one look took
    waiting: int = 0  # how many nodes wait for a place
    why_waiting: str = ""  # why these have none, if the sizes of ``--nnodes`` are the reason; '' otherwise
    spares: int = 0  # how many spares the job is to have (``--spares``)


def look(store: RendezvousBackend, job: str, now: Callable[[], float] = time.monotonic) -> JobStatus | None:
    """Return the status of a job; None where the store has none under its id.

    Raises:
        RendezvousRefusedError: The store lives in an agent of the job, and there is none.
        RendezvousConnectionError: The store cannot be reached.
        RendezvousStateError: The store holds something invalid.
    """
    require_agent(store, job)
    began = now()
    ledger = load(store, began)
    if ledger is None:
        return None
    rows = readable(store.roster())
    return describe(job, ledger, rows, began, now() - began)


def describe(job: str, ledger: Ledger, rows: list[Observation], now: float, took: float) -> JobStatus:
    """Return the status of the job with this ledger and these roster rows."""
    current = ledger.round
    nodes = {seen.row.info.node_id: seen for seen in rows if seen.row.run == ledger.head.run}
    ranked = [] if current is None else [_member(ledger, current, name, nodes) for name in current.group_ranks]
    if ledger.closed is None:
        beats = max((seen.heartbeat for seen in rows if seen.row.info.node_id in nodes), default=0)
        unseen = max(0.0, beats * ledger.settings.timing.beat_interval - ledger.head.age)
        ledger = replace(ledger, head_at=now - unseen)
    others = [_other(ledger, seen.row) for node_id, seen in nodes.items() if not ledger.is_member(node_id)]
    waiting, agreement = sum(not node.leaving for node in others), ledger.settings.agreement
    live = current if ledger.is_live else None
    state, why = _state(ledger)
    return JobStatus(
        job=job,
        run=ledger.head.run,
        state=state,
        why=why,
        round=0 if current is None else current.number,
        world_size=0 if current is None else sum(member.local_world_size for member in current.members),
        age_s=ledger.age(now),
        restarts=ledger.counters.restarts,
        max_restarts=ledger.settings.agreement.max_restarts,
        failures=past_failures(ledger, now),
        host_losses={host: losses.count for host, losses in ledger.counters.losses.items()},
        nodes=(*ranked, *sorted(others, key=lambda node: node.host)),
        store_s=took,
        waiting=waiting,
        why_waiting=agreement.describe_sizes(len(live.members), waiting) if live is not None and waiting else "",
        spares=agreement.spares,
    )


def _state(ledger: Ledger) -> tuple[str, str]:
    if ledger.closed is not None:
        return ("succeeded" if ledger.closed.success else "failed"), ledger.closed.why
    if ledger.halt is not None:
        return "restarting", ledger.halt.why
    return ("forming", "") if ledger.round is None else ("running", ledger.round.why)


def _member(ledger: Ledger, current: Round, node_id: str, nodes: dict[str, Observation]) -> NodeStatus:
    mine, seen = place(current.members, node_id), nodes.get(node_id)
    row = None if seen is None else seen.row
    node = NodeStatus(
        node_id=node_id,
        host=str(row.info) if row is not None else current.host_of(node_id) or node_id,
        ranks=(mine.first_rank, mine.first_rank + mine.local_world_size - 1),
        phase="silent" if row is None else _phase(row, current),
        leads=ledger.leader == node_id,
        leaving=row is not None and row.leaving,
    )
    if seen is None or seen.row.workers is None or seen.row.round != current.number:
        return node
    since = max(0, seen.heartbeat - seen.row.workers.heartbeat) * ledger.settings.timing.beat_interval
    known = seen.row.workers
    ages = (None if age is None else age + since for age in known.seconds)
    each = enumerate(zip(known.pids, known.steps, ages, strict=False), mine.first_rank)
    return replace(
        node,
        workers=tuple(WorkerStatus(rank, *facts) for rank, facts in each) if seen.row.phase is Phase.RUNNING else (),
        snapshot=_saved(known.snapshot, since),
        checkpoint=_saved(known.checkpoint, since),
        store_s=known.store,
        notes={**known.notes},
    )


def _saved(saved: SavedStep | None, since: float) -> SavedStatus | None:
    return None if saved is None else SavedStatus(saved.step, saved.seconds + since)


def _phase(row: NodeRow, current: Round) -> str:
    """Return the phase of a member in the newest round; ``starting`` before it has workers of that round."""
    return row.phase.value if row.round == current.number else "starting"


def _other(ledger: Ledger, row: NodeRow) -> NodeStatus:
    return NodeStatus(
        node_id=row.info.node_id,
        host=str(row.info),
        ranks=None,
        phase=row.phase.value,
        leads=ledger.leader == row.info.node_id,
        leaving=row.leaving,
    )
