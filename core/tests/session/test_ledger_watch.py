"""The watch's thread where the store keeps it waiting while it is to end."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from views import entry, info, seen, settings, start

from elastic_core.errors import StoreLostError
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.protocol.codec import decode_row, encode_entry, encode_row
from elastic_core.protocol.entries import Drain
from elastic_core.protocol.ledger import advance
from elastic_core.rendezvous.backend import ORIGIN, Cursor
from elastic_core.session.join import Applicant, Arrival, FormerNode, LedgerWatch
from elastic_core.session.runtime import Runtime

PATIENCE = 60.0


class SlowToConnect(LocalBackend):
    """An embedded store whose next connection takes as long as the test wants."""

    embedded = True

    def __init__(self, store: MemoryStore, *, lost: bool) -> None:
        super().__init__(store)
        self.asked, self.answers = threading.Event(), threading.Event()
        self._lost = lost

    def connect(self) -> LocalBackend:
        self.asked.set()
        assert self.answers.wait(PATIENCE)
        if self._lost:
            raise StoreLostError("The agent that holds the store is gone.")
        made = LocalBackend(self._store)
        made.embedded = True
        return made


@pytest.mark.parametrize("lost", [False, True], ids=["connected", "lost"])
def test_a_connection_that_comes_after_the_end_leaves_no_row_and_no_error(
    lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that no node removes would keep the store's host waiting at the end of the job."""
    failed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    memory, before = MemoryStore(), {*threading.enumerate()}
    store = SlowToConnect(memory, lost=lost)
    applicant = Applicant(info=info("b"), settings=settings(1, 2))
    watch = LedgerWatch(store, applicant, Runtime(new_id=lambda: "watch"), Arrival(ORIGIN))
    [thread] = {*threading.enumerate()} - before
    assert store.asked.wait(PATIENCE)
    watch.close()
    store.answers.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert memory.rows == {}
    assert failed == []


def test_the_host_of_an_embedded_store_knows_of_the_node_before_people_do() -> None:
    memory = MemoryStore()
    store = SlowToConnect(memory, lost=False)
    store.embedded = True
    watch = LedgerWatch(
        store,
        Applicant(info=info("b"), settings=settings(1, 2)),
        Runtime(new_id=lambda: "watch"),
        Arrival(ORIGIN),
    )
    assert store.asked.wait(PATIENCE)
    assert memory.rows == {}
    store.answers.set()
    watch.wait_until_entered(PATIENCE)
    assert [*memory.rows] == ["watch"]
    watch.close()
    assert memory.rows == {}


def test_a_node_that_is_drained_says_in_its_row_that_it_leaves() -> None:
    """The DRAIN is for the node that the agent was before, and is followed by another entry."""
    memory, ledger = MemoryStore(), start()
    store = LocalBackend(memory)
    store.append(ORIGIN, ledger.head.link, encode_entry(ledger.head))
    store.enter("before", encode_row(seen("before", node=info("before")).row))
    drained = entry(ledger, Drain(nodes=("before",), why="asked"), at=1.0)
    follows = entry(advance(ledger, drained, 1.0), Drain(nodes=("another",), why="asked too"), at=2.0)
    for one, previous in ((drained, ledger.head), (follows, drained)):
        assert store.append(previous.link, one.link, encode_entry(one))
    applicant = Applicant(info=info("b"), settings=settings(1, 2), former=(FormerNode("before", ledger.head.index),))
    told = threading.Event()
    arrival = Arrival(follows.link, ledger.head.run, belongs=True)
    watch = LedgerWatch(store, applicant, Runtime(new_id=lambda: "watch"), arrival, tell=told.set)
    assert told.wait(PATIENCE)
    assert watch.drained == "asked"
    assert watch.verdict() is None
    watch.stop()
    (row,) = [decode_row(row.value) for row in store.roster()]
    assert (row.info.node_id, row.run, row.head, row.leaving) == ("watch", "", follows.index, True)
    watch.close()
    assert store.roster() == []


def test_a_row_that_the_leader_has_removed_is_entered_again() -> None:
    """The host had stood still for longer than ``lost_after``; people must find the node there all the same."""
    memory, ledger, told = MemoryStore(), start(), threading.Event()
    store = LocalBackend(memory)
    store.append(ORIGIN, ledger.head.link, encode_entry(ledger.head))
    applicant = Applicant(info=info("b"), settings=settings(1, 2, beat_interval=0.05))
    arrival = Arrival(ledger.head.link, ledger.head.run, belongs=True)
    watch = LedgerWatch(LocalBackend(memory), applicant, Runtime(new_id=lambda: "watch"), arrival, tell=told.set)
    watch.wait_until_entered(PATIENCE)
    store.remove("watch")
    version = 0
    while not (rows := store.roster(["watch"])):
        version, before = store.wait(Cursor(1, version), roster=True, timeout=PATIENCE).roster, version
        assert version != before, "the row does not come back"
    assert decode_row(rows[0].value).head == ledger.head.index
    drained = entry(ledger, Drain(nodes=("watch",), why="asked"), at=1.0)
    assert store.append(ledger.head.link, drained.link, encode_entry(drained))
    assert told.wait(PATIENCE)
    watch.stop()
    assert [decode_row(row.value).leaving for row in store.roster()] == [True]
    watch.close()


class Counting(LocalBackend):
    """Keeps what was removed."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.removed: list[str] = []

    def connect(self) -> Counting:
        return self

    def close(self) -> None:
        """Stay open."""

    def remove(self, node_id: str) -> None:
        self.removed.append(node_id)
        super().remove(node_id)


def test_the_row_of_a_former_node_is_removed_once() -> None:
    store, ledger, told = Counting(MemoryStore()), start(), threading.Event()
    store.append(ORIGIN, ledger.head.link, encode_entry(ledger.head))
    applicant = Applicant(info=info("b"), settings=settings(1, 2), former=(FormerNode("before", ledger.head.index),))
    arrival = Arrival(ledger.head.link, ledger.head.run, belongs=True)
    store.enter("before", encode_row(seen("before", node=info("before")).row))
    watch = LedgerWatch(store, applicant, Runtime(new_id=lambda: "watch"), arrival, tell=told.set)
    version = 0
    while store.roster(["before"]):
        version = store.wait(Cursor(1, version), roster=True, timeout=PATIENCE).roster
    drained = entry(ledger, Drain(nodes=("watch",), why="asked"), at=1.0)
    assert store.append(ledger.head.link, drained.link, encode_entry(drained))
    assert told.wait(PATIENCE)
    watch.close()
    assert store.removed == ["before", "watch"]
