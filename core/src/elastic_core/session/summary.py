"""Has the leader's plugins sum up the answers to a question, on another thread (rule L14)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, TimeoutError as FutureTimeoutError
from functools import partial
from typing import TypeAlias

from elastic_core.protocol.entries import Question
from elastic_core.protocol.leader_entries import SumUp
from elastic_core.protocol.leader_view import Summary
from elastic_core.protocol.ledger import Ledger
from elastic_core.questions import AskedQuestion, NodeAnswer
from elastic_core.session.runtime import RUNTIME, Runtime

SumUpAnswers: TypeAlias = "Callable[[AskedQuestion, Sequence[NodeAnswer], str], str]"
"""Sums up answers, given the former report of that name; both reports are JSON. Returns within its own time limit."""
SUM_UP_WAIT_SECONDS = 0.3  # how long a turn of the leader waits for the report


def no_report(question: AskedQuestion, answers: Sequence[NodeAnswer], before: str) -> str:
    """Return the report of a node without plugins."""
    return "null"


class Summaries:
    """The report on the open question. Used by the leader's thread."""

    def __init__(self, sum_up: SumUpAnswers = no_report, runtime: Runtime = RUNTIME) -> None:
        self._sum_up, self._runtime = sum_up, runtime
        self._index = 0
        self._question: Question | None = None
        self._report: Future[str] | None = None

    def newest(self, ledger: Ledger) -> Summary | None:
        """Return the report on the open question, as far as it is made; None where none was asked for.

        Entries of two histories may have one index, so the question itself is compared, as this node has read it.
        """
        if self._report is None or self._question is not ledger.question:
            return None
        return Summary(self._index, self._report.result() if self._report.done() else None)

    def ask(self, wanted: SumUp, ledger: Ledger) -> None:
        """Ask the plugins for the report, and wait a moment, since they mostly answer at once."""
        _, before = ledger.reports.get(wanted.question.name, (0, "null"))
        ask = partial(self._sum_up, wanted.question, wanted.answers, before)
        self._question = ledger.question
        self._index, self._report = wanted.index, self._runtime.ask(ask, name="elastic-sum-up")
        with contextlib.suppress(FutureTimeoutError):
            self._report.result(SUM_UP_WAIT_SECONDS)
