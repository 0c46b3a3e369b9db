"""The last things that a node does with its store: it gives the leadership away, and waits for those who need its
store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable

from elastic_core.errors import ElasticError, RendezvousStateError
from elastic_core.protocol.codec import encode_entry
from elastic_core.protocol.failure_detector import Observation, Watch, is_lost, observe
from elastic_core.protocol.ledger import Leader, Ledger, advance, compose
from elastic_core.protocol.roster import Phase
from elastic_core.rendezvous.backend import Cursor, RendezvousBackend, RosterRow
from elastic_core.session.join import Clock
from elastic_core.session.ledger_reader import check_head, news, said_by


def append_leader(
    store: RendezvousBackend, ledger: Ledger, leader: str, why: str, *, author: str, clock: Clock
) -> bool:
    """Say who decides from here on; False when somebody else has said something first.

    Raises:
        HistoryChangedError: The store has lost what this would be built on.
        RendezvousStateError: It holds something that cannot be.
        RendezvousConnectionError: It cannot be reached; the entry may or may not have landed.
    """
    body, now = Leader(why=why), clock.now()
    entry = compose(ledger, body, entry_id=clock.new_id(), author=author, now=now, leader=leader)
    if store.append(ledger.head.link, entry.link, encode_entry(entry)):
        return True
    check_head(store, ledger)
    return False


def hand_over(
    store: RendezvousBackend,
    ledger: Ledger,
    heir_to: Callable[[Ledger], str | None],
    *,
    node_id: str,
    clock: Clock,
) -> tuple[Ledger, str | None]:
    """Give the leader to somebody else, if this node has it; its own reader may be writing at the same time.

    Returns:
        The ledger as it was then, and who leads now if it was given away.

    Raises:
        RendezvousStateError: The store holds something that cannot be, or has lost what this node has read.
        RendezvousConnectionError: It cannot be reached.
    """
    while True:
        for entry in news(store, ledger):
            if ledger.closed is None:
                ledger = advance(ledger, entry, clock.now())
        if ledger.closed is not None or ledger.leader != node_id or (heir := heir_to(ledger)) is None:
            return ledger, None
        if append_leader(store, ledger, heir, f"{node_id} leaves", author=node_id, clock=clock):
            return ledger, heir


def part(
    store: RendezvousBackend,
    ledger: Ledger,
    heir_to: Callable[[Ledger], str | None],
    changed: Callable[[str], None],
    timeout: float,
    *,
    node_id: str,
    clock: Clock,
) -> None:
    """Leave: give the leadership away, wait for those who need the store that goes along, take the row out.

    Args:
        store: The connection.
        ledger: What this node has read.
        heir_to: Who is to lead.
        changed: Told who has it, if it was given away.
        timeout: Seconds to wait for others, at most.
        node_id: Who leaves.
        clock: Its clock.

    Raises:
        RendezvousStateError: The store holds something that cannot be, or has lost what this node has read.
        RendezvousConnectionError: It cannot be reached. It may be done again from the beginning.
    """
    ledger, heir = hand_over(store, ledger, heir_to, node_id=node_id, clock=clock)
    if heir is not None:
        changed(heir)
    if ledger.closed is not None:
        if store.embedded and store.hosting:
            linger(store, ledger, timeout, node_id=node_id, clock=clock)
        store.remove(node_id)
    elif not ledger.is_member(node_id):
        store.remove(node_id)  # a member's row stays: it proves that its part of the round is over


def linger(store: RendezvousBackend, ledger: Ledger, timeout: float, *, node_id: str, clock: Clock) -> None:
    """Stay until every living node has seen CLOSED, for ``timeout`` seconds at most: the store goes with this agent.

    Raises:
        RendezvousConnectionError: The store cannot be reached.
    """
    watch, version = Watch(), 0
    timing, deadline = ledger.settings.timing, clock.now() + timeout
    while (now := clock.now()) < deadline:
        rows = readable(store.roster())
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


def others_finished(store: RendezvousBackend, ledger: Ledger, node_id: str) -> bool:
    """Whether all workers of another member of the live round have exited with 0 (rule L7).

    Raises:
        RendezvousConnectionError: The store cannot be reached.
    """
    members = ledger.round.group_ranks if ledger.round is not None else {}
    rows = readable(seen for seen in store.roster(members) if seen.node_id != node_id)
    return ledger.is_live and any(seen.row.phase is Phase.FINISHED for seen in rows)


def any_stays(store: RendezvousBackend, node_ids: Collection[str]) -> bool:
    """Whether one of these nodes has a row and has not said there that it leaves.

    Raises:
        RendezvousConnectionError: The store cannot be reached.
    """
    return bool(node_ids) and any(not seen.row.leaving for seen in readable(store.roster(node_ids)))


def let_go(store: RendezvousBackend | None) -> None:
    """Close a connection, whatever it says to that; there is none then."""
    if store is not None:
        with contextlib.suppress(ElasticError):
            store.close()


def readable(found: Iterable[RosterRow]) -> list[Observation]:
    """What can be read of these rows; the leader reports what cannot."""
    rows = []
    for seen in found:
        with contextlib.suppress(RendezvousStateError):
            rows.append(Observation(said_by(seen), seen.serial, seen.heartbeat, seen.revision))
    return rows
