"""Asking a host's agents to leave, over a store in memory, with a leader that is played by hand."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import replace
from typing import NoReturn

import pytest
from session_parts import job
from views import info, seen

from elastic_core.errors import RendezvousConnectionError, RendezvousTimeoutError, StoreLostError, UsageError
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.protocol.codec import decode_row, encode_row
from elastic_core.rendezvous.backend import Cursor, RosterRow
from elastic_operate import drain_request
from elastic_operate.drain_request import ask, release


def test_it_ends_when_all_agents_of_the_host_have_said_that_they_leave() -> None:
    store = job()
    other = store.connect()
    found: list[int] = []
    asking = threading.Thread(target=lambda: found.append(ask(store, "host-b", "job")))
    asking.start()
    version = 0
    while len(rows := other.roster()) < 3:
        version = other.wait(Cursor(1, version), roster=True, timeout=5).roster
    request = decode_row(rows[-1].value)
    assert (request.drain, request.run, request.offer) == (("b",), "", None)
    assert found == []
    row = next(decode_row(row.value) for row in rows if row.node_id == "b")
    other.amend("b", 1, encode_row(replace(row, leaving=True)))
    asking.join()
    assert found == [1]
    assert [row.node_id for row in other.roster()] == ["a", "b"], "nothing is left of it"


def test_a_node_that_has_passed_its_checks_meanwhile_is_asked_again() -> None:
    store = job()
    other = store.connect()
    other.amend("b", 1, encode_row(seen("b", leaving=True, returns=True, node=info("b")).row))
    found: list[int] = []
    asking = threading.Thread(target=lambda: found.append(ask(store, "host-b", "job")))
    asking.start()
    asked = await_request(other)
    other.enter("b2", encode_row(seen("b2", node=info("b2", host="host-b")).row))
    other.remove("b")
    assert await_request(other, but=asked) != asked, "the new node is older than the request"
    other.amend("b2", 1, encode_row(seen("b2", leaving=True, node=info("b2", host="host-b")).row))
    asking.join()
    assert found == [1]


def await_request(store: LocalBackend, but: str = "") -> str:
    """Return the id of a request's row, once there is one."""
    version = 0
    while not (
        found := [row.node_id for row in store.roster() if decode_row(row.value).is_request and row.node_id != but]
    ):
        version = store.wait(Cursor(1, version), roster=True, timeout=5).roster
    return found[0]


class EndsWithItsAgents(LocalBackend):
    """The store of an agent that leaves as soon as it is asked to: at once, before the request is removed, or after."""

    hosting = False
    lost = False

    def __init__(self, store: MemoryStore, when: str) -> None:
        super().__init__(store)
        self.when = when

    def enter(self, node_id: str, value: bytes) -> int:
        serial = super().enter(node_id, value)
        self.amend("a", 1, encode_row(seen("a", leaving=True, node=info("a")).row))
        self.lost = self.when == "at once"
        return serial

    def roster(self, ids: Collection[str] | None = None) -> list[RosterRow]:
        if self.lost:
            raise StoreLostError("The agent that holds the store is gone.")
        self.lost = self.when == "before" and ids is not None
        return super().roster(ids)

    def remove(self, node_id: str) -> None:
        if self.lost:
            raise StoreLostError("The agent that holds the store is gone.")
        super().remove(node_id)
        self.lost = True


@pytest.mark.parametrize("when", ["at once", "before", "after"])
@pytest.mark.parametrize("embedded", [True, False])
def test_an_embedded_store_that_ends_with_its_agents_has_been_drained(embedded: bool, when: str) -> None:
    other = job()
    other.remove("b")
    store = EndsWithItsAgents(other._store, when)
    store.embedded = embedded
    if embedded:
        assert ask(store, "host-a", "job") == 1
        return
    with pytest.raises(StoreLostError):
        ask(store, "host-a", "job")


@pytest.mark.parametrize("gone", [True, False])
def test_a_lost_connection_is_an_answer_only_where_no_store_is_left(
    monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    store = job()
    store.remove("b")
    store.embedded, store.hosting = True, False

    def fail(error: type[RendezvousConnectionError]) -> NoReturn:
        raise error("The connection is cut.")

    monkeypatch.setattr(drain_request, "_await", lambda *_: fail(RendezvousConnectionError))
    if gone:
        monkeypatch.setattr(store, "connect", lambda: fail(StoreLostError))
        assert ask(store, "host-a", "job") == 1
        return
    with pytest.raises(RendezvousConnectionError, match="is cut"):
        ask(store, "host-a", "job")


def test_an_agent_that_is_gone_has_left() -> None:
    store = job()
    other = store.connect()
    found: list[int] = []
    asking = threading.Thread(target=lambda: found.append(ask(store, "host-b", "job")))
    asking.start()
    await_request(other)
    other.remove("b")
    asking.join()
    assert found == [1]


def test_a_host_without_an_agent_is_named_and_the_others_are() -> None:
    with pytest.raises(UsageError, match=r"No agent of job 'job' runs on 'host-x'\.") as caught:
        ask(job(), "host-x", "job")
    assert caught.value.hint == "They run on: host-a, host-b."


def test_the_host_of_the_store_that_others_need_is_not_asked() -> None:
    store = job()
    store.embedded, store.hosting = True, False
    with pytest.raises(UsageError, match=r"An agent on 'host-a' hosts the store of job 'job': the job would end"):
        ask(store, "host-a", "job")
    assert [row.node_id for row in store.roster()] == ["a", "b"]
    with pytest.raises(RendezvousTimeoutError):  # it was asked
        ask(store, "host-b", "job", patience=0.01)
    store.remove("b")
    with pytest.raises(RendezvousTimeoutError):  # no other node needs it
        ask(store, "host-a", "job", patience=0.01)


def test_a_job_that_is_not_there_is_refused() -> None:
    for store in (LocalBackend(MemoryStore()), job(closed=True)):
        with pytest.raises(UsageError, match="There is no job 'job' that goes on here"):
            ask(store, "host-a", "job")


def test_a_node_that_does_not_answer_is_named_and_no_request_is_left() -> None:
    store = job()
    with pytest.raises(RendezvousTimeoutError, match=r"host-b \(b\) did not say within the time that it leaves"):
        ask(store, "host-b", "job", patience=0.01)
    assert [row.node_id for row in store.roster()] == ["a", "b"]


def test_a_host_is_released_once_the_leader_has_taken_it_in() -> None:
    store = job()
    other = store.connect()
    found: list[int] = []
    releasing = threading.Thread(target=lambda: found.append(release(store, "host-b", "job")))
    releasing.start()
    version = 0
    while len(rows := other.roster()) < 3:
        version = other.wait(Cursor(1, version), roster=True, timeout=5).roster
    assert decode_row(rows[-1].value).release == ("b",)
    assert found == []
    other.remove(rows[-1].node_id)
    releasing.join()
    assert found == [1]


def test_a_host_whose_heartbeat_goes_on_is_not_released() -> None:
    store = job()
    other, over = store.connect(), threading.Event()

    def heartbeat() -> None:
        count = 0
        while not over.wait(0.01):
            other.heartbeat("b", count := count + 1)

    heartbeating = threading.Thread(target=heartbeat)
    heartbeating.start()
    with pytest.raises(UsageError, match=r"'host-b' is not gone: the heartbeats of all its agents in job 'job' go on"):
        release(store, "host-b", "job")
    over.set()
    heartbeating.join()
    assert [row.node_id for row in store.roster()] == ["a", "b"]


def test_a_host_that_cannot_be_released_is_named() -> None:
    with pytest.raises(UsageError, match=r"No agent of job 'job' was on 'host-x'\.") as caught:
        release(job(), "host-x", "job")
    assert caught.value.hint == "They are or were on: host-a, host-b."
    with pytest.raises(UsageError, match="There is no job 'job' that goes on here"):
        release(job(closed=True), "host-a", "job")
    store = job()
    with pytest.raises(RendezvousTimeoutError, match=r"Within 0\.01 s no agent of job 'job' has accepted"):
        release(store, "host-b", "job", patience=0.01)
    assert [row.node_id for row in store.roster()] == ["a", "b"]
