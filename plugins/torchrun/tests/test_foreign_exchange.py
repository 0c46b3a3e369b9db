"""Nodes of a round tell each other who they are, over stores of every kind that handlers return."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_core.errors import RendezvousStateError, RendezvousTimeoutError
from elastic_core.protocol.entries import Member, Offer, Round, place
from elastic_torchrun.foreign import exchange
from elastic_torchrun.foreign.exchange import Cancelled, Card, Waiting
from elastic_torchrun.rendezvous_api import BootstrapStoreInfo, RendezvousInfo

PATIENCE = 30.0


class Plain:
    """The least that a store can be: ``get`` raises KeyError."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def set(self, key: str, value: Any) -> None:
        self.kept[key] = value

    def get(self, key: str) -> Any:
        return self.kept[key]


class Shy(Plain):
    """``get`` returns None for what is not there."""

    def get(self, key: str) -> Any:
        return self.kept.get(key)


class Patient(Plain):
    """``get`` blocks until the key is there."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()

    def set(self, key: str, value: Any) -> None:
        with self.changed:
            self.kept[key] = value
            self.changed.notify_all()

    def get(self, key: str) -> Any:
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.kept, PATIENCE)
            return self.kept[key]


class Torchs(Patient):
    """As torch's: bytes, ``check``, and ``multi_get``, which blocks."""

    def set(self, key: str, value: Any) -> None:
        super().set(key, value.encode())

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self.kept for key in keys)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [self.get(key) for key in keys]


class Clock:
    """Time that passes only during a wait."""

    def __init__(self, give_up: bool = False) -> None:
        self.time = 0.0
        self.give_up = give_up

    def pause(self, seconds: float) -> bool:
        self.time += seconds
        return self.give_up

    @property
    def waiting(self) -> Waiting:
        return Waiting(self.pause, lambda: self.time)


def card(name: str, size: int = 2, role: str = "default", **more: Any) -> Card:
    return Card(node_id=name, host=f"host-{name}", role=role, local_world_size=size, **more)


# What a handler answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(("store", 1, 2), id="a tuple"),
        pytest.param(RendezvousInfo("store", 1, 2), id="ours"),
        pytest.param(SimpleNamespace(store="store", rank=1, world_size=2), id="torch's"),
    ],
)
def test_a_handler_may_answer_in_three_ways(answer: Any) -> None:
    assert exchange.parse_answer(answer) == RendezvousInfo("store", 1, 2)


def test_where_a_handler_wants_the_workers_store_is_taken_over() -> None:
    told = SimpleNamespace(master_addr="10.0.0.1", master_port=29500)
    answer = SimpleNamespace(store="store", rank=0, world_size=1, bootstrap_store_info=told)
    assert exchange.parse_answer(answer).bootstrap_store_info == BootstrapStoreInfo("10.0.0.1", 29500)


def test_a_node_by_itself_needs_no_store() -> None:
    assert exchange.parse_answer((None, 0, 1)) == RendezvousInfo(None, 0, 1)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (None, "returned None, which is not"),
        (("store", 1), "is not (store, rank, world_size)"),
        (("store", "first", 2), "is not (store, rank, world_size)"),
        (("store", 0.5, 2), "is not (store, rank, world_size)"),
        (("store", 2, 2), "returned rank 2 of 2 node(s)"),
        (("store", -1, 2), "returned rank -1 of 2 node(s)"),
        ((None, 0, 2), "returned no store for a round of 2 nodes"),
    ],
)
def test_an_answer_that_cannot_be_is_refused(answer: Any, fault: str) -> None:
    with pytest.raises(RendezvousStateError) as refused:
        exchange.parse_answer(answer)
    assert fault in refused.value.message


# Where a shared store is ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "info",
    [
        pytest.param(RendezvousInfo(object(), 0, 1, BootstrapStoreInfo("10.0.0.1", 29500)), id="the handler says"),
        pytest.param(RendezvousInfo(SimpleNamespace(host="10.0.0.1", port=29500), 0, 1), id="the store says"),
        pytest.param(
            RendezvousInfo(
                SimpleNamespace(underlying_store=SimpleNamespace(host="10.0.0.1", port=29500), host="no", port=0), 0, 1
            ),
            id="the store inside says",
        ),
    ],
)
def test_workers_are_told_where_a_shared_store_is(info: RendezvousInfo) -> None:
    assert exchange.shared_store(info, "id") == Offer("10.0.0.1", 29500, "id", hosted=True)


def test_a_shared_store_without_an_address_is_refused() -> None:
    with pytest.raises(RendezvousStateError, match="does not say where it is"):
        exchange.shared_store(RendezvousInfo(Plain(), 0, 1), "id")


# Cards ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Plain, Shy, Patient, Torchs])
def test_all_nodes_learn_the_same_whatever_the_store(kind: Callable[[], Any]) -> None:
    store, cards = kind(), [card(name, size) for name, size in (("a", 1), ("b", 3), ("c", 2))]
    found: dict[int, tuple[Card, ...]] = {}
    ended = threading.Event()

    def node(rank: int) -> None:
        found[rank] = exchange.exchange(RendezvousInfo(store, rank, 3), cards[rank], Waiting(ended.wait))

    nodes = [threading.Thread(target=node, args=(rank,)) for rank in (2, 1, 0)]
    for thread in nodes:
        thread.start()
    for thread in nodes:
        thread.join(PATIENCE)
    assert found == dict.fromkeys(range(3), tuple(cards))


def test_a_node_by_itself_tells_nobody() -> None:
    assert exchange.exchange(RendezvousInfo(None, 0, 1), card("a"), Clock().waiting) == (card("a"),)


def test_ranks_of_a_round_count_within_a_role_and_over_unequal_nodes() -> None:
    place_of_store = {"address": "10.0.0.1", "port": 29500, "hosted": True}
    cards = [card("a", 1, "actor", **place_of_store), card("b", 3, "critic"), card("c", 2, "actor")]
    wanted = Round(number=4, offer=Offer("", 0, "other"), same_as=3, why="a node waits")
    sealed = exchange.make_round(wanted, cards, "id")
    assert (sealed.number, sealed.why, sealed.same_as) == (4, "a node waits", 0)
    assert sealed.offer == Offer("10.0.0.1", 29500, "id", hosted=True)
    assert sealed.hosts == ("host-a", "host-b", "host-c")
    assert sealed.members == (Member("a", 1, "actor"), Member("b", 3, "critic"), Member("c", 2, "actor"))
    mine = place(sealed.members, "c")
    assert (mine.first_rank, mine.world_size, mine.group_rank) == (4, 6, 2)
    assert (mine.first_role_rank, mine.role_world_size) == (1, 3)


def test_a_node_that_does_not_identify_itself_is_named() -> None:
    clock = Clock()
    with pytest.raises(RendezvousTimeoutError, match=r"Of 3 nodes of the round, node 0, 2 did not say who it is"):
        exchange.exchange(RendezvousInfo(Plain(), 1, 3), card("b"), clock.waiting)
    assert clock.time >= exchange.CARD_WAIT_SECONDS


def test_a_wait_can_be_cut_short() -> None:
    with pytest.raises(Cancelled):
        exchange.exchange(RendezvousInfo(Plain(), 0, 2), card("a"), Clock(give_up=True).waiting)


def test_two_nodes_with_one_place_are_refused() -> None:
    store = Plain()
    store.set(f"{exchange.CARD_KEY_PREFIX}1", json.dumps(asdict(card("a"))))
    with pytest.raises(RendezvousStateError, match="have one place, or one id"):
        exchange.exchange(RendezvousInfo(store, 0, 2), card("a"), Clock().waiting)


GOOD = asdict(card("b"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "[]",
        "{}",
        json.dumps({**GOOD, "more": 1}),
        json.dumps({**GOOD, "local_world_size": 0}),
        json.dumps({**GOOD, "local_world_size": True}),
        json.dumps({**GOOD, "local_world_size": "2"}),
        json.dumps({**GOOD, "restarts": -1}),
        json.dumps({**GOOD, "port": 1 << 16}),
        json.dumps({**GOOD, "node_id": None}),
        json.dumps({**GOOD, "hosted": 1}),
        json.dumps({**GOOD, "role": "x" * exchange.CARD_MAX_BYTES}),
        7,
        b"\xff",
    ],
)
def test_a_card_is_believed_in_nothing(text: Any) -> None:
    store = Plain()
    store.set(f"{exchange.CARD_KEY_PREFIX}1", text)
    with pytest.raises(RendezvousStateError, match="What node 1 says of itself cannot be read"):
        exchange.exchange(RendezvousInfo(store, 0, 2), card("a"), Clock().waiting)


# The end -------------------------------------------------------------------------------------------------------------


def test_a_finished_node_waits_for_the_others() -> None:
    store, clock = Plain(), Clock()
    assert exchange.finish(RendezvousInfo(store, 1, 3), 5.0, clock.waiting) == [0, 2]
    assert clock.time >= 5.0
    assert exchange.finish(RendezvousInfo(store, 0, 3), 5.0, clock.waiting) == [2]
    before = clock.time
    assert exchange.finish(RendezvousInfo(store, 2, 3), 5.0, clock.waiting) == []
    assert clock.time == before


def test_a_node_by_itself_waits_for_nobody() -> None:
    assert exchange.finish(RendezvousInfo(None, 0, 1), 5.0, Clock().waiting) == []
