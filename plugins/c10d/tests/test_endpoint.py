"""The kernel says whether an endpoint is this host's."""

from __future__ import annotations

import socket

import pytest

from elastic_core.errors import RendezvousConnectionError
from elastic_core.rendezvous.options import HostPort
from elastic_rdzv_c10d.endpoint import Address, Patience, Search, find_site, resolve

LOOPBACK = Address(socket.AF_INET, "127.0.0.1", 1)
ELSEWHERE = Address(socket.AF_INET, "192.0.2.7", 29400)
"""Reserved for documentation: no host has it."""


def test_the_first_on_the_host_gets_the_port_and_the_next_finds_it_taken(port: int) -> None:
    address = Address(socket.AF_INET, "127.0.0.1", port)
    endpoint = HostPort("127.0.0.1", port)
    first = find_site(endpoint, [address], None, None)
    assert first.listener is not None
    with first.listener:
        assert first.listener.getsockname() == ("127.0.0.1", port)
        second = find_site(endpoint, [address], None, None)
        assert (second.addresses, second.listener) == ([address], None)


def test_an_address_of_another_host_is_not_hosted_here() -> None:
    assert find_site(HostPort(ELSEWHERE.host, ELSEWHERE.port), [ELSEWHERE], None, None).listener is None


def test_a_node_with_is_host_false_does_not_host_even_where_it_could(port: int) -> None:
    address = Address(socket.AF_INET, "127.0.0.1", port)
    assert find_site(HostPort("127.0.0.1", port), [address], False, None).listener is None


def test_a_host_of_a_translated_address_listens_at_the_local_one(port: int) -> None:
    there = Address(socket.AF_INET, ELSEWHERE.host, port)
    site = find_site(HostPort(there.host, port), [there], True, "127.0.0.1")
    assert site.listener is not None
    with site.listener:
        assert site.listener.getsockname() == ("127.0.0.1", port)


def test_a_host_at_a_taken_port_raises(port: int) -> None:
    address = Address(socket.AF_INET, "127.0.0.1", port)
    taken = pytest.raises(RendezvousConnectionError, match=f"port {port} of 127.0.0.1 is taken")
    with socket.create_server(("127.0.0.1", port)), taken as refusal:
        find_site(HostPort("127.0.0.1", port), [address], True, None)
    assert refusal.value.hint


def test_ipv6_is_served_where_it_is_named() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as probe:
        port = probe.getsockname()[1]
    endpoint = HostPort("::1", port)
    site = find_site(endpoint, resolve(endpoint, Patience(1)), None, None)
    assert site.listener is not None
    with site.listener:
        assert site.listener.getsockname()[:2] == ("::1", port)
        assert str(Search(endpoint, site, Patience(1)).reach()) == f"[::1]:{port}"
