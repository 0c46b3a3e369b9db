"""An endpoint is read as users write it."""

from __future__ import annotations

import pytest

from elastic_core.errors import UsageError
from elastic_rdzv_etcd.options import Endpoint, parse_endpoints


@pytest.mark.parametrize(
    ("text", "endpoints"),
    [
        ("etcd0", [Endpoint("etcd0")]),
        ("etcd0:4001", [Endpoint("etcd0", 4001)]),
        ("etcd0,etcd1:4001, etcd2", [Endpoint("etcd0"), Endpoint("etcd1", 4001), Endpoint("etcd2")]),
        ("etcd0,etcd0:2379", [Endpoint("etcd0")]),
        ("http://etcd0:2379/", [Endpoint("etcd0")]),
        ("https://etcd0,http://etcd1", [Endpoint("etcd0", tls=True), Endpoint("etcd1")]),
        ("[fd00::1]", [Endpoint("fd00::1")]),
        ("https://[fd00::1]:1", [Endpoint("fd00::1", 1, True)]),
        ("10.0.0.1:65535", [Endpoint("10.0.0.1", 65535)]),
        ("", None),
        (":2379", None),
        ("etcd0:", None),
        ("etcd0:0", None),
        ("etcd0:65536", None),
        ("etcd0:http", None),
        ("etcd0,", None),
        ("etcd 0", None),
        ("etcd0/v3", None),
        ("etcd0?x=1", None),
        ("ftp://etcd0", None),
        ("[fd00::1", None),
    ],
)
def test_endpoints_are_hosts_with_ports_and_schemes_or_are_refused(text: str, endpoints: list[Endpoint] | None) -> None:
    if endpoints is None:
        with pytest.raises(UsageError) as refusal:
            parse_endpoints(text)
        assert repr(text) in str(refusal.value)
        assert refusal.value.hint
    else:
        assert parse_endpoints(text) == endpoints


def test_tls_that_is_asked_for_is_meant_for_all_that_do_not_say() -> None:
    assert parse_endpoints("etcd0,https://etcd1", tls=True) == [
        Endpoint("etcd0", tls=True),
        Endpoint("etcd1", tls=True),
    ]
    with pytest.raises(UsageError, match="'http://etcd1' is http, and TLS is asked for"):
        parse_endpoints("etcd0,http://etcd1", tls=True)
    with pytest.raises(UsageError, match="is https, and protocol=http is asked for"):
        parse_endpoints("https://etcd0", tls=False)


@pytest.mark.parametrize("endpoint", [Endpoint("10.0.0.1", 5), Endpoint("fd00::1", 5, tls=True), Endpoint("etcd0")])
def test_an_endpoint_that_is_printed_can_be_read_again(endpoint: Endpoint) -> None:
    assert parse_endpoints(str(endpoint)) == [endpoint]
