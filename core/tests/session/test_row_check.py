"""A node whose row the leader cannot read says so itself."""

from __future__ import annotations

import json

import pytest
from session_parts import leader_of
from views import info, live, seen, settings, start, then

from elastic_core import __version__
from elastic_core.events import Event
from elastic_core.incidents import Action, Verdict
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.protocol.codec import encode_entry, encode_row
from elastic_core.protocol.entries import Closed, Leader
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.limits import MAX_UNREAD_ROWS
from elastic_core.protocol.roster import NodeRow, Phase
from elastic_core.rendezvous.backend import ORIGIN
from elastic_core.session.heartbeat import RowCheck
from elastic_core.session.runtime import Runtime

LEDGER = live("a", settings(1, 4, lost_after=6.0))
CLOSED = Closed(success=True, why="done", exit_code=0)


@pytest.mark.parametrize(
    ("what", "node_id", "ledger", "due"),
    [
        ("a node that waits", "x", LEDGER, True),
        ("the leader", "a", LEDGER, False),
        ("a member", "b", live("ab", settings(1, 4, lost_after=6.0)), False),
        ("a job that is over", "x", then(LEDGER, CLOSED, at=20.0), False),
    ],
)
def test_a_node_that_waits_for_a_place_looks_after_lost_after(
    what: str, node_id: str, ledger: Ledger, due: bool
) -> None:
    check = RowCheck(node_id, lambda _: None)
    assert [check.is_due(ledger, now) for now in (100.0, 105.9, 106.0)] == [False, False, due]


def test_it_looks_ever_more_seldom_and_begins_anew_with_each_leader() -> None:
    check = RowCheck("x", lambda _: None)
    due = [now for now in range(100, 160) if check.is_due(LEDGER, float(now))]
    assert due == [106, 118, 142]
    other = then(LEDGER, Leader(why="a leaves"), at=20.0, leader="b")
    assert [now for now in range(160, 180) if check.is_due(other, float(now))] == [166, 178]


def said(row: bytes) -> list[Event]:
    """Return the events of a node that has found this row of the leader."""
    store, found = LocalBackend(MemoryStore()), list[Event]()
    store.enter("a", row)
    check = RowCheck("x", found.append)
    for now in (100.0, 106.0, 118.0, 142.0):
        if check.is_due(LEDGER, now):
            check.look(store, LEDGER)
    return found


UNREAD = encode_row(NodeRow(info=info("a"), unread=("w", "x")))
OLDER = json.dumps({**json.loads(UNREAD), "by": "0.0.9"}).encode()


@pytest.mark.parametrize(
    ("what", "row", "words"),
    [
        ("one release", UNREAD, f"Both run elastic-core {__version__}. See that both have the same job token"),
        ("another release", OLDER, f"It runs elastic-core 0.0.9, and this node {__version__}: install one release"),
        (
            "the leader's is no row",
            b"[]",
            "cannot read what a, which decides, writes to the store: A row in the store is not a JSON",
        ),
    ],
)
def test_it_says_once_whose_row_cannot_be_read_and_why(what: str, row: bytes, words: str) -> None:
    (event,) = said(row)
    assert (event.name, event.level.name) == ("row_unread", "WARNING")
    assert words in event.message
    assert ("host-a, which decides, cannot read what this node writes to the store" in event.message) is (row != b"[]")


def test_the_leaders_list_of_unreadable_rows_fits_into_its_own_row() -> None:
    """Each writer of the store chooses its ids; an agent whose own row cannot be written would end."""
    store, ledger = LocalBackend(MemoryStore()), live("a")
    store.append(ORIGIN, (first := start().head).link, encode_entry(first))
    store.append(first.link, ledger.head.link, encode_entry(ledger.head))
    store.enter("a", encode_row(seen("a", Phase.RUNNING, head=2).row))
    long = [f"{'0' * 100_000}{number}" for number in range(3)]
    for node_id in [*long, *(f"{number:03}" + "\U0001f600" * 61 for number in range(80))]:
        store.enter(node_id, b"no row")
    leader = leader_of(lambda *_: Verdict(Action.RESTART, ""), Runtime(now=lambda: 20.0), lambda _: None)
    leader.turn(store, ledger)
    assert len(leader.roster.unread) == MAX_UNREAD_ROWS
    encode_row(NodeRow(info=info("a"), unread=leader.roster.unread))


@pytest.mark.parametrize("unread", [(), ("w",)])
def test_a_node_whose_row_is_read_publishes_nothing(unread: tuple[str, ...]) -> None:
    assert said(encode_row(NodeRow(info=info("a"), unread=unread))) == []
