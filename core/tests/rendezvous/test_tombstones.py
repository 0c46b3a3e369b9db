"""Which entries shrink, and that a job whose old ones did goes on."""

from __future__ import annotations

import pytest
from scenes import halted, live, members, offer, seen, start, then, watch

from elastic_core.rendezvous.ledger import Anchors, Halt, HaltReason, Ledger, Round
from elastic_core.rendezvous.rows import Phase
from elastic_core.rendezvous.tombstones import AT_ONCE, WHOLE, due
from elastic_core.rendezvous.watch import Sighting, Watch


def long_run(rounds: int) -> Ledger:
    """OPEN, a ROUND, and then a HALT and a ROUND of the same nodes, again and again."""
    ledger = live("ab")
    for number in range(2, rounds + 1):
        ledger = then(ledger, Halt(round=number - 1, reason=HaltReason.RESIZE, why="c joins"), at=20.0)
        ledger = then(ledger, Round(number=number, offer=offer("a", number), members=members("ab")), at=21.0)
    return ledger


def at(name: str, head: int) -> Sighting:
    return seen(name, Phase.RUNNING, head=head)


LONG = long_run(60)
HEAD = LONG.head.index


@pytest.mark.parametrize(
    ("nodes", "kept", "expected"),
    [
        pytest.param([at("a", HEAD), at("b", HEAD)], 0, range(2, 2 + AT_ONCE), id="from the OPEN on, some at a time"),
        pytest.param([at("a", HEAD), at("b", HEAD)], 30, range(30, 30 + AT_ONCE), id="from where the last turn ended"),
        pytest.param(
            [at("a", HEAD), at("b", HEAD)], HEAD - WHOLE, range(HEAD - WHOLE, HEAD - WHOLE + 1), id="not the newest"
        ),
        pytest.param([at("a", HEAD), at("b", HEAD)], HEAD - WHOLE + 1, range(0), id="nothing is left"),
        pytest.param([at("a", HEAD), at("b", 12)], 10, range(10, 12), id="only what everybody has passed"),
        pytest.param([at("a", HEAD), at("b", HEAD), at("c", 0)], 10, range(0), id="a newcomer has passed nothing"),
    ],
)
def test_entries_that_everybody_has_passed_shrink(nodes: list[Sighting], kept: int, expected: range) -> None:
    assert list(due(LONG, watch(*nodes), kept)) == list(expected)


def test_a_short_history_stays_whole() -> None:
    for ledger in (start(), live("ab"), halted("ab", HaltReason.RESIZE)):
        assert not due(ledger, Watch(), 0)


def test_what_the_newest_entry_stands_on_stays_whole() -> None:
    ledger = live("ab")
    for number in range(2, 100):
        ledger = then(ledger, Round(number=number, offer=offer("a", number), same_as=number - 1), at=20.0)
    assert ledger.head.anchors == Anchors(open=1, chair=1, round=2, latest=100)
    assert not due(ledger, watch(at("a", 100), at("b", 100)), 0)
