"""The state of an agent in words, for users who ask why nothing happens."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator

from elastic_core import AgentState
from elastic_core.config import RunConfig
from elastic_core.errors import without_passwords
from elastic_core.exit_codes import describe_exit
from elastic_core.host import printable
from elastic_core.incidents import describe_limit
from elastic_core.protocol import Ledger, NodeView, Work

SHOWN_NODES = 64  # how many nodes a leader lists


def describe(config: RunConfig, seen: AgentState) -> str:
    """Return what an agent that has joined its job does and waits for."""
    state, now, ledger, head = seen.node, seen.now, seen.node.ledger, seen.node.ledger.head
    leads = "this node" if ledger.leader == state.row.info.node_id else f"node {ledger.leader}"
    rows = [
        ("run", f"{head.run}, known here for {_age(ledger.opened_at, now)}"),
        ("decides", f"{leads}, term {head.term}"),
        ("entry", f"{head.index} is the newest, {head.kind}, read {_age(ledger.head_at, now)} ago"),
        ("round", _round(ledger, now)),
        ("restarts", f"{ledger.counters.restarts}{describe_limit(ledger.settings.agreement.max_restarts)} spent"),
        ("waits for", f"{_waits_for(seen)}, for {_age(seen.since, now)}"),
    ]
    if state.leaving is not None:
        rows.append(("leaves", state.leaving.why))
    nodes = [each for each in seen.nodes.values() if not each.row.is_request]
    rows += [("node", _node(each, now)) for each in nodes[:SHOWN_NODES]]
    if len(nodes) > SHOWN_NODES:
        rows.append(("", f"and {len(nodes) - SHOWN_NODES} more nodes"))
    rows += _workers(seen)
    failing = f"; failing: {', '.join(sorted(seen.failing))}" if seen.failing else ""
    rows.append(("store", f"last contact {_age(seen.contact_at, now)} ago{failing}"))
    if (found := seen.incident) is not None:
        who = "" if found.rank is None else f"rank {found.rank} on "
        rows.append(("failure", f"the newest: round {found.round}, {who}{found.host}: {found.describe()}"))
    return _text(f"{state.row.info} (node {state.row.info.node_id}, pid {os.getpid()})", config, rows)


def describe_joining(config: RunConfig, since: float) -> str:
    """Return the state of an agent that has waited to join its job since this instant of the monotonic clock."""
    waits = f"the store, to join the job, for {_age(since, time.monotonic())}"
    return _text(f"the agent with pid {os.getpid()}", config, [("waits for", waits)])


def _text(who: str, config: RunConfig, rows: Iterable[tuple[str, str]]) -> str:
    at = f" at {without_passwords(config.rdzv_endpoint)}" if config.rdzv_endpoint else ""
    lines = [("job", f"{config.rdzv_id!r} over {config.rdzv_backend}{at}"), *rows]
    head = f"[elastic] the state of {printable(who)}; it goes on\n"
    return head + "".join(f"  {label:<10} {printable(text)}\n" for label, text in lines)


def _round(ledger: Ledger, now: float) -> str:
    current = ledger.round
    if ledger.closed is not None:
        return f"none any more: the job is closed: {ledger.closed.why}"
    if current is None:
        return "none yet"
    if ledger.halt is not None:
        return f"{current.number}, halted {_age(ledger.halt_at, now)} ago: {ledger.halt.why}"
    return f"{current.number}, live for {_age(ledger.round_at, now)} ({current.why})"


def _waits_for(seen: AgentState) -> str:
    state, ledger, number = seen.node, seen.node.ledger, seen.node.row.round
    if ledger.closed is not None:
        return "its own end: the job is closed"
    if seen.waits_for:
        return seen.waits_for
    if state.work is Work.STOPPING:
        return f"the processes of round {number} to end"
    if state.work is Work.RUNNING and ledger.planned_stop is not None:
        at = "" if (stop := ledger.planned_stop.stop_at) is None else f" at step {stop.step}"
        return f"the workers of round {number} to stop together{at}"
    if state.work is Work.RUNNING:
        return "nothing: the workers run"
    if state.work is Work.DONE:
        return "the other nodes: all workers here have exited with 0"
    if ledger.is_live and ledger.is_member(state.row.info.node_id):
        return "the workers of the round to be started"
    if ledger.is_live:
        return "a place in the job, whose round runs without this node"
    return "the next round to begin"


def _node(seen: NodeView, now: float) -> str:
    """Return a node of the roster, as the leader knows it."""
    row = seen.row
    of, leaving = f" round {row.round}" if row.round else "", ", leaving" if row.leaving else ""
    return f"{row.info}, {row.phase.value}{of}{leaving}, last sign of life {_age(seen.changed_at, now)} ago"


def _workers(seen: AgentState) -> Iterator[tuple[str, str]]:
    """Yield the lines of the workers, and of their last checkpoint."""
    started = _age(seen.started_at, seen.now)
    for worker in seen.workers:
        if worker.exit_code is not None:
            what = f"pid {worker.pid}, {describe_exit(worker.exit_code)} {_age(worker.ended_at, seen.now)} ago"
        elif worker.pid is None:
            what = f"being started, for {started}"
        else:
            joined = ", in its process group" if worker.initialized else ""
            what = f"pid {worker.pid}, started {started} ago{joined}"
            if (known := seen.progress.get(worker.rank)) is not None:
                what += f", {known[0].describe() or 'moving'}, last progress {known[1]:.1f} s ago"
        yield f"rank {worker.rank}", what
    if (saved := seen.checkpoint) is not None:
        yield "checkpoint", f"{'' if saved[0] is None else f'of step {saved[0]}, '}saved {saved[1]:.1f} s ago"


def _age(instant: float, now: float) -> str:
    return f"{max(0.0, now - instant):.1f} s"
