"""The decision that the job has gone on without a node that reaches neither the store nor any peer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from views import info, live, settings

from elastic_core.agent.probing import Isolation, ProbeTarget
from elastic_core.config.parse import OnNodeLoss
from elastic_core.protocol.settings import Settings


class Bench:
    """A node of a round of a and b, whose threads run at once."""

    def __init__(self, me: str = "a", the_settings: Settings | None = None, *, reached: bool = False) -> None:
        self.at, self.probed, self.asked, self.reached = 1000.0, list[list[str]](), list[Sequence[str]](), reached
        self.ledger = live("ab", the_settings or settings(min_nodes=1))
        runtime: Any = SimpleNamespace(now=lambda: self.at, ask=self.ask)
        self.runtime, self.isolation = runtime, Isolation(me, self.look_up, runtime, self.find)
        assert self.ledger.round is not None
        self.round = self.ledger.round
        self.isolation.begin(self.round)

    def ask(self, ask: Any, then: Any, **_: Any) -> None:
        then(ask())

    def look_up(self, ids: Sequence[str], answer: Any) -> None:
        self.asked.append(ids)
        answer([replace(info(name), address="10.0.0.2", port=7) for name in ids])

    def find(self, aims: Sequence[ProbeTarget]) -> tuple[str, ...]:
        self.probed.append([aim.node_id for aim in aims])
        return () if self.reached else tuple(aim.node_id for aim in aims)

    def replaced(self, silent: float) -> bool:
        return self.isolation.is_replaced(self.at - silent, self.ledger)


def test_a_node_that_reaches_nothing_for_five_times_the_limit_may_be_replaced() -> None:
    bench = Bench()
    assert not bench.replaced(29.9)
    assert bench.probed == []
    assert bench.replaced(30.0)
    assert bench.probed == [["b"]]


def test_an_answer_that_comes_in_a_later_round_tells_nothing_of_that() -> None:
    bench, answers = Bench(), list[Any]()
    bench.look_up = lambda ids, answer: answers.append(answer)  # type: ignore[method-assign]
    bench.isolation = Isolation("a", bench.look_up, bench.runtime, bench.find)
    for _ in "12":
        bench.isolation.begin(bench.round)
    for answer, name in zip(answers, "cb", strict=True):
        answer([replace(info(name), address="10.0.0.2", port=7)])
    assert bench.replaced(30.0)
    assert bench.probed == [["b"]]


def test_while_a_peer_is_reached_only_the_store_is_away_and_the_workers_go_on() -> None:
    bench = Bench(reached=True)
    for silent in (30.0, 100.0, 400.0):
        bench.at += 10.0
        assert not bench.replaced(silent)
    assert len(bench.probed) == 3


def test_a_node_that_has_contact_again_is_not_taken_for_replaced() -> None:
    bench = Bench()
    assert bench.replaced(31.0)
    assert not bench.replaced(0.5)


def test_only_the_node_of_rank_0_asks_the_store_where_its_neighbours_are() -> None:
    assert Bench("a").asked == [("b",)]
    other = Bench("b")
    assert other.asked == []
    assert other.replaced(31.0)
    assert other.probed == [["a"]], "where the workers of rank 0 meet is known from the round"


@pytest.mark.parametrize(
    "the_settings",
    [settings(min_nodes=2), settings(min_nodes=1, on_node_loss=OnNodeLoss.FAIL)],
    ids=["the job needs it", "the loss of a node ends the job"],
)
def test_a_node_without_which_the_job_cannot_go_on_waits_for_its_fence(the_settings: Settings) -> None:
    bench = Bench(the_settings=the_settings)
    assert not bench.replaced(100.0)
    assert bench.probed == []


def test_without_a_peer_to_probe_nothing_is_known() -> None:
    bench = Bench()
    bench.isolation._known = []
    assert not bench.replaced(31.0)


def test_the_fence_comes_at_once_for_a_node_that_may_be_replaced_and_as_ever_for_others() -> None:
    for reached, seconds in ((False, 0.0), (True, 0.8 * 600.0 - 31.0)):
        bench = Bench(reached=reached)
        contact: Any = SimpleNamespace(at=bench.at - 31.0, known_at=bench.at - 31.0)
        assert bench.isolation.fence_in(contact, bench.ledger) == pytest.approx(seconds)
