"""A foreign rendezvous handler as a backend: a private ledger in this node's memory, which the node itself leads.

Each node decides for itself over its own ledger, as each agent of torchrun's does. A ROUND of it is a call of
``next_rendezvous``; the other nodes are rows that never fall silent.

A call may take minutes, and no handler promises that two may run at once. So one thread makes one call after the other:
the round that the newest ROUND asks for, how many nodes wait while it runs, and at its end the wait for the other
nodes. The outcomes change what the ledger and the roster hold, and wake the threads of the session.
"""
# ruff: noqa: D102  (RendezvousBackend documents the methods of HandlerBackend)

from __future__ import annotations

import operator
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from elastic_core.errors import ElasticError, RendezvousConnectionError, RendezvousStateError
from elastic_core.exit_codes import ExitCode
from elastic_core.plugins import LocalBackend, MemoryStore
from elastic_core.protocol import (
    Closed,
    Entry,
    Exclusion,
    Halt,
    HaltReason,
    NodeInfo,
    NodeRow,
    Offer,
    Open,
    Phase,
    Round,
    decode_entry,
    decode_row,
    encode_entry,
    encode_row,
)
from elastic_core.rendezvous import Cursor, HandlerStore, HeartbeatReply, Link, RosterRow, StoreWarning
from elastic_torchrun.errors import HandlerError, is_graceful_exit, translate_error
from elastic_torchrun.foreign import exchange
from elastic_torchrun.rendezvous_api import RendezvousHandler, RendezvousInfo

COUNT_MAX_SECONDS = 5.0  # for the handler's answer how many nodes wait; after that the handler counts as silent
FAILED_COUNT_INTERVAL_SECONDS = 5.0  # at least, between two failed questions: the handler may warn of each
FRUITLESS_ROUND_MIN_SECONDS = 10.0
"""For a round that was made for waiting nodes, and has as many nodes as the round before; each time twice as long."""
MOST_DOUBLINGS = 4  # 160 s: less than the time for which torch's handlers wait for a round
SHUTDOWN_MAX_SECONDS = 10.0  # for the handler's ``shutdown``
JOIN_MAX_SECONDS = 0.5  # for the end of the thread if no shutdown is due
OFFER_MAX_SECONDS = 5.0  # for this node's next offer of a workers' store, which the agent makes in milliseconds
SHARE_SWITCH = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
COST = """with a rendezvous handler of others this agent can do no more than torchrun's does:
a lost node is noticed when a collective fails because of it, or never; --on_node_loss has no effect
each node judges failures by itself, and prints the first failure that it saw, which others may have caused
a hang is looked for among the ranks of each node alone
a node that joins stops all workers as soon as it waits; survivors may change their ranks
a node that has finished waits for the others for {exit_barrier:g} s"""
"""Reported once, at the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a run that concern its handler."""

    backend: str  # its name, for messages
    monitor_interval: float  # seconds between two questions how many nodes wait
    exit_barrier: float  # seconds for which a node that has finished waits for the others


class HandlerBackend(LocalBackend, HandlerStore):
    """One connection to the private ledger; the first one ends the handler's thread."""

    def __init__(self, node: HandlerNode) -> None:
        super().__init__(node)
        self._node, self._is_first = node, False

    @classmethod
    def over(cls, handler: RendezvousHandler, settings: Settings) -> HandlerBackend:
        """Return the first connection over a handler."""
        made = cls(HandlerNode(handler, settings))
        made._is_first, made.job_id = True, handler.get_run_id()
        made.warnings = (StoreWarning(f"{settings.backend}: {COST.format(exit_barrier=settings.exit_barrier)}", ""),)
        return made

    @property
    def waiting(self) -> str:
        return "the handler to give a round" if self._node.is_meeting else ""

    def connect(self) -> HandlerBackend:
        return HandlerBackend(self._node)

    def close(self) -> None:
        super().close()
        if self._is_first:
            self._node.end()

    def heartbeat(self, node_id: str, count: int, watch: str | None = None) -> HeartbeatReply:
        with self._opened():
            self._node.check()
            return super().heartbeat(node_id, count, watch)

    def roster(self, ids: Collection[str] | None = None) -> list[RosterRow]:
        with self._opened():
            if ids is None:  # the leader asks
                self._node.check()
            return [row for row in self._node.listed() if ids is None or row.node_id in ids]

    def append(self, prev: Link, entry: Link, data: bytes) -> bool:
        with self._opened() as store:
            if self._id(entry.index) == entry.id:
                return True
            return store.head == prev.index and self._id(prev.index) == prev.id and self._node.take(decode_entry(data))

    def wait(self, cursor: Cursor, *, roster: bool, timeout: float) -> Cursor:
        if roster:
            self._node.check()
        found = super().wait(cursor, roster=roster, timeout=timeout)
        if roster and self._node.error is not None:
            raise self._node.error
        return found


class HandlerNode(MemoryStore):
    """The ledger and the roster of one node; ``changed`` guards all. Only the thread here calls the ``handler``."""

    def __init__(self, handler: RendezvousHandler, settings: Settings) -> None:
        super().__init__()
        self._handler, self._settings = handler, settings
        self._opened: Open | None = None
        self._run_uid = self._node_id = ""  # the run's, and this node's
        self._newest: Entry | None = None
        self._round: Round | None = None  # the newest round
        self._live = False  # whether it is neither halted nor closed
        self._resizes = False  # whether it was halted for nodes that wait
        self._fruitless = 0  # rounds in a row that were made for nodes that wait, and have no more nodes
        self._wanted: Entry | None = None  # the ROUND that the leader has decided and the handler has yet to make
        self._met: tuple[exchange.Card, ...] = ()  # the nodes of a round of the handler's that no ROUND names yet
        self._offer_id = ""  # of the workers' store in that round: a new one, or that of this node's own offer
        self._info: RendezvousInfo | None = None  # the handler's newest answer
        self._finished = False  # whether the wait for the other nodes at the end of the round is over
        self._finished_by: float | None = None  # when it is over in any case; None while workers run here
        self._missing: list[int] = []  # the ranks of nodes that did not say that they have finished
        self._waiting = 0  # nodes that wait outside of the round
        self._count_at = self._quiet_until = 0.0  # when the handler is asked for them, and from when they count
        self._asked_at: float | None = None  # when it was asked; None if it has answered
        self._silent: tuple[float, Exception] | None = None  # since when it fails to answer, and the newest error
        self._row: tuple[bytes, NodeRow] | None = None  # this node's row as it was decoded last
        self.closes = False  # whether this node ends the job, so that the handler is shut down
        self.error: ElasticError | None = None  # why the handler admits this node to no round
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="elastic-handler", daemon=True)
        self._thread.start()

    @property
    def is_meeting(self) -> bool:
        """True while the handler is asked for a round."""
        return self._wanted is not None and self.error is None

    def end(self) -> None:
        """End the thread, which shuts the handler down if the job is over; abandon it if it does not return."""
        with self.changed:
            self._ended.set()
            self.changed.notify_all()
        self._thread.join(SHUTDOWN_MAX_SECONDS if self.closes else JOIN_MAX_SECONDS)

    # The ledger, as the leader writes it -----------------------------------------------------------------------------

    def take(self, entry: Entry) -> bool:
        """Add an entry that follows the newest; False for a ROUND that the handler has yet to make."""
        match entry.body:
            case Round() if self._own is None or self._own.leaving:
                return False
            case Round() as wanted if self._is_excluded(entry, wanted):
                why = f"a failure policy has excluded this host: {wanted.verdict or wanted.why}"
                self._close(entry, Closed(success=False, why=why, exit_code=ExitCode.WITHDRAWN))
                return True
            case Round():
                self._wanted = entry
                self.changed.notify_all()
                return self._seal()
            case Halt(reason=HaltReason.NODE_LEFT) as halt if self._waiting and not (self._own and self._own.leaving):
                # A planned stop, with the workers' grace; no node has left.
                why = f"{self._waiting} node(s) wait to join"
                entry = replace(entry, body=replace(halt, reason=HaltReason.RESIZE, why=why))
            case Closed(success=True) as closed if self._missing:
                missing = ", ".join(map(str, self._missing))
                why = f"every worker here exited with 0; of node {missing} nothing was heard in time"
                entry = replace(entry, body=replace(closed, why=why))
        self.closes = isinstance(entry.body, Closed)
        self._add(entry)
        return True

    def _add(self, entry: Entry) -> None:
        self.entries.append((entry.id, encode_entry(entry)))
        self._newest, self._wanted = entry, None
        match entry.body:
            case Open() as body:
                self._opened, self._run_uid, self._node_id = body, entry.run, entry.author
            case Round() as body:
                self._round, self._live, self._finished, self._finished_by = body, True, False, None
                self._waiting, self._count_at = 0, time.monotonic() + self._settings.monitor_interval
            case Halt(reason=reason):
                self._live, self._resizes = False, reason is HaltReason.RESIZE
            case Closed():
                self._live = False
        self._wake()

    def _close(self, entry: Entry, closed: Closed) -> None:
        """Add a CLOSED in the place of a ROUND: this node alone leaves the job."""
        assert self._newest is not None
        anchors = replace(self._newest.anchors, halt=entry.index, plan=0, stop_at=0)
        self._add(replace(entry, body=closed, counters=self._newest.counters, anchors=anchors))

    def _seal(self) -> bool:
        """Add the ROUND that the leader wants, if the handler has made one, with the nodes of that."""
        entry, cards, before = self._wanted, self._met, self._round
        if entry is None or not cards:
            return False
        assert isinstance(entry.body, Round)
        made = exchange.make_round(entry.body, cards, self._offer_id)
        counters = replace(entry.counters, restarts=max(card.restarts for card in cards))
        if self._resizes:
            fruitless = before is not None and len(before.members) == len(cards)
            self._fruitless = self._fruitless + 1 if fruitless else 0
        doublings = min(self._fruitless - 1, MOST_DOUBLINGS)
        quiet = FRUITLESS_ROUND_MIN_SECONDS * 2.0**doublings if self._resizes and self._fruitless else 0.0
        self._quiet_until, self._met, self._resizes = time.monotonic() + quiet, (), False
        self._add(replace(entry, body=made, counters=counters, anchors=replace(entry.anchors, round=entry.index)))
        return True

    def _is_excluded(self, entry: Entry, wanted: Round) -> bool:
        """Return True if a policy has excluded this host for good, and other nodes are enough."""
        assert self._own is not None
        left_out = bool(wanted.members) and self._node_id not in wanted.group_ranks
        return left_out and Exclusion(self._own.info.host_id) in entry.counters.excluded

    # The roster, as the leader reads it ------------------------------------------------------------------------------

    def listed(self) -> Iterator[RosterRow]:
        """Yield all rows: those that are written here, and those of other nodes as far as this one knows them."""
        own = self._own
        for row in self.rows.values():
            if row.node_id == self._node_id and own is not None and self._waiting and self._runs(own):
                row = replace(row, value=encode_row(replace(own, leaving=True)))  # which ends the round
            yield row
        heartbeat = int(1000 * time.monotonic())  # it always grows: the handler does not tell that a node is lost
        for serial, peer in enumerate(self._peers(own), self.arrivals + 1):
            yield RosterRow(peer.info.node_id, serial, self.version, encode_row(peer), heartbeat)

    def _peers(self, own: NodeRow | None) -> Iterator[NodeRow]:
        """Yield the rows of the other nodes of the round; while none runs, of as many as may come to the next."""
        current = self._round
        if own is None or self._opened is None or self._newest is None:
            return
        head, number = self._newest.index, 0 if current is None else current.number
        finished = self._finished or (self._finished_by is not None and time.monotonic() >= self._finished_by)
        phase = Phase.STOPPED if not self._live else Phase.FINISHED if finished else Phase.RUNNING
        row = NodeRow(info=own.info, run=self._run_uid, head=head, offer=Offer("", 0, f"peer-{head}"))
        count = 1
        for member in () if current is None else current.members:
            if member.node_id != self._node_id:
                host = current.host_of(member.node_id) if current is not None else None
                info = _peer(own.info, member.node_id, host or member.node_id, member.local_world_size, member.role)
                yield replace(row, info=info, phase=phase, round=number)
                count += 1
        if self._live or own.offer is None:  # without an offer, this node itself has no place in a round yet
            return
        agreement = self._opened.settings.agreement
        for nth in range(count, agreement.max_nodes if current is None else agreement.min_nodes):
            yield replace(row, info=_peer(own.info, f"peer-{nth}", "any host", 1, own.info.role))

    @property
    def _own(self) -> NodeRow | None:
        """The row of this node; None before it has opened the run, and once it has left."""
        if (row := self.rows.get(self._node_id)) is None:
            return None
        if self._row is None or self._row[0] != row.value:
            self._row = row.value, decode_row(row.value)
        return self._row[1]

    def _runs(self, own: NodeRow) -> bool:
        """Return True if workers of the live round run on this node."""
        current = self._round
        return self._live and current is not None and (own.phase, own.round) == (Phase.RUNNING, current.number)

    def put(self, row: RosterRow) -> None:
        """Make a row or replace it; the end of the workers here begins the wait for the other nodes."""
        super().put(row)
        if (own := self._own) is not None and own.phase is Phase.FINISHED and self._finished_by is None:
            self._finished_by = time.monotonic() + self._settings.exit_barrier + SHUTDOWN_MAX_SECONDS

    def check(self) -> None:
        """Refuse to answer the leader while the handler is silent, so that the fence stops the workers in time (S4).

        Workers that have finished need no answer, and a failure here leads to the next call of the handler.

        Raises:
            RendezvousConnectionError: The handler cannot say how many nodes wait.
            RendezvousStateError: It could not for ``fence_after``.
        """
        now, silent, own = time.monotonic(), self._silent, self._own
        if own is None or own.phase is Phase.FINISHED:
            return
        if self._asked_at is not None and now - self._asked_at >= COUNT_MAX_SECONDS:
            silent = silent or (self._asked_at, TimeoutError(f"no answer for {now - self._asked_at:.0f} s"))
        elif own.incident is not None:
            return
        if silent is None or self._opened is None:
            return
        if now - silent[0] >= (limit := self._opened.settings.timing.fence_after):
            raise RendezvousStateError(f"the handler has not answered for {limit:g} s: its store is lost")
        error = translate_error(silent[1], "the handler cannot say how many nodes wait")
        raise RendezvousConnectionError(error.message)

    # The thread ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (call := self._next_call()) is not None:
            try:
                call()
            except exchange.Cancelled:
                break
            except BaseException as exc:  # also sys.exit(): the session waits for an outcome
                self._fail(exc)
        if self.closes:
            with suppress(Exception):  # common: its store may have ended with another node
                self._handler.shutdown()

    def _next_call(self) -> Callable[[], None] | None:
        with self.changed:
            while not self._ended.is_set():
                own, wait = self._own, None
                if own is not None and self.error is None:
                    if self._wanted is not None and own.phase is not Phase.RUNNING:
                        return self._meet
                    if self._live and own.phase is Phase.FINISHED and not self._finished:
                        return self._finish
                    if self._runs(own) and (wait := self._count_at - time.monotonic()) <= 0:
                        return self._count
                self.changed.wait(wait)
        return None

    def _meet(self) -> None:
        self._silent = None
        with without_shared_store():
            info = exchange.parse_answer(self._handler.next_rendezvous())
            shares = bool(getattr(self._handler, "use_agent_store", False))
        with self.changed:
            own, entry = self._own, self._wanted or self._newest
            if own is None or entry is None:
                raise exchange.Cancelled
            offer = self._offer(info, shares) if info.rank == 0 else Offer("", 0, "")
        mine = exchange.Card(
            node_id=own.info.node_id,
            host=str(own.info),
            role=own.info.role,
            local_world_size=own.info.local_world_size,
            restarts=entry.counters.restarts,
            address=offer.address,
            port=offer.port,
            hosted=offer.hosted,
        )
        cards = exchange.exchange(info, mine, self._pause)
        with self.changed:
            self._info, self._met, self._offer_id = info, cards, offer.id or uuid.uuid4().hex
            self._seal()

    def _offer(self, info: RendezvousInfo, shares: bool) -> Offer:
        """Return the place of the workers' store: the handler's choice, else this node's offer."""
        if shares:
            return exchange.shared_store(info, uuid.uuid4().hex)
        if (told := info.bootstrap_store_info) is not None:
            return Offer(told.master_addr, told.master_port, uuid.uuid4().hex)
        used = None if self._round is None else self._round.offer

        def offered() -> Offer | None:
            return self._own.offer if self._own is not None and self._own.offer != used else None

        if (offer := self.changed.wait_for(offered, OFFER_MAX_SECONDS)) is None:
            raise RendezvousStateError("This node has offered no place for the workers' store.")
        return offer

    def _count(self) -> None:
        self._asked_at = time.monotonic()
        waiting, error = 0, None
        try:
            waiting = operator.index(self._handler.num_nodes_waiting())
        except Exception as exc:
            error = exc
        with self.changed:
            now, self._asked_at = time.monotonic(), None
            interval = self._settings.monitor_interval
            if error is not None:
                self._silent = now if self._silent is None else self._silent[0], error
                interval = max(interval, FAILED_COUNT_INTERVAL_SECONDS)
            else:
                self._silent = None
            self._count_at = now + interval
            if waiting > 0 and now >= self._quiet_until:
                self._waiting = waiting
                self._wake()

    def _finish(self) -> None:
        missing: list[int] = []
        with suppress(Exception):  # a store ends with its node, which leaves once all have finished
            if self._info is not None:
                missing = exchange.finish(self._info, self._settings.exit_barrier, self._pause)
        with self.changed:
            self._finished, self._missing = True, missing
            self._wake()

    def _fail(self, exc: BaseException) -> None:
        with self.changed:
            if is_graceful_exit(exc) and self._wanted is not None:
                why = f"the rendezvous has no place for this node: {exc}"
                self._close(self._wanted, Closed(success=True, why=why, exit_code=ExitCode.SUCCESS))
                return
            cause = translate_error(exc, f"the rendezvous handler {self._settings.backend!r} failed")
            retried = isinstance(cause, RendezvousConnectionError | RendezvousStateError)
            self.error = HandlerError(cause) if retried else cause
            self.error.__cause__ = None if cause is exc else exc
            self._wake()

    @property
    def _pause(self) -> exchange.Waiting:
        return exchange.Waiting(self._ended.wait)

    def _wake(self) -> None:
        self.version += 1
        self.changed.notify_all()


@contextmanager
def without_shared_store() -> Iterator[None]:
    """Set the switch by which torch's handlers do not share their store with the workers, unless the user has set it.

    A handler that shares the store does not tell a new node where it is, and the job ends when a node joins.
    """
    before = os.environ.get(SHARE_SWITCH)
    os.environ.setdefault(SHARE_SWITCH, "1")
    try:
        yield
    finally:
        if before is None:
            del os.environ[SHARE_SWITCH]


def _peer(own: NodeInfo, node_id: str, host: str, local_world_size: int, role: str) -> NodeInfo:
    """Return what is known of another node: not its host's id, so nothing is judged by that, nor asked of the node."""
    return NodeInfo(
        node_id=node_id,
        host=host,
        host_id="",
        slot=0,
        local_world_size=local_world_size,
        role=role,
        versions=own.versions,
    )
