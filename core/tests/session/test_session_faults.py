"""Nodes whose store fails them, whose answers cross, and whose leader is slow: no node hangs, and none spins."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace

import pytest
from session_parts import heartbeat_of, state_of
from test_session import CLOCK, PATIENCE, Node, in_round, quick
from views import incident, info, live

from elastic_core.errors import RendezvousConnectionError, RendezvousRefusedError, RendezvousStateError, StoreLostError
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.protocol.codec import Codec, decode_entry, encode_entry, encode_row
from elastic_core.protocol.entries import Entry, Leader, Resume
from elastic_core.protocol.ledger import HistoryChangedError
from elastic_core.protocol.node_events import Leaving, WorkerFailed
from elastic_core.protocol.roster import NodeRow, Phase
from elastic_core.rendezvous.backend import MAX_VALUE_BYTES, Cursor, HeartbeatReply, Link, ReplaceableServer, RosterRow
from elastic_core.session.contact import Contact
from elastic_core.session.heartbeat import Heartbeat
from elastic_core.session.join import Applicant, Joined, join
from elastic_core.session.runtime import Runtime


@dataclass
class Faults:
    """The faults of one node's store; all of the node's connections read them here."""

    down: bool = False
    breaks: int = 0
    """So many attempts to connect fail from now on."""
    gone: bool = False
    """No server listens where the store was."""
    wiped: bool = False
    """Connecting finds something that cannot be."""
    garbled: bool = False
    """Reading does."""
    missing: Collection[int] = ()
    """It does not find these entries."""
    unlisted: bool = False
    """So does listing the rows."""
    full: bool = False
    """It can be read, and takes nothing."""
    restless: bool = False
    """It can be read and written, and lets no node wait."""
    refused: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Released for whatever it has refused."""
    appending: Callable[[], None] = field(default=lambda: None)
    """Called before every append."""
    answered: Callable[[], None] = field(default=lambda: None)
    """Called when the store has answered a heartbeat, an amendment or a wait, and before the answer is read."""


class FaultyBackend(LocalBackend):
    """The in-memory store over a bad line."""

    def __init__(self, store: MemoryStore, faults: Faults) -> None:
        super().__init__(store)
        self._memory, self.faults = store, faults

    def connect(self) -> FaultyBackend:
        self._check()
        if self.faults.breaks:
            self.faults.breaks -= 1
            raise RendezvousConnectionError("the line broke")
        if self.faults.wiped:
            raise RendezvousStateError("entry 3 is gone")
        return FaultyBackend(self._memory, self.faults)

    def heartbeat(self, node_id: str, count: int, watch: str | None = None) -> HeartbeatReply:
        self._check()
        self._refuse(self.faults.full)
        reply = super().heartbeat(node_id, count, watch)
        self.faults.answered()
        return reply

    def amend(self, node_id: str, revision: int, value: bytes) -> None:
        self._refuse(self.faults.full)
        super().amend(node_id, revision, value)
        self.faults.answered()

    def roster(self, ids: Collection[str] | None = None) -> list[RosterRow]:
        if self.faults.unlisted:
            raise RendezvousStateError("the roster cannot be read")
        return super().roster(ids)

    def read(self, index: int) -> bytes | None:
        self._check()
        if index in self.faults.missing:
            return None
        if self.faults.garbled:
            raise RendezvousStateError("entry 3 cannot be read")
        return super().read(index)

    def wait(self, cursor: Cursor, *, roster: bool, timeout: float) -> Cursor:
        self._check()
        self._refuse(self.faults.restless)
        news = super().wait(cursor, roster=roster, timeout=timeout)
        self.faults.answered()
        return news

    def append(self, prev: Link, entry: Link, data: bytes) -> bool:
        self.faults.appending()
        return super().append(prev, entry, data)

    def _check(self) -> None:
        if self.faults.gone:
            raise StoreLostError("connection refused")
        if self.faults.down:
            raise RendezvousConnectionError("the line is down")

    def _refuse(self, refused: bool) -> None:
        if refused:
            self.faults.refused.release()
            raise RendezvousConnectionError("it is not permitted")


@dataclass
class Bench:
    """Nodes over one store, each with faults of its own."""

    store: MemoryStore = field(default_factory=MemoryStore)
    faults: dict[str, Faults] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)

    def add(self, name: str, *, breaks: int = 0, **timing: float) -> Node:
        self.faults[name] = Faults(breaks=breaks)
        self.nodes.append(Node(name, FaultyBackend(self.store, self.faults[name]), quick(1, 2, **timing)))
        return self.nodes[-1]

    def pair(self, min_nodes: int = 2, **timing: float) -> tuple[Node, Node]:
        """Nodes a, the leader, and b, in a round of both."""
        self.faults |= {"a": Faults(), "b": Faults()}
        patient = quick(min_nodes, 2, last_call_timeout=PATIENCE, **timing)
        for name in "ab":
            self.nodes.append(Node(name, FaultyBackend(self.store, self.faults[name]), patient))
        a, b = self.nodes
        return a.until(in_round(1, "ab")), b.until(in_round(1, "ab"))

    def leaders(self) -> list[Leader]:
        """The LEADER entries so far."""
        bodies = [decode_entry(data).body for _, data in self.store.entries]
        return [body for body in bodies if isinstance(body, Leader)]


@pytest.fixture
def bench() -> Iterator[Bench]:
    found = Bench()
    yield found
    for node in found.nodes:
        node.kill()


@pytest.mark.parametrize("gone", [False, True])
def test_an_embedded_store_that_only_does_not_answer_is_lost_and_may_still_serve_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    monkeypatch.setattr(FaultyBackend, "embedded", True)
    monkeypatch.setattr(FaultyBackend, "hosting", True)
    a = bench.add("a", last_call_timeout=0.0).until(in_round(1, "a"))
    bench.faults["a"].gone, bench.faults["a"].down = gone, True
    a.until(lambda n: n.state.store_lost)
    assert a.session.store_gone is gone


@pytest.mark.parametrize("breaks", [1, 5])
def test_a_connection_that_breaks_right_after_the_join_is_made_again(bench: Bench, breaks: int) -> None:
    a = bench.add("a", last_call_timeout=0.0, breaks=breaks).until(in_round(1, "a"))
    began = a.session.contact.at
    a.until(lambda n: n.session.contact.at > began)


def test_a_node_that_cannot_read_the_ledger_any_more_stops_its_heartbeat_and_is_replaced(bench: Bench) -> None:
    a, b = bench.pair(lost_after=0.6)
    bench.faults["b"].garbled = True
    a.tell(WorkerFailed(incident("a")))
    b.until(lambda n: n.state.store_lost)
    a.until(lambda n: any(event.name == "waiting" and "host-b" in event.message for event in n.said))
    at = b.session.contact.at
    c = Node("c", FaultyBackend(bench.store, Faults()), quick(2, 2))
    bench.nodes.append(c)
    c.until(lambda n: n.state.row.round > 1)
    assert b.session.contact.at == at, "the fence counts from when it could still be told to stop"


def test_a_late_read_of_a_frozen_node_is_no_contact_at_the_time_of_the_read(bench: Bench) -> None:
    """The fence (rule S4) counts from when the store was asked: others may have given this node up since."""
    a, _ = bench.pair(lost_after=PATIENCE)
    thawed, frozen, changed = threading.Event(), set[str](), threading.Condition()

    def freeze() -> None:
        with changed:
            frozen.add(threading.current_thread().name)
            changed.notify()
        thawed.wait(PATIENCE)

    bench.faults["a"].answered = freeze
    a.session.publish_row(a.row)
    with changed:
        assert changed.wait_for(lambda: len(frozen) == 3, PATIENCE), frozen
    bench.faults["a"].down = bench.faults["a"].full = True
    a.session.publish_row(a.row)  # which is refused, and shows that the thread has come so far
    frozen_at = CLOCK.now()
    thawed.set()
    given_up_at = frozen_at + PATIENCE
    while a.session.contact.failing != {"reader", "writer", "heartbeat"} and CLOCK.now() < given_up_at:
        time.sleep(0.01)
    assert a.session.contact.failing == {"reader", "writer", "heartbeat"}
    assert a.session.contact.at <= frozen_at


@pytest.mark.parametrize("what", ["full", "restless"])
def test_a_store_that_refuses_some_things_is_told_of_once_until_it_does_all_again(bench: Bench, what: str) -> None:
    def told(name: str) -> int:
        return sum(event.name == name for event in b.said)

    a, b = bench.pair()
    line = bench.faults["b"]
    setattr(line, what, True)
    a.tell(WorkerFailed(incident("a")))  # which ends b's wait
    assert line.refused.acquire(timeout=PATIENCE)
    b.until(lambda n: n.state.ledger.halt is not None or n.state.row.round == 2)  # it reads on
    assert all(line.refused.acquire(timeout=PATIENCE) for _ in range(4))
    assert (told("store_unreachable"), told("store_back")) == (1, 0)
    setattr(line, what, False)
    b.until(in_round(2, "ab")).until(lambda n: told("store_back") == 1)
    assert told("store_unreachable") == 1


def test_a_store_that_cannot_be_read_on_is_told_of_once_until_it_can(bench: Bench) -> None:
    def told(name: str) -> list[str]:
        return [event.message for event in b.said if event.name == name]

    a, b = bench.pair()
    bench.faults["b"].missing = (3,)
    a.tell(WorkerFailed(incident("a")))
    b.until(lambda n: bool(told("store_unreachable")))
    assert b.state.row.round == 1, "its workers are left alone"
    bench.faults["b"].missing = ()
    b.until(lambda n: n.state.ledger.head.index >= 3).until(lambda n: bool(told("store_back")))
    said = "the store cannot be read on; workers go on, and we keep trying: Entry 3 is missing from the store"
    assert [message.startswith(said) for message in told("store_unreachable")] == [True]
    assert told("store_back") == ["the store can be read again"]


def test_a_newest_entry_that_nobody_has_written_ends_the_nodes_part_and_not_its_workers(bench: Bench) -> None:
    a, b = bench.pair(beat_interval=0.1, lost_after=0.5)
    bench.faults["b"].missing = (3,)
    a.tell(WorkerFailed(incident("a")))
    b.until(lambda n: any(event.name == "store_lost" for event in n.said))
    (said,) = [event.message for event in b.said if event.name == "store_lost"]
    assert "Entry 3 is missing from the store, which says that it is the newest." in said
    assert b.state.row.round == 1


def test_an_entry_that_nobody_puts_back_for_as_long_as_the_fence_ends_the_nodes_part(bench: Bench) -> None:
    """Every entry stands on the first, so who cannot read on from where it is can never do so."""
    a, b = bench.pair(min_nodes=1, beat_interval=0.1, fence_after=1.0)
    bench.faults["b"].missing = (1, 3)
    a.tell(WorkerFailed(incident("a")))
    a.until(lambda n: n.state.ledger.head.index == 3)
    a.session._state.append_leader(LocalBackend(bench.store), a.state.ledger, "a", "it stays")
    b.until(lambda n: any(event.name == "store_lost" for event in n.said))
    (said,) = [event.message for event in b.said if event.name == "store_lost"]
    assert "Entry 1 is missing from the store. " in said


def test_a_revision_that_the_node_has_never_sent_ends_its_part(bench: Bench) -> None:
    _, b = bench.pair(beat_interval=0.1)
    with bench.store.changed:
        bench.store.put(replace(bench.store.rows["b"], revision=1000))
    b.until(lambda n: any(event.name == "store_lost" for event in n.said))
    (said,) = [event.message for event in b.said if event.name == "store_lost"]
    assert "revision 1000 of this node's row, but this node is at" in said


def test_contact_tells_of_each_kind_of_failure_once_until_all_are_over() -> None:
    said: list[str] = []
    contact = Contact(5.0, lambda event: said.append(f"{event.name}: {event.message}"))
    silent, unread = RendezvousConnectionError("the line is down"), HistoryChangedError("Entry 3 is missing.")
    for _ in range(3):
        contact.failed("writer", silent)
        contact.failed("reader", unread)
    contact.worked("writer")
    assert said == [
        "store_unreachable: the store cannot be read on; workers go on, and we keep trying: Entry 3 is missing.",
        "store_unreachable: the store does not answer; workers go on, and we keep trying: the line is down",
    ]
    contact.worked("reader")
    assert said[2:] == ["store_back: the store answers again"]
    contact.failed("reader", unread)
    assert len(said) == 4, "it is told of again"
    contact.end()
    contact.worked("reader")
    assert len(said) == 4


def test_a_connection_that_broke_while_it_was_idle_is_no_news_if_another_one_serves() -> None:
    """People were told that the store does not answer when it was well again."""
    said: list[str] = []
    contact = Contact(5.0, lambda event: said.append(event.name))
    broken = RendezvousConnectionError("connection reset")
    for who in ("reader", "writer", "heartbeat"):
        contact.failed(who, broken)
    assert contact.failing == {"reader", "writer", "heartbeat"}
    for who in ("reader", "writer", "heartbeat"):
        contact.worked(who)
    assert said == []
    contact.failed("writer", broken)
    contact.failed("writer", broken)
    contact.worked("writer")
    assert said == ["store_unreachable", "store_back"]
    contact.failed("heartbeat", broken, surely=True)
    assert said[2:] == ["store_unreachable"], "a store that is silent is told of at once"


def test_the_fence_counts_from_when_there_was_nothing_that_this_node_had_not_read() -> None:
    contact = Contact(5.0, lambda event: None)
    contact.current(9.0)
    contact.current(7.0)
    assert contact.at == 9.0, "answers may be read in any order"
    contact.live(False)
    contact.current(20.0)
    assert contact.at == 9.0, "who has read that its round is over puts the fence off no longer"
    contact.live(False)
    contact.live(True)
    assert contact.at == 20.0
    contact.end()
    contact.current(30.0)
    assert contact.at == 20.0


class Replaced(FaultyBackend, ReplaceableServer):
    """A server that another one may have replaced."""

    until = math.inf
    """Up to when it is confirmed, once it is."""
    beats = False

    def connect(self) -> Replaced:
        super().connect()
        return Replaced(self._memory, self.faults)

    def confirmed_at(self, max_age: float | None = None) -> float:
        self.beats = self.beats or max_age is not None
        return min(CLOCK.now(), type(self).until) if self.beats else -math.inf


@pytest.mark.parametrize("trouble", ["takes no heartbeat", "is not confirmed", "has news that cannot be read"])
def test_reading_from_a_server_that_may_have_been_replaced_is_no_contact(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    faults = bench.faults["a"] = Faults()
    timing = {"last_call_timeout": 0.0, "lost_after": 0.2, "fence_after": 1.0}
    a = Node("a", Replaced(bench.store, faults), quick(1, 1, **timing))
    bench.nodes.append(a)
    a.until(in_round(1, "a"))
    began = a.session.contact.at
    a.until(lambda n: n.session.contact.at > began)
    if trouble == "has news that cannot be read":
        following = len(bench.store.entries) + 1
        faults.missing = (following,)
        LocalBackend(bench.store).append(a.state.ledger.head.link, Link(following, "x"), b"{")
    faults.full = trouble == "takes no heartbeat"
    if trouble == "is not confirmed":
        monkeypatch.setattr(Replaced, "until", until := CLOCK.now())
        a.until(lambda n: n.session.contact.at == until)
    a.until(lambda n: CLOCK.now() - n.session.contact.at > 0.8)
    if trouble == "is not confirmed":
        monkeypatch.setattr(Replaced, "until", math.inf)
        a.until(lambda n: n.session.contact.at > until)


def test_a_leader_whose_server_is_not_confirmed_begins_no_round(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replaced, "until", -math.inf)
    patient = quick(2, 2, last_call_timeout=0.0, lost_after=0.2, fence_after=1.0)
    bench.nodes.append(a := Node("a", Replaced(bench.store, Faults()), patient))
    a.until(lambda n: n.session._state.is_cut_off())
    bench.nodes.append(b := Node("b", FaultyBackend(bench.store, Faults()), patient))
    waited = CLOCK.now() + 1.0
    b.until(lambda n: CLOCK.now() > waited)
    assert len(bench.store.entries) == 1, "the OPEN"
    monkeypatch.setattr(Replaced, "until", math.inf)
    a.until(in_round(1, "ab"))


def test_a_store_that_comes_back_wiped_ends_a_waiting_node(bench: Bench) -> None:
    node = bench.add("a", last_call_timeout=PATIENCE * 2, join_timeout=PATIENCE * 4)
    node.until(lambda n: len(bench.store.entries) == 1)
    bench.faults["a"].down = True
    bench.faults["a"].wiped = True
    node.until(lambda n: any(event.name == "store_unreachable" for event in n.said))
    bench.faults["a"].down = False
    assert node.until(lambda n: n.exit is not None).exit.code == 74  # type: ignore[union-attr]


def test_a_run_whose_state_fits_into_no_value_is_not_put_back_and_its_workers_go_on(bench: Bench) -> None:
    def encode(entry: Entry) -> bytes:
        return encode_entry(entry, 500 if isinstance(entry.body, Resume) else MAX_VALUE_BYTES)

    runtime = replace(CLOCK, codec=Codec(encode_entry=encode))
    bench.nodes.append(node := Node("a", LocalBackend(bench.store), quick(1, 1), runtime=runtime))
    node.until(in_round(1, "a"))
    with bench.store.changed:
        bench.store.entries.clear()
        bench.store.changed.notify_all()
    node.until(lambda n: n.state.store_lost)
    [told] = [event.message for event in node.said if event.name == "store_lost"]
    assert "is too large for one value of the store, whatever is left out. Give the nodes" in told
    assert (node.state.row.round, bench.store.entries) == (1, [])


def test_a_newcomer_that_cannot_read_the_roster_to_take_the_leader_ends_and_says_why(bench: Bench) -> None:
    """Its reader, which is not the leader's, never reads it."""
    bench.pair(min_nodes=1, lost_after=0.3)
    c = bench.add("c", lost_after=0.3)
    c.until(lambda n: n.state.ledger.round is not None)
    bench.faults["c"].unlisted = True
    for node in bench.nodes[:2]:
        node.kill()
    assert c.until(lambda n: n.exit is not None).exit.code == 74  # type: ignore[union-attr]
    assert [e.message for e in c.said if e.name == "store_lost"] == ["the store is lost: the roster cannot be read"]


def test_rows_that_are_none_are_told_of_once_each_and_nodes_go_on(bench: Bench) -> None:
    a, b = bench.pair()
    with bench.store.changed:
        for name in ("evil", "worse"):
            bench.store.put(RosterRow.unreadable(name, f"the row of {name} is none"))

    def told(n: Node) -> list[str]:
        return [event.message for event in n.said if event.name == "row_ignored"]

    a.until(lambda n: len(told(n)) == 2)
    b.tell(WorkerFailed(incident("b")))
    for node in (a, b):
        node.until(in_round(2, "ab"))
    assert told(a) == [f"A row in the store is ignored: the row of {name} is none" for name in ("evil", "worse")]


def test_an_entry_that_the_store_loses_is_put_back_and_a_failure_right_after_it_recovers(bench: Bench) -> None:
    a, b = bench.pair()
    with bench.store.changed:
        lost = bench.store.entries.pop()
    b.tell(WorkerFailed(incident("b")))
    for node in (a, b):
        node.until(in_round(2, "ab"))
    assert bench.store.entries[1] == lost


def test_a_new_leader_knows_until_when_it_was_cut_off_itself(bench: Bench) -> None:
    """It does not know what the last resize cost: it may have been the time without the store."""
    a, b = bench.pair(min_nodes=1)
    cut_off_at, bench.faults["b"].down = CLOCK.now(), True
    b.until(lambda n: any(event.name == "store_unreachable" for event in n.said))
    bench.faults["b"].down = False
    b.until(lambda n: any(event.name == "store_back" for event in n.said))
    a.tell(Leaving("received SIGTERM", 143))
    b.until(lambda n: n.session.watch.read_at is not None)
    assert cut_off_at < b.session.watch.gap_at < CLOCK.now()


def test_a_report_that_was_answered_before_it_was_made_deposes_nobody(bench: Bench) -> None:
    a, b = bench.pair()
    with b.changed:  # its loop stands still, as while it drains a dead worker's output
        b.tell(WorkerFailed(incident("b")))
        a.tell(WorkerFailed(incident("a")))
        with bench.store.changed:
            assert bench.store.changed.wait_for(lambda: len(bench.store.entries) >= 3, PATIENCE)
    for node in (a, b):
        node.until(lambda n: n.state.row.round >= 2)
    assert bench.leaders() == []


def test_a_leaving_leader_hands_over_although_its_own_entries_come_between(bench: Bench) -> None:
    a, b = bench.pair(min_nodes=1)
    raced = threading.Event()

    def race() -> None:
        """The farewell has looked at the ledger; let the reader's HALT land first."""
        if threading.current_thread().name == "elastic-writer" and not raced.is_set():
            raced.set()
            head = len(bench.store.entries)
            with bench.store.changed:
                bench.store.changed.wait_for(lambda: len(bench.store.entries) > head, 2.0)

    bench.faults["a"].appending = race
    a.tell(Leaving("received SIGTERM", 143))
    b.until(lambda n: n.state.ledger.leader == "b")
    assert raced.is_set()
    assert [leader.why for leader in bench.leaders()] == ["a leaves"]


@pytest.mark.parametrize("trouble", ["no connection", "a stalled loop"])
def test_a_heartbeat_thread_that_is_held_up_waits_instead_of_spinning(trouble: str) -> None:
    store = FaultyBackend(MemoryStore(), Faults())
    store.enter("b", b"x")
    clock = Fast(ticked=trouble == "no connection")
    state = state_of("b", live("ab", quick(lost_after=0.2)), store, Runtime(now=clock))
    heartbeat = heartbeat_of(state)
    clock.heartbeat = heartbeat
    store.faults.down = trouble == "no connection"
    thread = threading.Thread(target=heartbeat.run)
    thread.start()
    assert clock.over.wait(PATIENCE)
    assert (state.connections.made["heartbeat"] is None) is store.faults.down
    state.stopping.set()
    with state.pulse:
        state.pulse.notify()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert clock.looks < 2000, f"it looked at the clock {clock.looks} times in {Fast.LASTS:g} s"


class Fast:
    """A clock that counts how often it is looked at in its first second."""

    LASTS = 1.0

    def __init__(self, *, ticked: bool) -> None:
        self.looks, self.over = 0, threading.Event()
        self.heartbeat: Heartbeat | None = None
        self._ticked, self._ends_at = ticked, time.monotonic() + self.LASTS

    def __call__(self) -> float:
        now = time.monotonic()
        self.looks += 1
        if self._ticked and self.heartbeat is not None:
            self.heartbeat._ticked_at = now  # as if the agent's loop ticked
        if now >= self._ends_at:
            self.over.set()
        return now


def applicant(name: str, max_nodes: int, uid: str | None = None) -> Applicant:
    return Applicant(info=info(name), settings=quick(1, max_nodes, lost_after=0.3), scheduler_uid=uid)


def test_a_run_that_nobody_is_left_of_does_not_refuse_other_flags() -> None:
    store = LocalBackend(MemoryStore())
    first = join(store, applicant("a", 2), CLOCK)
    second = join(store, applicant("b", 3), CLOCK)
    assert isinstance(first, Joined)
    assert isinstance(second, Joined)
    assert second.ledger.head.run != first.ledger.head.run
    assert second.ledger.settings.agreement.max_nodes == 3


@pytest.mark.parametrize(("phase", "refused"), [(Phase.RUNNING, True), (Phase.STOPPED, False)])
def test_nodes_whose_workers_still_have_their_grace_are_alive(phase: Phase, refused: bool) -> None:
    store = LocalBackend(MemoryStore())
    found = join(store, applicant("a", 2, uid="job-1"), CLOCK)
    assert isinstance(found, Joined)
    row = NodeRow(info=info("a"), run=found.ledger.head.run, phase=phase, round=1, leaving=True)
    store.amend("a", 1, encode_row(row))
    heartbeats = iter(range(1, 1000))

    def heartbeat(seconds: float) -> None:
        store.heartbeat("a", next(heartbeats))

    clock = replace(CLOCK, sleep=heartbeat)
    if refused:
        with pytest.raises(RendezvousRefusedError, match="is alive under this job id on host-a"):
            join(store, applicant("b", 2, uid="job-2"), clock)
    else:
        assert isinstance(join(store, applicant("b", 2, uid="job-2"), clock), Joined)
