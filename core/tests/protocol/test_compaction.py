"""Which entries shrink, and that a job whose old ones did goes on."""

from __future__ import annotations

import pytest
from session_parts import leader_of
from views import halted, live, members, offer, seen, start, then, watch

from elastic_core.incidents import Action, Verdict
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.protocol.codec import decode_entry, encode_entry, encode_row
from elastic_core.protocol.entries import Anchors, Halt, HaltReason, Round
from elastic_core.protocol.failure_detector import NodeView, Watch
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.repair import ENTRIES_KEPT_WHOLE, ENTRIES_SHRUNK_AT_ONCE, entries_to_shrink
from elastic_core.protocol.roster import Phase
from elastic_core.rendezvous.backend import ORIGIN, TOMBSTONE
from elastic_core.session.ledger_reader import load
from elastic_core.session.runtime import Runtime


def history() -> list[Ledger]:
    """OPEN, a ROUND, and then a HALT and a ROUND of the same nodes, again and again: the ledger after each entry."""
    found = [start(), live("ab")]
    for number in range(2, 61):
        found.append(then(found[-1], Halt(round=number - 1, reason=HaltReason.RESIZE, why="c joins"), at=20.0))
        sealed = Round(number=number, offer=offer("a", number), members=members("ab"))
        found.append(then(found[-1], sealed, at=21.0))
    return found


def at(name: str, head: int) -> NodeView:
    return seen(name, Phase.RUNNING, head=head)


HISTORY = history()
LONG = HISTORY[-1]
HEAD = LONG.head.index


@pytest.mark.parametrize(
    ("nodes", "kept", "expected"),
    [
        pytest.param(
            [at("a", HEAD), at("b", HEAD)],
            0,
            range(2, 2 + ENTRIES_SHRUNK_AT_ONCE),
            id="from the OPEN on, some at a time",
        ),
        pytest.param(
            [at("a", HEAD), at("b", HEAD)],
            30,
            range(30, 30 + ENTRIES_SHRUNK_AT_ONCE),
            id="from where the last turn ended",
        ),
        pytest.param(
            [at("a", HEAD), at("b", HEAD)],
            HEAD - ENTRIES_KEPT_WHOLE,
            range(HEAD - ENTRIES_KEPT_WHOLE, HEAD - ENTRIES_KEPT_WHOLE + 1),
            id="not the newest",
        ),
        pytest.param([at("a", HEAD), at("b", HEAD)], HEAD - ENTRIES_KEPT_WHOLE + 1, range(0), id="nothing is left"),
        pytest.param([at("a", HEAD), at("b", 12)], 10, range(10, 12), id="only what everybody has passed"),
        pytest.param([at("a", HEAD), at("b", HEAD), at("c", 0)], 10, range(0), id="a newcomer has passed nothing"),
    ],
)
def test_entries_that_everybody_has_passed_shrink(nodes: list[NodeView], kept: int, expected: range) -> None:
    assert list(entries_to_shrink(LONG, watch(*nodes), kept)) == list(expected)


def test_a_short_history_stays_whole() -> None:
    for ledger in (start(), live("ab"), halted("ab", HaltReason.RESIZE)):
        assert not entries_to_shrink(ledger, Watch(), 0)


def test_the_anchors_of_the_newest_entry_stay_whole() -> None:
    ledger = live("ab")
    for number in range(2, 100):
        ledger = then(ledger, Round(number=number, offer=offer("a", number), same_as=number - 1), at=20.0)
    assert ledger.head.anchors == Anchors(open=1, leader=1, round=2, latest=100)
    assert not entries_to_shrink(ledger, watch(at("a", 100), at("b", 100)), 0)


def test_the_leader_shrinks_them_and_every_entry_says_how_far_it_has_come() -> None:
    store = LocalBackend(MemoryStore())
    ledger, prev = start(), ORIGIN
    for one in HISTORY:
        assert store.append(prev, one.head.link, encode_entry(one.head))
        ledger, prev = one, one.head.link
    for name in "ab":
        store.enter(name, encode_row(at(name, HEAD).row))
    clock = Runtime(now=lambda: 30.0, new_id=lambda: "new")
    leader = leader_of(lambda incident, past: Verdict(Action.RESTART, ""), clock, lambda event: None)
    while entries_to_shrink(ledger, watch(at("a", HEAD), at("b", HEAD)), leader._kept[1]):
        leader.turn(store, ledger)
    whole = [index for index in range(1, HEAD + 1) if store.read(index) != TOMBSTONE]
    assert whole == [1, *range(HEAD - ENTRIES_KEPT_WHOLE + 1, HEAD + 1)]
    found = load(store, 30.0)
    assert found is not None
    assert found.round == ledger.round
    store.amend("b", 1, encode_row(seen("b", Phase.RUNNING, number=60, head=HEAD, leaving=True).row))
    leader.turn(store, ledger)
    data = store.read(HEAD + 1)
    assert data is not None
    entry = decode_entry(data)
    assert isinstance(entry.body, Halt)
    assert entry.anchors.kept == HEAD - ENTRIES_KEPT_WHOLE + 1
