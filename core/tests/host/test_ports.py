"""A held port with real sockets: its owner can listen there, and no other process gets it."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from elastic_core.errors import ElasticError
from elastic_core.host import addresses
from elastic_core.host.addresses import HeldPort, own_address

LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


@pytest.fixture
def held() -> Iterator[HeldPort]:
    port = HeldPort.take("127.0.0.1")
    yield port
    port.close()


def listen(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    """Listen as torch's TCPStore does: with SO_REUSEADDR, on every address, of both families if it is IPv6."""
    sock = socket.socket(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family is socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
        sock.bind((address, port))
        sock.listen()
    except OSError:
        sock.close()
        raise
    return sock


EVERYWHERE = [(socket.AF_INET, "0.0.0.0"), *([(socket.AF_INET6, "::")] if socket.has_dualstack_ipv6() else [])]


@pytest.mark.parametrize(("family", "wildcard"), EVERYWHERE)
def test_a_worker_can_listen_on_a_held_port_and_be_reached(
    held: HeldPort, family: socket.AddressFamily, wildcard: str
) -> None:
    with (
        listen(family, wildcard, held.port) as store,
        socket.create_connection(("127.0.0.1", held.port)) as client,
        store.accept()[0] as connection,
    ):
        client.sendall(b"hello")
        assert connection.recv(5) == b"hello"


def test_a_port_that_is_only_held_refuses_connections(held: HeldPort) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", held.port))


@pytest.mark.parametrize(("family", "address"), [*EVERYWHERE, (socket.AF_INET, "127.0.0.2")])
def test_a_held_port_is_nobody_elses(held: HeldPort, family: socket.AddressFamily, address: str) -> None:
    """Without SO_REUSEADDR, like any process with port 0: the kernel would give it to them if it were free."""
    with socket.socket(family) as other, pytest.raises(OSError, match="Address already in use"):
        other.bind((address, held.port))


def test_of_two_workers_only_one_can_listen(held: HeldPort) -> None:
    with listen(socket.AF_INET, "0.0.0.0", held.port), pytest.raises(OSError, match="Address already in use"):
        listen(socket.AF_INET, "0.0.0.0", held.port)


def test_no_two_held_ports_are_the_same() -> None:
    ports = [HeldPort.take("127.0.0.1") for _ in range(200)]
    numbers = {port.port for port in ports}
    for port in ports:
        port.close()
    assert len(numbers) == 200


def test_a_listener_goes_on_when_the_port_is_let_go(held: HeldPort) -> None:
    with listen(socket.AF_INET, "0.0.0.0", held.port) as store:
        held.close()
        with socket.create_connection(("127.0.0.1", held.port)), store.accept()[0]:
            pass


def test_a_port_is_free_once_it_is_let_go(held: HeldPort) -> None:
    held.close()
    with socket.socket() as anybody:
        anybody.bind(("127.0.0.1", held.port))


def test_on_a_host_without_ipv6_a_port_is_held_for_an_ipv4_address_only(monkeypatch: pytest.MonkeyPatch) -> None:
    bind = addresses._bind

    def bind_ipv4(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
        if family is socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return bind(family, address, port)

    monkeypatch.setattr(addresses, "_bind", bind_ipv4)
    with closing(HeldPort.take("127.0.0.1")) as port:
        assert (at(port), port.reached_at) == ("0.0.0.0", "127.0.0.1")
    with pytest.raises(ElasticError, match="Address family not supported"):
        HeldPort.take("2001:db8::77")


def at(port: HeldPort) -> str:
    with socket.socket(fileno=os.dup(port.fileno())) as same:
        return str(same.getsockname()[0])


LOOPBACKS = ["127.0.0.1", "127.0.1.1", "localhost", *(["::1"] if socket.has_dualstack_ipv6() else [])]


@pytest.mark.parametrize("address", LOOPBACKS)
def test_a_port_at_an_address_of_this_host_is_bound_there_and_nowhere_else(address: str) -> None:
    with closing(HeldPort.take_at(address)) as port:
        number = "127.0.0.1" if address == "localhost" else address
        assert (at(port), port.reached_at) == (number, number)
        port.listen()
        socket.create_connection((port.reached_at, port.port), timeout=30).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port.port), timeout=30)


@pytest.mark.parametrize("address", ["192.0.2.77", "2001:db8::77", "node0.example", "", "node..0", "n" * 64])
def test_a_port_at_what_is_no_address_of_this_host_is_bound_everywhere(address: str) -> None:
    """It is translated on the way, or other hosts look the name up otherwise."""
    with closing(HeldPort.take_at(address)) as port:
        assert (own_address(address), at(port) in ("0.0.0.0", "::")) == (None, True)
        port.listen()
        socket.create_connection((port.reached_at, port.port), timeout=30).close()


@pytest.mark.parametrize(
    ("address", "expected"), [("127.0.0.1", "127.0.0.1"), ("192.0.2.77", None), ("2001:db8::77", None)]
)
def test_where_the_kernel_binds_anything_it_is_asked_for_its_own(
    monkeypatch: pytest.MonkeyPatch, address: str, expected: str | None
) -> None:
    real = socket.socket.bind
    monkeypatch.setattr(addresses, "_binds_anything", lambda family: True)
    monkeypatch.setattr(socket.socket, "bind", lambda sock, to: real(sock, (LOOPBACK[sock.family], *to[1:])))
    own = own_address(address)
    assert (None if own is None else own[1]) == expected
