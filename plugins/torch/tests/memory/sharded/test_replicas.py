"""A rank's own snapshots: what has to stay stays, in as few buffers as that takes."""

from __future__ import annotations

import socket

import pytest
import torch

from elastic_torch.memory.buffers import MOST, Buffers
from elastic_torch.memory.sharded.plan import HeldPart
from elastic_torch.memory.sharded.replicator import Replicas
from elastic_torch.state.state_tree import take_apart
from elastic_torch.version import Stamp


def commit(pool: Buffers, step: int, round_: int = 1) -> None:
    said, tensors = take_apart({"w": torch.full((10,), float(step))})
    pool.keep(Stamp(round_, step), {"rank": 0, "world": 1, "tree": said}, tensors)


def steps(pool: Buffers) -> list[int]:
    return sorted(stamp.step for stamp in pool.stamps())


@pytest.mark.usefixtures("agent")
def test_without_replicas_there_are_two_slots() -> None:
    pool = Buffers("train", 0, MOST)
    for step in range(1, 6):
        commit(pool, step)
    assert steps(pool) == [4, 5]
    assert steps(Buffers("train", 0, MOST)) == [4, 5]


@pytest.mark.usefixtures("agent")
def test_a_pinned_state_stays_beside_the_newest() -> None:
    pinned: list[Stamp] = []
    pool = Buffers("train", 0, MOST, pinned=lambda: pinned)
    for step in range(1, 20):
        commit(pool, step)
        if step in (3, 7, 11, 15):
            pinned = [*pinned, Stamp(1, step)][-2:]  # the one that is safe, and the one on its way
        assert set(steps(pool)) >= {step, *(stamp.step for stamp in pinned)}
        assert len(steps(pool)) <= MOST
        assert all(pool.buffer_of(stamp) is not None for stamp in pinned)


@pytest.mark.usefixtures("agent")
def test_fast_replicas_need_three_slots() -> None:
    pinned: list[Stamp] = []
    pool = Buffers("train", 0, MOST, pinned=lambda: pinned)
    for step in range(1, 10):
        commit(pool, step)
        pinned = [Stamp(1, step)]  # at once
    assert len(steps(pool)) == 2
    for step in range(10, 20):
        commit(pool, step)
        pinned = [Stamp(1, step - 1), Stamp(1, step)]
    assert len(steps(pool)) == 3


@pytest.mark.usefixtures("agent")
def test_the_restored_state_stays_until_the_first_commit_is_whole() -> None:
    pool = Buffers("train", 0, MOST)
    commit(pool, 4)
    commit(pool, 5)
    later = Buffers("train", 0, MOST)
    later.go_back_to(Stamp(1, 4))
    commit(later, 5, round_=2)
    assert set(later.stamps()) == {Stamp(1, 4), Stamp(2, 5)}


def test_replicas_are_found_by_the_next_rounds_worker_and_the_safe_one_stays(agent: socket.socket) -> None:
    replicas, safe = Replicas("train", 1), None
    for step in range(1, 5):
        said, tensors = take_apart({"w": torch.full((10,), float(step))})
        buffer = replicas.room(0, 1 << 16, safe)
        assert safe is None or safe in {holding.stamp for holding in replicas.holdings()}
        assert buffer.write(Stamp(1, step), {"rank": 3, "world": 4, "tree": said}, tensors)
        safe = Stamp(1, step)
    later = Replicas("train", 1)
    assert set(later.holdings()) == {HeldPart(Stamp(1, 3), 3, 4), HeldPart(Stamp(1, 4), 3, 4)}
    assert Replicas("train", 0).holdings() == {}
    later.let_go(0)
    assert Replicas("train", 1).holdings() == {}
