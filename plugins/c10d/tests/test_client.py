"""One process may dial one store from many threads at once, and each connection is the one that it says it is."""

from __future__ import annotations

import multiprocessing
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from elastic_core.errors import RendezvousConnectionError
from elastic_rdzv_c10d import client
from elastic_rdzv_c10d.client import StoreClient
from elastic_rdzv_c10d.endpoint import _CALLS, Address, calls
from elastic_rdzv_c10d.server import StoreServer
from elastic_testing.race import PATIENCE, background

THREADS = 16
READ_TIMEOUT = 20.0


@pytest.fixture
def store() -> Iterator[Address]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=THREADS)
    address = Address(socket.AF_INET, "127.0.0.1", listener.getsockname()[1])
    with closing(StoreServer.start(listener)):
        yield address


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(body: Callable[[], int]) -> list[int]:
    """Return the results of many threads that all call the same function from one instant on."""
    barrier = threading.Barrier(THREADS)

    def run() -> int:
        barrier.wait(PATIENCE)
        return body()

    return [future.result(PATIENCE) for future in [background(run) for _ in range(THREADS)]]


def test_threads_that_dial_one_store_at_once_get_a_connection_each_while_others_knock(
    store: Address, restless: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that wait for their turn look again and again whether the store is still there."""
    monkeypatch.setattr(client, "KNOCK_AGAIN", 0.0)  # all the time

    def dial() -> int:
        with closing(StoreClient(store, READ_TIMEOUT)) as connection:
            return connection.add("dialled", 1)

    assert sorted(at_once(dial)) == list(range(1, THREADS + 1))


def test_a_knock_that_connects_while_sockets_are_listed_is_no_connection_to_the_store(
    store: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as knocking:

        def mark_and_connect(connection: socket.socket) -> bool:
            marked = calls(connection)
            if connection.getsockname() == ("0.0.0.0", 0):  # the knock of another thread goes on just now
                knocking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _CALLS)
                knocking.connect((store.host, store.port))
            return marked

        monkeypatch.setattr(client, "calls", mark_and_connect)
        assert client._inodes(store) == set()


def test_a_client_that_gives_up_before_its_turn_cuts_no_other_connection(
    store: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "LEAST_PATIENCE", 0.1)
    with closing(StoreClient(store, READ_TIMEOUT, PATIENCE)) as healthy:
        with client._turn(store), pytest.raises(RendezvousConnectionError, match="has not answered"):
            StoreClient(store, READ_TIMEOUT, 0.1)
        assert healthy.add("asked", 1) == 1


def test_a_process_that_is_forked_while_a_thread_dials_dials_by_itself(store: Address) -> None:
    def dial() -> None:
        with closing(StoreClient(store, READ_TIMEOUT)) as connection:
            connection.add("dialled", 1)

    child = multiprocessing.get_context("fork").Process(target=dial)
    with client._turn(store), client._taking_turns:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's threads hold nothing that the child needs
            child.start()
        child.join(PATIENCE)
    child.kill()
    assert child.exitcode == 0
