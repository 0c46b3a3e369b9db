"""What a round that follows a loss does to the losses that the ledger counts by host."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scenes import halted, info, seen, watch, with_counters

from elastic_core.rendezvous.books import LOSSES_KEPT_SECONDS, reformed
from elastic_core.rendezvous.entries import Counters, HostLosses
from elastic_core.rendezvous.ledger import HaltReason, Ledger
from elastic_core.rendezvous.limits import MAX_HOSTS
from elastic_core.rendezvous.rows import Phase
from elastic_core.rendezvous.scene import Scene

NOW, AGE = 100.0, 50_000.0


def after_losing_b(ledger: Ledger, here: str = "a") -> Counters:
    """The counters of the round without b; there are rows of b and of ``here``."""
    nodes = [seen(name, Phase.STOPPED, head=3) for name in here]
    scene = Scene(ledger=ledger, watch=watch(*nodes, seen("b", Phase.RUNNING, head=2, changed=0.0), now=NOW), now=NOW)
    assert ledger.round is not None
    assert ledger.halt is not None
    counters, _ = reformed(scene, ledger.round, ledger.halt, ["b"])
    return counters


def grown_old(losses: dict[str, HostLosses], excluded: tuple[str, ...] = ()) -> Ledger:
    """A run that is AGE seconds old at NOW."""
    ledger = with_counters(halted("ab", HaltReason.NODE_LOST), losses=losses, excluded=excluded)
    return replace(ledger, head=replace(ledger.head, age=AGE - (NOW - ledger.head_at)))


@pytest.mark.parametrize(
    ("host", "age", "kept"),
    [
        ("a host without a row", AGE - LOSSES_KEPT_SECONDS + 1, True),
        ("a host without a row", AGE - LOSSES_KEPT_SECONDS - 1, False),
        ("id-host-a", 0.0, True),
    ],
    ids=["within the hour", "before", "and it has a row again"],
)
def test_the_losses_of_a_host_are_kept_for_an_hour_or_while_it_has_a_row(host: str, age: float, kept: bool) -> None:
    counters = after_losing_b(grown_old({host: HostLosses(2, age)}))
    assert (host in counters.losses) is kept
    assert counters.losses["id-host-b"] == HostLosses(1, AGE)


def test_another_loss_of_a_host_counts_and_is_the_newest() -> None:
    assert after_losing_b(grown_old({"id-host-b": HostLosses(2, AGE - 7)})).losses == {"id-host-b": HostLosses(3, AGE)}


def test_of_too_many_those_with_most_losses_stay_and_then_the_newest() -> None:
    often = {f"often {i}": HostLosses(2, AGE - 3000) for i in range(100)}
    once = {f"once {i}": HostLosses(1, AGE - 1000 + i) for i in range(300)}
    losses = after_losing_b(grown_old({**once, **often})).losses
    newest = {f"once {i}" for i in range(300 - (MAX_HOSTS - 100 - 1), 300)}
    assert losses.keys() == often.keys() | newest | {"id-host-b"}


def test_of_too_many_excluded_hosts_those_stay_that_have_a_row_and_then_the_newest() -> None:
    excluded = ("id-host-a", *(f"gone {i}" for i in range(MAX_HOSTS - 1)))
    scene_ledger = grown_old({}, excluded)
    nodes = [seen(name, Phase.STOPPED, head=3) for name in "ab"]
    scene = Scene(ledger=scene_ledger, watch=watch(*nodes, now=NOW), now=NOW)
    assert scene_ledger.round is not None
    assert scene_ledger.halt is not None
    counters, _ = reformed(scene, scene_ledger.round, scene_ledger.halt, ["b"], unreachable="b")
    assert set(counters.excluded) == {"id-host-a", "id-host-b", *(f"gone {i}" for i in range(1, MAX_HOSTS - 1))}


def test_nodes_of_one_host_count_each() -> None:
    ledger = grown_old({})
    lost = [
        replace(seen(name, Phase.RUNNING, head=2, changed=0.0), row=seen(name, Phase.RUNNING, head=2).row)
        for name in "bc"
    ]
    shared = [replace(one, row=replace(one.row, info=info(one.node_id, host="shared"))) for one in lost]
    scene = Scene(ledger=ledger, watch=watch(seen("a", Phase.STOPPED, head=3), *shared, now=NOW), now=NOW)
    assert ledger.round is not None
    assert ledger.halt is not None
    counters, _ = reformed(scene, ledger.round, ledger.halt, ["b", "c"])
    assert counters.losses == {"id-shared": HostLosses(2, AGE)}
