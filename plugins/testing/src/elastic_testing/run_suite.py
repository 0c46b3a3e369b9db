"""Tests of runs on a store: joining, job ids that are used again, and values that another program has put there."""

# ruff: noqa: D102  (a test's name says what it checks)

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import count
from typing import TypeAlias

import pytest

from elastic_core.config import Timing
from elastic_core.errors import RendezvousRefusedError, RendezvousStateError
from elastic_core.protocol import (
    PROTOCOL,
    Agreement,
    Body,
    Closed,
    Ledger,
    Member,
    NodeInfo,
    NodeRow,
    Offer,
    Round,
    Settings,
    Versions,
    advance,
    compose,
    decode_row,
    encode_entry,
    encode_row,
)
from elastic_core.rendezvous import MAX_VALUE_BYTES, Cursor, Link, RosterRow
from elastic_core.session import Runtime, load, news, readable
from elastic_core.session.join import Applicant, Joined, join
from elastic_testing.connections import Connect, Connections, MakeBackend, Store

Plant: TypeAlias = Callable[[str, int, bytes], bool]
"""Puts bytes where the record of a job's ledger entry is: the job's id, the entry's index, all that is stored there.

It says whether the store took them: some take no value of 100 MiB at all.
"""

PlantRow: TypeAlias = Callable[[str, str, bytes], bool]
"""Puts bytes where the record of a job's roster row is: the job's id, that of a node which has entered, all that is
stored there (but for the heartbeat, where that is kept elsewhere). It says whether the store took them.
"""

_ids = count(1)
CLOCK = Runtime(now=lambda: 0.0, sleep=lambda seconds: None, new_id=lambda: f"id-{next(_ids)}")
SUCCESS = Closed(success=True, why="all workers exited with 0", exit_code=0)


class RunConformance(Connections):
    """One job id sees many runs (rule S6), and a node rejects values that cannot be. Needs ``make_backend`` alone."""

    def test_the_first_opens_the_run_and_the_others_join_it(self, store: Store, connect: Connect) -> None:
        ledgers = [joined(connect(), name) for name in "abc"]
        assert {ledger.head.id for ledger in ledgers} == {ledgers[0].head.id}
        assert [row.node_id for row in store.roster()] == ["a", "b", "c"]

    def test_a_job_id_is_used_again_and_its_history_grows(self, open_job: MakeBackend) -> None:
        runs = []
        for number in range(1, 4):
            store = open_job("job")
            ledger = joined(store, f"node {number}")
            runs.append(ledger.head.run)
            assert ledger.head.index == 2 * number - 1
            assert write(store, ledger, SUCCESS).closed is not None
            store.remove(f"node {number}")
        store = open_job("job")
        assert len(set(runs)) == 3
        assert store.enter("last", b"") == 4, "serials go on through all runs"
        assert [store.read(index) is None for index in range(1, 8)] == [False] * 6 + [True]

    def test_a_latecomer_of_a_closed_run_gets_its_verdict_and_leaves_no_row(
        self, store: Store, connect: Connect
    ) -> None:
        ledger = joined(store, "a", uid="scheduler-1")
        write(store, ledger, SUCCESS)
        assert join(connect(), applicant("late", uid="scheduler-1"), CLOCK) == SUCCESS
        assert [row.node_id for row in store.roster()] == ["a"]

    def test_a_run_that_nobody_is_left_of_is_closed_by_the_next_ones_first_node(
        self, store: Store, connect: Connect
    ) -> None:
        first = joined(store, "a", uid="scheduler-1")
        store.remove("a")
        second = joined(connect(), "b", uid="scheduler-2")
        assert second.head.run != first.head.run
        assert second.opened.scheduler_uid == "scheduler-2"
        closed = [entry.body for entry in news(store, first) if isinstance(entry.body, Closed)]
        assert [verdict.success for verdict in closed] == [False]

    def test_a_run_whose_nodes_heartbeat_refuses_another_run_and_names_them(
        self, store: Store, connect: Connect
    ) -> None:
        clock = heartbeating(connect(), "a", joined(store, "a", uid="scheduler-1").head.run)
        with pytest.raises(RendezvousRefusedError, match="is alive under this job id on host-a"):
            join(connect(), applicant("b", uid="scheduler-2"), clock)
        assert [row.node_id for row in store.roster()] == ["a"]

    def test_other_settings_are_refused_and_leave_no_row(self, store: Store, connect: Connect) -> None:
        clock = heartbeating(connect(), "a", joined(store, "a").head.run)
        with pytest.raises(RendezvousRefusedError, match="max_nodes: 3 here, 2 there"):
            join(connect(), applicant("b", max_nodes=3), clock)
        assert [row.node_id for row in store.roster()] == ["a"]

    def test_a_newcomer_finds_what_it_needs_among_many_entries(self, store: Store, connect: Connect) -> None:
        ledger = joined(store, "a")
        ledger = write(store, ledger, a_round(1, "ab"))
        for number in range(2, 30):
            ledger = write(store, ledger, Round(number=number, offer=offer(number), same_as=number - 1))
        for index in range(3, 28):
            store.shrink(index)
        found = load(connect(), 0.0)
        assert found is not None
        assert (found.head, found.round) == (ledger.head, ledger.round)

    @pytest.mark.parametrize(
        ("planted", "words"),
        [
            pytest.param(pickle.dumps({"kind": "ROUND"}), "is not JSON", id="a pickle"),
            pytest.param(b"\x00\xff" * 500, "is not JSON", id="random bytes"),
            pytest.param(b"[" * 100_000, "is not JSON", id="too deep"),
            pytest.param(b"[]", "is not a JSON object", id="no object"),
            pytest.param(
                json.dumps({"v": PROTOCOL + 1}).encode(), "protocol version", id="of another version of Elastic"
            ),
            pytest.param(
                json.dumps({"v": PROTOCOL, "body": {"kind": "RUN"}}).encode(), "no known kind", id="of no known kind"
            ),
            pytest.param(json.dumps({"v": PROTOCOL, "body": {"kind": "OPEN"}}).encode(), "lacks", id="incomplete"),
        ],
    )
    def test_an_entry_that_cannot_be_is_refused_in_words(
        self, store: Store, connect: Connect, planted: bytes, words: str
    ) -> None:
        ledger = joined(store, "a")
        assert store.append(ledger.head.link, Link(2, "planted"), planted)
        reader = connect()
        for read in (lambda: news(reader, ledger), lambda: load(reader, 0.0)):
            with pytest.raises(RendezvousStateError, match=words):
                read()
        with pytest.raises(RendezvousStateError, match=words):
            join(reader, applicant("b"), CLOCK)
        assert [row.node_id for row in store.roster()] == ["a"]

    def test_a_row_that_cannot_be_is_refused_in_words(self, store: Store) -> None:
        store.enter("evil", pickle.dumps(NodeRow))
        (row,) = store.roster()
        with pytest.raises(RendezvousStateError, match="A row in the store is not JSON"):
            decode_row(row.value)


class PlantConformance(Connections):
    """Values that another program writes past the backend.

    Override ``make_backend``, and for the same store the other two.
    """

    @pytest.fixture
    def plant(self) -> Plant:
        """To be overridden: see :data:`Plant`."""
        raise NotImplementedError(f"{type(self).__name__} must override the fixture plant")

    @pytest.fixture
    def plant_row(self) -> PlantRow:
        """To be overridden: see :data:`PlantRow`."""
        raise NotImplementedError(f"{type(self).__name__} must override the fixture plant_row")

    @pytest.mark.parametrize(
        "record",
        [
            pytest.param(b"x" * 100 * 1024 * 1024, id="100 MiB"),
            pytest.param(b"2 planted\n" + b"x" * (MAX_VALUE_BYTES + 1), id="a byte too many"),
            pytest.param(bytes(range(256)) * 16, id="random bytes"),
            pytest.param(pickle.dumps(print), id="a pickle"),
            pytest.param(b"", id="nothing"),
        ],
    )
    def test_a_planted_record_is_refused_and_kills_nobody(
        self, store: Store, connect: Connect, plant: Plant, record: bytes
    ) -> None:
        ledger = joined(store, "a")
        after = write(store, ledger, SUCCESS)
        if not plant("job", 2, record):
            assert [entry.id for entry in news(connect(), ledger)] == [after.head.id]
            return
        with pytest.raises(RendezvousStateError):
            news(connect(), ledger)

    @pytest.mark.parametrize(
        "record",
        [
            pytest.param(b"x" * (MAX_VALUE_BYTES + 5000), id="too many bytes"),
            pytest.param(b"garbage", id="a word"),
            pytest.param(bytes(range(256)) * 16, id="random bytes"),
            pytest.param(pickle.dumps(print), id="a pickle"),
        ],
    )
    def test_a_planted_row_is_listed_as_none_and_hides_no_other(
        self, store: Store, connect: Connect, plant_row: PlantRow, record: bytes
    ) -> None:
        def look(ids: Collection[str] | None = None) -> None:
            rows = reader.roster(ids)
            assert names(rows) == ["a", "c"]
            assert len(rows) == 3, "what cannot be read is told of"

        def names(rows: list[RosterRow]) -> list[str]:
            return [seen.row.info.node_id for seen in readable(rows)]

        joined(store, "a")
        for name in ("evil", "c"):
            connect().enter(name, encode_row(NodeRow(info=applicant(name).info)))
        taken = plant_row("job", "evil", record)
        reader = connect()
        if not taken:
            assert names(reader.roster()) == ["a", "evil", "c"]
            return
        look()
        look(["a", "evil", "c"])
        assert connect().heartbeat("a", 1, "evil").revision == 0, "who watches it heartbeats on"
        before = reader.wait(Cursor(), roster=True, timeout=0)
        connect().amend("a", 1, encode_row(NodeRow(info=applicant("a").info)))
        assert reader.wait(before, roster=True, timeout=0).roster != before.roster
        look()
        joined(connect(), "d")


def applicant(name: str, *, max_nodes: int = 2, uid: str | None = None) -> Applicant:
    """Return a node that wants in."""
    versions, host = Versions(python="3.11.7"), f"host-{name}"
    info = NodeInfo(
        node_id=name, host=host, host_id=host, slot=0, local_world_size=1, role="default", versions=versions
    )
    agreement = Agreement(min_nodes=1, max_nodes=max_nodes, max_restarts=0)
    settings = Settings(agreement=agreement, timing=Timing(), versions=versions, host=host)
    return Applicant(info=info, settings=settings, scheduler_uid=uid)


def joined(store: Store, name: str, *, uid: str | None = None) -> Ledger:
    """Return the ledger of a run that a node has joined, or opened."""
    found = join(store, applicant(name, uid=uid), CLOCK)
    assert isinstance(found, Joined), found
    return found.ledger


def heartbeating(store: Store, name: str, run: str) -> Runtime:
    """Return a clock for others, during whose sleep a node of the run heartbeats."""
    heartbeats, ticks = count(1), count()
    store.amend(name, 1, encode_row(NodeRow(info=applicant(name).info, run=run)))

    def sleep(seconds: float) -> None:
        store.heartbeat(name, next(heartbeats))

    return replace(CLOCK, sleep=sleep, now=lambda: float(next(ticks)))


def write(store: Store, ledger: Ledger, body: Body) -> Ledger:
    """Return the ledger with one entry more, which is in the store."""
    entry = compose(ledger, body, entry_id=CLOCK.new_id(), author=ledger.leader, now=0.0)
    assert store.append(ledger.head.link, entry.link, encode_entry(entry))
    return advance(ledger, entry, 0.0)


def offer(number: int) -> Offer:
    """Return a place for the workers' store of that round."""
    return Offer("10.0.0.1", 29500, f"offer {number}")


def a_round(number: int, names: str) -> Round:
    """Return a round of these nodes."""
    members = tuple(Member(name, 1, "default") for name in names)
    return Round(number=number, offer=offer(number), members=members)
