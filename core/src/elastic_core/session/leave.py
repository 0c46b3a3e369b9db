"""The last operations of a node on its store: it gives the leadership away, and waits for nodes that need its store.

A function that takes a store raises RendezvousConnectionError where the store cannot be reached, and
RendezvousStateError where the store holds something invalid or has lost what this node has read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable

from elastic_core.errors import ElasticError, RendezvousStateError
from elastic_core.protocol.codec import CODEC, Codec
from elastic_core.protocol.entries import Leader
from elastic_core.protocol.failure_detector import Observation, Watch, is_lost, observe
from elastic_core.protocol.ledger import Ledger, advance, compose
from elastic_core.protocol.roster import Phase
from elastic_core.rendezvous.backend import Cursor, RendezvousBackend, RosterRow
from elastic_core.session.ledger_reader import check_head, news, said_by
from elastic_core.session.runtime import Runtime


def append_leader(
    store: RendezvousBackend, ledger: Ledger, leader: str, why: str, *, author: str, runtime: Runtime
) -> bool:
    """Append a LEADER entry; False when another node has appended an entry first.

    Raises:
        HistoryChangedError: The store has lost the entry that this one follows.
    """
    body, now = Leader(why=why), runtime.now()
    entry = compose(ledger, body, entry_id=runtime.new_id(), author=author, now=now, leader=leader)
    if store.append(ledger.head.link, entry.link, runtime.codec.encode_entry(entry)):
        return True
    check_head(store, ledger, runtime.codec)
    return False


def hand_over(
    store: RendezvousBackend,
    ledger: Ledger,
    heir_to: Callable[[Ledger], str | None],
    *,
    node_id: str,
    runtime: Runtime,
) -> tuple[Ledger, str | None]:
    """Give the leadership to another node, if this one has it; this node's reader may be writing at the same time.

    Returns:
        The ledger as it was then, and the new leader if there is one.
    """
    while True:
        for entry in news(store, ledger, codec=runtime.codec):
            if ledger.closed is None:
                ledger = advance(ledger, entry, runtime.now())
        if ledger.closed is not None or ledger.leader != node_id or (heir := heir_to(ledger)) is None:
            return ledger, None
        if append_leader(store, ledger, heir, f"{node_id} leaves", author=node_id, runtime=runtime):
            return ledger, heir


def part(
    store: RendezvousBackend,
    ledger: Ledger,
    heir_to: Callable[[Ledger], str | None],
    changed: Callable[[str], None],
    timeout: float,
    *,
    node_id: str,
    runtime: Runtime,
) -> None:
    """Leave: give the leadership away, wait for nodes that need this node's store, take the row out.

    ``heir_to`` returns the node that is to lead, and ``changed`` is told it. ``timeout`` is in seconds. It may be
    called again from the beginning after a failure.
    """
    ledger, heir = hand_over(store, ledger, heir_to, node_id=node_id, runtime=runtime)
    if heir is not None:
        changed(heir)
    if ledger.closed is not None:
        if store.embedded and store.hosting:
            linger(store, ledger, timeout, node_id=node_id, runtime=runtime)
        store.remove(node_id)
    elif not ledger.is_member(node_id):
        store.remove(node_id)  # a member's row stays: it proves that its part of the round is over


def linger(store: RendezvousBackend, ledger: Ledger, timeout: float, *, node_id: str, runtime: Runtime) -> None:
    """Stay until every living node has read CLOSED, for ``timeout`` seconds at most: the store ends with this agent."""
    watch, version = Watch(), 0
    timing, deadline = ledger.settings.timing, runtime.now() + timeout
    while (now := runtime.now()) < deadline:
        rows = readable(store.roster(), runtime.codec)
        watch = observe(watch, rows, now)
        present = {row.row.info.node_id for row in rows} - {node_id}
        if not any(
            seen.row.head < ledger.head.index and not is_lost(watch, other, timing, now)
            for other, seen in watch.nodes.items()
            if other in present
        ):
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


def readable(found: Iterable[RosterRow], codec: Codec = CODEC) -> list[Observation]:
    """Return the rows among these that can be decoded; the leader reports the others."""
    rows = []
    for seen in found:
        with contextlib.suppress(RendezvousStateError):
            rows.append(Observation(said_by(seen, codec), seen.serial, seen.heartbeat, seen.revision))
    return rows
