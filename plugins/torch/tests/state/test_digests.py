"""Differences between ranks are found, and named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from elastic_core.errors import UsageError
from elastic_torch.state.components import Comparison, Components, differences
from elastic_torch.state.state_exchange import Peers
from elastic_torch.state.state_tree import packed, unpacked


class Other(Peers):
    """Two ranks, of which the other one said what it has before."""

    def __init__(self, said: Iterator[torch.Tensor] | None = None) -> None:
        super().__init__()
        self.mine, self._theirs = list[torch.Tensor](), said

    def differing(self, numbers: torch.Tensor) -> list[int]:
        self.mine.append(numbers)
        theirs = numbers if self._theirs is None else next(self._theirs)
        return [int(index) for index in (numbers != theirs).nonzero().flatten()]


def state(**changed: Any) -> dict[str, Any]:
    model = {
        "weight": torch.arange(6.0).reshape(2, 3),
        "bias": torch.ones(3, dtype=torch.bfloat16),
        "none": torch.empty(0),
    }
    return {"model": model, "optimizer": {"lr": 0.1, "betas": (0.9, 0.99), "state": {0: {"step": 3}}}, **changed}


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (state(), []),
        (state(model={**state()["model"], "weight": torch.arange(6.0).reshape(3, 2).T}), ["model['weight']"]),
        (state(model={**state()["model"], "bias": torch.zeros(3, dtype=torch.bfloat16)}), ["model['bias']"]),
        (state(optimizer={**state()["optimizer"], "betas": (0.9, 0.98)}), ["optimizer['betas'][1]"]),
        (state(optimizer={**state()["optimizer"], "state": {}}), ["optimizer (what it consists of)"]),
        (state(more={}), ["the names of the parts"]),
    ],
)
def test_differences_are_named(other: dict[str, Any], named: list[str]) -> None:
    first = Other()
    differences(first, other)
    assert differences(Other(iter(first.mine)), state()) == named


def test_packed_states_are_unpacked_to_the_last_bit() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    kept = {"model": dict(model.state_dict()), 3: (1.5, None, b"x"), "empty": torch.empty(0, 2)}
    again = unpacked(packed(kept))
    assert again[3] == (1.5, None, b"x")
    assert again["empty"].shape == (0, 2)
    assert all(torch.equal(a, again["model"][name]) for name, a in model.state_dict().items())


class Two(Peers):
    """A rank of two, which differ in the numbers at some places."""

    def __init__(self, rank: int, *places: int) -> None:
        super().__init__()
        self._rank, self.places = rank, list(places)

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world(self) -> int:
        return 2

    def differing(self, numbers: torch.Tensor) -> list[int]:
        return [place for place in self.places if len(numbers) > 3]


COMMON = Components(nn.Linear(1, 1), None, None, None, {})
STATE = {"numbers": {"a": 1, "b": 2, "c": 3, "d": 4}}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_difference_in_the_first_step_is_an_error_on_all_ranks(rank: int) -> None:
    with pytest.raises(UsageError, match=r"declared to be the same on all of them: numbers\['b'\]\. A rank"):
        Comparison(Two(rank, 1)).make(STATE, COMMON, first=True)


def test_a_later_difference_is_a_warning_of_rank_0_once_for_each_place() -> None:
    peers = Two(0, 1)
    comparison = Comparison(peers)
    with pytest.warns(UserWarning, match=r"all of them: numbers\['b'\]\. .* Until then each goes on with its own"):
        comparison.make(STATE, COMMON, first=False)
    comparison.make(STATE, COMMON, first=False)
    peers.places.append(3)
    with pytest.warns(UserWarning, match=r"all of them: numbers\['d'\]\. "):
        comparison.make(STATE, COMMON, first=False)
    Comparison(Two(1, 1)).make(STATE, COMMON, first=False)


def test_ranks_are_compared_seldom() -> None:
    comparison = Comparison(Two(0))
    assert [commits for commits in range(1, 20_000) if comparison.due(commits)] == [1, 10, 100, 1000, 10_000]
    assert not Comparison(Peers()).due(1), "alone"
