"""Builders for tables: a job with nodes a, b, c, … in a few words. All instants are seconds on one made-up clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from elastic_core.config.parse import OnNodeLoss
from elastic_core.config.run import Timing
from elastic_core.incidents import Incident, IncidentKind
from elastic_core.protocol.entries import Body, Counters, Entry, Halt, HaltReason, Member, Offer, Open, Round
from elastic_core.protocol.failure_detector import NodeView, Watch
from elastic_core.protocol.ledger import Ledger, advance, compose, open_ledger
from elastic_core.protocol.roster import NodeInfo, NodeRow, Phase, Slots
from elastic_core.protocol.settings import Agreement, Settings, Versions

VERSIONS = Versions(python="3.11.7", torch="2.13.0")
RUN = "run1"


def settings(
    min_nodes: int = 1,
    max_nodes: int = 4,
    max_restarts: int = 3,
    on_node_loss: OnNodeLoss = OnNodeLoss.REPLACE,
    host: str = "host-a",
    **timing: float,
) -> Settings:
    agreement = Agreement(
        min_nodes=min_nodes, max_nodes=max_nodes, max_restarts=max_restarts, on_node_loss=on_node_loss
    )
    return Settings(agreement=agreement, timing=Timing(**timing), versions=VERSIONS, host=host)


def info(
    name: str,
    size: int = 2,
    role: str = "default",
    slot: int = 0,
    host: str | None = None,
    slots: Slots = Slots(1),  # noqa: B008  # a value
) -> NodeInfo:
    host = host or f"host-{name}"
    return NodeInfo(
        node_id=name,
        host=host,
        host_id=f"id-{host}",
        slot=slot,
        slots=slots,
        local_world_size=size,
        role=role,
        versions=VERSIONS,
    )


def offer(name: str, nth: int = 1) -> Offer:
    return Offer(address=f"10.0.0.{ord(name[0])}", port=29500 + nth, id=f"{name}{nth}")


def members(names: str) -> tuple[Member, ...]:
    return tuple(Member(name, 2, "default") for name in names)


def incident(
    name: str, *, after: float = 5.0, number: int = 1, kind: IncidentKind = IncidentKind.WORKER_FAILED
) -> Incident:
    return Incident(kind=kind, round=number, node_id=name, host=f"host-{name}", after=after, rank=0, exit_code=1)


def after_runs(ledger: Ledger, former: tuple[str, ...]) -> Ledger:
    """Return the ledger of a run that came after these."""
    return replace(ledger, opened=replace(ledger.opened, former=former))


def start(
    the_settings: Settings | None = None, *, author: str = "a", at: float = 0.0, uid: str | None = None
) -> Ledger:
    """A run that was just opened."""
    body = Open(scheduler_uid=uid, settings=the_settings or settings())
    return open_ledger(compose(None, body, entry_id="e1", author=author, now=at, run=RUN), at)


def entry(ledger: Ledger, body: Body, *, at: float, author: str | None = None, **more: Any) -> Entry:
    entry_id = f"e{ledger.head.index + 1}"
    return compose(ledger, body, entry_id=entry_id, author=author or ledger.leader, now=at, **more)


def then(ledger: Ledger, body: Body, *, at: float, author: str | None = None, **more: Any) -> Ledger:
    """The ledger after one more entry, read at once."""
    return advance(ledger, entry(ledger, body, at=at, author=author, **more), at)


def live(
    names: str, the_settings: Settings | None = None, *, at: float = 10.0, counters: Counters | None = None
) -> Ledger:
    """A run whose first round, of ``names``, was sealed at ``at``; the leader is a."""
    sealed = Round(number=1, offer=offer(names[0]), members=members(names))
    return then(start(the_settings), sealed, at=at, counters=counters)


def halted(
    names: str,
    reason: HaltReason,
    the_settings: Settings | None = None,
    *,
    at: float = 20.0,
    blame: Incident | None = None,
    counters: Counters | None = None,
    requeue: bool = False,
) -> Ledger:
    """A run whose first round was halted at ``at``; ``requeue`` of policies that gave up."""
    verdict = "no restart is left" if reason is HaltReason.GIVING_UP else ""
    halt = Halt(round=1, reason=reason, why="it was", incident=blame, verdict=verdict, requeue=requeue)
    return then(live(names, the_settings, counters=counters), halt, at=at)


def seen(
    name: str,
    phase: Phase = Phase.WAITING,
    *,
    number: int | None = None,
    head: int = 1,
    changed: float | None = None,
    now: float = 100.0,
    serial: int | None = None,
    node: NodeInfo | None = None,
    arrived: float = 0.0,
    seen_at: float = 0.0,
    **row: Any,
) -> NodeView:
    """One node as the leader sees it: alive unless ``changed`` says that its heartbeat stood still since then."""
    node = node or info(name)
    number = number if number is not None else (0 if phase is Phase.WAITING else 1)
    row.setdefault("offer", offer(name, 2))
    return NodeView(
        row=NodeRow(info=node, run=RUN, phase=phase, round=number, head=head, **row),
        serial=serial or ord(name[0]) - ord("a") + 1,
        heartbeat=7,
        arrived_at=arrived,
        changed_at=now if changed is None else changed,
        seen_at=seen_at,
    )


def watch(*node_views: NodeView, now: float = 100.0) -> Watch:
    ordered = sorted(node_views, key=lambda one: one.serial)
    return Watch({one.node_id: one for one in ordered}, now)


def with_counters(ledger: Ledger, **counters: Any) -> Ledger:
    return replace(ledger, head=replace(ledger.head, counters=replace(ledger.head.counters, **counters)))
