"""The end of an agent: when its memory is rescued, and what plugins may do for that."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_core import gates, hookimpl
from elastic_core.agent.event_loop import EventLoop
from elastic_core.agent.membership import needs_rescue, run_to_end, signal_received
from elastic_core.agent.report import Ending
from elastic_core.events import Event
from elastic_core.exit_codes import ExitCode
from elastic_core.gates import AgentEnd
from elastic_core.plugins.manager import Plugins
from elastic_core.protocol.entries import Closed

SIGNAL = signal.SIGUSR1


@pytest.mark.parametrize(
    ("ending", "closed", "leaves_others", "failed", "expected"),
    [
        pytest.param(Ending(0, ""), Closed(success=True, why="", exit_code=0), False, False, False, id="it succeeded"),
        pytest.param(Ending(1, ""), Closed(success=False, why="", exit_code=1), True, False, True, id="the job failed"),
        pytest.param(Ending(143, ""), None, False, False, True, id="the last node was stopped"),
        pytest.param(Ending(143, ""), None, True, False, False, id="others go on"),
        pytest.param(Ending(ExitCode.STORE_LOST, ""), None, True, False, True, id="nobody can go on"),
        pytest.param(Ending(ExitCode.STORE_LOST, "", rejoin=True), None, True, False, True, id="it joins another run"),
        pytest.param(Ending(ExitCode.WITHDRAWN, "", rejoin=True), None, False, False, False, id="it checks itself"),
        pytest.param(None, None, True, True, True, id="it failed, and the others may"),
        pytest.param(None, None, True, False, False, id="it was interrupted, and others go on"),
        pytest.param(None, None, False, False, True, id="the last node was interrupted"),
        pytest.param(
            None, Closed(success=True, why="", exit_code=0), True, True, False, id="it failed after a success"
        ),
    ],
)
def test_when_it_is_needed(
    ending: Ending | None, closed: Closed | None, leaves_others: bool, failed: bool, expected: bool
) -> None:
    assert needs_rescue(ending, closed, lambda: leaves_others, failed=failed) is expected


class Loop:
    """An agent's loop that ends as told."""

    closed: Closed | None = None
    signalled_at: float | None = None

    def __init__(
        self, end: Callable[[], Ending], *, others: bool = False, closing: Callable[[], None] = lambda: None
    ) -> None:
        self._end, self._closing, self._others = end, closing, others

    def run(self) -> Ending:
        return self._end()

    def close(self) -> None:
        self._closing()

    def leaves_others(self) -> bool:
        return self._others


def raises(error: BaseException) -> Callable[[], Ending]:
    def end() -> Ending:
        raise error

    return end


class Node:
    """A node, and its plugins."""

    def __init__(self, loop: EventLoop) -> None:
        self.published: list[Event] = []
        self.plugins = Plugins()
        self.resources: Any = SimpleNamespace(
            node=SimpleNamespace(publish=self.published.append, plugins=self.plugins, info="host:1"),
            signals={SIGNAL},
            loop=loop,
        )

    def install(self, name: str, call: Callable[[AgentEnd], object]) -> None:
        class Plugin:
            @hookimpl
            def elastic_agent_ends(self, end: AgentEnd) -> None:
                call(end)

        self.plugins.register(name, Plugin())

    def run(self, loop: Loop) -> Ending:
        agent: Any = loop
        agent.resources = self.resources
        return run_to_end(agent)

    def end(self, loop: Loop) -> list[tuple[str, str]]:
        """Run an agent with this loop to its end; return what was published."""
        with contextlib.suppress(KeyboardInterrupt, RuntimeError):
            self.run(loop)
        return [(event.name, event.message) for event in self.published]


@pytest.fixture
def node() -> Iterator[Node]:
    with closing(EventLoop({SIGNAL})) as loop:
        yield Node(loop)


def test_all_plugins_are_told_of_the_end(node: Node) -> None:
    seen: list[AgentEnd] = []
    node.install("a", seen.append)
    node.install("b", seen.append)
    assert node.end(Loop(lambda: Ending(1, "it failed"))) == []
    assert [(end.node, end.is_last()) for end in seen] == 2 * [("host:1", True)]


@pytest.mark.parametrize(
    ("end", "failed"),
    [
        (lambda: Ending(1, "it failed"), False),
        (raises(RuntimeError("a defect")), True),
        (raises(KeyboardInterrupt()), False),
    ],
    ids=["ends", "fails", "is interrupted"],
)
def test_plugins_are_told_of_a_defect(node: Node, end: Callable[[], Ending], failed: bool) -> None:
    seen: list[bool] = []
    node.install("a", lambda end: seen.append(end.failed))
    node.end(Loop(end))
    assert seen == [failed]


def test_an_interrupted_agent_leaves_it_to_the_others_and_one_with_a_defect_does_not(node: Node) -> None:
    seen: list[bool] = []
    node.install("a", lambda end: seen.append(end.is_last()))
    node.end(Loop(raises(KeyboardInterrupt()), others=True))
    node.end(Loop(raises(RuntimeError("a defect")), others=True))
    assert seen == [False, True]


@pytest.mark.parametrize("failed", [False, True])
def test_if_a_plugin_raises_the_agent_ends_as_it_had_and_the_next_plugin_is_called(node: Node, failed: bool) -> None:
    def full(end: AgentEnd) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    seen: list[AgentEnd] = []
    node.install("other", seen.append)
    node.install("full", full)
    ending = Ending(143, "stopped")
    if failed:
        with pytest.raises(RuntimeError, match="a defect"):
            node.run(Loop(raises(RuntimeError("a defect"))))
    else:
        assert node.run(Loop(lambda: ending)) is ending
    [event] = node.published
    assert (event.name, event.message) == (
        "rescue_failed",
        "what a plugin keeps in memory for workers may be lost: the plugin 'full' raised "
        "OSError(24, 'Too many open files')",
    )
    assert len(seen) == 1


def test_a_defect_of_the_question_for_others_does_not_replace_the_ending(node: Node) -> None:
    class Defective(Loop):
        def leaves_others(self) -> bool:
            raise ValueError("a defect")

    ending = Ending(143, "stopped")
    node.install("a", lambda end: end.is_last())
    assert node.run(Defective(lambda: ending)) is ending
    assert [event.name for event in node.published] == ["rescue_failed"]


def test_the_work_is_told_to_stop_by_a_signal(node: Node) -> None:
    def work(stop: threading.Event) -> bool:
        os.kill(os.getpid(), SIGNAL)
        return stop.wait(60)

    end = AgentEnd("n", node.published.append, partial(signal_received, node.resources.loop.untaken_signals))
    assert end.run(work, 60.0) == (True, "the agent received SIGUSR1")


def test_the_work_is_told_to_stop_by_a_signal_that_came_while_the_agent_closed(node: Node) -> None:
    seen: list[tuple[bool, str]] = []
    node.install("a", lambda end: seen.append(end.run(threading.Event.is_set, 60.0)))
    node.end(Loop(lambda: Ending(143, "stopped"), closing=lambda: os.kill(os.getpid(), SIGNAL)))
    assert seen == [(True, "the agent received SIGUSR1")]


def test_the_work_has_so_many_seconds_and_some_more_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    end = AgentEnd("n", lambda event: None)
    assert end.run(lambda stop: stop.wait(60), 0.0) == (True, "writing has taken 0 s")
    monkeypatch.setattr(gates, "ABORT_SECONDS", 0.0)
    released = threading.Event()
    with pytest.raises(TimeoutError, match="writing has taken 0 s, and the disk does not answer"):
        end.run(lambda stop: released.wait(60), 0.0)
    released.set()


def test_the_error_of_the_work_is_raised() -> None:
    def work(stop: threading.Event) -> None:
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        AgentEnd("n", lambda event: None).run(work, 60.0)
