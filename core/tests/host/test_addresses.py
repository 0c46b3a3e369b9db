"""The address at which others reach this host. What this host's network looks like is not ours to choose."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import pytest

from elastic_core.errors import RendezvousConnectionError
from elastic_core.host.addresses import LOOPBACK, advertised_address, endpoint_host, local_address


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [
        ("node0", "node0"),
        ("node0:29400", "node0"),
        ("node0.cluster.local:29400", "node0.cluster.local"),
        ("10.0.0.7:29400", "10.0.0.7"),
        ("[2001:db8::7]:29400", "2001:db8::7"),
        ("2001:db8::7", "2001:db8::7"),
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("etcd0:2379,etcd1:2379", "etcd0"),
        ("etcd0,etcd1:2379", "etcd0"),
        ("[::1]:2379,etcd1:2379", "::1"),
        ("redis://:secret@node0:6379/0", "node0"),
        ("redis://user:se,c@ret@node0:6379,node1/0", "node0"),
        ("https://[2001:db8::7]:2379,https://etcd1:2379", "2001:db8::7"),
        ("", None),
        (":29400", None),
        ("/shared/rdzv", None),
        ("./rdzv", None),
        ("file:rdzv", None),
        ("file:///shared/rdzv", None),
        ("file://nfs0/shared/rdzv", None),
        ("unix:///run/redis.sock", None),
        ("[::1", None),
    ],
)
def test_the_host_of_an_endpoint_is_found_in_every_form(endpoint: str, host: str | None) -> None:
    assert endpoint_host(endpoint) == host


def test_of_several_hosts_those_that_nobody_knows_are_passed_over() -> None:
    """The name of a pod that is lost is lost with it; the others of its cluster go on."""
    unknown = "no.such.host.invalid:2379"
    for endpoint in (f"{unknown},127.0.0.1:2379", f"127.0.0.1:2379,{unknown}"):
        assert advertised_address(endpoint, "HOST[:PORT],...", None, single_node=False) == LOOPBACK
    with pytest.raises(RendezvousConnectionError, match="cannot be looked up"):
        advertised_address(f"{unknown},{unknown}", "HOST[:PORT],...", None, single_node=False)


@pytest.mark.parametrize(
    ("host", "local_addr", "single_node", "address"),
    [
        ("10.0.0.7", "node5.fast", False, "node5.fast"),  # the user knows better
        ("", "10.1.0.5", True, "10.1.0.5"),
        ("no.such.host.invalid", None, True, LOOPBACK),  # no caller asks for more, so no name is looked up
        ("", None, True, LOOPBACK),
        ("127.0.0.1", None, False, "127.0.0.1"),
    ],
)
def test_an_address_of_the_user_wins_and_a_single_node_needs_only_loopback(
    host: str, local_addr: str | None, single_node: bool, address: str
) -> None:
    assert advertised_address(host, "HOST[:PORT]", local_addr, single_node=single_node) == address


def test_a_job_at_localhost_is_on_this_host() -> None:
    assert ipaddress.ip_address(local_address("localhost")).is_loopback


def test_without_an_endpoints_host_it_is_a_numeric_address_of_this_host() -> None:
    address = local_address(None)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as sock:
        sock.bind((address, 0))  # which fails for the address of another host


def test_a_name_that_only_this_host_takes_for_loopback_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian gives a host's own name the address 127.0.1.1. Patched: /etc/hosts is not a test's to write."""

    def look_up(host: str, port: None, **more: Any) -> list[Any]:
        assert (host, port) == ("node0", None)
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.1.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert local_address("node0") == local_address(None)


@pytest.mark.parametrize("host", ["no such host", "a" * 64, "two..dots", "\udcff"])
def test_a_host_that_cannot_be_looked_up_is_named_and_what_to_do(host: str) -> None:
    with pytest.raises(RendezvousConnectionError) as caught:
        local_address(host)
    assert caught.value.message.startswith(f"The host of the rendezvous endpoint, {host!r}, cannot be looked up: ")
    assert caught.value.hint == "Check the name, or give a numeric address as --rdzv_endpoint."
