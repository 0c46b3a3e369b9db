"""``HOST[:PORT]`` is read as users write it, or refused."""

from __future__ import annotations

import re

import pytest

from elastic_core.errors import UsageError
from elastic_core.rendezvous.options import HostPort, split_host_port, timeouts

DEFAULT_PORT = 29400
NO_FORM = "is not of the form HOST[:PORT]"
NO_PORT = "is not a port from 1 to 65535"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("node1", "node1", DEFAULT_PORT),
        ("node1:5000", "node1", 5000),
        ("10.0.0.1:1", "10.0.0.1", 1),
        ("[fd00::1]", "fd00::1", DEFAULT_PORT),
        ("[fd00::1]:65535", "fd00::1", 65535),
        ("[fe80::1%eth0]:5000", "fe80::1%eth0", 5000),
    ],
)
def test_a_host_and_a_port_are_read_and_printed(text: str, host: str, port: int) -> None:
    found = HostPort.parse(text, DEFAULT_PORT)
    assert found == HostPort(host, port)
    assert HostPort.parse(str(found), 1) == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it names no host"),
        (":5000", NO_FORM),
        ("node1:", NO_PORT),
        ("node1:0", "'0' " + NO_PORT),
        ("node1:65536", NO_PORT),
        ("node1:http", "'http' " + NO_PORT),
        ("node1:\u0665", NO_PORT),
        ("node1:5000:6000", NO_FORM),
        ("fd00::1", "an address of IPv6 has brackets, [fd00::1]"),
        ("[fd00::1", NO_FORM),
        ("[fd00::1]5000", NO_FORM),
        ("[node1]:5000", NO_FORM),
        ("tcp://node1:5000", NO_FORM),
        ("node1,node2", NO_FORM),
        ("node1/v3", NO_FORM),
        ("node1?x=1", NO_FORM),
        ("user@node1", NO_FORM),
        ("node 1", NO_FORM),
        ("0.0.0.0:5000", "every address of every host"),
        ("[::]:5000", "every address of every host"),
        ("255.255.255.255:1", "a group of hosts"),
        ("[ff02::1%eth0]:5000", "a group of hosts"),
    ],
)
def test_any_other_text_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)) as refusal:
        HostPort.parse(text, DEFAULT_PORT)
    assert repr(text) in str(refusal.value)
    assert refusal.value.hint


def test_a_refusal_of_a_part_quotes_the_whole_endpoint_and_the_backends_hint() -> None:
    with pytest.raises(UsageError, match=r"--rdzv_endpoint 'a,b:x': 'x' is not a port") as refusal:
        HostPort.parse("b:x", 1, endpoint="a,b:x", hint="Write it so.")
    assert refusal.value.hint == "Write it so."


def test_a_host_and_a_port_are_split_as_they_are_written() -> None:
    written = ["node1", "node1:0", "[::1]:00", "::1"]
    assert [split_host_port(text) for text in written] == [
        ("node1", None),
        ("node1", "0"),
        ("::1", "00"),
        ("::1", None),
    ]


def test_timeouts_are_read_where_they_are_given() -> None:
    assert timeouts({"connect_timeout": "2.5", "other": "x"}) == {"connect_timeout": 2.5}
    with pytest.raises(UsageError, match=r"'read_timeout=0'.* not a positive number of seconds"):
        timeouts({"read_timeout": "0"})
