"""The row with which a node enters, and what its session makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scenes import info
from test_session import CLOCK, PATIENCE, quick, restart

from elastic_core.rendezvous.backend import Cursor, RosterRow
from elastic_core.rendezvous.codec import decode_row
from elastic_core.rendezvous.join import Applicant, Joined, join
from elastic_core.rendezvous.ledger import Offer
from elastic_core.rendezvous.local import LocalBackend, MemoryStore
from elastic_core.rendezvous.session import Session, SessionCalls

PLACE = Offer("10.0.0.2", 29500, "the first")


def joined(store: LocalBackend, name: str, *, node_rank: int | None = None) -> Joined:
    applicant = Applicant(info=replace(info(name), node_rank=node_rank), settings=quick(), offer=PLACE)
    found = join(store, applicant, CLOCK)
    assert isinstance(found, Joined)
    return found


def row_in(store: LocalBackend, name: str) -> RosterRow:
    [row] = store.roster([name])
    return row


def test_the_first_row_of_who_finds_the_run_says_all_that_there_is_to_say() -> None:
    store = LocalBackend(MemoryStore())
    joined(store, "a")
    found, seen = joined(store, "b"), row_in(store, "b")
    assert (decode_row(seen.value), seen.revision) == (found.row, 0)
    head = found.ledger.head
    assert (found.row.run, found.row.head, found.row.epoch, found.row.offer) == (head.run, head.index, 0, PLACE)


@pytest.mark.parametrize(("name", "node_rank"), [("the first of all", None), ("one with a rank", 1)])
def test_who_has_to_look_around_first_offers_nothing_until_it_has(name: str, node_rank: int | None) -> None:
    """A round that it was given meanwhile would begin without it."""
    store = LocalBackend(MemoryStore())
    if node_rank is not None:
        joined(store, "a", node_rank=0)
    found = joined(store, name, node_rank=node_rank)
    assert found.row.offer is None
    assert decode_row(row_in(store, name).value) == found.row


def test_a_node_that_waits_has_written_one_row_and_enters_it_anew_when_it_is_lost() -> None:
    store, errors = LocalBackend(MemoryStore()), list[BaseException]()
    joined(store, "a")
    found = joined(store, "b")
    calls = SessionCalls(post=lambda event: None, publish=lambda event: None, judge=restart, crashed=errors.append)
    session = Session(store, found, CLOCK, calls)
    try:
        session.start()
        before = row_in(store, "b")
        store.remove("b")
        seen = store.wait(Cursor(), roster=True, timeout=0)
        while not store.roster(["b"]):
            seen, before_wait = store.wait(seen, roster=True, timeout=PATIENCE), seen
            assert seen != before_wait, "the row does not come back"
        after = row_in(store, "b")
    finally:
        session.close(PATIENCE)
    assert (before.value, before.revision) == (after.value, after.revision)
    assert (decode_row(after.value), after.revision) == (found.row, 0)
    assert not errors
