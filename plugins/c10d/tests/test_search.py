"""An early node waits and warns early; a lasting error ends the search at once."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from etcd_servers import running
from redis_servers import redis_server

from elastic_core.errors import RendezvousConnectionError
from elastic_core.rendezvous.options import HostPort
from elastic_rdzv_c10d.client import StoreClient
from elastic_rdzv_c10d.endpoint import SOON, Address, Patience, Search, Site, backend_of, resolve

NOWHERE = Address(socket.AF_INET, "255.255.255.255", 29400)
"""Everybody at once: the kernel answers ENETUNREACH to who would connect, whatever the routes are."""


class Clock:
    """Time that passes only in a sleep; and the messages meanwhile."""

    def __init__(self) -> None:
        self.time = 0.0
        self.slept: list[float] = []
        self.said: list[str] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds

    def patience(self, seconds: float) -> Patience:
        return Patience(seconds, lambda: self.time, self.sleep, self.said.append)


@pytest.fixture
def silent() -> Iterator[Address]:
    """Yield an address that never answers: the queue of a listener is full, and the kernel drops packets."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = listener.getsockname()[1]
        stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        yield Address(socket.AF_INET, "127.0.0.1", port)


def search(patience: Patience, *addresses: Address) -> Search:
    return Search(HostPort("node1", addresses[0].port), Site(addresses), patience)


def test_a_name_that_nobody_knows_is_asked_for_again_which_is_said_once_and_then_reported() -> None:
    clock = Clock()
    with pytest.raises(RendezvousConnectionError, match=r"'no\.such\.host\.invalid' has no address"):
        resolve(HostPort("no.such.host.invalid", 1), clock.patience(10.0))
    assert clock.slept[0] < clock.slept[1]
    assert sum(clock.slept) == pytest.approx(10.0)
    [said] = clock.said
    assert "'no.such.host.invalid' has no address yet" in said
    assert "check the name" in said


def test_a_search_without_a_listener_warns_soon_and_fails_with_the_address_and_the_time(port: int) -> None:
    clock = Clock()
    searching = search(clock.patience(10.0), Address(socket.AF_INET, "127.0.0.1", port))
    searching.look()
    assert not clock.said, "so it is before the host's agent starts"
    with pytest.raises(RendezvousConnectionError, match="No server listens") as refusal:
        searching.reach()
    assert f"at node1:{port} (127.0.0.1:{port}), after 10 s: Connection refused" in str(refusal.value)
    assert isinstance(refusal.value.__cause__, ConnectionRefusedError)
    assert sum(clock.slept) == pytest.approx(10.0)
    [said] = clock.said
    assert f"no agent hosts the store at node1:{port} (127.0.0.1:{port}) yet" in said


def test_an_early_node_waits_for_the_host(port: int) -> None:
    servers = []

    def comes_up(_seconds: float) -> None:
        servers.append(socket.create_server(("127.0.0.1", port)))

    address = Address(socket.AF_INET, "127.0.0.1", port)
    assert search(Patience(60, sleep=comes_up), address).reach() == address
    [server] = servers
    server.close()


def test_where_there_is_no_way_that_is_an_error_soon_however_long_one_would_wait() -> None:
    clock = Clock()
    with pytest.raises(RendezvousConnectionError, match="no way from this host to node1:29400") as refusal:
        search(clock.patience(600.0), NOWHERE).look()
    assert "Network is unreachable" in str(refusal.value)
    assert sum(clock.slept) == pytest.approx(SOON), "an interface may be on its way up"
    assert "routes" in str(refusal.value.hint)


def test_silence_is_said_at_once_and_waited_for_since_the_host_may_be_on_its_way_up(silent: Address) -> None:
    said: list[str] = []
    searching = search(Patience(60, sleep=lambda _: None, say=said.append), silent)
    searching.look()
    [line] = said
    assert f"node1:{silent.port} ({silent}) does not answer (timed out); trying again for up to 5" in line
    assert "check the address, the routes and the firewalls" in line


def test_silence_to_the_end_is_an_error_that_does_not_speak_of_listening(silent: Address) -> None:
    clock = Clock()
    with pytest.raises(RendezvousConnectionError, match=r"No host answers at .*, after 0\.2 s: timed out"):
        search(clock.patience(0.2), silent).reach()
    assert not clock.said, "the error says it"


@pytest.mark.parametrize(
    ("answer", "backend"),
    [
        (b"HTTP/1.0 200 OK\r\nContent-Length: 45\r\n\r\n" + b'{"etcdserver":"3.4.23","etcdcluster":"3.4.0"}', "etcd"),
        (b"-ERR wrong number of arguments for 'get' command\r\n", "redis"),
        (b"-NOAUTH Authentication required.\r\n", "redis"),
        (b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n", None),
        (b"-----BEGIN", None),
        (b"", None),
    ],
)
def test_etcd_and_redis_are_told_by_their_answers(answer: bytes, backend: str | None) -> None:
    assert backend_of(answer) == backend


@pytest.mark.parametrize("backend", ["redis", "etcd"])
def test_a_server_that_has_a_backend_of_its_own_is_named_and_not_waited_for(tmp_path: Path, backend: str) -> None:
    serving = redis_server(tmp_path / "server") if backend == "redis" else running(tmp_path / "server")
    with serving as server:
        host, _, port = server.endpoint.rpartition(":")
        at = Address(socket.AF_INET, host, int(port))
        clock = Clock()
        searching = search(clock.patience(600.0), at)
        assert searching.reach() == at
        with pytest.raises(RendezvousConnectionError, match=f"answers at node1:{port}") as refusal:
            StoreClient(at, 600.0, 600.0, searching.waiting)
        assert refusal.value.hint == f"Add --rdzv_backend={backend}, and name the server by --rdzv_endpoint."
        assert not clock.said


@pytest.mark.parametrize(("port", "backend"), [(2379, "etcd"), (6379, "redis")])
def test_the_hint_at_the_port_of_another_store_names_its_backend(port: int, backend: str) -> None:
    clock = Clock()
    refusing = Address(socket.AF_INET, "127.0.0.1", 1)
    searching = Search(HostPort("node1", port), Site([refusing]), clock.patience(10.0))
    with pytest.raises(RendezvousConnectionError) as refusal:
        searching.reach()
    assert refusal.value.hint is not None
    for said in (refusal.value.hint, *clock.said):
        assert f"Port {port} is usually" in said
        assert f"add --rdzv_backend={backend}." in said
    assert len(clock.said) == 1


def test_of_several_addresses_the_most_hopeful_counts(port: int) -> None:
    clock = Clock()
    refusing = Address(socket.AF_INET, "127.0.0.1", port)
    search(clock.patience(600.0), NOWHERE, refusing).look()
    with socket.create_server(("127.0.0.1", port)):
        assert search(clock.patience(600.0), NOWHERE, refusing).reach() == refusing
