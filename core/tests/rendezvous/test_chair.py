"""The chair's driver, and what it makes of its own sleep."""

from __future__ import annotations

import math

import pytest
from scenes import live, seen, start

from elastic_core.incidents import Action, Verdict
from elastic_core.rendezvous.backend import ORIGIN
from elastic_core.rendezvous.chair import ChairDriver
from elastic_core.rendezvous.codec import encode_entry, encode_row
from elastic_core.rendezvous.join import Clock
from elastic_core.rendezvous.local import LocalBackend, MemoryStore
from elastic_core.rendezvous.rows import Phase


@pytest.mark.parametrize(("nodes", "gap_at"), [("a", -math.inf), ("ab", 100.0)])
def test_a_long_sleep_is_a_gap_only_to_who_had_somebody_to_look_for(nodes: str, gap_at: float) -> None:
    store, ledger, now = LocalBackend(MemoryStore()), live(nodes), 20.0
    store.append(ORIGIN, (first := start().head).link, encode_entry(first))
    store.append(first.link, ledger.head.link, encode_entry(ledger.head))
    for name in nodes:
        store.enter(name, encode_row(seen(name, Phase.RUNNING, head=2).row))
    chair = ChairDriver("a", lambda *_: Verdict(Action.RESTART, ""), Clock(now=lambda: now), lambda event: None)
    chair.turn(store, ledger)
    assert chair.alone(ledger) is (nodes == "a")
    now = 100.0
    store.enter("c", encode_row(seen("c", head=0).row))
    chair.turn(store, ledger)
    assert chair.watch.gap_at == gap_at
    assert not chair.alone(ledger)
