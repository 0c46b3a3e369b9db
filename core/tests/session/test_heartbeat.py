"""The heartbeat: what a node without a rank asks for when the leader seems to be gone."""

from __future__ import annotations

from collections.abc import Collection

from session_parts import heartbeat_of, state_of
from views import start

from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.rendezvous.backend import RosterRow
from elastic_core.session.runtime import Runtime


class Asked(LocalBackend):
    """A connection that remembers which rows were asked for; None for all."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.asked: list[Collection[str] | None] = []

    def connect(self) -> Asked:
        return self

    def roster(self, ids: Collection[str] | None = None) -> list[RosterRow]:
        self.asked.append(ids)
        return super().roster(ids)


def test_those_who_came_later_read_the_roster_later() -> None:
    """A thousand nodes whose leader is silent must not read a thousand rows each, all at once."""
    ids, memory, clock = "abcdefgh", MemoryStore(), [0.0]
    for name in ids:
        LocalBackend(memory).enter(name, b"")

    ledger = start()  # a is the leader, and never heartbeats
    memory.entries.append((ledger.head.id, b""))
    stores = {name: Asked(memory) for name in ids[1:]}
    runtime = Runtime(now=lambda: clock[0])
    heartbeats = {name: heartbeat_of(state_of(name, ledger, store, runtime)) for name, store in stores.items()}

    def succeeded() -> list[str]:
        return [name for name, heartbeat in heartbeats.items() if heartbeat._state.heard is not None]

    def beat() -> None:
        for name, heartbeat in heartbeats.items():
            heartbeat._heartbeat(stores[name], ledger)

    beat()
    clock[0] = 2.9
    beat()
    clock[0] = 5.8
    beat()
    assert not any(store.asked for store in stores.values())
    clock[0] = 6.0
    beat()
    assert {name: list(map(str, store.asked)) for name, store in stores.items()} == {
        name: [str((name, "a"))] for name in stores
    }
    clock[0] = 6.011  # b, which came next, looks, and becomes the leader
    beat()
    assert [name for name, store in stores.items() if None in store.asked] == succeeded() == ["b"]
    clock[0] = 6.031  # had it not, the next two would look now, and find that it stands before them
    beat()
    assert [name for name, store in stores.items() if None in store.asked] == ["b", "c", "d"]
    assert succeeded() == ["b"]
