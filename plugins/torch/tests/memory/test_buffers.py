"""The two buffers of a worker, kept by an agent over rounds."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch

from elastic_core.errors import ResourceError, UsageError
from elastic_core.worker.channel import CONTROL_VARIABLE, KIND
from elastic_torch.memory import buffers
from elastic_torch.memory.buffers import Buffers, read_note
from elastic_torch.memory.tier import MemoryTier
from elastic_torch.state.state_exchange import Peers
from elastic_torch.state.state_tree import take_apart
from elastic_torch.version import Stamp


def commit(memory: Buffers, round_: int, step: int, size: int = 10) -> None:
    memory.keep(Stamp(round_, step), *take_apart({"w": torch.full((size,), float(step))}))


def value(memory: Buffers, round_: int, step: int) -> float:
    return float(memory.snapshot(Stamp(round_, step)).views[0][-1])


def test_the_next_rounds_worker_finds_the_last_two(agent: socket.socket) -> None:
    memory = Buffers("train", 0)
    assert memory.stamps() == ()
    for step in (1, 2, 3):
        commit(memory, 1, step)
    assert memory.stamps() == (Stamp(1, 3), Stamp(1, 2))
    later = Buffers("train", 0)
    assert later.stamps() == (Stamp(1, 3), Stamp(1, 2))
    assert value(later, 1, 2) == 2.0
    assert Buffers("train", 1).stamps() == ()
    assert Buffers("other", 0).stamps() == ()


def test_a_commit_leaves_the_one_that_was_gone_back_to(agent: socket.socket) -> None:
    memory = Buffers("train", 0)
    commit(memory, 1, 1)
    commit(memory, 1, 2)
    later = Buffers("train", 0)
    assert value(later, 1, 1) == 1.0
    commit(later, 2, 2)
    assert later.stamps() == (Stamp(2, 2), Stamp(1, 1))


def test_a_snapshot_of_another_release_is_none_and_that_is_said(
    agent: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    memory = Buffers("train", 0)
    commit(memory, 1, 1)
    kept = memory.buffer_of(Stamp(1, 1))
    assert kept is not None
    os.pwrite(kept.fd, b"elastic2", 0)
    assert Buffers("train", 0).stamps() == ()
    assert "The snapshot train/0/0 in memory is of another release of elastic-torch" in caplog.text


def test_a_state_that_grows_moves(agent: socket.socket) -> None:
    memory = Buffers("train", 0)
    for step in range(1, 5):
        commit(memory, 1, step, size=100_000 * step)
    assert Buffers("train", 0).stamps() == (Stamp(1, 4), Stamp(1, 3))
    assert value(memory, 1, 4) == 4.0


def test_a_commit_that_was_not_finished_leaves_the_one_before(agent: socket.socket) -> None:
    memory = Buffers("train", 0)
    commit(memory, 1, 1)
    commit(memory, 1, 2)
    kept = memory.buffer_of(Stamp(1, 2))
    assert kept is not None
    kept.begin()
    later = Buffers("train", 0)
    assert later.stamps() == (Stamp(1, 1),)
    commit(later, 2, 2)
    assert later.stamps() == (Stamp(2, 2), Stamp(1, 1))


def test_two_states_of_one_name_are_refused(agent: socket.socket) -> None:
    first, second = Buffers("train", 0), Buffers("train", 0)
    commit(first, 1, 1)
    commit(second, 1, 1)
    with pytest.raises(UsageError, match="Two training states of this worker are named 'train'"):
        commit(first, 1, 2)
    commit(Buffers("other", 0), 1, 1)


def test_a_buffer_that_the_agent_does_not_keep_is_released(
    agent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, fd: int) -> bool:
        refused.append(fd)
        raise ResourceError("there are too many")

    refused: list[int] = []
    monkeypatch.setattr("elastic_torch.memory.buffers.hold", refuse)
    memory = Buffers("train", 0)
    with pytest.warns(UserWarning, match="No snapshots are kept in memory from here on: there are too many"):
        commit(memory, 1, 1)
    [fd] = refused
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_an_agent_that_does_not_say_what_it_keeps_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(*KIND)
    monkeypatch.setenv(CONTROL_VARIABLE, str(theirs.fileno()))
    monkeypatch.setattr("elastic_torch.memory.buffers.ANSWER", 0.01)
    with ours, theirs, pytest.raises(ResourceError, match="so what it keeps of the training is not known"):
        Buffers("train", 0)


def test_without_an_agent_nothing_outlives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONTROL_VARIABLE, raising=False)
    assert not Buffers("train", 0).outlives


def test_training_goes_on_where_there_is_no_memory(agent: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "available_memory", lambda: 0)
    memory = Buffers("train", 0)
    with pytest.warns(UserWarning, match="No snapshots are kept in memory from here on: There is no memory for"):
        commit(memory, 1, 1)
    assert not memory.outlives


def test_it_ends_where_there_is_memory_for_one_and_not_for_two(
    agent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter([1 << 40, 0])
    monkeypatch.setattr(buffers, "available_memory", lambda: next(left))
    memory = Buffers("train", 0)
    commit(memory, 1, 1)
    assert memory.outlives
    with pytest.warns(UserWarning, match="No snapshots are kept in memory from here on: There is no memory for"):
        commit(memory, 1, 2)
    assert not memory.outlives


@pytest.mark.usefixtures("agent")
def test_a_snapshot_from_before_a_ranks_memory_ended_takes_no_rank_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two(Peers):
        def gather_stamps(self, stamps: Iterable[Stamp]) -> list[list[Stamp]]:
            return [list(stamps), [Stamp(1, 4), Stamp(1, 3)]]

        def gather_json(self, value: Any) -> list[Any]:
            return [value, None]

    first = MemoryTier(Buffers("train", 0), Two())
    for step in (1, 2, 3):
        first.keep(Stamp(1, step), lambda: [{"w": torch.ones(10)}, {}])
    monkeypatch.setattr(buffers, "available_memory", lambda: 0)
    with pytest.warns(UserWarning, match="No snapshots are kept"):
        first.keep(Stamp(1, 4), lambda: [{"w": torch.ones(100_000)}, {}])
    assert MemoryTier(Buffers("train", 0), Two()).meet() == Stamp(1, 3), "which all have"
    assert not first.has(Stamp(1, 5))
    assert first.has(Stamp(1, 4)), "as far as somebody has it"
    assert MemoryTier(Buffers("train", 0), Two()).meet() == Stamp(1, 4)


def test_a_state_that_grows_before_its_second_commit_gets_room(agent: socket.socket) -> None:
    memory = Buffers("train", 0)
    for step, size in enumerate((10, 1_000_000, 10, 2_000_000), start=1):
        commit(memory, 1, step, size=size)
    later = Buffers("train", 0)
    assert later.stamps() == (Stamp(1, 4), Stamp(1, 3))
    assert (value(later, 1, 3), value(later, 1, 4)) == (3.0, 4.0)


@pytest.mark.usefixtures("agent")
def test_the_snapshot_of_a_round_that_ended_in_its_first_commit_is_dropped() -> None:
    class Two(Peers):
        def gather_stamps(self, stamps: Iterable[Stamp]) -> list[list[Stamp]]:
            return [list(stamps), []]

        def gather_json(self, value: Any) -> list[Any]:
            return [value, round_ - 1]

    def state(step: int) -> list[Any]:
        return [{"w": torch.full((10,), float(step))}, {}]

    for round_ in (1, 2):
        first = MemoryTier(Buffers("train", 0), Two())
        assert first.meet() is None
        first.go_on(Stamp(round_, 0), partial(state, 0))
        assert read_note("train/0/began") == b"%d" % round_
        first.keep(Stamp(round_, 1), partial(state, 1))
        assert read_note("train/0/began") is None
        assert Buffers("train", 0).stamps() == (Stamp(round_, 1),), "and none of a round before"
    first.keep(Stamp(2, 2), partial(state, 2))
    round_ = 3
    assert MemoryTier(Buffers("train", 0), Two()).meet() == Stamp(2, 2), "the other one's memory has ended"
