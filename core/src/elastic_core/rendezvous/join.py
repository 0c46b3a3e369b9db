"""How a node comes in: find or open the run, enter the roster, be admitted or be told why not.

Mostly the run is there, and a node's first row says all that there is to say: that it takes part, and what it offers.
Only where it has to be found out who else is alive, or a run to be opened, does it enter before that.

Runs on the caller's thread before the session's threads exist. Everything here that decides is pure and lives in
``admission.py``; this module asks the store.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from elastic_core.errors import RendezvousRefusedError, RendezvousStateError, RendezvousTimeoutError
from elastic_core.exit_codes import ExitCode
from elastic_core.rendezvous.admission import Join, OpenNext, Report, admit, check_settings, needs_liveness
from elastic_core.rendezvous.backend import ORIGIN, Cursor, RendezvousBackend
from elastic_core.rendezvous.codec import encode_entry, encode_row
from elastic_core.rendezvous.ledger import (
    Body,
    Chair,
    Closed,
    HistoryChangedError,
    Ledger,
    Offer,
    Open,
    advance,
    compose,
    opened,
)
from elastic_core.rendezvous.reading import load, said_by
from elastic_core.rendezvous.retry import RETRY_FIRST
from elastic_core.rendezvous.rows import NodeInfo, NodeRow, Phase, gone
from elastic_core.rendezvous.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Applicant:
    """A node that wants in."""

    info: NodeInfo
    settings: Settings
    scheduler_uid: str | None = None
    allow_version_mismatch: bool = False
    offer: Offer | None = None
    """Its first one, for as long as it takes part."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The run that a node takes part in.

    Attributes:
        ledger: The run's, as it was then.
        row: What the roster says of the node: less than there is to say, if it had to be found out who else is alive.
    """

    ledger: Ledger
    row: NodeRow


@dataclass(frozen=True, slots=True)
class Clock:
    """Time and randomness, so that tests can pass their own."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    new_id: Callable[[], str] = lambda: ""


def join(store: RendezvousBackend, applicant: Applicant, clock: Clock) -> Joined | Closed:
    """Enter the roster and return the run, or the verdict of a closed run that this node belongs to.

    Raises:
        RendezvousRefusedError: The running job does not take this node.
        RendezvousTimeoutError: The host of an embedded store did not open the run in time.
        RendezvousStateError: The store holds something that cannot be.
        RendezvousConnectionError: The store cannot be reached.
    """
    try:
        if (joined := _welcome(store, applicant, clock)) is not None:
            return joined
        row = _enter(store, NodeRow(info=applicant.info))
        found = _find_run(store, applicant, clock)
    except BaseException:
        with contextlib.suppress(Exception):
            store.remove(applicant.info.node_id)
        raise
    if isinstance(found, Closed):
        store.remove(applicant.info.node_id)
        return found
    return Joined(found, row)


def _read(store: RendezvousBackend, applicant: Applicant, clock: Clock) -> Ledger | None:
    """The ledger as it stands; None for an empty store. Members of a running job may be putting back what it has lost.

    Raises:
        HistoryChangedError: They have not, for as long as losing a node takes.
    """
    deadline = clock.now() + applicant.settings.timing.lost_after
    while True:
        try:
            return load(store, clock.now())
        except HistoryChangedError:
            if clock.now() >= deadline:
                raise
            clock.sleep(RETRY_FIRST)


def _enter(store: RendezvousBackend, row: NodeRow) -> NodeRow:
    """Enter the roster with this row."""
    store.enter(row.info.node_id, encode_row(row))
    return row


def _welcome(store: RendezvousBackend, applicant: Applicant, clock: Clock) -> Joined | None:
    """The run that takes this node as it is, which has entered it; None where that is not plain to see.

    Who offers something may be given a round at once; one whose rank may be another's must not be, and offers nothing
    yet.
    """
    ledger, uid = _read(store, applicant, clock), applicant.scheduler_uid
    if ledger is None or needs_liveness(ledger, uid) or not isinstance(admit(ledger, uid, ()), Join):
        return None
    try:
        _check_settings(ledger, applicant)
    except RendezvousRefusedError:
        return None
    info, head = applicant.info, ledger.head
    offer = applicant.offer if info.node_rank is None else None
    row = _enter(store, NodeRow(info=info, run=head.run, head=head.index, epoch=head.epoch, offer=offer))
    _check_node_rank(store, applicant, clock, ledger)
    return Joined(ledger, row)


def _check_settings(ledger: Ledger, applicant: Applicant) -> None:
    allow = applicant.allow_version_mismatch
    check_settings(ledger.settings, applicant.settings, allow_version_mismatch=allow)


def _find_run(store: RendezvousBackend, applicant: Applicant, clock: Clock) -> Ledger | Closed:
    uid = applicant.scheduler_uid
    while True:
        ledger = _read(store, applicant, clock)
        if ledger is None:
            if store.embedded and not store.hosting:
                _await_host(store, applicant)
                continue
            started = _open(store, None, applicant, clock)
        else:
            alive = _alive(store, ledger, applicant, clock) if needs_liveness(ledger, uid) else []
            match admit(ledger, uid, alive):
                case Report(closed):
                    return closed
                case Join():
                    try:
                        _check_settings(ledger, applicant)
                    except RendezvousRefusedError:  # by a run that nobody is left of?
                        if _alive(store, ledger, applicant, clock):
                            raise
                        started = _open(store, ledger, applicant, clock, abandoned=True)
                    else:
                        _check_node_rank(store, applicant, clock, ledger)
                        return ledger
                case OpenNext(abandoned):
                    started = _open(store, ledger, applicant, clock, abandoned=abandoned)
        if started is not None:
            return started


def _open(
    store: RendezvousBackend, ledger: Ledger | None, applicant: Applicant, clock: Clock, *, abandoned: bool = False
) -> Ledger | None:
    """Append OPEN (after closing an abandoned run); None when somebody else was faster."""
    node_id = applicant.info.node_id

    def append(after: Ledger | None, body: Body, run: str | None = None) -> Ledger | None:
        now = clock.now()
        entry = compose(after, body, entry_id=clock.new_id(), author=node_id, now=now, run=run)
        prev = ORIGIN if after is None else after.head.link
        if not store.append(prev, entry.link, encode_entry(entry)):
            return None
        return opened(entry, now) if after is None else advance(after, entry, now)

    if abandoned and ledger is not None:
        why = "abandoned: nobody of this run is alive"
        took = append(ledger, Chair(why=why))
        closed = took and append(took, Closed(success=False, why=why, exit_code=ExitCode.JOB_FAILED))
        if closed is None:
            return None
        ledger = closed
    return append(ledger, Open(scheduler_uid=applicant.scheduler_uid, settings=applicant.settings), clock.new_id())


def _await_host(store: RendezvousBackend, applicant: Applicant) -> None:
    timeout = applicant.settings.timing.join_timeout
    if store.wait(Cursor(), roster=False, timeout=timeout).head == 0:
        raise RendezvousTimeoutError(
            f"The agent that hosts the store did not open the run within {timeout:.0f} s.",
            hint="See that agent's own output; it must use the same --rdzv_id.",
        )


def _check_node_rank(store: RendezvousBackend, applicant: Applicant, clock: Clock, ledger: Ledger) -> None:
    """Refuse a second node of one rank, where nodes are numbered by hand; the place of a dead one is free."""
    rank = applicant.info.node_rank
    if rank is not None and (others := _alive(store, ledger, applicant, clock, node_rank=rank)):
        raise RendezvousRefusedError(
            f"{applicant.settings.host} has --node_rank={rank}, and so has {', '.join(others)}, which is alive.",
            hint="Give each node a rank of its own, from 0.",
        )


def _alive(
    store: RendezvousBackend, ledger: Ledger, applicant: Applicant, clock: Clock, *, node_rank: int | None = None
) -> list[str]:
    """Hosts of the run whose beats move, watched for as long as losing a node takes; at once where there are none.

    With a ``node_rank`` only those that have it.
    """
    timing, me = ledger.settings.timing, applicant.info
    runs = {ledger.head.run} if ledger.closed is not None else {ledger.head.run, ""}  # '': about to join, perhaps
    first: dict[str, tuple[int, int]] = {}
    moving: dict[str, str] = {}
    deadline = clock.now() + timing.lost_after
    while True:
        here = set()
        for seen in store.roster():
            try:
                row = said_by(seen)
            except RendezvousStateError:
                continue
            ignored = row.info.node_id == me.node_id or row.info.node_id in gone((row, NodeRow(info=me)))
            left = row.leaving and row.phase is not Phase.RUNNING
            other_rank = node_rank is not None and row.info.node_rank != node_rank
            if row.run not in runs or ignored or left or other_rank:
                continue
            here.add(seen.node_id)
            state = (seen.revision, seen.beat)
            if first.setdefault(seen.node_id, state) != state:
                moving[seen.node_id] = str(row.info)
        if not here or clock.now() >= deadline or here == set(moving):
            return sorted(moving[node_id] for node_id in here if node_id in moving)
        clock.sleep(timing.beat_interval)
