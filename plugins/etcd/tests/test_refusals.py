"""Errors of members are classified by their consequence."""

from __future__ import annotations

import json

import pytest

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_rdzv_etcd.gateway import Kind, from_text, in_words, refusal


@pytest.mark.parametrize(
    ("status", "said", "kind"),
    [
        (
            503,
            {"error": "x", "message": "etcdserver: request timed out", "code": 14},
            "PASSING",
        ),
        (503, {"code": 14, "message": "etcdserver: no leader", "details": []}, "PASSING"),
        (401, {"error": "etcdserver: invalid auth token", "code": 16}, "TOKEN"),
        (400, {"error": "etcdserver: revision of auth store is old", "code": 3}, "TOKEN"),
        (400, {"error": "etcdserver: authentication failed, invalid user ID or password", "code": 3}, "DENIED"),
        (403, {"error": "etcdserver: permission denied", "code": 7}, "DENIED"),
        (404, {"error": "etcdserver: requested lease not found", "code": 5}, "NO_LEASE"),
        (412, {"error": "etcdserver: lease already exists", "code": 9}, "LEASE_THERE"),
        (412, {"error": "etcdserver: authentication is not enabled", "code": 9}, "NO_PASSWORDS"),
        (429, {"error": "etcdserver: mvcc: database space exceeded", "code": 8}, "FULL"),
        (429, {"error": "etcdserver: too many requests", "code": 8}, "PASSING"),
        (400, {"error": "etcdserver: request is too large", "code": 3}, "OTHER"),
        (500, {"grpc_code": 2, "http_code": 500, "message": "raft proposal dropped"}, "PASSING"),
        (501, {"error": "Not Implemented", "code": 12}, "FOREIGN"),
        (404, "404 page not found", "FOREIGN"),
        (400, "Client sent an HTTP request to an HTTPS server.", "FOREIGN"),
        (502, "<html>Bad Gateway</html>", "PASSING"),
    ],
)
def test_each_answer_has_its_consequence(status: int, said: object, kind: str) -> None:
    body = said if isinstance(said, str) else json.dumps(said)
    assert refusal(status, body.encode()).kind is Kind[kind]


@pytest.mark.parametrize("kind", list(Kind))
def test_people_read_what_was_said_and_where(kind: Kind) -> None:
    refused = from_text("etcdserver: something")
    refused.kind = kind
    error = in_words(refused, "http://etcd0:2379", "trainer")
    assert isinstance(error, RendezvousConnectionError | RendezvousStateError)
    assert "http://etcd0:2379" in error.message
    assert "something" in error.message
