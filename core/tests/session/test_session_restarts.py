"""Whole nodes over a server that is stopped, and comes back with its data, an older copy of it, or nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest
from test_session import CLOCK, Node, in_round, quick
from views import entry, incident, info, members, settings

from elastic_core.plugins.local_backend import MemoryStore
from elastic_core.protocol.codec import decode_entry, encode_entry
from elastic_core.protocol.entries import Halt, HaltReason, Open, Resume, Round
from elastic_core.protocol.ledger import advance
from elastic_core.protocol.node_events import Exit, WorkerFailed, WorkersDone
from elastic_core.session.join import Applicant, Joined, join
from elastic_testing.faults import Data
from elastic_testing.memory import MemoryServer


@dataclass
class Bench:
    """Nodes over one server."""

    server: MemoryServer = field(default_factory=MemoryServer)
    nodes: list[Node] = field(default_factory=list)

    def add(self, name: str, **more: float) -> Node:
        store = self.server.open("job")
        self.nodes.append(Node(name, store, quick(1, 2, lost_after=3.0, **more)))
        return self.nodes[-1]

    def pair(self) -> tuple[Node, Node]:
        a, b = self.add("a", last_call_timeout=20.0), self.add("b", last_call_timeout=20.0)
        return a.until(in_round(1, "ab")), b.until(in_round(1, "ab"))

    def bodies(self) -> list[object]:
        """Return the bodies of the ledger's entries."""
        return [decode_entry(data).body for _, data in self.server.store("job").entries]

    def come_back_with_another_run(self) -> MemoryStore:
        """Stop the server, and start it with a run of node ``x``; return the job's store there."""
        another = self.another_run()
        self.server.stop()
        store = self.replace(another)
        self.server.start()
        return store

    def end_while_x_lives(self, node: Node) -> Exit:
        """Wait for the end of a node, while node ``x`` sends heartbeats."""
        beating, count = self.server.open("job"), itertools.count(1000)

        def over(node: Node) -> bool:
            beating.heartbeat("x", next(count), None)
            return node.exit is not None

        end = node.until(over).exit
        assert end is not None
        return end

    def another_run(self) -> MemoryStore:
        """Return another store, with a run of node ``x``."""
        another = MemoryServer()
        self.nodes.append(Node("x", another.open("job"), quick(1, 1, lost_after=0.6)).until(in_round(1, "x")))
        return another.store("job")

    def replace(self, another: MemoryStore) -> MemoryStore:
        """Give the job's store what another one has, and return it."""
        store = self.server._jobs["job"]
        store.entries, store.rows = list(another.entries), dict(another.rows)
        return store


@pytest.fixture
def bench() -> Iterator[Bench]:
    found = Bench()
    yield found
    for node in found.nodes:
        node.kill()


def told(name: str) -> Callable[[Node], bool]:
    """Return a predicate: a node has published an event of this name."""
    return lambda node: any(event.name == name for event in node.said)


def starts(*nodes: Node) -> list[int]:
    """Return how often each has started workers."""
    return [len(node.starts) for node in nodes]


def test_a_run_outlives_a_store_that_comes_back_empty(bench: Bench) -> None:
    a, b = bench.pair()
    bench.server.restart(Data.EMPTY)
    for node in (a, b):
        node.until(told("history_restored"))
    assert starts(a, b) == [1, 1], "healthy workers are left alone"
    b.tell(WorkerFailed(incident("b")))
    for node in (a, b):
        node.until(in_round(2, "ab"))
        assert node.state.ledger.counters.restarts == 1
        node.tell(WorkersDone())
    for node in (a, b):
        assert node.until(lambda n: n.exit is not None).exit == Exit(0, "all workers of round 2 exited with 0")
    assert isinstance(bench.bodies()[0], Resume)


def test_a_failure_while_the_store_is_away_recovers_when_it_is_back_empty(bench: Bench) -> None:
    a, b = bench.pair()
    bench.server.stop()
    for node in (a, b):
        node.until(told("store_unreachable"))
    b.tell(WorkerFailed(incident("b")))
    a.tell(WorkerFailed(incident("a", after=5.1)))
    bench.server.restart(Data.EMPTY)
    for node in (a, b):
        node.until(in_round(2, "ab"))


def test_the_very_same_entries_are_put_back_where_the_last_are_gone(bench: Bench) -> None:
    a, b = bench.pair()
    bench.server.copy()
    b.tell(WorkerFailed(incident("b")))
    for node in (a, b):
        node.until(in_round(2, "ab"))
    entries = list(bench.server.store("job").entries)
    bench.server.restart(Data.COPY)
    a.until(lambda n: bench.server.store("job").entries[: len(entries)] == entries)
    b.tell(WorkerFailed(incident("b", number=2)))
    for node in (a, b):
        node.until(in_round(3, "ab"))
    assert starts(a, b) == [3, 3]
    assert not any(isinstance(body, Resume) for body in bench.bodies())


def test_a_restart_with_the_data_is_noticed_by_nobody_but_the_connections(bench: Bench) -> None:
    a, b = bench.pair()
    bench.server.restart(Data.KEPT)
    b.tell(WorkerFailed(incident("b")))
    for node in (a, b):
        node.until(in_round(2, "ab"))
        assert not told("history_restored")(node)


def test_decisions_of_others_on_another_branch_are_adopted(bench: Bench) -> None:
    """Two masters: this side restarted the round, the other one went on with b alone. The store's branch it is."""
    a, b = bench.pair()
    fork = a.state.ledger
    b.tell(WorkerFailed(incident("b")))
    for node in (a, b):
        node.until(in_round(2, "ab"))
    bench.server.stop()
    store = bench.server._jobs["job"]
    del store.entries[2:]
    offered = replace(a.state.ledger.round.offer, id="of the other branch")  # type: ignore[union-attr]
    for body in (
        Halt(round=1, reason=HaltReason.NODE_LOST, why="a is lost"),
        Round(number=2, offer=offered, members=members("b")),
    ):
        made = entry(fork, body, at=CLOCK.now())
        fork = advance(fork, replace(made, id=f"other {made.index}"), CLOCK.now())
        store.entries.append((fork.head.id, encode_entry(fork.head)))
    bench.server.start()
    for node in (b, a):
        node.until(in_round(3, "ba"))
    assert starts(a, b) == [3, 4], "a sat out round 2 of that branch"


def test_a_newcomers_open_is_outranked_and_it_joins_the_run(bench: Bench) -> None:
    a, b = bench.pair()
    bench.server.stop()
    bench.server.restart(Data.EMPTY)
    store = bench.server.open("job")
    found = join(store, Applicant(info=info("c"), settings=settings(1, 2)), CLOCK)
    assert isinstance(found, Joined)
    for node in (a, b):
        node.until(lambda n: n.state.ledger.head.epoch > 0)
    bodies = bench.bodies()
    assert next(type(body) for body in bodies if not isinstance(body, Open)) is Resume
    assert starts(a, b) == [1, 1]


def test_a_newcomer_whose_run_is_outranked_begins_again(bench: Bench) -> None:
    """Its own mind, too: it has opened a run, waits, and reads that another goes on there."""
    a, b = bench.pair()
    old = a.state.ledger.head.run
    bench.server.stop()
    for node in (a, b):
        node.until(told("store_unreachable"))
    bench.server.restart(Data.EMPTY)
    c = bench.add("c", last_call_timeout=20.0)
    for node in (a, b):
        node.until(lambda n: n.state.ledger.head.epoch > 0)
    if c.state.ledger.head.run != old:  # it may have come just after the run had gone on
        end = c.until(lambda n: n.exit is not None).exit
        assert end is not None
        assert end.rejoin


def test_a_run_that_another_has_taken_the_place_of_stops_and_joins_it(bench: Bench) -> None:
    a, b = bench.pair()
    entries = list(bench.server.store("job").entries)
    store = bench.come_back_with_another_run()
    for node in (a, b):
        end = bench.end_while_x_lives(node)
        assert (end.rejoin, node.state.run_replaced != "") == (True, True)
    assert store.entries != entries
    assert all(isinstance(body, (Open, Round)) for body in bench.bodies()), "nothing was written over it"


def test_another_run_with_as_many_entries_is_found_by_the_row_that_is_missing(bench: Bench) -> None:
    """No connection breaks, and the newest index is the same."""
    a, b = bench.pair()
    another = bench.another_run()
    assert len(another.entries) == len(bench.server.store("job").entries)
    bench.replace(another)
    for node in (a, b):
        end = bench.end_while_x_lives(node)
        assert end.rejoin


def test_an_earlier_run_that_comes_back_with_the_store_does_not_stop_this_one(bench: Bench) -> None:
    """All its nodes are gone. The workers of the run that goes on are not touched."""
    a, b = bench.pair()
    run, round_number = a.state.ledger.head.run, a.state.row.round
    bench.come_back_with_another_run()
    for node in (a, b):
        node.until(lambda n: n.state.ledger.head.epoch > 0)
        assert (node.state.ledger.head.run, node.state.row.round, node.exit) == (run, round_number, None)
