"""How a node joins: it finds or opens the run, enters the roster, and is admitted or told why not.

Mostly the run is there, and the node's first row says that it takes part, and what it offers. A node that has to find
out which others are alive, or that opens a run, enters with less before that.

This runs on the caller's thread before the session's threads exist. The decisions are pure functions in
``protocol.admission``; this module asks the store. A function that takes a store raises RendezvousConnectionError where
the store cannot be reached, and RendezvousStateError where the store holds something invalid.
"""

from __future__ import annotations

import contextlib
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
from elastic_core.protocol.entries import Body, Closed, Leader, Offer, Open
from elastic_core.protocol.failure_detector import PROOF_HEARTBEATS
from elastic_core.protocol.ledger import HistoryChangedError, Ledger, advance, compose, ledger_read_at, open_ledger
from elastic_core.protocol.limits import OPEN_BYTES
from elastic_core.protocol.roster import NodeInfo, NodeRow, Phase, find_gone_nodes
from elastic_core.protocol.settings import Settings
from elastic_core.rendezvous.backend import ORIGIN, Cursor, RendezvousBackend
from elastic_core.session.arrival import Arrival, Takes, verdict_since
from elastic_core.session.contact import RETRY_FIRST
from elastic_core.session.ledger_reader import load, said_by
from elastic_core.session.runtime import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Applicant:
    """A node that joins."""

    info: NodeInfo
    settings: Settings
    scheduler_uid: str | None = None
    allow_version_mismatch: bool = False
    unnamed: bool = False
    """Whether the job has no name, and its nodes no numbers: another node there may belong to another job."""
    offer: Offer | None = None  # its first one, for as long as it takes part


@dataclass(frozen=True, slots=True)
class Joined:
    """The run that a node takes part in."""

    ledger: Ledger
    row: NodeRow  # what the roster says of the node: less than it will, if it had to find out which others are alive


def arrive(store: RendezvousBackend, applicant: Applicant, runtime: Runtime, *, again: bool = False) -> Arrival:
    """Read the ledger for the first time, for a node that joins later.

    A node that comes ``again``, from another run of the job that the newest one has replaced (rule S3), belongs to the
    newest one also if that is over by now.

    Raises:
        RendezvousRefusedError: The running job does not take this node.
    """
    ledger = _read(store, applicant, runtime)
    if ledger is not None and ledger.closed is None and not again:
        _admitted(store, ledger, applicant, runtime)
    return _arrival(ledger, applicant, again=again)


def run_takes(applicant: Applicant) -> Takes:
    """Return the function that says which runs take this node."""
    return lambda opener, run_uid: can_take(
        opener,
        run_uid,
        applicant.settings,
        applicant.scheduler_uid,
        allow_version_mismatch=applicant.allow_version_mismatch,
        unnamed=applicant.unnamed,
    )


def join(
    store: RendezvousBackend, applicant: Applicant, runtime: Runtime, arrival: Arrival | None = None
) -> Joined | Closed:
    """Enter the roster and return the run, or the verdict on the run that this node belongs to.

    ``arrival`` is what :func:`arrive` found; None for a node that reads the ledger for the first time now.

    Raises:
        RendezvousRefusedError: The running job does not take this node.
        RendezvousTimeoutError: The host of an embedded store did not open the run in time.
    """
    try:
        ledger = _read(store, applicant, runtime)
        arrival = arrival or _arrival(ledger, applicant)
        if ledger is not None:
            if (verdict := verdict_since(store, arrival, ledger, run_takes(applicant), runtime.codec)) is not None:
                return verdict
            if (joined := _welcome(store, applicant, runtime, ledger)) is not None:
                return joined
        row = _enter(store, NodeRow(info=applicant.info), runtime)
        found = _find_run(store, applicant, runtime, arrival)
    except BaseException:
        with contextlib.suppress(Exception):
            store.remove(applicant.info.node_id)
        raise
    if isinstance(found, Closed):
        store.remove(applicant.info.node_id)
        return found
    return Joined(found, row)


def _read(store: RendezvousBackend, applicant: Applicant, runtime: Runtime) -> Ledger | None:
    """Return the ledger as it stands; None for an empty store.

    Raises:
        HistoryChangedError: The store has lost entries, and no member has put them back within ``lost_after``.
    """
    deadline = runtime.now() + applicant.settings.timing.lost_after
    while True:
        try:
            ledger = load(store, runtime.now(), runtime.codec)
            return None if ledger is None else ledger_read_at(ledger, runtime.now())
        except HistoryChangedError:
            if runtime.now() >= deadline:
                raise
            runtime.sleep(RETRY_FIRST)


def _arrival(ledger: Ledger | None, applicant: Applicant, *, again: bool = False) -> Arrival:
    if ledger is None:
        return Arrival(ORIGIN)
    belongs = (again or ledger.closed is None) and run_takes(applicant)(ledger.settings, ledger.scheduler_uid)
    number = ledger.round.number if belongs and ledger.is_live and ledger.round is not None else 0
    return Arrival(ledger.head.link, ledger.head.run, belongs, number)


def _enter(store: RendezvousBackend, row: NodeRow, runtime: Runtime) -> NodeRow:
    store.enter(row.info.node_id, runtime.codec.encode_row(row))
    return row


def _welcome(store: RendezvousBackend, applicant: Applicant, runtime: Runtime, ledger: Ledger) -> Joined | None:
    """Enter the run that was just read, if it plainly takes this node; else None.

    A node that makes an offer may be given a round at once. One whose rank another node may have makes no offer yet.
    """
    uid = applicant.scheduler_uid
    if needs_liveness(ledger, uid) or not isinstance(admit(ledger, uid, ()), Join):
        return None
    try:
        _check_settings(ledger, applicant)
    except RendezvousRefusedError:
        return None
    _check_single(store, applicant, runtime, ledger)
    info, head = applicant.info, ledger.head
    offer = applicant.offer if info.node_rank is None else None
    row = _enter(store, NodeRow(info=info, run=head.run, head=head.index, epoch=head.epoch, offer=offer), runtime)
    _check_node_rank(store, applicant, runtime, ledger)
    return Joined(ledger, row)


def _check_settings(ledger: Ledger, applicant: Applicant) -> None:
    allow = applicant.allow_version_mismatch
    check_settings(ledger.settings, applicant.settings, allow_version_mismatch=allow, unnamed=applicant.unnamed)


def _find_run(store: RendezvousBackend, applicant: Applicant, runtime: Runtime, arrival: Arrival) -> Ledger | Closed:
    while True:
        ledger = _read(store, applicant, runtime)
        if ledger is None:
            if store.embedded and not store.hosting:
                _await_host(store, applicant)
                continue
            started = _open(store, None, applicant, runtime)
        elif (verdict := verdict_since(store, arrival, ledger, run_takes(applicant), runtime.codec)) is not None:
            return verdict
        else:
            match _admitted(store, ledger, applicant, runtime):
                case Report(closed):
                    return closed
                case Join():
                    _check_node_rank(store, applicant, runtime, ledger)
                    return ledger
                case OpenNext(abandoned):
                    started = _open(store, ledger, applicant, runtime, abandoned=abandoned)
        if started is not None:
            return started


def _admitted(store: RendezvousBackend, ledger: Ledger, applicant: Applicant, runtime: Runtime) -> Admission:
    """Return what this node does with the run; finds out which nodes are alive, as far as that matters.

    Raises:
        RendezvousRefusedError: The run does not take this node, and nodes of it are alive.
    """
    uid = applicant.scheduler_uid
    if ledger.closed is not None and not is_same_program(
        ledger.settings, applicant.settings, unnamed=applicant.unnamed
    ):
        uid = None  # one of an allocation that runs one program after another: the verdict on the first is not its own
    alive = _alive(store, ledger, applicant, runtime) if needs_liveness(ledger, uid) else []
    found = admit(ledger, uid, alive)
    if isinstance(found, Join):
        try:
            _check_settings(ledger, applicant)
        except RendezvousRefusedError:  # by a run of which no node is left?
            if _alive(store, ledger, applicant, runtime):
                raise
            return OpenNext(abandoned=True)
        _check_single(store, applicant, runtime, ledger)
    return found


def _open(
    store: RendezvousBackend, ledger: Ledger | None, applicant: Applicant, runtime: Runtime, *, abandoned: bool = False
) -> Ledger | None:
    """Append OPEN (after closing an abandoned run); None when another node was faster."""
    node_id = applicant.info.node_id

    def append(after: Ledger | None, body: Body, run: str | None = None) -> Ledger | None:
        now = runtime.now()
        entry = compose(after, body, entry_id=runtime.new_id(), author=node_id, now=now, run=run)
        prev, data = ORIGIN if after is None else after.head.link, runtime.codec.encode_entry(entry)
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
        verdict = Closed(success=False, why=why, exit_code=ExitCode.JOB_FAILED, abandoned=True)
        took = append(ledger, Leader(why=why))
        if took is None or (ledger := append(took, verdict)) is None:
            return None
    return append(ledger, Open(scheduler_uid=applicant.scheduler_uid, settings=applicant.settings), runtime.new_id())


def _await_host(store: RendezvousBackend, applicant: Applicant) -> None:
    timeout = applicant.settings.timing.join_timeout
    if store.wait(Cursor(), roster=False, timeout=timeout).head == 0:
        raise RendezvousTimeoutError(
            f"The agent that hosts the store did not open the run within {timeout:.0f} s.",
            hint="See that agent's own output; it must use the same --rdzv_id.",
        )


def _check_node_rank(store: RendezvousBackend, applicant: Applicant, runtime: Runtime, ledger: Ledger) -> None:
    """Refuse a second node of one rank, where nodes are numbered by hand; the place of a dead one is free."""
    rank = applicant.info.node_rank
    if rank is not None and (others := _alive(store, ledger, applicant, runtime, node_rank=rank)):
        raise RendezvousRefusedError(
            f"{applicant.settings.host} has --node_rank={rank}, and so has {', '.join(others)}, which is alive.",
            hint="Give each node a rank of its own, from 0.",
        )


def _check_single(store: RendezvousBackend, applicant: Applicant, runtime: Runtime, ledger: Ledger) -> None:
    """Refuse a second node of a job for one node that has no name; the place of a dead one is free.

    With a name it is a spare for the job of that name. Without one it is most likely another job.
    """
    alone = applicant.unnamed and applicant.settings.agreement.max_nodes == 1
    if alone and (others := _alive(store, ledger, applicant, runtime)):
        raise RendezvousRefusedError(
            f"A job of one node, without an --rdzv_id, is running at this endpoint on {', '.join(others)} already.",
            hint="Give each job an --rdzv_id of its own. For a spare node of one job, give both the same one.",
        )


def _alive(
    store: RendezvousBackend, ledger: Ledger, applicant: Applicant, runtime: Runtime, *, node_rank: int | None = None
) -> list[str]:
    """Return the hosts of the run whose heartbeats move, watched for ``lost_after``; at once where there are none.

    Nodes whose slots show that they are gone are watched for less (rule S8). With a ``node_rank`` only nodes that have
    that rank are watched.
    """
    timing, me = ledger.settings.timing, applicant.info
    runs = {ledger.head.run} if ledger.closed is not None else {ledger.head.run, ""}  # '': about to join, perhaps
    first: dict[str, tuple[int, int]] = {}
    moving: dict[str, str] = {}
    began = runtime.now()
    deadline, proved_at = began + timing.lost_after, began + PROOF_HEARTBEATS * timing.beat_interval
    while True:
        here, now = set(), runtime.now()
        for seen in store.roster():
            try:
                row = said_by(seen, runtime.codec)
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
            if not (row.run not in runs or ignored or left or other_rank):
                here.add(seen.node_id)
        if not here or runtime.now() >= deadline or here <= moving.keys():
            return sorted(moving[node_id] for node_id in here if node_id in moving)
        until_proved = proved_at - runtime.now()
        runtime.sleep(until_proved if 0 < until_proved < timing.beat_interval else timing.beat_interval)
