"""The places that a node offers: each serves one round, and its store is told by its offer."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from elastic_core.agent.worker_store import OnePort, Stores
from elastic_core.errors import ElasticError
from elastic_core.warden.messages import ServiceEnded

ENTRY = "package.module:serve"


class Server:
    """A warden whose starter serves what it is asked for."""

    def __init__(self) -> None:
        self.serving: dict[int, dict[str, Any]] = {}

    def serve(self, tag: int, entry: str, arguments: dict[str, Any], *, descriptors: dict[str, int]) -> None:
        assert entry == ENTRY
        assert [*descriptors] == ["socket"]
        self.serving[tag] = arguments

    def end_service(self, tag: int) -> None:
        del self.serving[tag]


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def stores(server: Server) -> Iterator[Stores]:
    ids = map(str, itertools.count(1))
    found = Stores(server, "127.0.0.1", lambda: next(ids), served_by=ENTRY)  # type: ignore[arg-type]  # plays the warden
    yield found
    found.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def accepts(port: int) -> bool:
    """Return True if a client can connect there, whichever server answers."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=30).close()
    except ConnectionRefusedError:
        return False
    return True


def test_every_client_of_an_offer_is_let_in_before_the_store_is_up(stores: Stores, server: Server) -> None:
    offer = stores.offer()
    assert offer.hosted
    assert accepts(offer.port)
    assert server.serving == {1: {"host": "127.0.0.1", "port": offer.port}}


def test_a_store_is_kept_until_the_second_offer_after_its_own(stores: Stores, server: Server) -> None:
    first, second = stores.offer(), stores.offer()
    assert [*server.serving] == [1, 2]
    third = stores.offer()
    assert [*server.serving] == [2, 3]
    assert [accepts(offer.port) for offer in (first, second, third)] == [False, True, True]
    assert len({first.id, second.id, third.id}) == 3


def test_an_offer_that_is_renewed_unused_is_kept_for_one_more_and_the_one_in_use_all_along(
    stores: Stores, server: Server
) -> None:
    used, unused = stores.offer(), stores.offer()
    first = stores.offer(used)
    assert [accepts(offer.port) for offer in (used, unused, first)] == [True, True, True], "a round may be taking it"
    second = stores.offer(used)
    assert [*server.serving] == [1, 3, 4]
    assert [accepts(offer.port) for offer in (used, unused, first, second)] == [True, False, True, True]
    stores.offer(second)
    assert [*server.serving] == [4, 5], "the next round has begun there"


@pytest.mark.parametrize("end", [ServiceEnded(1, -9), ServiceEnded(1, None, "no descriptors are left")])
def test_the_end_of_a_store_names_its_offer(stores: Stores, end: ServiceEnded) -> None:
    first, second = stores.offer(), stores.offer()
    assert stores.handle(end) == first
    assert [stores.dead(offer) for offer in (first, second)] == [True, False]


def test_the_end_of_a_store_that_was_given_up_is_nobodys_affair(stores: Stores) -> None:
    for _ in range(3):
        stores.offer()
    assert stores.handle(ServiceEnded(1, -9)) is None


def test_a_store_that_dies_unused_does_not_put_the_one_in_use_in_its_place(stores: Stores, server: Server) -> None:
    used, unused = stores.offer(), stores.offer()
    assert stores.handle(ServiceEnded(2, -9)) == unused
    stores.offer()
    assert [*server.serving] == [1, 3]
    assert [accepts(offer.port) for offer in (used, unused)] == [True, False]
    assert stores.handle(ServiceEnded(1, -9)) == used


def test_without_a_starter_a_port_is_only_held(stores: Stores, server: Server) -> None:
    stores.stop_hosting()
    offer = stores.offer()
    assert not offer.hosted
    assert not accepts(offer.port)
    assert server.serving == {}


@pytest.mark.parametrize(
    ("ends", "hosted"),
    [
        pytest.param(
            [ServiceEnded(tag, None, "torch has no TCPStore") for tag in (1, 2, 3)], False, id="none can be served"
        ),
        pytest.param([ServiceEnded(tag, 1) for tag in (1, 2, 3)], False, id="none comes up"),
        pytest.param([ServiceEnded(tag, 1) for tag in (1, 2)], True, id="not yet given up"),
        pytest.param([ServiceEnded(tag, -9) for tag in (1, 2, 3, 4)], True, id="somebody kills them"),
    ],
)
def test_stores_that_fail_by_themselves_are_not_offered_for_ever(
    stores: Stores, ends: list[ServiceEnded], hosted: bool
) -> None:
    for end in ends:
        stores.offer()
        stores.handle(end)
    assert stores.offer().hosted is hosted


@pytest.fixture
def one_port(server: Server) -> Iterator[OnePort]:
    ids = map(str, itertools.count(1))
    found = OnePort(server, "127.0.0.1", lambda: next(ids), free_port(), served_by=ENTRY)  # type: ignore[arg-type]
    yield found
    found.close()


def test_rounds_of_one_port_have_a_store_each_one_after_the_other(one_port: OnePort, server: Server) -> None:
    first, second = one_port.offer(), one_port.offer()
    assert (first.port, first.hosted) == (second.port, second.hosted)
    assert first.id != second.id
    assert accepts(first.port), "connections wait for the store"
    assert server.serving == {}
    one_port.begin(first)
    assert server.serving == {1: {"host": "127.0.0.1", "port": first.port}}
    one_port.begin(second)
    assert [*server.serving] == [2], "the store of the round before is gone"
    assert one_port.handle(ServiceEnded(1, -9)) is None
    assert one_port.handle(ServiceEnded(2, -9)) == second
    assert one_port.dead(second)


def test_the_one_port_is_held_for_rank_0_where_nothing_serves_the_store(one_port: OnePort, server: Server) -> None:
    one_port.begin(one_port.offer())
    one_port.stop_hosting()
    offer = one_port.offer()
    one_port.begin(offer)
    assert not offer.hosted
    assert not accepts(offer.port)
    assert server.serving == {}


def test_a_port_that_somebody_has_is_refused_with_its_number(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        stores = OnePort(server, "127.0.0.1", str, number, served_by=ENTRY)  # type: ignore[arg-type]
        with pytest.raises(ElasticError, match=f"Port {number} could not be held"):
            stores.offer()
