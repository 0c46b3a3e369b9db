"""The last operations of a node on its store: it gives the leadership away, and waits for nodes that need its store.

Each function raises RendezvousConnectionError where the store cannot be reached, and RendezvousStateError where the
store holds something invalid or has lost what this node has read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection

from elastic_core.errors import ElasticError
from elastic_core.events import Event, Level
from elastic_core.protocol.codec import CODEC, Codec
from elastic_core.protocol.entries import Leader
from elastic_core.protocol.failure_detector import Watch, is_lost, observe
from elastic_core.protocol.ledger import Ledger, advance, compose
from elastic_core.protocol.roster import Phase
from elastic_core.rendezvous.backend import Cursor, RendezvousBackend
from elastic_core.session.ledger_reader import check_head, news, readable
from elastic_core.session.state import SessionState


def append_leader(state: SessionState, store: RendezvousBackend, ledger: Ledger, leader: str, why: str) -> bool:
    """Append a LEADER entry, and publish it; False when another node has appended an entry first.

    Raises:
        HistoryChangedError: The store has lost the entry that this one follows.
    """
    runtime, body, now = state.runtime, Leader(why=why), state.runtime.now()
    entry = compose(ledger, body, entry_id=runtime.new_id(), author=state.node_id, now=now, leader=leader)
    if not store.append(ledger.head.link, entry.link, runtime.codec.encode_entry(entry)):
        check_head(store, ledger, runtime.codec)
        return False
    state.calls.publish(Event("leader_changed", f"{leader} decides from here on: {why}", Level.DEBUG))
    return True


def part(
    state: SessionState,
    store: RendezvousBackend,
    heir_to: Callable[[Ledger], str | None],
    timeout: float,
    *,
    returns: bool = False,
) -> None:
    """Leave: give the leadership away, wait for nodes that need this node's store, take the row out.

    ``heir_to`` returns the node that is to lead. ``timeout`` is in seconds. It may be called again from the beginning
    after a failure. The row of a node that ``returns`` stays.
    """
    ledger = _hand_over(state, store, heir_to)
    if ledger.closed is not None and store.embedded and store.hosting:
        _linger(state, store, ledger, timeout)
    if ledger.closed is not None or not (returns or ledger.is_member(state.node_id)):
        store.remove(state.node_id)  # a member's row stays: it proves that its part of the round is over


def _hand_over(state: SessionState, store: RendezvousBackend, heir_to: Callable[[Ledger], str | None]) -> Ledger:
    """Give the leadership to another node, if this one has it; its reader may be writing at the same time.

    Returns:
        The ledger, without the LEADER entry.
    """
    node_id, ledger = state.node_id, state.ledger
    while True:
        for entry in news(store, ledger, codec=state.runtime.codec):
            if ledger.closed is None:
                ledger = advance(ledger, entry, state.runtime.now())
        if ledger.closed is not None or ledger.leader != node_id or (heir := heir_to(ledger)) is None:
            return ledger
        if append_leader(state, store, ledger, heir, f"{node_id} leaves"):
            return ledger


def _linger(state: SessionState, store: RendezvousBackend, ledger: Ledger, timeout: float) -> None:
    """Stay until every living node has read CLOSED, for ``timeout`` seconds at most: the store ends with this agent."""
    runtime, watch, version = state.runtime, Watch(), 0
    timing, deadline = ledger.settings.timing, runtime.now() + timeout
    while (now := runtime.now()) < deadline:
        rows = readable(store.roster(), runtime.codec)
        watch = observe(watch, rows, now)
        others = [watch.nodes[row.row.info.node_id] for row in rows if row.row.info.node_id != state.node_id]
        behind = [node for node in others if node.row.head < ledger.head.index]
        if all(is_lost(watch, node.node_id, timing, now) for node in behind):
            return
        wait = min(timing.beat_interval, deadline - now)
        version = store.wait(Cursor(ledger.head.index, version), roster=True, timeout=wait).roster


def others_finished(store: RendezvousBackend, ledger: Ledger, node_id: str, codec: Codec = CODEC) -> bool:
    """Whether all workers of another member of the live round have exited with 0 (rule L7)."""
    members = ledger.round.group_ranks if ledger.round is not None else {}
    rows = readable((seen for seen in store.roster(members) if seen.node_id != node_id), codec)
    return ledger.is_live and any(seen.row.phase is Phase.FINISHED for seen in rows)


def any_stays(store: RendezvousBackend, node_ids: Collection[str]) -> bool:
    """Whether one of these nodes has a row that does not say that it leaves."""
    return bool(node_ids) and any(not seen.row.leaving for seen in readable(store.roster(node_ids)))


def let_go(store: RendezvousBackend | None) -> None:
    """Close a connection, if there is one; its errors are ignored."""
    if store is not None:
        with contextlib.suppress(ElasticError):
            store.close()
