"""An endpoint is read as users write it; the kernel says whether it is this host's."""

from __future__ import annotations

import socket

import pytest

from elastic_core.errors import RendezvousConnectionError, UsageError
from elastic_rdzv_c10d.endpoint import DEFAULT_PORT, Address, Endpoint, find_site
from elastic_rdzv_c10d.search import Patience, Search, resolve

LOOPBACK = Address(socket.AF_INET, "127.0.0.1", 1)
ELSEWHERE = Address(socket.AF_INET, "192.0.2.7", 29400)
"""Reserved for documentation: no host has it."""


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
        ("255.255.255.255:1", None, None),
        ("[ff02::1]:5000", None, None),
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


def test_a_node_with_is_host_false_does_not_host_even_where_it_could(port: int) -> None:
    address = Address(socket.AF_INET, "127.0.0.1", port)
    assert find_site(Endpoint("127.0.0.1", port), [address], False, None).listener is None


def test_a_host_of_a_translated_address_listens_at_the_local_one(port: int) -> None:
    there = Address(socket.AF_INET, ELSEWHERE.host, port)
    site = find_site(Endpoint(there.host, port), [there], True, "127.0.0.1")
    assert site.listener is not None
    with site.listener:
        assert site.listener.getsockname() == ("127.0.0.1", port)


def test_a_host_at_a_taken_port_raises(port: int) -> None:
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
        assert str(Search(endpoint, site, Patience(1)).reach()) == f"[::1]:{port}"
