"""Asking a job where its ranks are, over a store in memory, with a leader that is played by hand."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, replace

import pytest
from views import entry, info, live, offer, seen, start, then

from elastic_core.errors import RendezvousTimeoutError, UsageError
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.protocol.codec import decode_row, encode_entry, encode_row
from elastic_core.protocol.entries import Answers, Body, Halt, HaltReason, Question, Round
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.roster import Answer, Phase
from elastic_core.rendezvous.backend import ORIGIN, Cursor
from elastic_hangs.judgement import FULL_STACKS, STACKS, LocalStacks, Report
from elastic_hangs.lookup import Located, ask


class Job:
    """A run with two nodes, on host-a and host-b, whose round is live."""

    def __init__(self) -> None:
        self.store, self.ledger = LocalBackend(MemoryStore()), start()
        self.store.append(ORIGIN, self.ledger.head.link, encode_entry(self.ledger.head))
        for name in "ab":
            self.store.enter(name, encode_row(seen(name, Phase.RUNNING, node=info(name)).row))

    def append(self, body: Body) -> Ledger:
        new = entry(self.ledger, body, at=1.0)
        self.store.append(self.ledger.head.link, new.link, encode_entry(new))
        self.ledger = then(self.ledger, body, at=1.0)
        return self.ledger

    def begin(self) -> None:
        self.append(Round(number=1, offer=offer("a"), members=live("ab").round.members))  # type: ignore[union-attr]

    def request(self) -> None:
        """Wait for a request in the roster."""
        other, version = self.store.connect(), 0
        while len(rows := other.roster()) < 3:
            version = other.wait(Cursor(self.ledger.head.index, version), roster=True, timeout=5).roster
        row = decode_row(rows[-1].value)
        assert row.is_request
        assert (row.run, row.offer, row.asks[0].known) == ("", None, self.ledger.head.index)

    def answer(self, name: str, report: Report | None) -> None:
        """Append the report on the newest question."""
        text = "null" if report is None else json.dumps(asdict(report))
        self.append(Answers(round=1, name=name, question=self.ledger.head.index, report=text))

    def ask(self, *, full: bool = False) -> tuple[threading.Thread, list[Located]]:
        found: list[Located] = []
        asking = threading.Thread(target=lambda: found.append(ask(self.store.connect(), "job", full=full)))
        asking.start()
        return asking, found


REPORT = Report(round=1, why="by hand", report="rank 0 is in f (train.py:1)")


def asks(name: str) -> Question:
    return Question(round=1, name=name, value="{}", asked_by="shell")


def test_it_ends_with_the_report_on_its_question_and_nothing_is_left() -> None:
    job = Job()
    job.begin()
    asking, found = job.ask()
    job.request()
    job.append(asks("another"))
    job.answer("another", REPORT)
    job.append(asks(STACKS))
    assert found == []
    job.answer(STACKS, REPORT)
    asking.join()
    assert found == [Located(REPORT, {})]
    assert [row.node_id for row in job.store.roster()] == ["a", "b"]


def test_the_whole_stacks_are_read_from_the_answers() -> None:
    job = Job()
    job.begin()
    asking, found = job.ask(full=True)
    job.request()
    asked = job.append(asks(FULL_STACKS)).head.index
    for revision, (name, question) in enumerate([("b", asked - 1), ("a", asked), ("b", asked)], 1):
        rank = "0" if name == "a" else "2"
        stacks = LocalStacks(places={}, texts={rank: f"stack of {name} for {question}"})
        answer = Answer(question, json.dumps(stacks.to_json()))
        row = replace(seen(name, Phase.RUNNING, node=info(name)).row, answer=answer)
        job.store.amend(name, revision, encode_row(row))
    job.answer(FULL_STACKS, REPORT)
    asking.join()
    assert found[0].texts == {0: f"stack of a for {asked}", 2: f"stack of b for {asked}"}


def test_a_leader_without_the_plugin_is_named() -> None:
    job = Job()
    job.begin()
    failures: list[str] = []

    def run() -> None:
        with pytest.raises(RendezvousTimeoutError) as failed:
            ask(job.store.connect(), "job")
        failures.append(failed.value.message)

    asking = threading.Thread(target=run)
    asking.start()
    job.request()
    job.append(asks(STACKS))
    job.answer(STACKS, None)
    asking.join()
    assert failures == ["The leader of job 'job' has summed up no answers."]


def test_a_job_without_workers_is_refused() -> None:
    job = Job()
    with pytest.raises(UsageError, match="Job 'job' has no workers now: no round has begun yet"):
        ask(job.store, "job")
    job.begin()
    job.append(Halt(round=1, reason=HaltReason.NODE_LOST, why="host-b is lost"))
    with pytest.raises(UsageError, match=r"its round was halted: host-b is lost"):
        ask(job.store, "job")
    with pytest.raises(UsageError, match="There is no job 'job'"):
        ask(LocalBackend(MemoryStore()), "job")


def test_a_job_whose_agents_are_gone_does_not_answer() -> None:
    job = Job()
    job.begin()
    with pytest.raises(RendezvousTimeoutError, match=r"No agent of job 'job' has said within 0\.01 s where"):
        ask(job.store, "job", patience=0.01)
    assert [row.node_id for row in job.store.roster()] == ["a", "b"]
