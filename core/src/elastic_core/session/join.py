"""The join of a node: it finds or opens the run, enters the roster, and is admitted or told why not.

This runs on the caller's thread before the session's threads exist. A node that joins later has a :class:`LedgerWatch`
meanwhile. The decisions are pure functions in ``protocol.admission``; this module asks the store. Each function raises
RendezvousConnectionError where the store cannot be reached, and RendezvousStateError where it holds something invalid.

A node belongs to the run that was open when it first read the ledger, or else to the next (rule S6). An agent reads the
ledger as soon as it has a connection, and may join seconds later, since it first imports what its workers need. If its
run ends in between, the node reports the verdict on it, and must not run the job once more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from elastic_core.errors import (
    ElasticError,
    RendezvousConnectionError,
    RendezvousRefusedError,
    RendezvousStateError,
    RendezvousTimeoutError,
    StoreLostError,
    UsageError,
)
from elastic_core.exit_codes import ExitCode
from elastic_core.protocol import admission
from elastic_core.protocol.admission import Admission
from elastic_core.protocol.entries import Body, Closed, Entry, Leader, Offer, Open, Resume
from elastic_core.protocol.ledger import HistoryChangedError, Ledger, advance, compose, open_ledger
from elastic_core.protocol.limits import MAX_FORMER_RUNS, OPEN_BYTES
from elastic_core.protocol.planned_stop import find_drain
from elastic_core.protocol.roster import NodeInfo, NodeRow
from elastic_core.protocol.settings import Settings
from elastic_core.rendezvous.backend import ORIGIN, TOMBSTONE, Cursor, Link, RendezvousBackend
from elastic_core.session.contact import RETRY_FIRST, Backoff
from elastic_core.session.ledger_reader import living_hosts, load, load_now, peek
from elastic_core.session.runtime import Runtime


@dataclass(frozen=True, slots=True)
class FormerNode:
    """A node that has left, or is about to leave, only to enter again as another one (rule L17)."""

    node_id: str
    head: int  # the index of the newest ledger entry that it has read


@dataclass(frozen=True, slots=True, kw_only=True)
class Applicant:
    """A node that joins."""

    info: NodeInfo
    settings: Settings
    scheduler_uid: str | None = None
    allow_version_mismatch: bool = False
    unnamed: bool = False
    """True if the job has no name, and its nodes no numbers: another node there may belong to another job."""
    offer: Offer | None = None  # its first one, for as long as it takes part
    former: tuple[FormerNode, ...] = ()  # other nodes that its agent has been, up to the moment at which it joins

    def refusal(self, opener: Settings) -> RendezvousRefusedError | None:
        """Return the error by which a run with these settings does not take the node; None if it does."""
        allow = self.allow_version_mismatch
        return admission.settings_refusal(opener, self.settings, allow_version_mismatch=allow, unnamed=self.unnamed)

    def is_taken_by(self, opener: Settings, run_uid: str | None) -> bool:
        """Return True if an open run with these settings and this scheduler's uid takes the node."""
        return self.scheduler_uid in (None, run_uid) and self.refusal(opener) is None


@dataclass(frozen=True, slots=True)
class Joined:
    """The run that a node takes part in."""

    ledger: Ledger
    row: NodeRow  # what the roster says of the node: less than it will, if it had to find out which others are alive
    drained: str = ""  # why its agent was asked to leave, by an entry of this ledger; '' if it was not


@dataclass(frozen=True, slots=True)
class Arrival:
    """The ledger as a node found it first."""

    place: Link  # the newest entry; ``ORIGIN`` for an empty ledger
    run: str = ""  # the newest run; '' for none
    belongs: bool = False  # whether the node belongs to that run: it was open, and it takes the node
    round: int = 0  # the number of its live round, which a new member interrupts; 0 for none

    @classmethod
    def at(cls, ledger: Ledger | None, applicant: Applicant, *, again: bool = False) -> Arrival:
        """Return what this ledger is to a node that reads it for the first time, or comes ``again``."""
        if ledger is None:
            return cls(ORIGIN)
        open_or_again = again or ledger.closed is None
        belongs = open_or_again and applicant.is_taken_by(ledger.settings, ledger.opened.scheduler_uid)
        number = ledger.round.number if belongs and ledger.is_live and ledger.round is not None else 0
        return cls(ledger.head.link, ledger.head.run, belongs, number)


def arrive(store: RendezvousBackend, applicant: Applicant, runtime: Runtime, *, again: bool = False) -> Arrival:
    """Read the ledger for the first time, for a node that joins later.

    A node that comes ``again``, from another run of the job that the newest one has replaced (rule S3), belongs to the
    newest one also if that is over by now.

    Raises:
        RendezvousRefusedError: The running job does not take this node.
    """
    joining = Joining(store, applicant, runtime)
    ledger = joining.read()
    if ledger is not None and ledger.closed is None and not again:
        joining.admit(ledger)
    return Arrival.at(ledger, applicant, again=again)


def join(
    store: RendezvousBackend, applicant: Applicant, runtime: Runtime, arrival: Arrival | None = None
) -> Joined | Closed:
    """Enter the roster and return the run, or the verdict on the run that this node belongs to.

    ``arrival`` is what :func:`arrive` found; None for a node that reads the ledger for the first time now.

    Raises:
        RendezvousRefusedError: The running job does not take this node.
        RendezvousTimeoutError: The host of an embedded store did not open the run in time.
    """
    joining = Joining(store, applicant, runtime)
    try:
        ledger = joining.read()
        arrival = arrival or Arrival.at(ledger, applicant)
        if ledger is not None:
            if (verdict := joining.verdict_since(arrival, ledger)) is not None:
                return verdict
            if (joined := joining.welcome(ledger)) is not None:
                return replace(joined, drained=joining.drained(ledger, applicant.former))
        row = joining.enter(NodeRow(info=applicant.info))
        found = joining.find_run(arrival)
        own = FormerNode(row.info.node_id, 0 if ledger is None else ledger.head.index)  # a DRAIN may name it by now
        drained = "" if isinstance(found, Closed) else joining.drained(found, (*applicant.former, own))
    except BaseException:
        with contextlib.suppress(Exception):
            store.remove(applicant.info.node_id)
        raise
    if isinstance(found, Closed):
        store.remove(applicant.info.node_id)
        return found
    return Joined(found, row, drained)


@dataclass(frozen=True, slots=True)
class Joining:
    """A node that joins, and the store that it asks."""

    store: RendezvousBackend
    applicant: Applicant
    runtime: Runtime

    def read(self) -> Ledger | None:
        """Return the ledger as it stands; None for an empty store.

        Raise HistoryChangedError if entries are lost that no member has put back within ``lost_after``.
        """
        deadline = self.runtime.now() + self.applicant.settings.timing.lost_after
        while True:
            try:
                return load_now(self.store, self.runtime)
            except HistoryChangedError:
                if self.runtime.now() >= deadline:
                    raise
                self.runtime.sleep(RETRY_FIRST)

    def enter(self, row: NodeRow) -> NodeRow:
        """Enter the roster with this row."""
        self.store.enter(row.info.node_id, self.runtime.codec.encode_row(row))
        return row

    def welcome(self, ledger: Ledger) -> Joined | None:
        """Enter the run that was just read, if it plainly takes this node; else None.

        A node that makes an offer may be given a round at once, so one whose rank another node may have makes none yet.
        """
        if ledger.closed is not None or not self.applicant.is_taken_by(ledger.settings, ledger.opened.scheduler_uid):
            return None
        self._check_single(ledger)
        info, head = self.applicant.info, ledger.head
        offer = self.applicant.offer if info.node_rank is None else None
        row = self.enter(NodeRow(info=info, run=head.run, head=head.index, epoch=head.epoch, offer=offer))
        self._check_node_rank(ledger)
        return Joined(ledger, row)

    def verdict_since(self, arrival: Arrival, ledger: Ledger) -> Closed | None:
        """Return the verdict on the node's run, which has ended since the node arrived; None where it has not.

        A run that was closed as abandoned has no verdict: no node of it was alive, and this one belongs to the next.
        """
        if ledger.head.run == arrival.run:
            closed = ledger.closed if arrival.belongs else None
            return None if closed is None or closed.abandoned else closed
        if not self._is_there(arrival.place):  # the store has lost it: rule S3 says which run goes on
            return None
        mine = {arrival.run: arrival.belongs}
        for entry in self._since(arrival.place.index, ledger):
            match entry.body:
                case (Open() as opened) | Resume(opened=opened):
                    mine.setdefault(entry.run, self.applicant.is_taken_by(opened.settings, opened.scheduler_uid))
                case Closed() as body if mine.get(entry.run) and not body.abandoned:
                    return body
        return None

    def drained(self, ledger: Ledger, former: Collection[FormerNode]) -> str:
        """Return why one of these nodes was drained by an entry that it had not read; '' if none was."""
        if not former:
            return ""
        return find_drain(self._since(min(n.head for n in former), ledger), {node.node_id for node in former})

    def _since(self, index: int, ledger: Ledger) -> Iterator[Entry]:
        """Yield the entries after this one, but for tombstones."""
        return filter(None, (peek(self.store, i, self.runtime.codec) for i in range(index + 1, ledger.head.index + 1)))

    def _is_there(self, place: Link) -> bool:
        """Return True if the store still has the entry, or its tombstone."""
        data = self.store.read(place.index) if place.index else TOMBSTONE
        return data is not None and (data == TOMBSTONE or self.runtime.codec.decode_entry(data).link == place)

    def find_run(self, arrival: Arrival) -> Ledger | Closed:
        """Return the run that the node takes part in, once there is one, or the verdict on the one it belongs to."""
        while True:
            ledger = self.read()
            if ledger is None:
                if self.store.embedded and not self.store.hosting:
                    self._await_host()
                    continue
                started = self._open(None)
            elif (verdict := self.verdict_since(arrival, ledger)) is not None:
                return verdict
            else:
                found = self.admit(ledger)
                if isinstance(found, Closed):
                    return found
                if found is Admission.JOIN:
                    self._check_node_rank(ledger)
                    return ledger
                started = self._open(ledger, abandoned=found is Admission.CLOSE_AND_OPEN_NEXT)
            if started is not None:
                return started

    def admit(self, ledger: Ledger) -> Admission | Closed:
        """Return what this node does with the run; finds out which nodes are alive, as far as that matters.

        Raise RendezvousRefusedError if the run does not take this node, and nodes of it are alive.
        """
        applicant, uid = self.applicant, self.applicant.scheduler_uid
        if ledger.closed is not None and admission.program_refusal(
            ledger.settings, applicant.settings, unnamed=applicant.unnamed
        ):
            uid = None  # an allocation runs one program after another: the verdict on the first is not this node's
        alive = self._alive(ledger) if admission.needs_liveness(ledger, uid) else []
        found = admission.admit(ledger, uid, alive)
        if found is Admission.JOIN:
            if (refusal := applicant.refusal(ledger.settings)) is not None:  # by a run of which no node is left?
                if self._alive(ledger):
                    raise refusal
                return Admission.CLOSE_AND_OPEN_NEXT
            self._check_single(ledger)
        return found

    def _open(self, ledger: Ledger | None, *, abandoned: bool = False) -> Ledger | None:
        """Append OPEN (after closing an abandoned run); None when another node was faster."""
        applicant = self.applicant

        def append(after: Ledger | None, body: Body, run: str | None = None) -> Ledger | None:
            now, entry_id = self.runtime.now(), self.runtime.new_id()
            entry = compose(after, body, entry_id=entry_id, author=applicant.info.node_id, now=now, run=run)
            prev, data = ORIGIN if after is None else after.head.link, self.runtime.codec.encode_entry(entry)
            if isinstance(body, Open) and len(data) > OPEN_BYTES:
                raise UsageError(
                    f"The settings of this run take {len(data)} bytes; at most {OPEN_BYTES} are allowed.",
                    hint="Most of them are the names of plugins, or run_uid: shorten those.",
                )
            if not self.store.append(prev, entry.link, data):
                return None
            return open_ledger(entry, now) if after is None else advance(after, entry, now)

        if abandoned and ledger is not None:
            why = "abandoned: no node of this run is alive"
            verdict = Closed(success=False, why=why, exit_code=ExitCode.JOB_FAILED, abandoned=True)
            took = append(ledger, Leader(why=why))
            if took is None or (ledger := append(took, verdict)) is None:
                return None
        former = () if ledger is None else (ledger.head.run, *ledger.opened.former)[:MAX_FORMER_RUNS]
        opening = Open(scheduler_uid=applicant.scheduler_uid, settings=applicant.settings, former=former)
        return append(ledger, opening, run=self.runtime.new_id())

    def _await_host(self) -> None:
        timeout = self.applicant.settings.timing.join_timeout
        if self.store.wait(Cursor(), roster=False, timeout=timeout).head == 0:
            raise RendezvousTimeoutError(
                f"The agent that hosts the store did not open the run within {timeout:.0f} s.",
                hint="See that agent's own output; it must use the same --rdzv_id.",
            )

    def _check_node_rank(self, ledger: Ledger) -> None:
        """Refuse a second node of one rank, where nodes are numbered by hand; the place of a dead one is free."""
        rank = self.applicant.info.node_rank
        if rank is not None and (others := self._alive(ledger, node_rank=rank)):
            raise RendezvousRefusedError(
                f"{self.applicant.settings.host} has --node_rank={rank}, and so has {', '.join(others)}, "
                "which is alive.",
                hint="Give each node a different rank, from 0.",
            )

    def _check_single(self, ledger: Ledger) -> None:
        """Refuse a second node of a job for one node that has no name; the place of a dead one is free.

        With a name it is a spare for the job of that name. Without one it is most likely another job.
        """
        agreement = self.applicant.settings.agreement
        alone = self.applicant.unnamed and agreement.max_nodes == 1 and not agreement.spares
        if alone and (others := self._alive(ledger)):
            raise RendezvousRefusedError(
                f"A job of one node, without an --rdzv_id, is running at this endpoint on {', '.join(others)} already.",
                hint="Give each job an --rdzv_id of its own. For a spare node of one job, give both the same one.",
            )

    def _alive(self, ledger: Ledger, *, node_rank: int | None = None) -> list[str]:
        """Return the hosts of the run whose heartbeats move, but for the nodes that the agent has been."""
        me, runtime = self.applicant.info, self.runtime
        own = {me.node_id, *(node.node_id for node in self.applicant.former)}
        return living_hosts(self.store, ledger, me, runtime, but=own, node_rank=node_rank)


# Before a node joins -------------------------------------------------------------------------------------------------


class LedgerWatch:
    """A thread that follows the ledger over its own connection while the starter imports and health checks run.

    It finds out whether the run has ended (S6), and whether the node is drained. Its row, with a heartbeat of its own,
    takes part in no round: ``elastic drain`` finds the node by it (L17), and the agent that hosts an embedded store
    waits until it has left the roster.

    ``store`` is the connection over which the node reads the ledger, ``arrival`` the result of its first reading. The
    thread calls ``tell`` once there is a verdict, or the node is drained.
    """

    def __init__(
        self,
        store: RendezvousBackend,
        applicant: Applicant,
        runtime: Runtime,
        arrival: Arrival,
        tell: Callable[[], None] = lambda: None,
    ) -> None:
        self._root, self._applicant, self._runtime, self._arrival = store, applicant, runtime, arrival
        self._tell = tell
        self._row = NodeRow(info=replace(applicant.info, node_id=runtime.new_id()))
        self._revision = 0
        self._former_rows = applicant.former  # nodes whose rows may still be there
        self.former = (*applicant.former, FormerNode(self._row.info.node_id, arrival.place.index))
        """The nodes as which the roster has shown this agent."""
        self.drained = ""  # why the node was drained; '' while it is not
        self._found: Closed | StoreLostError | None = None
        self._connection: RendezvousBackend | None = None
        self._stopping, self._entered = runtime.event(), runtime.event()
        self._thread = runtime.thread(target=self._run, name="elastic-ledger", daemon=True)
        self._thread.start()

    def wait_until_entered(self, timeout: float) -> None:
        """Wait until the roster shows this node, for ``timeout`` seconds at most."""
        self._entered.wait(timeout)

    def verdict(self) -> Closed | None:
        """Return the verdict on the node's run, if it is known; raise StoreLostError if the store is lost with it."""
        if isinstance(self._found, StoreLostError):
            raise self._found
        return self._found

    def stop(self) -> None:
        """End the thread; its row stays."""
        self._stopping.set()
        if (connection := self._connection) is not None:
            with contextlib.suppress(ElasticError):
                connection.close()
        self._thread.join(1.0)

    def close(self) -> None:
        """End the thread, and take its row out. On the thread that uses the node's own connection."""
        self.stop()
        with contextlib.suppress(ElasticError):
            self._root.remove(self._row.info.node_id)

    def _run(self) -> None:
        backoff = Backoff()
        while not self._stopping.is_set():
            try:
                self._connection = store = self._root.connect()
                try:
                    if not self._stopping.is_set():  # after close() the row is gone, and close() closes this connection
                        self._watch(store)
                    return
                finally:
                    store.close()
            except StoreLostError as exc:
                self._found = StoreLostError(
                    f"Run {self._arrival.run}, for which this node came, has ended, or has lost its store, before this "
                    f"node had joined it: {exc.message}",
                    hint="The verdict is in the output of the other nodes. This node has started no worker.",
                )
                return
            except (RendezvousConnectionError, HistoryChangedError):
                self._stopping.wait(backoff.failed())
            except RendezvousStateError:
                return  # join() raises the same error, and tells the user
            finally:
                if self._found is not None or self.drained:
                    self._tell()

    def _watch(self, store: RendezvousBackend) -> None:
        """Follow the ledger until the run has ended, the node is drained, or the thread is stopped."""
        codec, interval = self._runtime.codec, self._applicant.settings.timing.beat_interval
        node_id, heartbeats = self._row.info.node_id, 0
        store.enter(node_id, codec.encode_row(self._row))
        self._entered.set()
        while not self._stopping.is_set():
            ledger = load(store, self._runtime.now(), codec)
            if ledger is not None and self._note(store, ledger):
                return
            head = Cursor() if ledger is None else Cursor(ledger.head.index)
            while not self._stopping.is_set() and store.wait(head, roster=False, timeout=interval).head == head.head:
                heartbeats += 1
                if store.heartbeat(node_id, heartbeats).revision is None:  # it was thought lost, or the store lost it
                    store.enter(node_id, codec.encode_row(self._row))

    def _note(self, store: RendezvousBackend, ledger: Ledger) -> bool:
        """Read new entries, and write the index of the newest into the row; return True if the node must not join."""
        joining, head = Joining(store, self._applicant, self._runtime), ledger.head
        self._found = joining.verdict_since(self._arrival, ledger)
        if self._found is not None:
            return True
        self.drained = self.drained or joining.drained(ledger, self.former)
        self.former = tuple(replace(node, head=head.index) for node in self.former)
        self._revision += 1
        self._row = replace(self._row, head=head.index, epoch=head.epoch, leaving=bool(self.drained))
        store.amend(self._row.info.node_id, self._revision, self._runtime.codec.encode_row(self._row))
        for node in self._former_rows:  # its agent is this one; the row of a member shows that it has left
            if not ledger.is_member(node.node_id):
                store.remove(node.node_id)
        self._former_rows = tuple(node for node in self._former_rows if ledger.is_member(node.node_id))
        return bool(self.drained)
