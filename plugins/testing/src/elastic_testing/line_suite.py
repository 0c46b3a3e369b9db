"""The same contract over a bad line: replies and requests that are lost, at every step of every operation."""

# ruff: noqa: D102  (a test's name says what it checks)

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import TypeVar

import pytest

from elastic_core.errors import RendezvousConnectionError
from elastic_core.rendezvous import ORIGIN, Cursor, Link, RendezvousBackend
from elastic_testing.connections import Connect, MakeBackend, chain, long_wait, sleeping_wait
from elastic_testing.faults import BadLine, Lost
from elastic_testing.linearizability_suite import LinearizabilityConformance
from elastic_testing.race import PATIENCE, background, outcome, times_run

MOST_REQUESTS = 50  # requests that one operation may take; more is no constant
ROUGHLY = 1.2  # the most that one operation may cost in a large job, as a multiple of its cost in a small one

WATCHED = 2.0  # seconds for which a sleeping waiter is watched
FEW = 3
"""Requests that it may make in that time, and times that its thread may run: a wait that is cut into long pieces is
still one."""

_T = TypeVar("_T")


class LineConformance(LinearizabilityConformance):
    """Tests of a lost reply. Override ``make_backend``, with connections that go over ``line``, and ``line``."""

    @pytest.fixture
    def line(self) -> BadLine:
        """To be overridden: what lies between the connections of ``make_backend`` and the store."""
        raise NotImplementedError(f"{type(self).__name__} must override the fixture line")

    @pytest.mark.parametrize("lost", list(Lost))
    def test_an_append_of_unknown_outcome_is_resolved_by_another(
        self, open_job: MakeBackend, line: BadLine, lost: Lost
    ) -> None:
        first, second = Link(1, "first"), Link(2, "second")
        for job in at_every_request(line):
            writer, other = open_job(job), open_job(job)
            assert writer.append(ORIGIN, first, b"1")
            assert hurt(line, lost, job, writer.append, first, second, b"2") in (None, True)
            assert other.append(first, second, b"2"), "the very same entry: it is there, or it lands now"
            assert not other.append(first, Link(2, "rival"), b"rival")
            assert [other.read(index) for index in (1, 2, 3)] == [b"1", b"2", None]
            assert other.wait(Cursor(), roster=False, timeout=0).head == 2
            still_right(writer)

    @pytest.mark.parametrize("lost", list(Lost))
    def test_an_append_of_unknown_outcome_that_lost_stays_lost(
        self, open_job: MakeBackend, line: BadLine, lost: Lost
    ) -> None:
        first, mine, theirs = Link(1, "first"), Link(2, "mine"), Link(2, "theirs")
        for job in at_every_request(line):
            writer, other = open_job(job), open_job(job)
            assert writer.append(ORIGIN, first, b"1")
            assert other.append(first, theirs, b"theirs")
            assert other.read(2) == b"theirs"  # and so nothing of it is under way any more: some requests have no reply
            assert hurt(line, lost, job, writer.append, first, mine, b"mine") in (None, False)
            assert not other.append(first, mine, b"mine")
            assert [other.read(index) for index in (1, 2, 3)] == [b"1", b"theirs", None]

    @pytest.mark.parametrize("lost", list(Lost))
    def test_an_append_of_unknown_outcome_is_heard_of(self, open_job: MakeBackend, line: BadLine, lost: Lost) -> None:
        entry = Link(1, "first")
        for job in at_every_request(line):
            writer, other, waiter = (open_job(job) for _ in range(3))
            hurt(line, lost, job, writer.append, ORIGIN, entry, b"1")
            waiting = long_wait(waiter, Cursor(), roster=False, settled=False)
            assert other.append(ORIGIN, entry, b"1")
            assert outcome(waiting, PATIENCE, "the waiter did not hear of the entry").head == 1

    @pytest.mark.parametrize("lost", list(Lost))
    def test_an_arrival_of_unknown_outcome_makes_one_row(
        self, open_job: MakeBackend, line: BadLine, lost: Lost
    ) -> None:
        for job in at_every_request(line):
            node, other = open_job(job), open_job(job)
            serial = hurt(line, lost, job, node.enter, "node", b"value")
            again = other.enter("node", b"value")
            assert serial in (None, again)
            assert other.enter("another", b"") > again
            found = [(row.node_id, row.serial, row.revision, row.value) for row in other.roster()]
            assert found[0] == ("node", again, 0, b"value")
            assert [row[0] for row in found] == ["node", "another"]

    @pytest.mark.parametrize("lost", list(Lost))
    def test_an_amendment_of_unknown_outcome_is_repeated_without_harm(
        self, open_job: MakeBackend, line: BadLine, lost: Lost
    ) -> None:
        for job in at_every_request(line):
            node, other = open_job(job), open_job(job)
            node.enter("node", b"0")
            hurt(line, lost, job, node.amend, "node", 2, b"2")
            other.amend("node", 2, b"2")
            other.amend("node", 1, b"1")
            assert [(row.revision, row.value) for row in other.roster()] == [(2, b"2")]

    @pytest.mark.parametrize("lost", list(Lost))
    def test_a_removal_of_unknown_outcome_is_repeated_without_harm(
        self, open_job: MakeBackend, line: BadLine, lost: Lost
    ) -> None:
        for job in at_every_request(line):
            node, other = open_job(job), open_job(job)
            node.enter("node", b"0")
            hurt(line, lost, job, node.remove, "node")
            other.remove("node")
            assert other.roster() == []
            assert other.heartbeat("node", 1).revision is None

    @pytest.mark.parametrize("lost", list(Lost))
    def test_a_heartbeat_of_unknown_outcome_harms_nothing(
        self, open_job: MakeBackend, line: BadLine, lost: Lost
    ) -> None:
        for job in at_every_request(line):
            node, other = open_job(job), open_job(job)
            node.enter("node", b"value")
            hurt(line, lost, job, node.heartbeat, "node", 5)
            assert [(row.value, row.heartbeat in (0, 5)) for row in other.roster()] == [(b"value", True)]
            assert other.heartbeat("node", 6).revision == 0
            assert [row.heartbeat for row in other.roster()] == [6]

    def test_a_broken_line_is_a_connection_error_and_heals(self, store: RendezvousBackend, line: BadLine) -> None:
        operations: list[Callable[[], object]] = [
            lambda: store.enter("node", b""),
            lambda: store.amend("node", 1, b""),
            lambda: store.heartbeat("node", 1),
            lambda: store.remove("node"),
            store.roster,
            lambda: store.append(ORIGIN, Link(1, "first"), b"1"),
            lambda: store.read(1),
            lambda: store.wait(Cursor(), roster=True, timeout=0),
            store.connect,
        ]
        line.cut()
        for operation in operations:
            done = background(operation)
            with pytest.raises(RendezvousConnectionError):
                outcome(done, PATIENCE, f"an operation over a broken line did not end within {PATIENCE:g} s")
        line.mend()
        if not store.embedded:  # what an embedded store held is gone with it, so no node tries again
            again = store.connect()
            assert again.append(ORIGIN, Link(1, "first"), b"1")
            again.close()

    def test_a_waiter_asks_for_nothing_while_nothing_happens(self, connect: Connect, line: BadLine) -> None:
        """It is woken; it does not look again and again, at a store over a line or at one that has none."""
        waiter, writer = connect(), connect()
        waiting, thread = sleeping_wait(waiter, Cursor(), roster=True)
        before = line.requests, times_run(thread)
        time.sleep(WATCHED)
        assert not waiting.done(), f"nothing has happened, and the wait has ended: {waiting.result()}"
        requests, runs = line.requests - before[0], times_run(thread) - before[1]
        assert requests <= FEW, f"a waiter asked {requests} times in {WATCHED:g} s"
        assert runs <= FEW, f"a waiter's thread ran {runs} times in {WATCHED:g} s"
        assert writer.append(ORIGIN, Link(1, "first"), b"1")
        assert outcome(waiting, PATIENCE, "the waiter did not hear of the entry").head == 1

    def test_an_operation_costs_the_same_however_large_the_job_is(
        self, store: RendezvousBackend, connect: Connect, line: BadLine
    ) -> None:
        """Requests for what every node does in every round and every heartbeat, after all that is cached was cached."""
        node = connect()
        node.enter("node", b"0")
        revisions, links = count(1), iter(chain(200))

        def costs() -> list[int]:
            """Several times: what needs no answer may travel with the next request, or by itself."""
            costs = []
            for _ in range(8):
                before = line.requests
                node.amend("node", next(revisions), b"seen")
                prev, entry = next(links)
                assert node.append(prev, entry, b"entry")
                assert node.read(entry.index) == b"entry"
                node.heartbeat("node", entry.index, "node")
                assert node.wait(Cursor(prev.index), roster=False, timeout=0).head == entry.index
                costs.append(line.requests - before)
            return costs

        small = max(costs())
        for number in range(40):
            store.enter(f"other {number}", b"")
        for prev, entry in list(links)[:100]:
            assert store.append(prev, entry, b"entry")
        assert store.read(1) is not None  # nothing of it is under way any more
        links = iter(chain(200)[108:])
        assert min(costs()) <= ROUGHLY * small


def at_every_request(line: BadLine) -> Iterator[str]:
    """Job ids whose number says which request of the operation is to be lost; ends after one that came too late."""
    for nth in range(1, MOST_REQUESTS):
        yield f"job {nth}"
        if not line.spoilt:
            assert nth > 1, "the operation's first request was not lost: do its connections go over the line?"
            return
    pytest.fail(f"one operation took {MOST_REQUESTS} requests or more")


def hurt(line: BadLine, lost: Lost, job: str, operation: Callable[..., _T], *arguments: object) -> _T | None:
    """Do it over a line that loses the request that the job's name says; None when it says that it does not know."""
    line.lose(lost, int(job.rpartition(" ")[2]))
    try:
        return operation(*arguments)
    except RendezvousConnectionError:
        return None
    finally:
        line.mend()


def still_right(store: RendezvousBackend) -> None:
    """Check that a connection that has met trouble fails, or answers this request and not an earlier one."""
    try:
        assert [store.read(1), store.read(2)] == [b"1", b"2"]
    except RendezvousConnectionError:
        return
