"""The agent's end of the control channels, against workers that say what they like, and as much as they like."""

from __future__ import annotations

import math
import os
import select
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from elastic_core.agent.worker_channels import (
    LINGERING,
    OWN_SIGNAL_SECONDS,
    PACKETS_MAX,
    WINDOW_SECONDS,
    Failed,
    Initialized,
    Lingers,
    NotUnderstood,
    Report,
    Reported,
    Reports,
    Stepped,
    Terminated,
)
from elastic_core.progress import Progress
from elastic_core.worker.channel import LONGEST

INITIALIZED = b'{"type": "initialized"}'


class Agent:
    """The agent's end, with a clock of its own."""

    def __init__(self) -> None:
        self.time = 100.0
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.delivered: list[tuple[float, Report]] = []
        self.reports = Reports(self.deliver, lambda: self.time)

    def deliver(self, instant: float, event: object) -> None:
        if isinstance(event, Report):
            self.delivered.append((instant, event))
        else:
            assert callable(event)
            self.later.append((instant, event))

    def awake(self) -> bool:
        """Return True if the agent's loop would be woken."""
        return bool(select.select([self.reports], [], [], 0)[0])

    def hears(self) -> list[Report]:
        return self.reports.receive() if self.awake() else []

    def understands(self, packet: bytes) -> Report:
        """Return the report that a packet of the worker 3 is taken for."""
        with self.reports.open(3) as worker:
            worker.send(packet)
            [report] = self.hears()
        self.reports.clear()
        return report


@pytest.fixture
def agent() -> Iterator[Agent]:
    agent = Agent()
    yield agent
    agent.reports.close()


def flood(worker: socket.socket, packet: bytes) -> int:
    """Send until there is no room; how many were sent."""
    worker.setblocking(False)
    count = 0
    try:
        while True:
            worker.send(packet)
            count += 1
    except BlockingIOError:
        return count


@pytest.mark.parametrize(
    ("packet", "report"),
    [
        (INITIALIZED, Initialized(3)),
        (b' {"type":"initialized", "since": [1]}', Initialized(3)),
        (b'{"type": "initialized"}\n', Initialized(3)),
        (b'{"type": "failed"}', Failed(3)),
    ],
)
def test_a_report_is_understood(agent: Agent, packet: bytes, report: Report) -> None:
    assert agent.understands(packet) == report


@pytest.mark.parametrize(
    ("packet", "why"),
    [
        pytest.param(b"hello", "it is not JSON", id="text"),
        pytest.param(b"\xff\xfe\x00", "it is not JSON", id="bytes"),
        pytest.param(b"\x80\x04\x95\x00.", "it is not JSON", id="a pickle"),
        pytest.param(b"[" * LONGEST, "it is not JSON", id="nested"),
        pytest.param(b"1" * LONGEST, "it is not a JSON object with a type", id="a long number"),
        pytest.param(INITIALIZED + INITIALIZED, "it is not JSON", id="two at once"),
        pytest.param(b"[1]", "it is not a JSON object with a type", id="a list"),
        pytest.param(b"{}", "it is not a JSON object with a type", id="no type"),
        pytest.param(b'{"type": 1}', "it is not a JSON object with a type", id="a number for a type"),
        pytest.param(b'{"type": null}', "it is not a JSON object with a type", id="null for a type"),
        pytest.param(b'{"type": "x\\n"}', r"its type is 'x\n', which is not known here", id="unknown"),
        pytest.param(b'{"type": "initialized"}'.ljust(LONGEST + 1), f"it has more than {LONGEST} bytes", id="long"),
    ],
)
def test_anything_else_is_ignored_for_a_reason(agent: Agent, packet: bytes, why: str) -> None:
    assert agent.understands(packet) == NotUnderstood(3, why)


def test_reports_are_told_by_worker(agent: Agent) -> None:
    with agent.reports.open(1) as first, agent.reports.open(2) as second:
        assert agent.hears() == []
        second.send(INITIALIZED)
        assert agent.hears() == [Initialized(2)]
        first.send(INITIALIZED)
        assert agent.hears() == [Initialized(1)]
        assert agent.hears() == []


def test_a_malformed_report_is_published_once_and_later_reports_are_read(agent: Agent) -> None:
    with agent.reports.open(1) as worker:
        for packet in (b"what", b"x" * 100_000, b"{}", INITIALIZED):
            worker.send(packet)
        assert agent.hears() == [NotUnderstood(1, "it is not JSON"), Initialized(1)]
        worker.send(b"what")
        assert agent.hears() == []


def test_a_flood_wakes_nobody_for_the_rest_of_the_second(agent: Agent) -> None:
    with agent.reports.open(1) as worker, agent.reports.open(2) as other:
        heard: list[Report] = []
        while flood(worker, INITIALIZED) and agent.awake():
            heard += agent.reports.receive()
        assert heard == [Initialized(1)] * PACKETS_MAX
        [(instant, listen_again)] = agent.later
        assert instant == agent.time + WINDOW_SECONDS
        other.send(INITIALIZED)
        assert agent.hears() == [Initialized(2)]
        agent.time = instant
        assert not agent.awake()
        listen_again()
        assert agent.hears()[:1] == [Initialized(1)]


def test_a_flood_of_nonsense_is_said_once(agent: Agent) -> None:
    heard: list[Report] = []
    with agent.reports.open(1) as worker:
        for second in range(3):
            flood(worker, b"what" * 1000)
            while agent.awake():
                heard += agent.reports.receive()
                flood(worker, b"what" * 1000)
            assert len(agent.later) == second + 1
            agent.time, listen_again = agent.later[-1]
            listen_again()
    assert heard == [NotUnderstood(1, "it is not JSON")]


def test_a_channel_whose_round_is_over_is_not_listened_to_again(agent: Agent) -> None:
    with agent.reports.open(1) as worker:
        while flood(worker, b"what") and agent.awake():
            agent.reports.receive()
    [(_, listen_again)] = agent.later
    agent.reports.clear()
    with agent.reports.open(2) as worker:
        listen_again()
        worker.send(INITIALIZED)
        assert agent.hears() == [Initialized(2)]


def test_the_end_of_a_channel_means_nothing(agent: Agent) -> None:
    with agent.reports.open(1) as worker:
        worker.send(INITIALIZED)
    assert agent.hears() == [Initialized(1)]
    assert not agent.awake()


def test_a_process_that_a_worker_has_forked_reports_for_it_even_after_its_end(agent: Agent) -> None:
    worker = agent.reports.open(1)
    with worker.dup() as forked:
        worker.close()
        assert agent.hears() == []
        forked.send(INITIALIZED)
        assert agent.hears() == [Initialized(1)]


def test_descriptors_that_a_worker_sends_along_are_closed(agent: Agent) -> None:
    with agent.reports.open(1) as worker:
        before = sorted(os.listdir("/proc/self/fd"))
        socket.send_fds(worker, [INITIALIZED], [0, 1, 2])
        assert agent.hears() == [Initialized(1)]
        assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("packet", [b"", b"[]", b"\xff", b'{"type": ["keep"]}', b'{"type": "keep "}'])
def test_descriptors_of_other_packets_are_closed(agent: Agent, packet: bytes) -> None:
    with agent.reports.open(1) as worker:
        before = sorted(os.listdir("/proc/self/fd"))
        socket.send_fds(worker, [packet], [0, 1])
        agent.hears()
        assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_packet_of_another_type_goes_to_what_serves_it_with_its_descriptors(agent: Agent) -> None:
    kept: list[int] = []

    def keep(packet: Mapping[str, Any], descriptors: list[int]) -> bool:
        if packet.get("name") != "a":
            raise ValueError("it has no name")
        kept.append(descriptors.pop(0))
        return True

    agent.reports.obey = keep
    with agent.reports.open(1) as worker:
        socket.send_fds(worker, [b'{"type": "keep", "name": "a"}'], [0, 1])
        assert agent.hears() == []
        before = sorted(os.listdir("/proc/self/fd"))
        assert os.path.sameopenfile(kept[0], 0)
        assert not os.get_inheritable(kept[0])
        socket.send_fds(worker, [b'{"type": "keep"}'], [0, 1])
        assert agent.hears() == [NotUnderstood(1, "it has no name")]
        assert sorted(os.listdir("/proc/self/fd")) == before
    os.close(kept[0])


@pytest.mark.parametrize(
    ("packet", "last", "leaves"),
    [
        (b'{"type": "step", "step": 7}', 7, False),
        (b'{"type": "step", "step": 7, "ahead": 2}', 9, False),
        (b'{"type": "leaves", "step": 7}', 7, True),
    ],
)
def test_a_step_is_understood(agent: Agent, packet: bytes, last: int, leaves: bool) -> None:
    reported, seen = Reported(), list[Progress]()
    with agent.reports.open(3, reported, seen.append) as worker:
        worker.send(packet)
        worker.send(packet)
        assert agent.hears() == [Stepped(3)], "the first one is told"
    assert (reported.step, reported.leaves) == (last, leaves)
    assert seen == [Progress(step=7)] * 2


@pytest.mark.parametrize(
    ("packet", "progress"),
    [
        (b'{"type": "progress", "step": 7}', Progress(step=7)),
        (b'{"type": "progress", "loss": 0.5, "epoch": 1}', Progress(loss=0.5, epoch=1.0)),
        (b'{"type": "progress", "loss": -Infinity, "x": 1}', Progress(loss=-math.inf)),
    ],
)
def test_progress_is_understood(agent: Agent, packet: bytes, progress: Progress) -> None:
    seen: list[Progress] = []
    with agent.reports.open(3, None, seen.append) as worker:
        worker.send(packet)
        assert agent.hears() == []
    assert seen == [progress]


@pytest.mark.parametrize("step", [b"-1", b"1.5", b'"7"', b"null", b"9007199254740992", b"[1]"])
def test_a_report_of_an_invalid_step_is_ignored_for_a_reason(agent: Agent, step: bytes) -> None:
    for kind in (b"step", b"leaves"):
        packet = b'{"type": "%s", "step": %s}' % (kind, step)
        assert agent.understands(packet) == NotUnderstood(3, "it reports a step, but names none")
    packet = b'{"type": "step", "step": 7, "ahead": %s}' % step
    assert agent.understands(packet) == NotUnderstood(3, "it reports steps ahead, but not how many")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (b"", "it reports none of step, loss, samples, epoch"),
        (b', "step": "7"', "its step is no whole number"),
        (b', "step": 7, "loss": true', "its loss is no number"),
        (b', "samples": -1', "its samples is out of range"),
    ],
)
def test_a_report_of_invalid_progress_is_ignored_for_a_reason(agent: Agent, fields: bytes, why: str) -> None:
    told = agent.understands(b'{"type": "progress"%s}' % fields)
    assert isinstance(told, NotUnderstood)
    assert told.why.startswith(why)


def test_that_a_program_is_over_is_heard_of_again_much_later_and_once(agent: Agent) -> None:
    with agent.reports.open(1) as worker:
        for _ in range(3):
            worker.send(b'{"type": "over"}')
        assert agent.hears() == []
        assert agent.delivered == [(agent.time + LINGERING, Lingers(1))]


@pytest.mark.parametrize("end", ["over", "failed"])
def test_a_worker_whose_program_has_ended_is_ending(agent: Agent, end: str) -> None:
    reported = Reported()
    with agent.reports.open(1, reported) as worker:
        worker.send(b'{"type": "%s"}' % end.encode())
        agent.hears()
        assert reported.over


@pytest.mark.parametrize(
    ("packet", "terminated"),
    [
        (b'{"type": "over", "terminated": true}', True),
        (b'{"type": "over", "terminated": 1}', False),
        (b'{"type": "over"}', False),
        (b'{"type": "failed", "terminated": true}', False),
        (INITIALIZED, False),
    ],
)
def test_a_worker_whose_program_handled_sigterm_and_ended_was_terminated(
    agent: Agent, packet: bytes, terminated: bool
) -> None:
    reported = Reported()
    with agent.reports.open(1, reported) as worker:
        worker.send(packet)
        agent.hears()
        assert reported.terminated is terminated


def test_the_agent_gets_a_second_for_a_signal_of_its_own(agent: Agent) -> None:
    agent.reports.note_terminated(1)
    assert agent.delivered == [(agent.time + OWN_SIGNAL_SECONDS, Terminated(1))]


def test_a_notice_goes_to_the_worker_that_it_is_for(agent: Agent) -> None:
    with agent.reports.open(1) as first, agent.reports.open(2) as second:
        assert agent.reports.tell(2, {"type": "go_on"})
        assert second.recv(100) == b'{"type": "go_on"}'
        first.setblocking(False)
        with pytest.raises(BlockingIOError):
            first.recv(100)
    assert not agent.reports.tell(3, {"type": "go_on"}), "there is no such worker"


def test_a_worker_that_reads_nothing_holds_nobody_up(agent: Agent) -> None:
    with agent.reports.open(1):
        while agent.reports.tell(1, {"type": "go_on"}):
            pass


def test_drain_takes_in_every_report_that_waits(agent: Agent) -> None:
    one, two = Reported(), Reported()
    with agent.reports.open(1, one) as first, agent.reports.open(2, two) as second:
        for step in range(PACKETS_MAX + 5):  # more than is listened to in a second
            first.send(b'{"type": "step", "step": %d}' % step)
            if step == PACKETS_MAX:
                agent.hears()
        second.send(INITIALIZED)
        second.send(b"hello")
        second.send(b'{"type": "step", "step": 3}')
        assert agent.reports.drain()
        assert (one.step, two.step) == (PACKETS_MAX + 4, 3)
        assert agent.delivered == [
            (agent.time, Initialized(2)),
            (agent.time, NotUnderstood(2, "it is not JSON")),
            (agent.time, Stepped(2)),
        ]


def test_of_a_worker_that_is_gone_what_it_had_reported_is_known(agent: Agent) -> None:
    reported = Reported()
    with agent.reports.open(1, reported) as worker:
        worker.send(b'{"type": "step", "step": 3}')
    assert agent.reports.drain()
    assert reported.step == 3
