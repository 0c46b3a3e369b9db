"""The worker's end of the control channel: a report gets out, or nothing happens at all."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from elastic_core.worker.channel import CONTROL_VARIABLE, INITIALIZED, KIND, report


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The agent's end, and that of a worker whose variable names it."""
    ours, theirs = socket.socketpair(*KIND)
    monkeypatch.setenv(CONTROL_VARIABLE, str(theirs.fileno()))
    with ours, theirs:
        yield ours, theirs


def test_a_report_is_one_packet_and_the_channel_stays_open(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = ends
    assert report(INITIALIZED)
    assert report(INITIALIZED)
    assert [ours.recv(100) for _ in range(2)] == [b'{"type": "initialized"}'] * 2


def test_an_agent_that_does_not_read_holds_nobody_up(ends: tuple[socket.socket, socket.socket]) -> None:
    while report(INITIALIZED):
        pass


def test_an_agent_that_is_gone_is_nobodys_trouble(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].close()
    assert not report(INITIALIZED)


@pytest.mark.parametrize("number", [None, "", "no number", "-1", "999999"])
def test_without_a_channel_nothing_is_reported(number: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if number is None:
        monkeypatch.delenv(CONTROL_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(CONTROL_VARIABLE, number)
    assert not report(INITIALIZED)


def test_nothing_is_written_to_another_file_that_has_got_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    ours, theirs = socket.socketpair()
    with open(reading, "rb") as file, ours, theirs:
        for number in (writing, theirs.fileno()):
            monkeypatch.setenv(CONTROL_VARIABLE, str(number))
            assert not report(INITIALIZED)
            os.fstat(number)
        os.close(writing)
        assert file.read() == b""
        ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            ours.recv(1)
