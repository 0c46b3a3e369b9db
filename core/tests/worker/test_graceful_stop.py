"""A worker's reports and notices, over a real socket, with an agent that is played by hand."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from elastic_core.worker.channel import CONTROL_VARIABLE, KIND
from elastic_core.worker.graceful_stop import PERIOD, Notices


class Agent:
    """The other end, and a worker with a clock of its own."""

    def __init__(self, ours: socket.socket, theirs: socket.socket) -> None:
        self.end, self.time = ours, 100.0
        self.worker = Notices({CONTROL_VARIABLE: str(theirs.fileno())}, lambda: self.time)
        ours.setblocking(False)

    def tells(self, type_: str, **fields: Any) -> None:
        self.end.send(json.dumps({"type": type_, **fields}).encode())

    def plans(self, number: int = 3, deadline: float = 60.0) -> None:
        self.tells("plan", plan=number, deadline=deadline)

    def stops_at(self, step: int, number: int = 3, leaving: bool = True) -> None:
        self.tells("stop_at", plan=number, step=step, leaving=leaving)

    def hears(self) -> list[tuple[str, int]]:
        """Return the steps that the worker makes without another report, by the reports."""
        found: list[tuple[str, int]] = []
        while True:
            try:
                packet = json.loads(self.end.recv(4096))
            except BlockingIOError:
                return found
            found.append((packet["type"], packet["step"] + packet.get("ahead", 0)))

    def calls(self, step: int, after: float = 1.0) -> bool:
        """The worker's call, so many seconds after the one before."""
        self.time += after
        return self.worker.should_checkpoint(step)


@pytest.fixture
def agent() -> Iterator[Agent]:
    ours, theirs = socket.socketpair(*KIND)
    with ours, theirs:
        yield Agent(ours, theirs)


def test_every_step_is_reported_and_nothing_else_happens(agent: Agent) -> None:
    assert [agent.calls(step) for step in (1, 2, 3)] == [False] * 3
    assert agent.hears() == [("step", 1), ("step", 2), ("step", 3)]


def test_steps_in_quick_succession_are_reported_ahead(agent: Agent) -> None:
    for step in range(5000):
        agent.calls(step, 0.001)
    horizons = [step for _, step in agent.hears()]
    assert len(horizons) < 5.0 / PERIOD * 2
    assert horizons == sorted(set(horizons))
    assert horizons[-1] >= 4999, "no step was taken that the agent does not know of"


def test_a_report_names_the_step_that_was_taken_and_not_the_one_that_it_reaches(agent: Agent) -> None:
    ahead = []
    for step in range(5000):
        agent.calls(step, 0.001)
        with contextlib.suppress(BlockingIOError):
            packet = json.loads(agent.end.recv(4096))
            assert packet["step"] == step
            ahead.append(packet["ahead"])
    assert ahead[0] == 0
    assert ahead[-1] > 1


def test_a_worker_that_slows_down_is_exact_again_after_one_report(agent: Agent) -> None:
    for step in range(5000):
        agent.calls(step, 0.001)
    ahead = agent.hears()[-1][1]
    assert 5000 <= ahead < 5000 + 2 * PERIOD / 0.001
    for step in range(5000, ahead + 3):
        agent.calls(step, 10.0)
    assert agent.hears() == [("step", ahead + 1), ("step", ahead + 2)]


def test_a_rank_holds_until_the_step_is_named_and_stops_there(agent: Agent) -> None:
    agent.calls(6)
    agent.plans()
    answers: list[bool] = []
    rank = threading.Thread(target=lambda: answers.append(agent.calls(7)))
    rank.start()
    while ("step", 7) not in agent.hears():
        pass
    assert answers == []
    agent.stops_at(9)
    rank.join()
    assert answers == [False], "it runs on while it is below"
    assert not agent.calls(8)
    assert agent.calls(9)
    assert agent.hears() == [("step", 8), ("step", 9), ("leaves", 9)]
    assert agent.calls(10), "and says so for good"


def test_it_reports_before_it_reads(agent: Agent) -> None:
    agent.plans()
    agent.stops_at(1)
    assert agent.calls(5)
    assert agent.hears()[0] == ("step", 5)


def test_a_step_that_is_jumped_over_counts(agent: Agent) -> None:
    agent.plans()
    agent.stops_at(11)
    assert not agent.calls(10)
    assert agent.calls(20)


def test_it_need_not_wait_any_longer(agent: Agent) -> None:
    agent.plans()
    agent.tells("go_on")
    assert not agent.calls(1)


@pytest.mark.parametrize("leaving", [True, False])
def test_with_the_step_it_is_said_whether_somebody_leaves(agent: Agent, leaving: bool) -> None:
    agent.plans()
    agent.stops_at(5, leaving=leaving)
    assert agent.calls(5)
    assert agent.worker.leaving == leaving


@pytest.mark.parametrize("end", ["deadline", "agent"])
def test_no_worker_is_held_for_ever(agent: Agent, end: str) -> None:
    agent.plans(deadline=0.01)
    if end == "agent":
        agent.end.shutdown(socket.SHUT_WR)
    assert not agent.calls(1)
    if end == "deadline":
        agent.stops_at(2)
        assert not agent.calls(3), "by then the others may have been halted"
        agent.plans(4)
        agent.stops_at(5, 4)
        assert agent.calls(5), "the next plan is another matter"


def test_a_worker_that_could_not_report_its_step_takes_no_part_in_a_plan(agent: Agent) -> None:
    step = 0
    while agent.worker._horizon == step - 1 or step == 0:  # until there is no room
        agent.calls(step)
        step += 1
    agent.calls(step + 1)
    agent.hears()
    agent.plans()
    agent.stops_at(step)
    assert not agent.calls(step + 2)
    agent.plans(4)
    agent.stops_at(step + 3, 4)
    assert agent.calls(step + 3)


def test_a_forked_process_neither_reports_nor_stops(agent: Agent) -> None:
    agent.plans()
    agent.stops_at(1)
    child = os.fork()
    if not child:
        os._exit(agent.worker.should_checkpoint(5))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert agent.hears() == []
    assert agent.calls(1), "the notices are still there"


@pytest.mark.parametrize("number", ["", "no number", "999999"])
def test_without_an_agent_nobody_stops(number: str) -> None:
    assert not Notices({CONTROL_VARIABLE: number}).should_checkpoint(1)
    assert not Notices({}).should_checkpoint(1)


@pytest.mark.parametrize("step", [-1, 1.5, "3", None, 2**53])
def test_an_invalid_step_is_refused(agent: Agent, step: Any) -> None:
    with pytest.raises(ValueError, match="is not a whole number from 0"):
        agent.worker.should_checkpoint(step)
