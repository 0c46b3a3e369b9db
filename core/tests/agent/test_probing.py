"""Probes over real sockets: who answers, who refuses, and who is not there."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from queue import Queue

import pytest
from views import info, members, offer

from elastic_core.agent.probing import (
    SPREAD_MAX_SECONDS,
    Isolation,
    ProbePort,
    ProbeTarget,
    neighbours,
    spread,
    targets,
    unreachable,
)
from elastic_core.protocol.entries import Member, Offer, Round
from elastic_core.protocol.node_events import Probed
from elastic_core.protocol.roster import NodeInfo
from elastic_core.session.runtime import RUNTIME

PATIENCE = 60.0


@pytest.fixture
def probe_port() -> Iterator[ProbePort]:
    with closing(ProbePort("127.0.0.1")) as found:
        yield found


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def full() -> Iterator[int]:
    """A port with a listener that never answers: it looks like a cut cable."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        waiting = []
        for _ in range(4):  # until the queue is full, and the kernel drops what comes
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(address)
            waiting.append(client)
        yield address[1]
        for client in waiting:
            client.close()


def test_a_connection_that_comes_while_no_descriptor_is_free_stays_until_one_is(probe_port: ProbePort) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    clients = [socket.create_connection(("127.0.0.1", probe_port.port)) for _ in range(3)]
    fillers = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                fillers.append(os.open(os.devnull, os.O_RDONLY))
        probe_port.close_probes()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)
    probe_port.close_probes()
    for client in clients:
        client.settimeout(PATIENCE)
        assert client.recv(1) == b""
        client.close()


def test_the_members_of_a_large_round_do_not_probe_rank_0_all_at_once() -> None:
    many = tuple(Member(f"{i:04}", 2, "default") for i in range(2000))
    current = Round(number=3, offer=offer("a"), members=many)
    tenths = Counter(int(10 * spread(current, member.node_id) / SPREAD_MAX_SECONDS) for member in many)
    assert tenths.keys() == set(range(10))
    assert max(tenths.values()) < len(many) / 5
    assert spread(a_round("abcd"), "b") == 0


def a_round(names: str, **more: Offer) -> Round:
    return Round(number=3, offer=more.get("offer", offer(names[0])), members=members(names))


@pytest.mark.parametrize(
    ("names", "node_id", "expected"),
    [("abcd", "b", "ac"), ("abcd", "a", "db"), ("abcd", "d", "ca"), ("abc", "b", "ac"), ("ab", "a", "b")],
)
def test_neighbours_stand_in_a_ring(names: str, node_id: str, expected: str) -> None:
    assert "".join(neighbours(a_round(names), node_id)) == expected


def test_a_member_probes_its_neighbours_doors_and_rank_0s_store() -> None:
    hosted = replace(offer("a"), hosted=True)
    known = [replace(info("b"), address="10.0.0.2", port=7), replace(info("d"), address="10.0.0.4", port=9), info("x")]
    assert targets(a_round("abcd", offer=hosted), "c", known) == [
        ProbeTarget("b", "10.0.0.2", 7),
        ProbeTarget("d", "10.0.0.4", 9),
        ProbeTarget("a", hosted.address, hosted.port),
    ]
    assert targets(a_round("abcd"), "a", known[:1]) == [ProbeTarget("b", "10.0.0.2", 7)]


def test_a_port_is_reached_however_often(probe_port: ProbePort) -> None:
    for _ in range(3):
        assert unreachable([ProbeTarget("b", "127.0.0.1", probe_port.port)] * 5) == ()
        probe_port.close_probes()


def test_a_refusal_is_an_answer(free_port: int) -> None:
    """Rank 0's worker listened there, or an agent, and is gone; its host is not."""
    assert unreachable([ProbeTarget("b", "127.0.0.1", free_port)]) == ()


def test_silence_is_not_waited_for_longer_than_said(probe_port: ProbePort, full: int) -> None:
    aims = [
        ProbeTarget("b", "127.0.0.1", full),
        ProbeTarget("c", "127.0.0.1", probe_port.port),
        ProbeTarget("b", "127.0.0.1", full),
    ]
    assert unreachable(aims, patience=0.2) == ("b",)


def test_an_address_that_none_can_reach_is_unreachable_at_once() -> None:
    assert unreachable([ProbeTarget("b", "255.255.255.255", 7)]) == ("b",)


def test_the_result_of_a_probe_is_posted(probe_port: ProbePort) -> None:
    posted: Queue[Probed] = Queue()

    def look_up(ids: Sequence[str], answer: Callable[[list[NodeInfo]], None]) -> None:
        assert ids == ("a", "c")
        where = {"a": "127.0.0.1", "c": "255.255.255.255"}
        answer([replace(info(name), address=where[name], port=probe_port.port) for name in ids])

    current = a_round("abc", offer=Offer("127.0.0.1", probe_port.port, "x", hosted=True))
    Isolation("b", look_up, RUNTIME).probe(current, posted.put)
    assert posted.get(timeout=PATIENCE) == Probed(3, ("c",))


def test_a_probe_that_cannot_be_tried_blames_no_node() -> None:
    posted: Queue[Probed] = Queue()

    def exhausted(_aims: object) -> tuple[str, ...]:
        raise OSError(24, "Too many open files")

    Isolation("a", lambda ids, answer: answer([]), RUNTIME, exhausted).probe(a_round("ab"), posted.put)
    assert posted.get(timeout=PATIENCE) == Probed(3, ())
