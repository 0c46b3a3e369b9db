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

from elastic_core.errors import RendezvousRefusedError, RendezvousStateError, RendezvousTimeoutError, UsageError
from elastic_core.exit_codes import ExitCode
from elastic_core.protocol.admission import (
    Admission,
    Join,
    OpenNext,
    Report,
    admit,
    can_take,
    check_settings,
    is_same_program,
    needs_liveness,
)
from elastic_core.protocol.codec import encode_entry, encode_row
from elastic_core.protocol.failure_detector import PROOF_HEARTBEATS
from elastic_core.protocol.ledger import (
    Body,
    Closed,
    HistoryChangedError,
    Leader,
    Ledger,
    Offer,
    Open,
    advance,
    compose,
    ledger_read_at,
    open_ledger,
)
from elastic_core.protocol.limits import OPEN_BYTES
from elastic_core.protocol.roster import NodeInfo, NodeRow, Phase, find_gone_nodes
from elastic_core.protocol.settings import Settings
from elastic_core.rendezvous.backend import ORIGIN, Cursor, RendezvousBackend
from elastic_core.session.arrival import Arrival, Takes, verdict_since
from elastic_core.session.ledger_reader import load, said_by
from elastic_core.session.retry import RETRY_FIRST


@dataclass(frozen=True, slots=True, kw_only=True)
class Applicant:
    """A node that wants in."""

    info: NodeInfo
    settings: Settings
    scheduler_uid: str | None = None
    allow_version_mismatch: bool = False
    unnamed: bool = False
    """Whether nobody has named the job, or numbered its nodes: whoever else meets there may be another job."""
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


def arrive(store: RendezvousBackend, applicant: Applicant, clock: Clock, *, again: bool = False) -> Arrival:
    """Read the ledger for the first time, for a node that joins later.

    Args:
        store: Where the ledger is.
        applicant: The node.
        clock: Its clock.
        again: Whether this node has just been in another run of the job, which the newest one has replaced (rule S3):
            it belongs to the newest one then, also if that is over by now.

    Raises:
        RendezvousRefusedError: The running job does not take this node.
        RendezvousStateError: The store holds something that cannot be.
        RendezvousConnectionError: The store cannot be reached.
    """
    ledger = _read(store, applicant, clock)
    if ledger is not None and ledger.closed is None and not again:
        _admitted(store, ledger, applicant, clock)
    return _arrival(ledger, applicant, again=again)


def run_takes(applicant: Applicant) -> Takes:
    """Which runs take this node."""

    def check(opener: Settings, uid: str | None) -> bool:
        return can_take(
            opener,
            uid,
            applicant.settings,
            applicant.scheduler_uid,
            allow_version_mismatch=applicant.allow_version_mismatch,
            unnamed=applicant.unnamed,
        )

    return check


def join(
    store: RendezvousBackend, applicant: Applicant, clock: Clock, arrival: Arrival | None = None
) -> Joined | Closed:
    """Enter the roster and return the run, or the verdict on the run that this node belongs to.

    Args:
        store: Where roster and ledger are.
        applicant: The node.
        clock: Its clock.
        arrival: What :func:`arrive` found; None for a node that reads the ledger for the first time now.

    Raises:
        RendezvousRefusedError: The running job does not take this node.
        RendezvousTimeoutError: The host of an embedded store did not open the run in time.
        RendezvousStateError: The store holds something that cannot be.
        RendezvousConnectionError: The store cannot be reached.
    """
    try:
        ledger = _read(store, applicant, clock)
        arrival = arrival or _arrival(ledger, applicant)
        if ledger is not None:
            if (verdict := verdict_since(store, arrival, ledger, run_takes(applicant))) is not None:
                return verdict
            if (joined := _welcome(store, applicant, clock, ledger)) is not None:
                return joined
        row = _enter(store, NodeRow(info=applicant.info))
        found = _find_run(store, applicant, clock, arrival)
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
            ledger = load(store, clock.now())
            return None if ledger is None else ledger_read_at(ledger, clock.now())
        except HistoryChangedError:
            if clock.now() >= deadline:
                raise
            clock.sleep(RETRY_FIRST)


def _arrival(ledger: Ledger | None, applicant: Applicant, *, again: bool = False) -> Arrival:
    if ledger is None:
        return Arrival(ORIGIN)
    belongs = (again or ledger.closed is None) and run_takes(applicant)(ledger.settings, ledger.scheduler_uid)
    number = ledger.round.number if belongs and ledger.is_live and ledger.round is not None else 0
    return Arrival(ledger.head.link, ledger.head.run, belongs, number)


def _enter(store: RendezvousBackend, row: NodeRow) -> NodeRow:
    """Enter the roster with this row."""
    store.enter(row.info.node_id, encode_row(row))
    return row


def _welcome(store: RendezvousBackend, applicant: Applicant, clock: Clock, ledger: Ledger) -> Joined | None:
    """The run, as just read, that takes this node as it is, which has entered it; None where that is not plain to see.

    Who offers something may be given a round at once; one whose rank may be another's must not be, and offers nothing
    yet.
    """
    uid = applicant.scheduler_uid
    if needs_liveness(ledger, uid) or not isinstance(admit(ledger, uid, ()), Join):
        return None
    try:
        _check_settings(ledger, applicant)
    except RendezvousRefusedError:
        return None
    _check_single(store, applicant, clock, ledger)
    info, head = applicant.info, ledger.head
    offer = applicant.offer if info.node_rank is None else None
    row = _enter(store, NodeRow(info=info, run=head.run, head=head.index, epoch=head.epoch, offer=offer))
    _check_node_rank(store, applicant, clock, ledger)
    return Joined(ledger, row)


def _check_settings(ledger: Ledger, applicant: Applicant) -> None:
    allow = applicant.allow_version_mismatch
    check_settings(ledger.settings, applicant.settings, allow_version_mismatch=allow, unnamed=applicant.unnamed)


def _find_run(store: RendezvousBackend, applicant: Applicant, clock: Clock, arrival: Arrival) -> Ledger | Closed:
    while True:
        ledger = _read(store, applicant, clock)
        if ledger is None:
            if store.embedded and not store.hosting:
                _await_host(store, applicant)
                continue
            started = _open(store, None, applicant, clock)
        elif (verdict := verdict_since(store, arrival, ledger, run_takes(applicant))) is not None:
            return verdict
        else:
            match _admitted(store, ledger, applicant, clock):
                case Report(closed):
                    return closed
                case Join():
                    _check_node_rank(store, applicant, clock, ledger)
                    return ledger
                case OpenNext(abandoned):
                    started = _open(store, ledger, applicant, clock, abandoned=abandoned)
        if started is not None:
            return started


def _admitted(store: RendezvousBackend, ledger: Ledger, applicant: Applicant, clock: Clock) -> Admission:
    """What this node does with the run, now that it is known who is alive, as far as that matters.

    Raises:
        RendezvousRefusedError: The run does not take this node, and nodes of it are alive.
    """
    uid = applicant.scheduler_uid
    if ledger.closed is not None and not is_same_program(
        ledger.settings, applicant.settings, unnamed=applicant.unnamed
    ):
        uid = None  # one of an allocation that runs one program after another: the verdict on the first is not its own
    alive = _alive(store, ledger, applicant, clock) if needs_liveness(ledger, uid) else []
    found = admit(ledger, uid, alive)
    if isinstance(found, Join):
        try:
            _check_settings(ledger, applicant)
        except RendezvousRefusedError:  # by a run that nobody is left of?
            if _alive(store, ledger, applicant, clock):
                raise
            return OpenNext(abandoned=True)
        _check_single(store, applicant, clock, ledger)
    return found


def _open(
    store: RendezvousBackend, ledger: Ledger | None, applicant: Applicant, clock: Clock, *, abandoned: bool = False
) -> Ledger | None:
    """Append OPEN (after closing an abandoned run); None when somebody else was faster."""
    node_id = applicant.info.node_id

    def append(after: Ledger | None, body: Body, run: str | None = None) -> Ledger | None:
        now = clock.now()
        entry = compose(after, body, entry_id=clock.new_id(), author=node_id, now=now, run=run)
        prev, data = ORIGIN if after is None else after.head.link, encode_entry(entry)
        if isinstance(body, Open) and len(data) > OPEN_BYTES:
            raise UsageError(
                f"The settings of this run take {len(data)} bytes; at most {OPEN_BYTES} are allowed.",
                hint="Most of them are the names of plugins, or run_uid: shorten those.",
            )
        if not store.append(prev, entry.link, data):
            return None
        return open_ledger(entry, now) if after is None else advance(after, entry, now)

    if abandoned and ledger is not None:
        why = "abandoned: nobody of this run is alive"
        took = append(ledger, Leader(why=why))
        verdict = Closed(success=False, why=why, exit_code=ExitCode.JOB_FAILED, abandoned=True)
        closed = took and append(took, verdict)
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


def _check_single(store: RendezvousBackend, applicant: Applicant, clock: Clock, ledger: Ledger) -> None:
    """Refuse a second node of a job for one node that nobody has named; the place of a dead one is free.

    With a name it is a spare for the job of that name. Without one it is most likely a job of its own.
    """
    alone = applicant.unnamed and applicant.settings.agreement.max_nodes == 1
    if alone and (others := _alive(store, ledger, applicant, clock)):
        raise RendezvousRefusedError(
            f"A job of one node, without an --rdzv_id, is running at this endpoint on {', '.join(others)} already.",
            hint="Give each job an --rdzv_id of its own. For a spare node of one job, give both the same one.",
        )


def _alive(
    store: RendezvousBackend, ledger: Ledger, applicant: Applicant, clock: Clock, *, node_rank: int | None = None
) -> list[str]:
    """Hosts of the run whose heartbeats move, watched for as long as losing a node takes; at once where there are none.

    Nodes whose slots show that they are gone are watched for less (rule S8). With a ``node_rank`` only those that have
    it.
    """
    timing, me = ledger.settings.timing, applicant.info
    runs = {ledger.head.run} if ledger.closed is not None else {ledger.head.run, ""}  # '': about to join, perhaps
    first: dict[str, tuple[int, int]] = {}
    moving: dict[str, str] = {}
    began = clock.now()
    deadline, proved_at = began + timing.lost_after, began + PROOF_HEARTBEATS * timing.beat_interval
    while True:
        here, now = set(), clock.now()
        for seen in store.roster():
            try:
                row = said_by(seen)
            except RendezvousStateError:
                continue
            state = (seen.revision, seen.heartbeat)
            if first.setdefault(seen.node_id, state) != state:
                moving[seen.node_id] = str(row.info)
            shown = (
                now >= proved_at
                and seen.node_id not in moving
                and seen.node_id in find_gone_nodes((row, NodeRow(info=me)))
            )
            ignored = seen.node_id == me.node_id or shown
            left = row.leaving and row.phase is not Phase.RUNNING
            other_rank = node_rank is not None and row.info.node_rank != node_rank
            if row.run not in runs or ignored or left or other_rank:
                continue
            here.add(seen.node_id)
        if not here or clock.now() >= deadline or here <= moving.keys():
            return sorted(moving[node_id] for node_id in here if node_id in moving)
        until_proved = proved_at - clock.now()
        clock.sleep(until_proved if 0 < until_proved < timing.beat_interval else timing.beat_interval)
