"""The lookout's thread where the store keeps it waiting while it is to end."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from views import info, settings

from elastic_core.errors import StoreLostError
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.rendezvous.backend import ORIGIN
from elastic_core.session.arrival import Arrival
from elastic_core.session.join import Applicant
from elastic_core.session.ledger_watch import Lookout
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
    """A row that nobody removes would keep the store's host waiting at the end of the job."""
    failed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    memory, before = MemoryStore(), {*threading.enumerate()}
    store = SlowToConnect(memory, lost=lost)
    applicant = Applicant(info=info("b"), settings=settings(1, 2))
    lookout = Lookout(store, applicant, Runtime(new_id=lambda: "lookout"), Arrival(ORIGIN))
    [thread] = {*threading.enumerate()} - before
    assert store.asked.wait(PATIENCE)
    lookout.close()
    store.answers.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert memory.rows == {}
    assert failed == []


def test_the_host_of_an_embedded_store_knows_of_the_node_before_people_do() -> None:
    memory = MemoryStore()
    store = SlowToConnect(memory, lost=False)
    store.embedded = True
    lookout = Lookout(
        store,
        Applicant(info=info("b"), settings=settings(1, 2)),
        Runtime(new_id=lambda: "lookout"),
        Arrival(ORIGIN),
    )
    assert store.asked.wait(PATIENCE)
    assert memory.rows == {}
    store.answers.set()
    lookout.wait_until_entered(PATIENCE)
    assert [*memory.rows] == ["lookout"]
    lookout.close()
    assert memory.rows == {}
