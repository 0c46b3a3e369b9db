"""Whole nodes over a real (in-memory) store, with real threads and short heartbeats: the drivers and the minds
together.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial

import pytest
from views import incident, info, settings

from elastic_core.errors import RendezvousRefusedError
from elastic_core.events import Event
from elastic_core.incidents import Action, History, Incident, Verdict
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.protocol.codec import encode_entry, encode_row
from elastic_core.protocol.entries import Closed, Drain, Halt, HaltReason, Offer
from elastic_core.protocol.ledger import compose
from elastic_core.protocol.node import NodeState, row_of, step
from elastic_core.protocol.node_events import (
    Exit,
    Leaving,
    MakeOffer,
    NodeEvent,
    Offered,
    Start,
    Stop,
    WorkerFailed,
    WorkersDone,
    WorkersGone,
)
from elastic_core.protocol.roster import NodeInfo, NodeRow
from elastic_core.protocol.settings import Settings
from elastic_core.rendezvous.backend import Cursor, Link, RendezvousBackend, RosterRow
from elastic_core.session.join import Applicant, Joined, join
from elastic_core.session.runtime import Runtime
from elastic_core.session.session import Session
from elastic_core.session.state import SessionCalls

PATIENCE = 20.0
"""Seconds that a test waits for what must come, on the slowest machine."""

_serial = itertools.count(1)
CLOCK = Runtime(new_id=lambda: f"id{next(_serial)}")
PORTS = itertools.count(29500)
"""A round that has the port of the one before waits until that one has ended everywhere, so each offer has its own."""


def quick(min_nodes: int = 2, max_nodes: int = 2, **more: float) -> Settings:
    """Return settings with short times but a long ``lost_after``: a pause of the machine loses no node."""
    more = {"beat_interval": 0.05, "lost_after": 60.0, "last_call_timeout": 0.1, "join_timeout": 15.0, **more}
    return settings(min_nodes, max_nodes, **more)  # type: ignore[arg-type]  # the rest are durations


def restart(_incident: Incident, history: History) -> Verdict:
    if history.max_restarts is None or history.restarts < history.max_restarts:
        return Verdict(Action.RESTART, "restarts are left")
    return Verdict(Action.GIVE_UP, "no restart is left")


class Node:
    """An agent without processes: its workers are obedient and instantaneous."""

    def __init__(
        self,
        name: str,
        store: RendezvousBackend,
        the_settings: Settings,
        *,
        uid: str | None = None,
        runtime: Runtime = CLOCK,
    ) -> None:
        self.name, self.store = name, store
        applicant = Applicant(
            info=info(name),
            settings=replace(the_settings, host=f"host-{name}"),
            scheduler_uid=uid,
            offer=Offer("127.0.0.1", next(PORTS), CLOCK.new_id()),
        )
        joined = join(store, applicant, CLOCK)
        assert isinstance(joined, Joined), joined
        self.state = NodeState(row=NodeRow(info=applicant.info, offer=applicant.offer), ledger=joined.ledger)
        self.row = joined.row
        self.events: queue.Queue[NodeEvent] = queue.Queue()
        self.said: list[Event] = []
        self.starts: list[Start] = []
        self.exit: Exit | None = None
        self.dead = False
        self.changed = threading.Condition()
        calls = SessionCalls(post=self.events.put, publish=self._hear, judge=restart, crashed=self._crashed)
        self.session = Session(store, joined, runtime, calls)
        self.thread = threading.Thread(target=self._run, name=f"node-{name}")
        self.thread.start()

    def tell(self, event: NodeEvent) -> None:
        self.events.put(event)

    def until(self, what: Callable[[Node], bool]) -> Node:
        """Wait for it. Changes by the session's threads send no notification, so this looks again soon."""
        deadline = CLOCK.now() + PATIENCE
        with self.changed:
            while not what(self):
                if CLOCK.now() >= deadline:
                    pytest.fail(f"{self.name}: {self.state.row} {self.state.ledger.round} {self.said}")
                self.changed.wait(0.05)
        return self

    def kill(self) -> None:
        """As if the host lost its power: nothing is said, nothing is removed."""
        self.dead = True
        self.tell(WorkersGone())
        self.thread.join(PATIENCE)

    def _hear(self, event: Event) -> None:
        with self.changed:
            self.said.append(event)
            self.changed.notify_all()

    def _crashed(self, error: BaseException) -> None:
        raise AssertionError("a session's thread crashed") from error

    def _run(self) -> None:
        self._say()
        self.session.start()
        while self.exit is None and not self.dead:
            try:
                event = self.events.get(timeout=0.05)
            except queue.Empty:
                self.session.tick()
                continue
            if not self.dead:
                self._step(event)
        if self.dead:
            self.session._state.stopping.set()
        else:
            self.session.close(PATIENCE)

    def _step(self, event: NodeEvent) -> None:
        with self.changed:
            self.state, effects = step(self.state, event)
            self._say()
            for effect in effects:
                match effect:
                    case Start():
                        self.starts.append(effect)
                    case MakeOffer():
                        self._offer()
                    case Stop():
                        self.events.put(WorkersGone())
                    case Exit():
                        self.exit = effect
            self._say()
            self.changed.notify_all()

    def _offer(self) -> None:
        offer = Offer("127.0.0.1", next(PORTS), CLOCK.new_id())
        self.state, _ = step(self.state, Offered(offer))

    def _say(self) -> None:
        self.session.tick()
        if (row := row_of(self.state)) != self.row:
            self.row = row
            self.session.publish_row(row)


Fleet = Callable[..., Node]


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    store, nodes = MemoryStore(), list[Node]()

    def add(
        name: str, the_settings: Settings, uid: str | None = None, over: Callable[..., RendezvousBackend] = LocalBackend
    ) -> Node:
        nodes.append(Node(name, over(store), the_settings, uid=uid))
        return nodes[-1]

    yield add
    for node in nodes:
        node.kill()


def alone(node: Node) -> bool:
    current = node.state.ledger.round
    return (
        current is not None
        and [m.node_id for m in current.members] == [node.name]
        and node.state.row.round == current.number
    )


def in_round(number: int, names: str) -> Callable[[Node], bool]:
    def check(node: Node) -> bool:
        current = node.state.ledger.round
        return (
            current is not None
            and node.state.row.round == number == current.number
            and "".join(member.node_id for member in current.members) == names
        )

    return check


def pair(fleet: Fleet, the_settings: Settings) -> tuple[Node, Node]:
    patient = replace(the_settings, timing=replace(the_settings.timing, last_call_timeout=PATIENCE))
    a, b = fleet("a", patient), fleet("b", patient)
    return a.until(in_round(1, "ab")), b.until(in_round(1, "ab"))


def test_nodes_form_a_round_and_close_with_success(fleet: Fleet) -> None:
    a, b = pair(fleet, quick())
    for node in (a, b):
        node.tell(WorkersDone())
    assert [node.until(lambda n: n.exit is not None).exit.code for node in (a, b)] == [0, 0]  # type: ignore[union-attr]
    for node in (a, b):
        node.thread.join(PATIENCE)
    assert a.store.roster() == []


def test_a_failure_restarts_the_same_members_with_one_entry(fleet: Fleet) -> None:
    a, b = pair(fleet, quick())
    b.tell(WorkerFailed(incident("b")))
    for node in (a, b):
        node.until(in_round(2, "ab"))
        assert node.starts[-1].restart_count == 1
        assert node.state.ledger.head.index == 3


def test_of_changes_that_come_together_the_leader_does_not_look_at_each(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_core.session.reader.REST_SECONDS_PER_ROW", 0.001)
    a, b = pair(fleet, quick())
    rests = queue.Queue[float | None]()
    rest = a.session._state.stopping.wait

    def recorded(seconds: float | None = None) -> bool:
        rests.put(seconds)
        return rest(seconds)

    monkeypatch.setattr(a.session._state.stopping, "wait", recorded)
    b.store.amend("b", 100, encode_row(row_of(b.state)))
    assert rests.get(timeout=PATIENCE) == 0.002, "so long for each of two rows"


def test_the_infos_of_nodes_are_read_once(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    a, _ = pair(fleet, quick())
    asked, answers = list[Collection[str]](), queue.Queue[list[NodeInfo]]()
    roster = LocalBackend.roster

    def look(store: LocalBackend, ids: Collection[str] | None = None) -> list[RosterRow]:
        asked.extend([] if ids is None else [ids])
        return roster(store, ids)

    monkeypatch.setattr(LocalBackend, "roster", look)
    for wanted in (["b"], ["b"], ["a", "b"], ["gone"], ["gone"]):
        a.session.look_up(wanted, answers.put)
        assert {found.node_id for found in answers.get(timeout=PATIENCE)} == {*wanted} - {"gone"}
    assert asked == [["b"], ["a"], ["gone"], ["gone"]]


def test_restarts_are_counted_for_the_job_and_every_node_gets_the_root_cause(fleet: Fleet) -> None:
    the_settings = quick()
    the_settings = replace(the_settings, agreement=replace(the_settings.agreement, max_restarts=1))
    a, b = pair(fleet, the_settings)
    a.tell(WorkerFailed(incident("a")))
    b.until(in_round(2, "ab"))
    cause = incident("b", number=2)
    b.tell(WorkerFailed(cause))
    for node in (a, b):
        node.until(lambda n: n.exit is not None)
        closed = node.state.ledger.closed
        assert isinstance(closed, Closed)
        assert (closed.success, closed.incident) == (False, cause)


@pytest.mark.parametrize("victim", ["a", "b"], ids=["the leader", "a follower"])
def test_a_lost_node_is_left_out_and_spends_no_restart(fleet: Fleet, victim: str) -> None:
    nodes = dict(zip("ab", pair(fleet, quick(min_nodes=1, lost_after=0.6)), strict=True))
    nodes[victim].kill()
    survivor = "b" if victim == "a" else "a"
    nodes[survivor].until(in_round(2, survivor))
    assert nodes[survivor].state.ledger.counters.restarts == 0


def test_a_leader_lost_together_with_a_failure_is_replaced_within_the_suspicion_delay(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2: heartbeats would take a minute here; the unanswered incident takes about a second."""
    a, b = pair(fleet, quick(min_nodes=1))
    monkeypatch.setattr("elastic_core.protocol.failure_detector.SUSPICION_SECONDS", 1.0)
    a.kill()
    b.tell(WorkerFailed(incident("b")))
    b.until(alone)
    assert b.state.ledger.counters.restarts == 0


def test_a_node_joins_a_running_job_and_survivors_come_first(fleet: Fleet) -> None:
    a = fleet("a", quick(min_nodes=1)).until(in_round(1, "a"))
    b = fleet("b", quick(min_nodes=1))
    for node in (a, b):
        node.until(in_round(2, "ab"))


def test_a_leaving_leader_names_its_successor_and_the_job_goes_on(fleet: Fleet) -> None:
    a, b = pair(fleet, quick(min_nodes=1))
    a.tell(Leaving("received SIGTERM", 143))
    b.until(in_round(2, "b"))
    assert b.state.ledger.leader == "b"
    assert a.until(lambda n: n.exit is not None).exit.code == 143  # type: ignore[union-attr]


class HostBackend(LocalBackend):
    """A connection of the agent that the store lives in."""

    embedded = hosting = True

    def connect(self) -> HostBackend:
        return HostBackend(self._store)


class LateBackend(LocalBackend):
    """A connection of a node that reads no entry before it may."""

    def __init__(self, store: MemoryStore, may_read: threading.Event) -> None:
        super().__init__(store)
        self.may_read = may_read

    def connect(self) -> LateBackend:
        return LateBackend(self._store, self.may_read)

    def read(self, index: int) -> bytes | None:
        assert self.may_read.wait(PATIENCE)
        return super().read(index)


def test_the_host_of_the_store_leaves_once_the_others_have_read_that_they_are_drained_too(fleet: Fleet) -> None:
    may_read = threading.Event()
    may_read.set()
    a = fleet("a", quick(), over=HostBackend)
    b = fleet("b", quick(), over=partial(LateBackend, may_read=may_read))
    for node in (a, b):
        node.until(in_round(1, "ab"))
    may_read.clear()
    head = a.state.ledger.head
    body = Drain(nodes=("a", "b"), why="drained")
    drain = compose(a.state.ledger, body, entry_id="drain", author="a", now=CLOCK.now())
    assert a.store.append(head.link, drain.link, encode_entry(drain))
    a.until(lambda n: n.state.ledger.head.index > head.index).tell(Leaving("drained", 143))
    a.until(lambda n: n.exit is not None).thread.join(0.2)
    assert a.thread.is_alive()
    may_read.set()
    a.thread.join(PATIENCE / 2)
    assert not a.thread.is_alive()
    assert b.state.ledger.head.index > head.index


X = info("x")


@pytest.mark.parametrize(
    ("row", "waits"),
    [
        pytest.param(NodeRow(info=X), True, id="a node that follows its run before it joins"),
        pytest.param(NodeRow(info=X, leaving=True, returns=True), True, id="one that leaves for its checks"),
        pytest.param(NodeRow(info=X, leaving=True, grace=300.0), True, id="one that leaves together with others"),
        pytest.param(NodeRow(info=X, leaving=True), False, id="one that leaves at once"),
        pytest.param(NodeRow(info=X, head=1 << 20), False, id="one that has read as much"),
        pytest.param(NodeRow(info=X, drain=("y",)), False, id="a request"),
    ],
)
@pytest.mark.parametrize("event", [WorkersDone(), Leaving("received SIGTERM", 143)], ids=["closed", "leaving"])
def test_the_host_of_the_store_waits_for_a_row_that_is_behind_until_it_is_gone(
    fleet: Fleet, event: NodeEvent, row: NodeRow, waits: bool
) -> None:
    host = fleet("a", quick(1), over=HostBackend).until(in_round(1, "a"))
    host.store.enter("x", encode_row(row))
    host.tell(event)
    host.until(lambda n: n.exit is not None).thread.join(0.2 if waits else PATIENCE / 2)
    assert host.thread.is_alive() is waits
    host.store.remove("x")
    host.thread.join(PATIENCE / 2)
    assert not host.thread.is_alive()


def test_below_the_minimum_the_job_waits_for_a_replacement_and_says_for_whom(fleet: Fleet) -> None:
    a, b = pair(fleet, quick(lost_after=0.6))
    b.kill()
    a.until(lambda n: n.state.ledger.halt is not None)
    halt = a.state.ledger.halt
    assert isinstance(halt, Halt)
    assert halt.reason is HaltReason.NODE_LOST
    a.until(lambda n: any(event.name == "waiting" and "host-b" in event.message for event in n.said))
    c = fleet("c", quick())
    for node in (a, c):
        node.until(in_round(2, "ac"))


def test_a_leader_that_has_left_still_knows_whom_it_saw_lost_and_who_stays(fleet: Fleet) -> None:
    patient = quick(3, 3, lost_after=4.0)  # with less, a pause of this machine's at the end has it judge nobody
    nodes = [fleet(name, patient) for name in "abc"]
    a, b, c = (node.until(in_round(1, "abc")) for node in nodes)
    c.kill()
    a.until(lambda n: n.session.lost(["b", "c"]) == {"c"})
    assert b.session.lost(["a", "c"]) == set(), "it does not lead, and has no watch"
    assert a.session.any_stays({"b"}, PATIENCE), "a halt for a lost node leaves the others in the job"
    b.tell(Leaving("stopped", 143))
    b.until(lambda n: not n.session.any_stays({"b"}, PATIENCE))
    a.tell(Leaving("stopped", 143))
    a.thread.join(PATIENCE)
    assert a.session.lost(["c"]) == {"c"}


def test_too_few_nodes_close_the_run_at_the_join_timeout(fleet: Fleet) -> None:
    a = fleet("a", quick(join_timeout=0.3))
    assert a.until(lambda n: n.exit is not None).exit.code == 75  # type: ignore[union-attr]


def test_a_job_id_is_used_again_after_the_run_is_closed(fleet: Fleet) -> None:
    a = fleet("a", quick(min_nodes=1, max_nodes=1)).until(in_round(1, "a"))
    a.tell(WorkersDone())
    a.until(lambda n: n.exit is not None)
    a.thread.join(PATIENCE)
    b = fleet("b", quick(min_nodes=1, max_nodes=1)).until(in_round(1, "b"))
    assert b.state.ledger.head.run != a.state.ledger.head.run


def test_a_latecomer_of_a_closed_run_reports_its_verdict(fleet: Fleet) -> None:
    a = fleet("a", quick(min_nodes=1, max_nodes=1), uid="slurm-1").until(in_round(1, "a"))
    a.tell(WorkersDone())
    a.until(lambda n: n.exit is not None)
    late = Applicant(info=info("b"), settings=quick(1, 1), scheduler_uid="slurm-1")
    found = join(a.store, late, CLOCK)
    assert isinstance(found, Closed)
    assert found.success


def test_other_settings_are_refused_and_leave_no_trace(fleet: Fleet) -> None:
    a = fleet("a", quick(min_nodes=1))
    with pytest.raises(RendezvousRefusedError, match="max_nodes: 3 here, 2 there"):
        join(a.store, Applicant(info=info("b"), settings=quick(1, 3)), CLOCK)
    assert [row.node_id for row in a.store.roster()] == ["a"]


def test_a_planted_row_is_ignored_by_name_and_harms_nobody(fleet: Fleet) -> None:
    a, _ = pair(fleet, quick())
    a.store.enter("evil", b"\x80\x04cos\nsystem\n(S'true'\ntR.")
    a.until(lambda n: any(event.name == "row_ignored" for event in n.said) or n.state.ledger.leader != "a")
    assert a.state.ledger.is_live


def test_a_planted_ledger_entry_leaves_healthy_workers_alone(fleet: Fleet) -> None:
    a, b = pair(fleet, quick())
    head = a.state.ledger.head
    assert a.store.append(head.link, Link(head.index + 1, "evil"), b"\x80\x04cos\nsystem\n")
    for node in (a, b):
        node.until(lambda n: n.state.store_lost)
        assert node.state.work.value == "running"
        node.tell(WorkersDone())
        assert node.until(lambda n: n.exit is not None).exit.code == 0  # type: ignore[union-attr]


def test_a_row_that_the_store_lost_is_sent_again(fleet: Fleet) -> None:
    a, b = pair(fleet, quick())
    b.store.remove("b")
    deadline = time.monotonic() + PATIENCE
    while not any(row.node_id == "b" and row.revision > 0 for row in a.store.roster()):
        assert time.monotonic() < deadline
        b.store.wait(a.store.wait(Cursor(), roster=True, timeout=0), roster=True, timeout=0.1)
    assert in_round(1, "ab")(a)


def test_an_older_row_from_a_slow_connection_does_not_overwrite_a_newer(fleet: Fleet) -> None:
    a, _ = pair(fleet, quick())
    a.until(lambda n: n.store.roster(["a"])[0].value == encode_row(n.row))  # the writer may still be about to send it
    newest = a.store.roster(["a"])[0].value
    a.store.amend("a", 0, encode_row(NodeRow(info=info("a"))))
    assert a.store.roster(["a"])[0].value == newest
