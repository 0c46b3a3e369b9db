"""An endpoint is read as users write it; the kernel says whether it is this host's."""

from __future__ import annotations

import socket

import pytest

from elastic_core.errors import RendezvousConnectionError, UsageError
from elastic_rdzv_c10d.endpoint import DEFAULT_PORT, Address, Endpoint, Patience, find_site, reach, resolve

LOOPBACK = Address(socket.AF_INET, "127.0.0.1", 1)
ELSEWHERE = Address(socket.AF_INET, "192.0.2.7", 29400)
"""Reserved for documentation: no host has it."""


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.time = 0.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("node1", "node1", DEFAULT_PORT),
        ("node1:5000", "node1", 5000),
        ("10.0.0.1:1", "10.0.0.1", 1),
        ("[fd00::1]", "fd00::1", DEFAULT_PORT),
        ("[fd00::1]:65535", "fd00::1", 65535),
        ("[fe80::1%eth0]:5000", "fe80::1%eth0", 5000),
        ("", None, None),
        (":5000", None, None),
        ("node1:", None, None),
        ("node1:0", None, None),
        ("node1:65536", None, None),
        ("node1:http", None, None),
        ("node1:\u0665", None, None),
        ("node1:5000:6000", None, None),
        ("fd00::1", None, None),
        ("[fd00::1", None, None),
        ("[fd00::1]5000", None, None),
        ("[node1]:5000", None, None),
        ("tcp://node1:5000", None, None),
        ("node1,node2", None, None),
        ("node 1", None, None),
        ("0.0.0.0:5000", None, None),
        ("[::]:5000", None, None),
    ],
)
def test_an_endpoint_is_a_host_and_perhaps_a_port_or_is_refused(text: str, host: str | None, port: int | None) -> None:
    if host is None or port is None:
        with pytest.raises(UsageError) as refusal:
            Endpoint.parse(text)
        assert repr(text) in str(refusal.value)
        assert refusal.value.hint
    else:
        assert Endpoint.parse(text) == Endpoint(host, port)


@pytest.mark.parametrize("endpoint", [Endpoint("10.0.0.1", 5), Endpoint("fd00::1", 5), Endpoint("node1")])
def test_an_endpoint_that_is_printed_can_be_read_again(endpoint: Endpoint) -> None:
    assert Endpoint.parse(str(endpoint)) == endpoint


def test_the_first_on_the_host_gets_the_port_and_the_next_finds_it_taken(port: int) -> None:
    address = Address(socket.AF_INET, "127.0.0.1", port)
    endpoint = Endpoint("127.0.0.1", port)
    first = find_site(endpoint, [address], None, None)
    assert first.listener is not None
    with first.listener:
        assert first.listener.getsockname() == ("127.0.0.1", port)
        second = find_site(endpoint, [address], None, None)
        assert (second.addresses, second.listener) == ([address], None)


def test_an_address_of_another_host_is_not_hosted_here() -> None:
    assert find_site(Endpoint(ELSEWHERE.host), [ELSEWHERE], None, None).listener is None


def test_who_is_told_not_to_host_does_not_even_where_it_could(port: int) -> None:
    address = Address(socket.AF_INET, "127.0.0.1", port)
    assert find_site(Endpoint("127.0.0.1", port), [address], False, None).listener is None


def test_who_is_told_to_host_an_address_that_is_translated_listens_at_the_local_one(port: int) -> None:
    there = Address(socket.AF_INET, ELSEWHERE.host, port)
    site = find_site(Endpoint(there.host, port), [there], True, "127.0.0.1")
    assert site.listener is not None
    with site.listener:
        assert site.listener.getsockname() == ("127.0.0.1", port)


def test_who_is_told_to_host_at_a_taken_port_is_told_so(port: int) -> None:
    address = Address(socket.AF_INET, "127.0.0.1", port)
    taken = pytest.raises(RendezvousConnectionError, match=f"port {port} of 127.0.0.1 is taken")
    with socket.create_server(("127.0.0.1", port)), taken as refusal:
        find_site(Endpoint("127.0.0.1", port), [address], True, None)
    assert refusal.value.hint


def test_ipv6_is_served_where_it_is_named() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as probe:
        port = probe.getsockname()[1]
    endpoint = Endpoint("::1", port)
    site = find_site(endpoint, resolve(endpoint, Patience(1)), None, None)
    assert site.listener is not None
    with site.listener:
        assert site.listener.getsockname()[:2] == ("::1", port)
        assert str(reach(endpoint, site, Patience(1))) == f"[::1]:{port}"


def test_a_name_that_nobody_knows_is_asked_for_again_and_then_reported() -> None:
    clock = Clock()
    with pytest.raises(RendezvousConnectionError, match=r"'no\.such\.host\.invalid' has no address"):
        resolve(Endpoint("no.such.host.invalid"), Patience(1.0, clock.now, clock.sleep))
    assert clock.slept[0] < clock.slept[1]
    assert sum(clock.slept) == pytest.approx(1.0)


def test_who_finds_nobody_listening_says_where_and_how_long(port: int) -> None:
    clock = Clock()
    endpoint = Endpoint("localhost", port)
    site = find_site(endpoint, [Address(socket.AF_INET, "127.0.0.1", port)], False, None)
    with pytest.raises(RendezvousConnectionError, match="after 1 s: Connection refused") as refusal:
        reach(endpoint, site, Patience(1.0, clock.now, clock.sleep))
    assert f"localhost:{port} (127.0.0.1:{port})" in str(refusal.value)
    assert sum(clock.slept) == pytest.approx(1.0)


def test_who_is_early_waits_for_the_host(port: int) -> None:
    servers = []

    def comes_up(seconds: float) -> None:
        servers.append(socket.create_server(("127.0.0.1", port)))

    address = Address(socket.AF_INET, "127.0.0.1", port)
    site = find_site(Endpoint("127.0.0.1", port), [address], False, None)
    assert reach(Endpoint("127.0.0.1", port), site, Patience(60, sleep=comes_up)) == address
    [server] = servers
    server.close()
