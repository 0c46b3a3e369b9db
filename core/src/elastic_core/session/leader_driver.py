"""The leader's driver: reads the roster, lets :func:`~elastic_core.protocol.leader.decide` decide, writes the entry."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field, replace
from functools import partial

from elastic_core.errors import RendezvousStateError
from elastic_core.events import Event, Level
from elastic_core.exit_codes import ExitCode
from elastic_core.incidents import History, Incident, Verdict
from elastic_core.protocol import failure_detector
from elastic_core.protocol.codec import OversizedError
from elastic_core.protocol.compaction import entries_to_shrink
from elastic_core.protocol.counters import judged_progress, past_failures
from elastic_core.protocol.entries import Closed, Counters, Entry, Round
from elastic_core.protocol.failure_detector import Observation, Watch, is_lost
from elastic_core.protocol.leader import decide
from elastic_core.protocol.leader_entries import Append, AskPolicies, Decision, LookAgain, SumUp
from elastic_core.protocol.leader_view import Judgement, LeaderView
from elastic_core.protocol.ledger import Ledger, apply, compose
from elastic_core.protocol.limits import MAX_UNREAD_ROWS, UNREAD_ID_LENGTH, list_names
from elastic_core.protocol.roster import NodeInfo, NodeRow, Phase, Reached
from elastic_core.rendezvous.backend import HandlerStore, RendezvousBackend, WorkersStore
from elastic_core.session.contact import Backoff
from elastic_core.session.decision_log import DecisionLog
from elastic_core.session.ledger_reader import check_head, said_by
from elastic_core.session.runtime import Runtime
from elastic_core.session.summary import Summaries
from elastic_core.session.verdict_event import verdict_event

Judge = Callable[[Incident, History], Verdict]  # asks the failure policies; returns within its own time limit
NodeGone = Callable[[NodeInfo], bool]
"""Asks the plugins whether a node is known to be gone for good; returns within its own time limit."""
ASK_AGAIN_SECONDS = 10.0  # the interval at which plugins are asked about nodes for whose fence the job waits
LOOKS_TIMED = 2  # How many reads of the roster are timed. The shortest counts, because a gap makes one of them long.
TIDYING_SECONDS = 0.5  # how long after a read of the roster a turn may still begin to remove a row or shrink an entry
POLICY_WAIT_SECONDS = 0.3
"""How long the policies may take before the broken round is halted; reporters give a leader 1 s (rule L2)."""
ANNOUNCE_WAIT_SECONDS = 1.0  # how long the job must have waited for a node before the wait is announced


@dataclass
class LeaderDriver:
    """What the leader remembers between turns, and the turns. Used by one thread."""

    node_id: str
    judge: Judge
    runtime: Runtime
    publish: Callable[[Event], None]
    node_gone: NodeGone | None = None  # none where no plugin would be asked
    reached: Callable[[], Reached | None] = lambda: None  # how far this node's own workers have come
    summaries: Summaries = field(default_factory=Summaries)
    decisions: DecisionLog = field(default_factory=DecisionLog)
    watch: Watch = field(default_factory=Watch)
    slept: float = 0.0
    """Seconds that the caller has waited since the last turn by choice: they are no gap in its contact."""
    _unanswered: tuple[float, ...] = ()
    """For the newest looks, seconds since the look before less what was slept: how long a look takes."""
    _looked_at: float = 0.0
    _tidies_since: float = 0.0
    _judgement: Judgement | None = None
    _judged: tuple[Incident, History] | None = None  # what the policies were asked last
    _thinking: Future[Verdict] | None = None
    _asking: Future[list[str]] | None = None
    _ask_at: float = -math.inf
    waiting_for: str = ""  # the nodes that the job waits for, as far as the last look showed; '' for none
    _tell_at: float | None = None
    _put_off_in: str = ""  # the offer of the newest round in which users were told that a resize is put off
    unread: tuple[str, ...] = ()  # the ids of the rows that could not be read in the last look, at most MAX_UNREAD_ROWS
    _malformed: frozenset[str] = frozenset()
    _decoded: dict[str, tuple[bytes, NodeRow]] = field(default_factory=dict)
    _kept: int = 0  # all entries of :attr:`_history` before this one are tombstones, but for those that others stand on
    _history: tuple[str, int] = ("", 0)  # the run, and its epoch, whose entries that counts
    _taken: Entry | None = None
    """The newest entry that the store took. If it lost that before it was read here, others may have read it, so it is
    put back as it was, and nothing is decided anew (rule S3)."""
    _built_on: str = ""  # the id of the entry after which the store was last asked to append one, and answered
    _append_at: float = -math.inf  # when it is asked again, if nothing new can be read there by then
    _backoff: Backoff = field(default_factory=Backoff)

    def turn(self, store: RendezvousBackend, ledger: Ledger) -> float | None:
        """Look once, and act. Returns the instant to look again at; None to wait for a change.

        The session's reader calls it after every change and at the instant that the last turn returned.
        An entry that it appends is not acted on here: the reader reads it, as every other node does (I11).

        Raises:
            RendezvousConnectionError: The store cannot be reached; what was being written may or may not have landed.
        """
        self._looked_at = self.runtime.now()  # before the look: a pause after it must not count as a node's silence
        alone, gap_at = self.alone(ledger), self.watch.gap_at
        slept, self.slept = self.slept, 0.0
        gap = failure_detector.contact_gap(ledger.settings.timing, min(self._unanswered, default=0.0))
        watch = failure_detector.forget_older_epochs(self.watch, ledger.head.epoch)
        if watch.read_at is not None and math.isfinite(watch.read_at):
            self._unanswered = (*self._unanswered, self._looked_at - watch.read_at - slept)[-LOOKS_TIMED:]
        self.watch = failure_detector.observe(watch, self._rows(store, ledger), self._looked_at, gap=gap, slept=slept)
        if alone:  # it may have slept, and has missed no node; its own row is judged anew after a gap all the same
            self.watch = replace(self.watch, gap_at=gap_at)
        self._hear_of_gone()
        self._tidies_since = self.runtime.now()  # after the look, which may itself take seconds
        self._prune(store, ledger)
        self._shrink(store, ledger)
        if ledger.head.id == self._built_on and self._looked_at < self._append_at:
            return self._append_at
        if (lost := self._taken) is not None and lost.prev == ledger.head.id:
            return self._append(store, ledger, lost)
        decision = self._decide(store, ledger)
        if isinstance(decision, AskPolicies):
            self._ask(decision.incident, ledger)
            decision = self._decide(store, ledger)
        if isinstance(decision, SumUp):
            self.summaries.ask(decision, ledger)
            decision = self._decide(store, ledger)
        match decision:
            case Append(body, counters):
                now, new_id, kept = self.runtime.now(), self.runtime.new_id(), self._kept
                entry = compose(
                    ledger, body, entry_id=new_id, author=self.node_id, now=now, counters=counters, kept=kept
                )
                return self._append(store, ledger, entry)
            case LookAgain(at, waiting, awaited, silent, put_off):
                self._tell(waiting, awaited or waiting)
                self._tell_put_off(put_off, ledger)
                self._ask_who_is_gone(silent)
                if self._thinking is not None:  # nothing else can be decided before the verdict, which has a time limit
                    self._thinking.exception()
                    self.watch = replace(self.watch, gap_at=self.runtime.now())
                    return self.runtime.now()
                if waiting and self._tell_at is not None:
                    return self._tell_at if at is None else min(at, self._tell_at)
                return at
        raise AssertionError(f"decide() asks again about what was just judged: {decision}")

    def _decide(self, store: RendezvousBackend, ledger: Ledger) -> Decision:
        view = self._view(store, ledger)
        return self.decisions.call(decide, view, rows=len(view.watch.nodes), idle=LookAgain)

    def _append(self, store: RendezvousBackend, ledger: Ledger, entry: Entry) -> float:
        """Append it, and look again at once, since there is something new to read.

        A store that takes an entry and has nothing new to read, time after time, answers reads with an older state, or
        does not keep what it takes. It is asked ever more seldom; anything new in it wakes the reader all the same.

        An entry that does not fit into a value would not fit for a successor either, so the run is closed instead.
        """
        try:
            data = self.runtime.codec.encode_entry(entry)
        except OversizedError as exc:
            entry = _closed_for(ledger, entry, exc)
            data = self.runtime.codec.encode_entry(entry)
        if isinstance(store, WorkersStore) and store.workers_store and isinstance(entry.body, Round):
            store.forget_workers()  # an embedded store has one leader, so no other one has begun this round meanwhile
        if store.append(ledger.head.link, entry.link, data):
            self._taken = entry
        else:
            check_head(store, ledger, self.runtime.codec)  # another node was faster, and the reader finds its entry
            waiting = (store.waiting if isinstance(store, HandlerStore) else "") or self.waiting_for
            self._tell(waiting, waiting)
        if ledger.head.id != self._built_on:
            self._built_on, self._append_at = ledger.head.id, -math.inf
            self._backoff.worked()
            return self.runtime.now()
        self._append_at = self.runtime.now() + self._backoff.failed()
        return self._append_at

    def alone(self, ledger: Ledger) -> bool:
        """Whether there is no other node to watch: the store wakes a leader when one comes."""
        members = ledger.round.group_ranks if ledger.round is not None else {}
        return not {*self.watch.nodes, *members} - {self.node_id}

    def successor(self, ledger: Ledger) -> str | None:
        """Return the next leader when this node leaves: the first living member, else the first living newcomer."""
        members = ledger.round.group_ranks if ledger.round is not None else {}
        timing, now = ledger.settings.timing, self._looked_at
        for node_id in [*members, *(other for other in self.watch.nodes if other not in members)]:
            seen = self.watch.nodes.get(node_id)
            if node_id == self.node_id or seen is None or seen.row.leaving or seen.row.run != ledger.head.run:
                continue
            if not is_lost(self.watch, node_id, timing, now):
                return node_id
        return None

    def _view(self, store: RendezvousBackend, ledger: Ledger) -> LeaderView:
        if self._thinking is not None and self._thinking.done() and self._judgement is not None:
            verdict = self._thinking.result()
            self._judgement = replace(self._judgement, verdict=verdict)
            self._thinking = None
            if self._judged is not None:
                others = self._nodes_beside(self._judged[0].node_id, ledger)
                enough = ledger.settings.agreement.min_nodes
                self.publish(verdict_event(*self._judged, verdict, others, enough))
        now, may_forget = self._looked_at, store.may_forget
        return LeaderView(
            ledger=ledger,
            watch=self.watch,
            now=now,
            judgement=self._judgement,
            summary=self.summaries.newest(ledger),
            may_forget=may_forget,
        )

    def _nodes_beside(self, node_id: str, ledger: Ledger) -> int:
        """Return how many nodes the job could go on with without this one."""
        others = (node for node in self.watch.nodes.values() if node.node_id != node_id and not node.row.leaving)
        here = [node.node_id for node in others if node.row.run == ledger.head.run]
        return sum(not is_lost(self.watch, other, ledger.settings.timing, self._looked_at) for other in here)

    def _rows(self, store: RendezvousBackend, ledger: Ledger) -> list[Observation]:
        """Return the roster, decoded; of a thousand rows mostly one has changed since the last look."""
        found, decoded, unread = [], {}, []
        for seen in store.roster():
            value, row = self._decoded.get(seen.node_id, (None, None))
            if row is None or value != seen.value:
                try:
                    row = said_by(seen, self.runtime.codec)
                except RendezvousStateError as exc:
                    self._report_malformed(seen.node_id, exc)
                    unread.append(seen.node_id)
                    continue
            if row.info.node_id == seen.node_id:
                decoded[seen.node_id] = (seen.value, row)
                current = row.within(ledger.head.epoch)
                found.append(Observation(current, seen.serial, seen.heartbeat, seen.revision))
        named = sorted(node_id for node_id in unread if len(node_id) <= UNREAD_ID_LENGTH)
        self._decoded, self.unread = decoded, tuple(named[:MAX_UNREAD_ROWS])
        return found

    def _report_malformed(self, node_id: str, exc: RendezvousStateError) -> None:
        if node_id not in self._malformed:
            self._malformed |= {node_id}
            self.publish(Event("row_ignored", f"A row in the store is ignored: {exc}", Level.WARNING, {"row": node_id}))

    def _prune(self, store: RendezvousBackend, ledger: Ledger) -> None:
        """Remove rows of dead nodes (P2), but not of the newest round: they still prove that it is over (rule S4)."""
        timing, now = ledger.settings.timing, self._looked_at
        members = ledger.round.group_ranks if ledger.round is not None else {}
        others = [node_id for node_id in self.watch.nodes if node_id not in members]
        answered = {node_id for node_id in others if self.watch.nodes[node_id].row.release}  # the watch remembers
        done = [node_id for node_id in others if node_id in answered or is_lost(self.watch, node_id, timing, now)]
        removed = []
        for node_id in done:
            if self._is_late():
                break
            store.remove(node_id)
            removed.append(node_id)
        if removed:
            rows = [self.watch.nodes[node_id].row for node_id in removed]
            self.watch = failure_detector.forget(self.watch, removed)
            waited = [row for row in rows if row.run == ledger.head.run and row.phase is Phase.WAITING]
            self._tell_spares([row for row in waited if not row.leaving], ledger)

    def _tell_spares(self, lost: Sequence[NodeRow], ledger: Ledger) -> None:
        """Tell people that nodes are lost that waited as spares, and how many still do: a loss may have no cover."""
        if not lost or not (wanted := ledger.settings.agreement.spares) or not ledger.is_live:
            return
        members = () if ledger.round is None else ledger.round.group_ranks
        here = sum(i not in members and node.row.run == ledger.head.run for i, node in self.watch.nodes.items())
        names = list_names(sorted(str(row.info) for row in lost))
        message = f"{names} is lost, which waited as a spare: {here} of --spares={wanted} wait"
        self.publish(Event("spare_lost", message, Level.WARNING, {"spares": here, "wanted": wanted}))

    def _is_late(self) -> bool:
        """Whether this turn has tidied up for long enough: the rest can wait for the next one, an incident cannot."""
        return self.runtime.now() - self._tidies_since > TIDYING_SECONDS

    def _shrink(self, store: RendezvousBackend, ledger: Ledger) -> None:
        """Turn entries that every node has read beyond into tombstones."""
        history = ledger.head.run, ledger.head.epoch
        if history != self._history:
            self._history, self._kept = history, ledger.head.anchors.kept
        for index in entries_to_shrink(ledger, self.watch, self._kept, self.runtime.whole):
            if self._is_late():
                return
            store.shrink(index)
            self._kept = index + 1

    def _ask(self, incident: Incident, ledger: Ledger) -> None:
        """Ask the policies, on another thread; wait a moment, since they mostly answer at once."""
        counters = ledger.counters
        rows = [node.row for node in self.watch.nodes.values()]
        failures = past_failures(ledger, self.runtime.now(), rows)
        reached = judged_progress(incident, rows, self.reached(), failures)
        incident = replace(incident, step=reached.step, counts_on=True)
        history = History(
            restarts=counters.restarts,
            max_restarts=ledger.settings.agreement.max_restarts,
            rounds_without_progress=counters.barren,
            losses={host: losses.count for host, losses in counters.losses.items()},
            failures=failures,
            new_checkpoint=reached.saved,
            moved=reached.moved,
        )
        if self._judgement is None or self._judgement.round != incident.round:
            self._thinking = self.runtime.ask(partial(self.judge, incident, history), name="elastic-judge")
            self._judgement, self._judged = Judgement(round=incident.round, incident=incident), (incident, history)
        if self._thinking is not None:
            with contextlib.suppress(FutureTimeoutError):
                self._thinking.result(POLICY_WAIT_SECONDS)

    def _ask_who_is_gone(self, node_ids: Sequence[str]) -> None:
        """Ask the plugins about these nodes, on another thread; a later turn takes in the answer."""
        now, node_gone = self.runtime.now(), self.node_gone
        if node_gone is None or not node_ids or self._asking is not None or now < self._ask_at:
            return
        self._ask_at = now + ASK_AGAIN_SECONDS
        infos = [seen.row.info for node_id in node_ids if (seen := self.watch.nodes.get(node_id)) is not None]
        self._asking = self.runtime.ask(
            lambda: [info.node_id for info in infos if node_gone(info)], name="elastic-node-gone"
        )

    def _hear_of_gone(self) -> None:
        """Take in the plugins' answer, if they have answered."""
        if self._asking is not None and self._asking.done():
            answer, self._asking = self._asking.result(), None
            self.watch = failure_detector.vouch(self.watch, answer)

    def _tell(self, waiting: str, awaited: str) -> None:
        """Tell people once what the job waits for, after it has waited for a moment."""
        now = self.runtime.now()
        if awaited != self.waiting_for:
            self.waiting_for, self._tell_at = awaited, now + ANNOUNCE_WAIT_SECONDS
        elif awaited and self._tell_at is not None and now >= self._tell_at:
            self._tell_at = None
            self.publish(Event("waiting", f"waiting for {waiting}", fields={"for": awaited}))

    def _tell_put_off(self, why: str, ledger: Ledger) -> None:
        """Tell people once in a round that it is not resized yet, and why."""
        if why and ledger.round is not None and ledger.round.offer.id != self._put_off_in:
            self._put_off_in = ledger.round.offer.id
            self.publish(Event("resize_put_off", why, fields={"round": ledger.round.number}))


def _closed_for(ledger: Ledger, entry: Entry, exc: OversizedError) -> Entry:
    """Return the CLOSED in the place of an entry that is too large; it has no part that grows with the job."""
    closed = Closed(success=False, why=exc.message, exit_code=ExitCode.JOB_FAILED)
    counters = Counters(restarts=entry.counters.restarts, barren=entry.counters.barren)
    return apply(ledger, replace(entry, body=closed, counters=counters), ledger.head_at).head
