"""The questions of a leader to plugins, each on its own thread: verdicts, lost nodes, and reports of answers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from concurrent.futures import Future, TimeoutError as FutureTimeoutError
from dataclasses import replace
from functools import partial
from typing import TypeVar

from elastic_core.events import Event
from elastic_core.incidents import Action, History, Incident, Verdict
from elastic_core.protocol.entries import Question
from elastic_core.protocol.failure_detector import Watch
from elastic_core.protocol.leader_entries import SumUp
from elastic_core.protocol.leader_view import Judgement, Summary
from elastic_core.protocol.ledger import Ledger
from elastic_core.session.runtime import Runtime
from elastic_core.session.state import SessionCalls

R = TypeVar("R")
ASK_AGAIN_SECONDS = 10.0  # the interval at which plugins are asked about nodes for whose fence the job waits
ANSWER_WAIT_SECONDS = 0.3
"""The wait of a leader's turn for plugins, which mostly answer at once. Meanwhile a broken round is not halted;
reporters give a leader 1 s (rule L2)."""


class PluginQuestions:
    """The newest question of each kind, and its answer. Used by the leader's thread."""

    def __init__(self, runtime: Runtime, calls: SessionCalls) -> None:
        self._runtime, self._calls = runtime, calls
        self.judgement: Judgement | None = None  # of the newest incident that the policies were asked about
        self._judged: tuple[Incident, History] | None = None  # what they were asked
        self._verdict: Future[Verdict] | None = None  # until it is part of the judgement
        self._gone: Future[list[str]] | None = None  # until it was read
        self._ask_gone_at = -math.inf
        self._question: Question | None = None  # what was to be summed up last
        self._index = 0  # of its entry
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
        self._question, self._index = ledger.questions.open, wanted.index
        self._report = self._runtime.ask(ask, name="elastic-sum-up")
        _wait_a_moment(self._report)

    def summary(self, ledger: Ledger) -> Summary | None:
        """Return the report on the open question, as far as it is made; None where none was asked for.

        Entries of two histories may have one index, so the question itself is compared, as this node has read it.
        """
        if self._report is None or self._question is not ledger.questions.open:
            return None
        return Summary(self._index, self._report.result() if self._report.done() else None)


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
