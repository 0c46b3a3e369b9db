"""The rows that a node writes at once, and those that it delays until others have read the ones before."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from session_parts import state_of
from views import halted, incident, info, live, offer, start, then

from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.protocol.codec import decode_row, encode_row
from elastic_core.protocol.entries import HaltReason, Member, Plan, Round
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.roster import (
    ROW_DELAY_MAX_SECONDS,
    ROW_DELAY_PER_MEMBER_SECONDS,
    SPREAD_ABOVE_MEMBERS,
    NodeRow,
    Phase,
    row_delay,
)

RUNS = NodeRow(info=info("b"), run="run1", phase=Phase.RUNNING, round=1, head=2)
PLANNED = then(live("ab"), Plan(round=1, reason=HaltReason.RESIZE, why="c joins", deadline=300.0), at=11.0)
PATIENCE = 30.0
NEVER = 3600.0


def of(size: int) -> Ledger:
    """A running job of so many nodes."""
    members = tuple(Member(f"n{at}", 8, "default") for at in range(size))
    return then(start(), Round(number=1, offer=offer("a"), members=members), at=10.0)


@pytest.mark.parametrize(
    ("row", "ledger", "seconds"),
    [
        pytest.param(RUNS, live("ab"), 2 * ROW_DELAY_PER_MEMBER_SECONDS, id="it runs"),
        pytest.param(
            replace(RUNS, progressed=True, takes_notices=True),
            live("ab"),
            2 * ROW_DELAY_PER_MEMBER_SECONDS,
            id="it goes on",
        ),
        pytest.param(
            RUNS, of(SPREAD_ABOVE_MEMBERS), SPREAD_ABOVE_MEMBERS * ROW_DELAY_PER_MEMBER_SECONDS, id="of sixty-four"
        ),
        pytest.param(replace(RUNS, info=info("a")), live("ab"), 0.0, id="where rank 0 would meet next"),
        pytest.param(replace(RUNS, incident=incident("b")), live("ab"), 0.0, id="a worker failed"),
        pytest.param(replace(RUNS, leaving=True), live("ab"), 0.0, id="it leaves"),
        pytest.param(replace(RUNS, stepped_down=True), live("ab"), 0.0, id="its workers have stopped as told"),
        pytest.param(replace(RUNS, phase=Phase.STOPPED), live("ab"), 0.0, id="it has stopped"),
        pytest.param(replace(RUNS, phase=Phase.FINISHED), live("ab"), 0.0, id="it has finished"),
        pytest.param(replace(RUNS, phase=Phase.WAITING), live("a"), 0.0, id="it waits"),
        pytest.param(replace(RUNS, phase=Phase.WAITING), start(), 0.0, id="there is no round"),
        pytest.param(replace(RUNS, head=3), PLANNED, 0.0, id="it has seen the plan"),
        pytest.param(replace(RUNS, head=3), halted("ab", HaltReason.FAILURE), 0.0, id="it has seen the halt"),
    ],
)
def test_a_row_that_a_node_waits_for_is_written_at_once(row: NodeRow, ledger: Ledger, seconds: float) -> None:
    assert row_delay(row, ledger) == pytest.approx(seconds)


@pytest.mark.parametrize("members", [100, 5000])
def test_the_members_of_a_large_round_do_not_all_say_so_at_once(members: int) -> None:
    ledger, most = of(members), min(ROW_DELAY_MAX_SECONDS, members * ROW_DELAY_PER_MEMBER_SECONDS)
    assert ledger.round is not None
    rows = [replace(RUNS, info=info(member.node_id)) for member in ledger.round.members[1:]]
    delays = [row_delay(row, ledger) for row in rows]
    assert delays == [row_delay(row, ledger) for row in rows]
    tenths = Counter(int(10 * (delay - most / 2) / (most / 2)) for delay in delays)
    assert tenths.keys() == set(range(10))
    assert max(tenths.values()) < members / 5


class Listening(LocalBackend):
    """A store that keeps what it was told."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.told: list[tuple[int, NodeRow]] = []
        self.came = threading.Condition()

    def connect(self) -> Listening:
        return self

    def amend(self, node_id: str, revision: int, value: bytes) -> None:
        super().amend(node_id, revision, value)
        with self.came:
            self.told.append((revision, decode_row(value)))
            self.came.notify_all()


class Desk:
    """A writer, and its thread as soon as that is wanted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = Listening(MemoryStore())
        row = NodeRow(info=info("b"))
        self.store.enter("b", encode_row(row))
        self.cut_off = False
        self.state = state_of("b", live("ab"), self.store)
        monkeypatch.setattr(self.state, "is_cut_off", lambda: self.cut_off)
        self.thread = threading.Thread(target=self.state.writer.run)

    def open(self) -> None:
        self.thread.start()

    def told(self, row: NodeRow) -> list[int]:
        """The revisions that the store was told of, once it knows this row."""
        with self.store.came:
            assert self.store.came.wait_for(lambda: any(told == row for _, told in self.store.told), PATIENCE)
            return [revision for revision, _ in self.store.told]

    def close(self) -> None:
        self.state.stopping.set()
        with self.state.wake:
            self.state.wake.notify()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    made = Desk(monkeypatch)
    yield made
    made.close()


def test_a_delayed_row_is_written_in_the_end(desk: Desk) -> None:
    desk.open()
    desk.state.writer.publish(RUNS, 0.01)
    assert desk.told(RUNS) == [1]


def test_a_node_that_was_cut_off_for_as_long_as_its_fence_is_silent_until_it_has_contact(desk: Desk) -> None:
    done = threading.Event()
    desk.cut_off = True
    desk.state.writer.publish(RUNS)
    desk.state.writer.later(lambda _store: done.set())
    desk.open()
    assert done.wait(PATIENCE), "whatever else it has to do goes on"
    assert desk.store.told == []
    desk.cut_off = False
    assert desk.told(RUNS) == [1]


def test_an_urgent_row_replaces_a_delayed_one(desk: Desk) -> None:
    failed = replace(RUNS, incident=incident("b"))
    desk.open()
    desk.state.writer.publish(RUNS, NEVER)
    desk.state.writer.publish(failed)
    assert desk.told(failed) == [2]


def test_more_that_can_wait_does_not_put_off_what_has_waited(desk: Desk) -> None:
    later = replace(RUNS, progressed=True)
    desk.state.writer.publish(RUNS, 0.01)
    desk.state.writer.publish(later, NEVER)
    desk.open()
    assert desk.told(later) == [2]


def test_after_a_job_nothing_is_left_to_write(desk: Desk) -> None:
    desk.open()
    desk.state.writer.publish(RUNS, NEVER)
    desk.state.writer.later(lambda store: None)
    assert desk.told(RUNS) == [1]


def test_a_store_that_has_lost_the_row_is_told_at_once(desk: Desk) -> None:
    desk.open()
    desk.state.writer.publish(RUNS, NEVER)
    desk.store.remove("b")
    desk.state.writer.row_seen(None)
    assert desk.told(RUNS) == [1]
    assert [row.node_id for row in desk.store.roster()] == ["b"]
