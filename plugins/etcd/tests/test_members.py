"""Names that are unknown, that get no answer, and that move."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from elastic_core.errors import RendezvousConnectionError
from elastic_rdzv_etcd import connection
from elastic_rdzv_etcd.connection import Members
from elastic_rdzv_etcd.options import DEFAULT_PORT, DEFAULTS, Endpoint
from elastic_testing.race import asleep

KNOWN, OTHER = Endpoint("127.0.0.1"), Endpoint("other.example")
PATIENCE = 30.0


class Resolver:
    """Answers for ``other.example``, once it may."""

    def __init__(self) -> None:
        self.address = "127.0.0.2"
        self.answers, self.heard = threading.Event(), threading.Event()
        self.asked = 0
        self._real = socket.getaddrinfo

    def __call__(self, host: str, port: int, **how: int) -> object:
        if host != OTHER.host:
            return self._real(host, port, **how)
        if "flags" in how and how["flags"] & socket.AI_NUMERICHOST:
            raise socket.gaierror
        self.asked += 1
        self.heard.set()
        assert self.answers.wait(PATIENCE)
        return self._real(self.address, port, **how)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    resolver = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    yield resolver
    resolver.answers.set()


def found(cluster: Members) -> set[str]:
    return {site.address for site in cluster.sites()}


def test_a_name_that_nobody_knows_is_left_out_while_another_is_known() -> None:
    unknown = Endpoint("no.such.host.invalid")
    [site] = Members([unknown, KNOWN], DEFAULTS).sites()
    assert str(site) == f"http://127.0.0.1:{DEFAULT_PORT}"
    with pytest.raises(RendezvousConnectionError, match=r"'no\.such\.host\.invalid'"):
        Members([unknown], DEFAULTS)


def test_a_resolver_that_does_not_answer_is_waited_for_once(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("LOOK_UP", "LOOK_UP_ANY", "LOOK_UP_AGAIN"):
        monkeypatch.setattr(connection, limit, 0.01)
    with pytest.raises(RendezvousConnectionError, match=r"'other\.example' \(no answer within [\d.]+ s\)"):
        Members([OTHER], DEFAULTS)
    assert resolver.heard.wait(PATIENCE)
    resolver.heard.clear()
    cluster = Members([OTHER, KNOWN], DEFAULTS)
    assert found(cluster) == {"127.0.0.1"}
    assert resolver.heard.wait(PATIENCE)
    asked = resolver.asked
    for _ in range(3):
        cluster.look_up_again()
    assert resolver.asked == asked == 2, "it still has not answered the first question of each"


def test_a_resolver_that_is_slow_is_waited_for_while_there_is_no_other_address(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LOOK_UP", 0.01)
    opening = asleep(lambda: Members([OTHER], DEFAULTS))
    assert resolver.heard.wait(PATIENCE)
    assert not opening.done()
    resolver.answers.set()
    assert found(opening.result(PATIENCE)) == {"127.0.0.2"}


def test_an_answer_that_comes_late_is_taken(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LOOK_UP", 0.01)
    cluster = Members([KNOWN, OTHER], DEFAULTS)
    assert found(cluster) == {"127.0.0.1"}
    monkeypatch.setattr(connection, "LOOK_UP_AGAIN", PATIENCE)
    resolver.answers.set()
    cluster.look_up_again()
    assert found(cluster) == {"127.0.0.1", "127.0.0.2"}


def test_a_name_that_has_moved_is_found_and_one_that_is_unknown_by_now_stays(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LOOK_UP_AGAIN", PATIENCE)
    resolver.answers.set()
    cluster = Members([KNOWN, OTHER], DEFAULTS)
    assert found(cluster) == {"127.0.0.1", "127.0.0.2"}
    resolver.address = "127.0.0.3"
    cluster.look_up_again()
    assert found(cluster) == {"127.0.0.1", "127.0.0.3"}
    resolver.address = "no.such.host.invalid"
    cluster.look_up_again()
    assert found(cluster) == {"127.0.0.1", "127.0.0.3"}


def test_the_member_that_has_answered_is_asked_first(resolver: Resolver) -> None:
    resolver.answers.set()
    cluster = Members([KNOWN, OTHER], DEFAULTS)
    for site in cluster.sites():
        cluster.answered(site)
        assert cluster.sites()[0] == site
        assert len(cluster.sites()) == 2
