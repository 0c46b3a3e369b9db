"""The watch of a node that joins later: its thread, and what it reads and writes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from test_repair import resumed
from views import RUN, entry, info, live, members, offer, seen, settings, start

from elastic_core.errors import RendezvousConnectionError, StoreLostError
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.protocol.codec import decode_row, encode_entry, encode_row
from elastic_core.protocol.entries import Body, Closed, Drain, Leader, Round
from elastic_core.protocol.ledger import advance
from elastic_core.protocol.roster import NodeRow
from elastic_core.rendezvous.backend import ORIGIN, Cursor, RosterRow
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


# What it does, on the test's own thread -------------------------------------------------------------------------------


class Held(threading.Thread):
    """A thread that does not start: the test calls ``run()``."""

    joined: float | None = None

    def start(self) -> None:
        """Do nothing."""

    def join(self, timeout: float | None = None) -> None:
        self.joined = timeout


class Watched(LocalBackend):
    """A store whose run was resumed with a round of a and b, and a watch over it, which is connected to it once.

    Each connection and each wait of the watch does the next thing that the test wants, and no more are expected.
    """

    def __init__(
        self, *bodies: Body, connects: Sequence[Step] = (), waits: Sequence[Step] = (), former: str = ""
    ) -> None:
        super().__init__(MemoryStore())
        self.ledger = resumed(live("ab"))
        super().append(ORIGIN, self.ledger.head.link, encode_entry(self.ledger.head))
        arrival = Arrival(self.ledger.head.link, RUN, belongs=True)
        self.says(*bodies)
        self.connects, self.waits, self.noted, self.told = [*connects], [*waits], list[str](), list[None]()
        self.pauses, self.threads = list[float | None](), list[Held]()
        applicant = Applicant(
            info=info("b"), settings=settings(1, 2), former=tuple(FormerNode(name, 1) for name in former)
        )
        for name in former:
            super().enter(name, encode_row(seen(name).row))
        runtime = Runtime(new_id=lambda: "watch", thread=self._hold, event=self._event)
        self.watch = LedgerWatch(self, applicant, runtime, arrival, tell=lambda: self.told.append(None))

    def _hold(self, **options: Any) -> Held:
        self.threads.append(Held(**options))
        return self.threads[-1]

    def _event(self) -> threading.Event:
        event = threading.Event()
        event.wait = self.pauses.append  # type: ignore[assignment,method-assign]  # it notes the time
        return event

    def run(self) -> Watched:
        """Run the watch's thread to its end."""
        self.threads[0].run()
        assert (self.connects, self.waits) == ([], [])
        return self

    def says(self, *bodies: Body) -> None:
        """Append entries."""
        for body in bodies:
            new = entry(self.ledger, body, at=60.0)
            assert self.append(self.ledger.head.link, new.link, encode_entry(new))
            self.ledger = advance(self.ledger, new, 60.0)

    @property
    def row(self) -> tuple[NodeRow, RosterRow]:
        """The watch's own row."""
        [found] = self.roster(["watch"])
        return decode_row(found.value), found

    def connect(self) -> Watched:
        self.noted.append("connect")
        if self.connects:
            self.connects.pop(0)(self)
        return self

    def close(self) -> None:
        self.noted.append("close")

    def enter(self, node_id: str, value: bytes) -> int:
        self.noted.append(f"enter {node_id}")
        return super().enter(node_id, value)

    def wait(self, cursor: Cursor, *, roster: bool, timeout: float) -> Cursor:
        assert not roster
        assert "close" not in self.noted, "it reads on after its end"
        if timeout:
            assert self.waits, "it waits once more"
            self.waits.pop(0)(self)
        return Cursor(self._store.head)


Step = Callable[[Watched], object]


def stop(store: Watched) -> None:
    store.watch.stop()
    assert store.noted[-1:] in (["close"], ["connect"]), "it closes the connection, if there is one"


def nothing(_: Watched) -> None:
    pass


def fails(error: Exception) -> Step:
    def step(_: Watched) -> None:
        raise error

    return step


def says(*bodies: Body) -> Step:
    return lambda store: store.says(*bodies)


DONE = Closed(success=True, why="done", exit_code=0)
DRAIN = Drain(nodes=("watch",), why="asked")
GONE = StoreLostError("no process listens there")


def test_its_row_has_a_heartbeat_and_the_newest_entry_until_it_is_stopped() -> None:
    store = Watched(former="x", waits=[nothing, says(Leader(why="silent")), nothing, stop]).run()
    row, found = store.row
    assert (row.head, row.epoch, row.leaving, found.revision, found.heartbeat) == (2, 1, False, 2, 3)
    assert store.watch.former == (FormerNode("x", 2), FormerNode("watch", 2))
    assert store.noted == ["connect", "enter watch", "close", "close"]
    assert (store.told, store.watch.verdict(), store.watch.drained) == ([], None, "")
    assert (store.threads[0].daemon, store.threads[0].joined) == (True, 1.0)


@pytest.mark.parametrize("end", [LedgerWatch.stop, LedgerWatch.close])
def test_one_that_is_stopped_before_its_thread_runs_does_not_connect(end: Callable[[LedgerWatch], None]) -> None:
    store = Watched()
    end(store.watch)
    assert store.run().noted == []


def test_one_that_is_stopped_while_it_connects_enters_no_row() -> None:
    assert Watched(connects=[stop]).run().noted == ["connect", "close"]


def test_it_tries_again_ever_later_where_the_store_cannot_be_reached() -> None:
    down = fails(RendezvousConnectionError("down"))
    store = Watched(connects=[down, down, nothing], waits=[stop]).run()
    assert (store.pauses, store.noted[:3]) == ([0.1, 0.2], ["connect"] * 3)


def test_that_the_store_is_lost_is_told_and_raised() -> None:
    store = Watched(connects=[fails(GONE)]).run()
    assert len(store.told) == 1
    with pytest.raises(StoreLostError, match=f"Run {RUN}, for which this node came, .*: no process listens there"):
        store.watch.verdict()


def test_a_verdict_is_told_and_ends_it() -> None:
    store = Watched(waits=[says(DONE)]).run()
    assert (store.watch.verdict(), len(store.told), store.noted[-1]) == (DONE, 1, "close")
    assert store.row[1].revision == 1, "the node reports it, and writes no more"


def test_a_drain_stands_although_the_row_could_not_be_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store, failures = Watched(connects=[nothing, nothing], waits=[says(DRAIN)]), [RendezvousConnectionError("down")]
    amend = store.amend

    def amend_later(node_id: str, revision: int, value: bytes) -> None:
        if decode_row(value).leaving and failures:
            raise failures.pop()
        amend(node_id, revision, value)

    monkeypatch.setattr(store, "amend", amend_later)
    monkeypatch.setattr(store, "close", lambda: None)
    assert store.run().watch.drained == "asked"
    assert store.row[0].leaving


def test_the_row_of_a_former_node_stays_while_that_is_a_member() -> None:
    here = list[list[str]]()

    def look(store: Watched) -> None:
        here.append([row.node_id for row in store.roster()])

    without = Round(number=2, offer=offer("a", 2), members=members("a"))
    Watched(former="bc", waits=[look, says(without), look, stop]).run()
    assert here == [["b", "watch"], ["watch"]]
