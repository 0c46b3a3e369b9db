"""The gate before a node joins, with real signals and threads."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from elastic_core import JoinGate, UnhealthyNodeError
from elastic_core.agent.gates import Interruption, pass_gate
from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.events import Event
from elastic_core.gates import HostEnd

CONFIG = RunConfig(program=Program(ProgramKind.EXECUTABLE, "true"), rdzv_id="job")
FOR_EVER = 3600.0


class Entrance:
    def __init__(self) -> None:
        self.said: list[Event] = []
        self.gate = JoinGate(CONFIG, self.said.append, plugin="mine")

    def knock(self, *checks: Callable[[], object]) -> bool:
        """Return whether the node may join."""
        for check in checks:
            self.gate.add(check)
        with closing(Interruption([signal.SIGUSR1], HostEnd())) as interruption:
            pass_gate(self.gate, interruption)
            return not interruption.is_due()


@pytest.fixture
def entrance() -> Entrance:
    return Entrance()


@pytest.fixture
def hung() -> Iterator[threading.Event]:
    """Return the event of a check that neither returns nor asks whether the gate is closed."""
    event = threading.Event()
    yield event
    event.set()


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


def refuse() -> None:
    raise UnhealthyNodeError("the link is down", hint="Plug it in.")


def test_checks_are_called_one_after_another_and_not_on_the_main_thread(entrance: Entrance) -> None:
    called: list[tuple[int, bool]] = []

    def check(number: int) -> None:
        called.append((number, threading.current_thread() is threading.main_thread()))

    assert entrance.knock(lambda: check(1), lambda: check(2))
    assert called == [(1, False), (2, False)]
    assert entrance.said == []


def test_a_check_that_refuses_keeps_the_node_out(entrance: Entrance) -> None:
    called: list[int] = []
    with pytest.raises(UnhealthyNodeError, match="the link is down"):
        entrance.knock(refuse, lambda: called.append(2))
    assert called == []


@pytest.mark.parametrize("problem", [ValueError("no such file"), SystemExit(3)], ids=str)
def test_a_check_that_raises_is_reported_and_keeps_no_node_out(entrance: Entrance, problem: BaseException) -> None:
    def check() -> None:
        raise problem

    assert entrance.knock(check)
    (event,) = entrance.said
    assert event.name == "plugin_failed"
    assert event.message.startswith("a check of the plugin 'mine' raised, and keeps no node out: ")


def test_a_signal_closes_the_gate_while_a_check_waits(entrance: Entrance) -> None:
    ended: list[str] = []

    def check() -> None:
        interrupt()
        entrance.gate.wait(FOR_EVER)
        ended.append("first")
        refuse()

    assert not entrance.knock(check, lambda: ended.append("second"))
    assert ended == ["first"]


def test_a_signal_closes_the_gate_while_a_check_reads(entrance: Entrance) -> None:
    reading, writing = os.pipe()
    try:

        def check() -> None:
            interrupt()
            entrance.gate.wait(FOR_EVER, [reading])

        assert not entrance.knock(check)
    finally:
        os.close(reading)
        os.close(writing)


def test_a_signal_does_not_wait_for_a_check_that_hangs(
    entrance: Entrance, hung: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_core.agent.gates.END_MAX_SECONDS", 0.1)

    def check() -> None:
        interrupt()
        hung.wait()

    assert not entrance.knock(check)


def test_a_check_that_hangs_keeps_the_node_out_in_the_end(
    entrance: Entrance, hung: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_core.gates.CHECK_MAX_SECONDS", 0.1)
    with pytest.raises(UnhealthyNodeError, match="the plugin 'mine' has not said within"):
        entrance.knock(hung.wait)
    assert entrance.gate.closed.is_set()


def test_the_time_in_which_a_check_waits_is_not_counted(entrance: Entrance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_core.gates.CHECK_MAX_SECONDS", 0.2)
    assert entrance.knock(lambda: [entrance.gate.wait(0.15) for _ in range(3)])
