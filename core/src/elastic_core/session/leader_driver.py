"""The leader's driver: reads the roster, lets :func:`~elastic_core.protocol.leader.decide` decide, writes the entry.

For some decisions it asks plugins first, on other threads: :class:`PluginQuestions`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from concurrent.futures import Future, TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from elastic_core.events import Event, Level
from elastic_core.exit_codes import ExitCode
from elastic_core.incidents import Action, History, Incident, Verdict
from elastic_core.protocol import failure_detector
from elastic_core.protocol.codec import OversizedError
from elastic_core.protocol.counters import judged_progress, past_failures
from elastic_core.protocol.entries import Closed, Counters, Entry, Question, Round
from elastic_core.protocol.failure_detector import Watch, is_lost
from elastic_core.protocol.leader import decide
from elastic_core.protocol.leader_entries import Append, AskPolicies, Decision, LookAgain, SumUp
from elastic_core.protocol.leader_view import Judgement, LeaderView
from elastic_core.protocol.ledger import Ledger, apply, compose
from elastic_core.protocol.limits import list_names
from elastic_core.protocol.repair import entries_to_shrink
from elastic_core.protocol.roster import NodeRow, Phase
from elastic_core.rendezvous.backend import HandlerStore, RendezvousBackend, WorkersStore
from elastic_core.session.contact import Backoff
from elastic_core.session.ledger_reader import RosterReader, check_head
from elastic_core.session.runtime import Runtime
from elastic_core.session.state import SessionCalls

R = TypeVar("R")
LOOKS_TIMED = 2  # How many reads of the roster are timed. The shortest counts, because a gap makes one of them long.
TIDYING_SECONDS = 0.5  # how long after a read of the roster a turn may still begin to remove a row or shrink an entry
ANNOUNCE_WAIT_SECONDS = 1.0  # how long the job must have waited for a node before the wait is announced
ASK_AGAIN_SECONDS = 10.0  # the interval at which plugins are asked about nodes for whose fence the job waits
ANSWER_WAIT_SECONDS = 0.3
"""The wait of a leader's turn for plugins, which mostly answer at once. Meanwhile a broken round is not halted;
reporters give a leader 1 s (rule L2)."""


@dataclass
class _Attempts:
    """The attempts to append an entry after one entry, which the store has answered."""

    after: str = ""  # the id of that one
    next_at: float = -math.inf  # the next attempt, if nothing new can be read by then
    backoff: Backoff = field(default_factory=Backoff)


class LeaderDriver:
    """The turns of the leader, and its memory between them. Used by one thread."""

    def __init__(self, node_id: str, runtime: Runtime, calls: SessionCalls) -> None:
        self.node_id, self.runtime, self.calls = node_id, runtime, calls
        self.watch = Watch()
        self.roster = RosterReader(runtime.codec, calls.publish)
        self.plugins = PluginQuestions(runtime, calls)
        self.slept = 0.0
        """Seconds that the caller has waited since the last turn by choice: they are no gap in its contact."""
        self._unanswered: tuple[float, ...] = ()
        """The seconds that each of the newest looks took: since the look before, without the sleep."""
        self._looked_at = 0.0
        self.waiting_for = ""  # the nodes that the job waits for, as far as the last look showed; '' for none
        self._tell_at: float | None = None
        self._put_off_in = ""  # the offer of the newest round in which users were told that a resize is put off
        self._kept = ("", 0), 0
        """A run and its epoch, and the first of its entries that is not yet a tombstone, but for those that others
        stand on."""
        self._taken: Entry | None = None
        """The newest entry that the store took. If it lost that before it was read here, others may have read it, so it
        is put back as it was, and nothing is decided anew (rule S3)."""
        self._attempts = _Attempts()

    def turn(self, store: RendezvousBackend, ledger: Ledger) -> float | None:
        """Look once, and act. Returns the instant to look again at; None to wait for a change.

        The session's reader calls it after every change and at the instant that the last turn returned. An entry that
        it appends is not acted on here: the reader reads it, as every other node does (I11).
        """
        self._looked_at = self.runtime.now()  # before the look: a pause after it must not count as a node's silence
        alone, gap_at = self.alone(ledger), self.watch.gap_at
        slept, self.slept = self.slept, 0.0
        gap = failure_detector.contact_gap(ledger.settings.timing, min(self._unanswered, default=0.0))
        watch = failure_detector.forget_older_epochs(self.watch, ledger.head.epoch)
        if watch.read_at is not None and math.isfinite(watch.read_at):
            self._unanswered = (*self._unanswered, self._looked_at - watch.read_at - slept)[-LOOKS_TIMED:]
        rows = self.roster.read(store, ledger.head.epoch)
        self.watch = failure_detector.observe(watch, rows, self._looked_at, gap=gap, slept=slept)
        if alone:  # it may have slept, and has missed no node; its own row is judged anew after a gap all the same
            self.watch = replace(self.watch, gap_at=gap_at)
        if gone := self.plugins.found_gone():
            self.watch = failure_detector.vouch(self.watch, gone)
        until = self.runtime.now() + TIDYING_SECONDS  # after the look, which may itself take seconds
        self._prune(store, ledger, until)
        kept = self._shrink(store, ledger, until)
        if ledger.head.id == self._attempts.after and self._looked_at < self._attempts.next_at:
            return self._attempts.next_at
        if (lost := self._taken) is not None and lost.prev == ledger.head.id:
            return self._append(store, ledger, lost)
        decision = self._decide(store, ledger)
        if isinstance(decision, AskPolicies):
            self._ask_policies(decision.incident, ledger)
            decision = self._decide(store, ledger)
        if isinstance(decision, SumUp):
            self.plugins.sum_up(decision, ledger)
            decision = self._decide(store, ledger)
        match decision:
            case Append(body, counters):
                now, new_id = self.runtime.now(), self.runtime.new_id()
                entry = compose(
                    ledger, body, entry_id=new_id, author=self.node_id, now=now, counters=counters, kept=kept
                )
                return self._append(store, ledger, entry)
            case LookAgain(at, waiting, awaited, silent, put_off):
                self._tell(waiting, awaited or waiting)
                self._publish_resize_delay(put_off, ledger)
                self.plugins.ask_who_is_gone(silent, self.watch)
                if self.plugins.await_verdict():  # nothing else can be decided before it
                    self.watch = replace(self.watch, gap_at=self.runtime.now())
                    return self.runtime.now()
                if waiting and self._tell_at is not None:
                    return self._tell_at if at is None else min(at, self._tell_at)
                return at
        raise AssertionError(f"decide() asks again about what was just judged: {decision}")

    def _decide(self, store: RendezvousBackend, ledger: Ledger) -> Decision:
        if (judged := self.plugins.new_verdict()) is not None:
            others = self._nodes_beside(judged[0].node_id, ledger)
            self.calls.publish(verdict_event(*judged, others, ledger.settings.agreement.min_nodes))
        view = LeaderView(
            ledger=ledger,
            watch=self.watch,
            now=self._looked_at,
            judgement=self.plugins.judgement,
            report=self.plugins.report(ledger),
            may_forget=store.may_forget,
        )
        return self.calls.decisions.call(decide, view, rows=len(view.watch.nodes), idle=LookAgain)

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
        if ledger.head.id != self._attempts.after:
            self._attempts = _Attempts(ledger.head.id)
            return self.runtime.now()
        self._attempts.next_at = self.runtime.now() + self._attempts.backoff.failed()
        return self._attempts.next_at

    def alone(self, ledger: Ledger) -> bool:
        """Return True if there is no other node to watch: the store wakes a leader when one comes."""
        return not {*self.watch.nodes, *ledger.ranks} - {self.node_id}

    def successor(self, ledger: Ledger) -> str | None:
        """Return the next leader when this node leaves: the first living member, else the first living newcomer."""
        timing, now = ledger.settings.timing, self._looked_at
        for node_id in dict.fromkeys([*ledger.ranks, *self.watch.nodes]):
            seen = self.watch.nodes.get(node_id)
            if node_id == self.node_id or seen is None or seen.row.leaving or seen.row.run != ledger.head.run:
                continue
            if not is_lost(self.watch, node_id, timing, now):
                return node_id
        return None

    def _nodes_beside(self, node_id: str, ledger: Ledger) -> int:
        """Return how many nodes the job could go on with without this one."""
        others = (node for node in self.watch.nodes.values() if node.node_id != node_id and not node.row.leaving)
        here = [node.node_id for node in others if node.row.run == ledger.head.run]
        return sum(not is_lost(self.watch, other, ledger.settings.timing, self._looked_at) for other in here)

    def _prune(self, store: RendezvousBackend, ledger: Ledger, until: float) -> None:
        """Remove rows of dead nodes (P2), but not of the newest round: they still prove that it is over (rule S4).

        The rest can wait for the next turn if it takes longer than ``until``; an incident cannot.
        """
        timing, now = ledger.settings.timing, self._looked_at
        others = {node_id: node.row for node_id, node in self.watch.nodes.items() if node_id not in ledger.ranks}
        removed = {}
        for node_id, row in others.items():
            if row.release or is_lost(self.watch, node_id, timing, now):  # a release is done: the watch remembers it
                if self.runtime.now() > until:
                    break
                store.remove(node_id)
                removed[node_id] = row
        if removed:
            self.watch = failure_detector.forget(self.watch, removed)
            waited = [row for row in removed.values() if row.run == ledger.head.run and row.phase is Phase.WAITING]
            self._tell_spares([row for row in waited if not row.leaving], ledger)

    def _tell_spares(self, lost: Sequence[NodeRow], ledger: Ledger) -> None:
        """Tell people that nodes are lost that waited as spares, and how many still do: a loss may have no cover."""
        if not lost or not (wanted := ledger.settings.agreement.spares) or not ledger.is_live:
            return
        here = sum(i not in ledger.ranks and node.row.run == ledger.head.run for i, node in self.watch.nodes.items())
        names = list_names(sorted(str(row.info) for row in lost))
        message = f"{names} is lost, which waited as a spare: {here} of --spares={wanted} wait"
        self.calls.publish(Event("spare_lost", message, Level.WARNING, {"spares": here, "wanted": wanted}))

    def _shrink(self, store: RendezvousBackend, ledger: Ledger, until: float) -> int:
        """Turn entries that every node has read beyond into tombstones; return the first one that may be none."""
        history = ledger.head.run, ledger.head.epoch
        kept = self._kept[1] if self._kept[0] == history else ledger.head.anchors.kept
        for index in entries_to_shrink(ledger, self.watch, kept, self.runtime.whole):
            if self.runtime.now() > until:
                break
            store.shrink(index)
            kept = index + 1
            self._kept = history, kept
        return kept

    def _ask_policies(self, incident: Incident, ledger: Ledger) -> None:
        counters = ledger.counters
        rows = [node.row for node in self.watch.nodes.values()]
        failures = past_failures(ledger, self.runtime.now(), rows)
        reached = judged_progress(incident, rows, self.calls.reached(), failures)
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
        self.plugins.ask_policies(incident, history)

    def _tell(self, waiting: str, awaited: str) -> None:
        """Tell people once what the job waits for, after it has waited for a moment."""
        now = self.runtime.now()
        if awaited != self.waiting_for:
            self.waiting_for, self._tell_at = awaited, now + ANNOUNCE_WAIT_SECONDS
        elif awaited and self._tell_at is not None and now >= self._tell_at:
            self._tell_at = None
            self.calls.publish(Event("waiting", f"waiting for {waiting}", fields={"for": awaited}))

    def _publish_resize_delay(self, why: str, ledger: Ledger) -> None:
        """Tell people once in a round that it is not resized yet, and why."""
        if why and ledger.round is not None and ledger.round.offer.id != self._put_off_in:
            self._put_off_in = ledger.round.offer.id
            self.calls.publish(Event("resize_put_off", why, fields={"round": ledger.round.number}))


def _closed_for(ledger: Ledger, entry: Entry, exc: OversizedError) -> Entry:
    """Return the CLOSED in the place of an entry that is too large; it has no part that grows with the job."""
    closed = Closed(success=False, why=exc.message, exit_code=ExitCode.JOB_FAILED)
    counters = Counters(restarts=entry.counters.restarts, barren=entry.counters.barren)
    return apply(ledger, replace(entry, body=closed, counters=counters), ledger.head_at).head


# Questions to plugins, each on its own thread: verdicts, lost nodes, and reports of answers --------------------------


class PluginQuestions:
    """The newest question of each kind, and its answer. Used by the leader's thread."""

    def __init__(self, runtime: Runtime, calls: SessionCalls) -> None:
        self._runtime, self._calls = runtime, calls
        self.judgement: Judgement | None = None  # of the newest incident that the policies were asked about
        self._judged: tuple[Incident, History] | None = None  # what they were asked
        self._verdict: Future[Verdict] | None = None  # until it is part of the judgement
        self._gone: Future[list[str]] | None = None  # until it was read
        self._ask_gone_at = -math.inf
        self._question: Question | None = None  # the last one whose answers plugins were asked to sum up
        self._report: Future[str] | None = None

    def ask_policies(self, incident: Incident, history: History) -> None:
        """Ask the policies about the incident of a round, once, and wait a moment."""
        if self.judgement is None or self.judgement.round != incident.round:
            self.judgement, self._judged = Judgement(round=incident.round, incident=incident), (incident, history)
            self._verdict = self._runtime.ask(partial(self._calls.judge, incident, history), name="elastic-judge")
        _wait_a_moment(self._verdict)

    def await_verdict(self) -> bool:
        """Wait for the policies, which have a time limit of their own; False if there is no answer to be read."""
        if self._verdict is not None:
            self._verdict.exception()
        return self._verdict is not None

    def new_verdict(self) -> tuple[Incident, History, Verdict] | None:
        """Return what the policies were asked, and their answer; None if there is none that was not read before."""
        if self._verdict is None or not self._verdict.done() or self.judgement is None or self._judged is None:
            return None
        verdict, self._verdict = self._verdict.result(), None
        self.judgement = replace(self.judgement, verdict=verdict)
        return *self._judged, verdict

    def ask_who_is_gone(self, node_ids: Sequence[str], watch: Watch) -> None:
        """Ask which of these nodes are gone for good, now and then; a later turn reads the answer."""
        now, is_gone = self._runtime.now(), self._calls.node_gone
        if is_gone is None or not node_ids or self._gone is not None or now < self._ask_gone_at:
            return
        self._ask_gone_at = now + ASK_AGAIN_SECONDS
        nodes = [seen.row.info for node_id in node_ids if (seen := watch.nodes.get(node_id)) is not None]
        self._gone = self._runtime.ask(
            lambda: [info.node_id for info in nodes if is_gone(info)], name="elastic-node-gone"
        )

    def found_gone(self) -> list[str]:
        """Return the nodes that are gone for good by an answer that was not read before."""
        if self._gone is None or not self._gone.done():
            return []
        answer, self._gone = self._gone.result(), None
        return answer

    def sum_up(self, wanted: SumUp, ledger: Ledger) -> None:
        """Ask for the report on the open question, and wait a moment."""
        _, before = ledger.questions.reports.get(wanted.question.name, (0, "null"))
        ask = partial(self._calls.sum_up, wanted.question, wanted.answers, before)
        self._question = ledger.questions.open
        self._report = self._runtime.ask(ask, name="elastic-sum-up")
        _wait_a_moment(self._report)

    def report(self, ledger: Ledger) -> str | None:
        """Return the report on the open question; '' until it is made, None where none was asked for.

        Entries of two histories may have one index, so the question itself is compared, as this node has read it.
        """
        if self._report is None or self._question is not ledger.questions.open:
            return None
        return self._report.result() if self._report.done() else ""


def _wait_a_moment(answer: Future[R] | None) -> None:
    if answer is not None:
        with contextlib.suppress(FutureTimeoutError):
            answer.result(ANSWER_WAIT_SECONDS)


def verdict_event(incident: Incident, history: History, verdict: Verdict, others: int = 1, enough: int = 1) -> Event:
    """Return the event of one judged incident, for logs and ``elastic policy replay``; the leader publishes it.

    An excluded host stays in the job if the ``others``, nodes on other hosts, are not ``enough``.
    """
    fields = {
        "round": incident.round,
        "kind": incident.kind.value,
        "rank": incident.rank,
        "host": incident.host,
        "exception": incident.exception,
        "follows_peer": incident.follows_peer,
        "exit_code": incident.exit_code,
        "step": incident.step,
        "new_checkpoint": history.new_checkpoint,
        "moved": history.moved,
        "place": incident.place,
        "after_s": round(incident.after, 3),
        "message": incident.message,
        "restarts": history.restarts,
        "max_restarts": history.max_restarts,
        "action": verdict.action.name.lower(),
        "reason": verdict.reason,
        "policy": verdict.policy,
        "delay_s": verdict.delay,
        "exclude_for_s": verdict.exclude_for,
    }
    return Event("verdict", f"{_describe_action(incident, verdict, others, enough)}: {verdict.reason}", fields=fields)


def _describe_action(incident: Incident, verdict: Verdict, others: int, enough: int) -> str:
    match verdict.action:
        case Action.GIVE_UP:
            return "the job is not restarted"
        case Action.EXCLUDE_HOST if others < enough:
            left = f"only {others} of {enough} nodes would be there" if others else "no other node is there"
            what = f"the job is restarted; {incident.host} would be left out, but {'without it ' * bool(others)}{left}"
        case Action.EXCLUDE_HOST:
            span = "" if verdict.exclude_for is None else f" for {verdict.exclude_for:g} s"
            what = f"the job is restarted without {incident.host}{span}"
        case Action.RESTART:
            what = "the job is restarted"
    return f"{what} after {verdict.delay:g} s" if verdict.delay else what
