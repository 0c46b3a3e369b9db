"""When a node goes away, and what it lets its workers do before that; signals, a drain, and what follows which."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from views import info, live, settings

from elastic_core.agent.supervisor import STORE_MAX_SECONDS, Departure, settle_exit
from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.exit_codes import ExitCode
from elastic_core.protocol.node import NodeState, step
from elastic_core.protocol.node_events import Exit, Leaving, NodeEvent, Work
from elastic_core.protocol.roster import NodeRow

DRAINED = "asked to leave by elastic drain on desk"


class Node:
    """A running member of a round, whose timers ring by hand."""

    def __init__(self, grace: float = 0.0, *, work: Work = Work.RUNNING, nodes: int = 2) -> None:
        program = Program(ProgramKind.EXECUTABLE, "train")
        config = RunConfig(program=program, max_nodes=nodes, shutdown_timeout=30.0, preemption_grace=grace)
        ledger = live("ab", settings(plan_timeout=120.0))
        self.state = NodeState(row=NodeRow(info=info("a"), round=1), ledger=ledger, work=work)
        self.said: list[str] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.asked: list[Callable[[bool], None]] = []
        self.killed = False
        self.now = 0.0
        self.session: Any = SimpleNamespace(ask_finished=self.asked.append)
        self.resources: Any = SimpleNamespace(
            node=SimpleNamespace(
                config=config, now=lambda: self.now, publish=lambda event: self.said.append(event.message)
            ),
            signals=frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGURG}),
            loop=SimpleNamespace(
                post=lambda call: call(),
                later=lambda seconds, call: self.timers.append((seconds, call)),
            ),
        )
        owner: Any = self
        self.departing = Departure(owner, {"a"})

    def step(self, event: NodeEvent | None) -> None:
        assert event is not None
        self.state, _ = step(self.state, event)

    def kill_workers(self) -> None:
        self.killed = True

    def signal(self, signum: int = signal.SIGTERM, *, others_finished: bool = False) -> None:
        self.departing.on_signal(signum)
        for answer in self.asked:
            answer(others_finished)
        self.asked.clear()

    def rings(self, seconds: float) -> None:
        """The timer that was set for so many seconds."""
        (call,) = [call for after, call in self.timers if after == seconds]
        call()

    @property
    def grace(self) -> float | None:
        """Within how many seconds it leaves; None if it does not."""
        return None if self.state.leaving is None else self.state.leaving.grace


@pytest.mark.parametrize(
    ("node", "signum", "grace"),
    [
        pytest.param(Node(), signal.SIGTERM, 0.0, id="at once by default"),
        pytest.param(Node(25.0), signal.SIGTERM, 25.0, id="with its grace"),
        pytest.param(Node(25.0), signal.SIGURG, 25.0, id="a scheduler's own signal"),
        pytest.param(Node(25.0), signal.SIGINT, 0.0, id="Ctrl-C is no preemption"),
        pytest.param(Node(25.0, work=Work.NONE), signal.SIGTERM, 0.0, id="without workers"),
        pytest.param(Node(25.0, nodes=1), signal.SIGTERM, 25.0, id="alone"),
        pytest.param(Node(25.0), signal.SIGHUP, None, id="a signal that is not handled"),
    ],
)
def test_a_signal_makes_a_node_leave(node: Node, signum: int, grace: float | None) -> None:
    node.signal(signum)
    assert node.grace == grace


def test_at_the_end_of_its_grace_it_leaves_whatever_the_workers_do() -> None:
    node = Node(25.0)
    node.signal()
    assert node.said == [
        "received SIGTERM: leaving within 25 s, when all workers have stopped together; "
        "once more to kill the workers at once"
    ]
    node.rings(25.0)
    assert node.grace == 0.0


@pytest.mark.parametrize(
    ("signum", "seconds", "killed"),
    [
        pytest.param(signal.SIGTERM, 0.001, False, id="timeout signals its child and then its group"),
        pytest.param(signal.SIGURG, 0.9, False, id="a scheduler"),
        pytest.param(signal.SIGTERM, 1.0, True, id="a second request"),
        pytest.param(signal.SIGINT, 0.001, True, id="Ctrl-C"),
    ],
)
def test_a_second_request_ends_everything(signum: int, seconds: float, killed: bool) -> None:
    node = Node(25.0)
    node.signal()
    node.now = seconds
    node.signal(signum)
    assert (node.killed, node.grace, len(node.said)) == (killed, 0.0 if killed else 25.0, 2 if killed else 1)


def test_after_a_repeated_signal_the_next_request_still_ends_everything() -> None:
    node = Node(25.0)
    for node.now in (0.0, 0.001, 5.0):
        assert not node.killed
        node.signal()
    assert (node.killed, node.grace) == (True, 0.0)


@pytest.mark.parametrize(
    ("signals", "killed"),
    [
        ("agent", False),
        ("agent agent", True),
        ("warden", False),
        ("agent warden", False),
        ("warden agent", False),
        ("warden warden warden", False),
        ("warden agent agent", True),
        ("agent warden agent", True),
        ("warden agent warden agent", True),
    ],
)
def test_a_signal_to_all_processes_of_a_job_is_one_request(signals: str, killed: bool) -> None:
    node = Node(25.0)
    for node.now, word in enumerate(signals.split()):
        node.departing.on_signal(signal.SIGTERM, to_warden=word == "warden")
    assert (node.killed, len(node.asked), node.departing.received) == (killed, 1, signal.SIGTERM)


def test_a_signal_to_the_warden_makes_a_node_leave_once() -> None:
    node = Node(25.0)
    for to_warden in (True, False, True):
        node.departing.on_signal(signal.SIGTERM, to_warden=to_warden)
    for answer in node.asked:
        answer(False)
    assert node.said[0] == "the workers' parent process received SIGTERM: it counts as sent to this agent"
    assert (node.killed, node.grace, len(node.said)) == (False, 25.0, 2)


@pytest.mark.parametrize("signum", [signal.SIGHUP, signal.SIGUSR2])
def test_a_signal_to_the_warden_that_the_node_does_not_handle(signum: int) -> None:
    node = Node()
    node.departing.on_signal(signum, to_warden=True)
    assert (node.grace, node.said) == (None, [])


def test_a_store_that_does_not_answer_is_not_waited_for() -> None:
    node = Node(25.0)
    node.departing.on_signal(signal.SIGTERM)
    assert node.grace is None
    node.rings(STORE_MAX_SECONDS)
    assert node.grace == 25.0
    node.asked[0](False)
    assert len(node.said) == 1


def test_where_others_have_finished_the_workers_get_their_time_to_do_so() -> None:
    node = Node(25.0)
    node.signal(others_finished=True)
    assert node.grace is None
    node.rings(STORE_MAX_SECONDS)
    assert node.grace is None
    node.rings(30.0)
    assert node.grace == 0.0


def test_a_drained_node_is_in_no_hurry() -> None:
    node = Node()
    node.departing.on_drain(DRAINED)
    node.rings(STORE_MAX_SECONDS)
    assert node.grace == 120.0
    assert node.said == [f"{DRAINED}: leaving within 120 s, when all workers have stopped together"]


def test_it_is_drained_once_and_not_after_a_signal() -> None:
    node = Node(25.0)
    node.signal()
    node.departing.on_drain(DRAINED)
    assert (node.asked, node.grace) == ([], 25.0)


@pytest.mark.parametrize(("grace", "then"), [(25.0, 25.0), (0.0, 0.0), (500.0, 120.0)])
def test_a_signal_may_make_a_drained_node_hurry(grace: float, then: float) -> None:
    node = Node(grace)
    node.departing.on_drain(DRAINED)
    node.rings(STORE_MAX_SECONDS)
    node.timers.clear()
    node.signal()
    assert node.grace == then


def test_a_leaving_that_was_announced_can_only_come_sooner() -> None:
    state = Node().state
    for grace, then in ((60.0, 60.0), (90.0, 60.0), (30.0, 30.0), (0.0, 0.0), (5.0, 0.0)):
        state, _ = step(replace(state, work=Work.RUNNING), Leaving("x", 143, grace))
        assert state.leaving is not None
        assert state.leaving.grace == then


# A plugin says that the host is taken away --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "seconds", "noticed_at", "grace"),
    [
        pytest.param(Node(), 120.0, 0.0, 110.0, id="two minutes"),
        pytest.param(Node(), 5.0, 0.0, 3.5, id="five seconds"),
        pytest.param(Node(), 5.0, -3.0, 1.4, id="told late"),
        pytest.param(Node(), 5.0, -30.0, 0.0, id="told too late"),
        pytest.param(Node(), 0.0, 0.0, 0.0, id="now"),
        pytest.param(Node(), 3600.0, 0.0, 120.0, id="an hour: no longer than any plan"),
        pytest.param(Node(60.0, work=Work.NONE), 120.0, 0.0, 0.0, id="without workers"),
    ],
)
def test_workers_stop_together_before_the_host_is_taken_away(
    node: Node, seconds: float, noticed_at: float, grace: float
) -> None:
    node.departing.on_host_ends("AWS terminates it", seconds, noticed_at)
    for answer in node.asked:
        answer(False)
    assert node.grace == grace
    assert node.said[0].startswith("AWS terminates it: leaving")


def test_a_host_that_ends_sooner_shortens_a_drain_and_one_that_ends_later_does_not() -> None:
    node = Node()
    node.departing.on_drain(DRAINED)
    node.asked.pop()(False)
    assert node.grace == 120.0
    node.departing.on_host_ends("AWS terminates it", 10.0, 0.0)
    node.asked.pop()(False)
    assert node.grace == 7.0
    node.departing.on_host_ends("AWS terminates it", 100.0, 0.0)
    node.asked.pop()(False)
    assert node.grace == 7.0


@pytest.mark.parametrize(
    ("rejoin", "received", "found"),
    [
        (True, None, Exit(1, "excluded", rejoin=True)),
        (True, signal.SIGTERM, Exit(143, "received SIGTERM")),
        (False, signal.SIGTERM, Exit(1, "excluded")),
    ],
)
def test_a_signal_while_the_node_leaves_to_enter_again_ends_the_agent(
    rejoin: bool, received: int | None, found: Exit
) -> None:
    assert settle_exit(Exit(1, "excluded", rejoin=rejoin), received) == found


@pytest.mark.parametrize(
    ("order", "why"),
    [
        (lambda node: node.departing.on_drain(DRAINED), DRAINED),
        (lambda node: node.departing.on_host_ends("AWS terminates it", 30.0, 0.0), "AWS terminates it"),
    ],
)
def test_a_drain_or_a_notice_while_the_node_leaves_for_its_checks_ends_the_agent(
    order: Callable[[Node], None], why: str
) -> None:
    node = Node(work=Work.NONE)
    node.step(Leaving("this host was excluded", ExitCode.WITHDRAWN, rejoin=True))
    order(node)
    _, effects = step(node.state, Leaving("this host was excluded", ExitCode.WITHDRAWN, rejoin=True))
    assert effects == (Exit(143, why),)


def test_a_node_that_leaves_for_its_checks_enters_again() -> None:
    node = Node(work=Work.NONE)
    _, effects = step(node.state, Leaving("this host was excluded", ExitCode.WITHDRAWN, rejoin=True))
    assert effects == (Exit(ExitCode.WITHDRAWN, "this host was excluded", rejoin=True),)
