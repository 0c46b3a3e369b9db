"""Workers start at once unless something is known to wait for, and in the end regardless."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_core.agent.event_loop import EventLoop
from elastic_core.agent.gates import ANSWER_MAX_SECONDS, WAIT_MAX_SECONDS, StartDelay
from elastic_core.events import Event
from elastic_core.gates import StartGate
from elastic_core.session.runtime import RUNTIME


class Loop:
    """A real event loop whose clock the test moves: real threads answer, and timers come when they are due."""

    def __init__(self) -> None:
        self.time, self.events = 0.0, list[Event]()
        self.loop = EventLoop(now=lambda: self.time)
        self.began: list[int] = []

    def gate(self, ask: Callable[[int], str] | None) -> StartDelay:
        return self.gate_of(None if ask is None else lambda gate: ask(gate.round))

    def gate_of(self, ask: Callable[[StartGate], str] | None) -> StartDelay:
        node: Any = SimpleNamespace(
            plugins=SimpleNamespace(before_start=ask),
            run_uid="run",
            now=lambda: self.time,
            publish=self.events.append,
            runtime=RUNTIME,
        )
        return StartDelay(node, self.loop)

    def take(self) -> list[object]:
        """Wait for the next answers or timers, and call them."""
        taken = self.loop.take()
        for event in taken:
            assert callable(event)
            event()
        return taken

    def names(self) -> list[str]:
        return [event.name for event in self.events]


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.loop.close()


def test_without_a_plugin_nothing_is_asked(loop: Loop) -> None:
    gate = loop.gate(None)
    gate.prepare(1)
    gate.start(1, lambda: loop.began.append(1))
    assert (loop.began, loop.events) == ([1], [])


def test_a_start_waits_for_an_answer_that_has_not_come_but_not_for_long(loop: Loop) -> None:
    held = threading.Event()

    def ask(_: int) -> str:
        held.wait()
        return "too late"

    gate = loop.gate(ask)
    gate.prepare(1)
    gate.start(1, lambda: loop.began.append(1))
    assert loop.began == []
    loop.time += ANSWER_MAX_SECONDS
    loop.take()
    assert (loop.began, loop.events) == ([1], [])
    gate.prepare(2)
    gate.start(2, lambda: loop.began.append(2))
    assert loop.began == [1, 2], "a restart waits for no answer"
    held.set()
    loop.take()
    assert (loop.began, loop.events) == ([1, 2], [])


def test_an_answer_that_comes_after_the_wanted_start_starts_the_workers(loop: Loop) -> None:
    held = threading.Event()

    def ask(_: int) -> str:
        held.wait()
        return ""

    gate = loop.gate(ask)
    gate.prepare(1)
    gate.start(1, lambda: loop.began.append(1))
    held.set()
    loop.take()
    assert (loop.began, loop.events) == ([1], [])


def test_workers_wait_until_the_plugins_say_that_they_need_not(loop: Loop) -> None:
    answers = ["pid 7 holds memory", "pid 7 holds memory", ""]
    gate = loop.gate(lambda number: answers.pop(0))
    gate.prepare(2)
    loop.take()
    gate.start(2, lambda: loop.began.append(2))
    while answers:
        assert loop.began == []
        loop.time += 1.0
        loop.take()  # the timer, which asks again
        loop.take()  # the answer
    assert loop.began == [2]
    assert loop.names() == ["start_waits", "start_waited"]
    assert loop.events[0].fields == {"round": 2, "why": "pid 7 holds memory"}


@pytest.mark.parametrize("hangs", [False, True])
def test_after_the_longest_wait_the_workers_start_and_the_reason_is_told(loop: Loop, hangs: bool) -> None:
    asked, never = list[int](), threading.Event()

    def ask(number: int) -> str:
        asked.append(number)
        if hangs and len(asked) > 1:
            never.wait()
        return "pid 7 holds memory"

    gate = loop.gate(ask)
    gate.prepare(2)
    loop.take()
    gate.start(2, lambda: loop.began.append(2))
    loop.time += 1.0
    loop.take()  # the timer, which asks again
    if not hangs:
        loop.take()
    loop.time += WAIT_MAX_SECONDS - 1.0
    loop.take()
    never.set()
    assert loop.began == [2]
    assert loop.names() == ["start_waits", "started_regardless"]
    assert loop.events[-1].message == "the workers of round 2 start after 10.0 s, although pid 7 holds memory"


def test_plugins_are_told_for_how_long_the_workers_have_waited(loop: Loop) -> None:
    told: list[StartGate] = []

    def ask(gate: StartGate) -> str:
        told.append(gate)
        return "pid 7 holds memory" if len(told) < 3 else ""

    gate = loop.gate_of(ask)
    gate.prepare(1)
    loop.take()
    loop.time += 60.0  # this node joins a job that runs
    gate.start(7, lambda: loop.began.append(7))
    for _ in range(2):
        loop.time += 1.0
        loop.take()  # the timer, which asks again
        loop.take()  # the answer
    assert loop.began == [7]
    assert told == [StartGate(1, "run", 0.0), StartGate(7, "run", 1.0), StartGate(7, "run", 2.0)]


def test_a_restart_does_not_wait_for_an_answer(loop: Loop) -> None:
    held, answers = threading.Event(), [""]

    def ask(_: int) -> str:
        if answers:
            return answers.pop()
        held.wait()
        return "too late"

    gate = loop.gate(ask)
    gate.prepare(1)
    loop.take()
    gate.start(1, lambda: loop.began.append(1))
    gate.prepare(2)
    gate.start(2, lambda: loop.began.append(2))
    assert loop.began == [1, 2]
    held.set()
    loop.take()
    assert (loop.began, loop.events) == ([1, 2], [])


def test_a_round_that_ends_while_its_workers_wait_starts_none(loop: Loop) -> None:
    answers = ["pid 7 holds memory", ""]
    gate = loop.gate(lambda number: answers.pop(0))
    gate.prepare(2)
    loop.take()
    gate.start(2, lambda: loop.began.append(2))
    gate.prepare(3)
    loop.take()
    gate.start(3, lambda: loop.began.append(3))
    assert loop.began == [3]
