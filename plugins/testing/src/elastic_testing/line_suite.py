"""The same contract over a bad line: replies and requests that are lost or held, at every step of every operation."""

# ruff: noqa: D102  (a test's name says what it checks)

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

import pytest

from elastic_core.errors import RendezvousConnectionError
from elastic_core.rendezvous import ORIGIN, Cursor, Link
from elastic_testing.connections import Connect, Connections, MakeBackend, Store, chain, long_wait, sleeping_wait
from elastic_testing.faults import BadLine, Lost
from elastic_testing.linearizability_suite import LinearizabilityConformance
from elastic_testing.race import PATIENCE, background, outcome, times_run

MOST_REQUESTS = 50  # requests that one operation may take; more is no constant
ROUGHLY = 1.2  # the most that one operation may cost in a large job, as a multiple of its cost in a small one

WATCHED = 2.0  # seconds for which a sleeping waiter is watched
FEW = 3
"""Requests that it may make in that time, and times that its thread may run: a wait that is cut into long pieces is
still one."""

FIRST, SECOND, THIRD, RIVAL = Link(1, "first"), Link(2, "second"), Link(3, "third"), Link(2, "rival")

_T = TypeVar("_T")


class OverLine:
    """The fixture of every suite for a line."""

    @pytest.fixture
    def line(self) -> BadLine:
        """To be overridden: what lies between the connections of ``make_backend`` and the store."""
        raise NotImplementedError(f"{type(self).__name__} must override the fixture line")


class LineConformance(OverLine, LinearizabilityConformance):
    """Tests of a lost reply. Override ``make_backend``, with connections that go over ``line``, and ``line``."""

    @pytest.mark.parametrize("lost", list(Lost))
    def test_an_append_of_unknown_outcome_is_resolved_by_another(
        self, open_job: MakeBackend, line: BadLine, lost: Lost
    ) -> None:
        for job in at_every_request(line):
            writer, other = open_job(job), open_job(job)
            assert writer.append(ORIGIN, FIRST, b"1")
            assert hurt(line, lost, job, writer.append, FIRST, SECOND, b"2") in (None, True)
            assert other.append(FIRST, SECOND, b"2"), "the very same entry: it is there, or it lands now"
            assert not other.append(FIRST, RIVAL, b"rival")
            assert [other.read(index) for index in (1, 2, 3)] == [b"1", b"2", None]
            assert other.wait(Cursor(), roster=False, timeout=0).head == 2
            still_right(writer)

    @pytest.mark.parametrize("lost", list(Lost))
    def test_an_append_of_unknown_outcome_that_lost_stays_lost(
        self, open_job: MakeBackend, line: BadLine, lost: Lost
    ) -> None:
        for job in at_every_request(line):
            writer, other = open_job(job), open_job(job)
            assert writer.append(ORIGIN, FIRST, b"1")
            assert other.append(FIRST, RIVAL, b"rival")
            assert other.read(2) == b"rival"  # and so nothing of it is under way any more: some requests have no reply
            assert hurt(line, lost, job, writer.append, FIRST, SECOND, b"2") in (None, False)
            assert not other.append(FIRST, SECOND, b"2")
            assert [other.read(index) for index in (1, 2, 3)] == [b"1", b"rival", None]

    @pytest.mark.parametrize("lost", list(Lost))
    def test_an_append_of_unknown_outcome_is_heard_of(self, open_job: MakeBackend, line: BadLine, lost: Lost) -> None:
        for job in at_every_request(line):
            writer, other, waiter = (open_job(job) for _ in range(3))
            hurt(line, lost, job, writer.append, ORIGIN, FIRST, b"1")
            waiting = long_wait(waiter, Cursor(), roster=False, settled=False)
            assert other.append(ORIGIN, FIRST, b"1")
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

    def test_a_broken_line_is_a_connection_error_and_heals(self, store: Store, line: BadLine) -> None:
        operations: list[Callable[[], object]] = [
            lambda: store.enter("node", b""),
            lambda: store.amend("node", 1, b""),
            lambda: store.heartbeat("node", 1),
            lambda: store.remove("node"),
            store.roster,
            lambda: store.append(ORIGIN, FIRST, b"1"),
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
            assert again.append(ORIGIN, FIRST, b"1")
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
        assert writer.append(ORIGIN, FIRST, b"1")
        assert outcome(waiting, PATIENCE, "the waiter did not hear of the entry").head == 1

    def test_an_operation_costs_the_same_however_large_the_job_is(
        self, store: Store, connect: Connect, line: BadLine
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


def still_right(store: Store) -> None:
    """Check that a connection that has met trouble fails, or answers this request and not an earlier one."""
    try:
        assert [store.read(1), store.read(2)] == [b"1", b"2"]
    except RendezvousConnectionError:
        return


@dataclass(frozen=True)
class Operation:
    """One operation, and what a store must hold after it was done once, or once and a second time.

    Each begins in a job with one entry, and one row with revision 0 and heartbeat 0.
    """

    do: Callable[[Store], Any]
    rows: tuple[tuple[str, int, bytes], ...] = (("node", 0, b"0"),)
    entries: tuple[bytes, ...] = (b"1",)


OPERATIONS = {
    "append": Operation(lambda store: store.append(FIRST, SECOND, b"2"), entries=(b"1", b"2")),
    "read": Operation(lambda store: store.read(1)),
    "enter": Operation(lambda store: store.enter("late", b"0"), rows=(("node", 0, b"0"), ("late", 0, b"0"))),
    "amend": Operation(lambda store: store.amend("node", 2, b"2"), rows=(("node", 2, b"2"),)),
    "heartbeat": Operation(lambda store: store.heartbeat("node", 5)),
    "remove": Operation(lambda store: store.remove("node"), rows=()),
    "roster": Operation(lambda store: store.roster()),
    "wait": Operation(lambda store: store.wait(Cursor(), roster=False, timeout=0).head),
}


class HeldLineConformance(OverLine, Connections):
    """Tests of an operation that is held up. Override ``line``, and ``make_backend`` with connections over it."""

    @pytest.mark.parametrize("name", OPERATIONS)
    def test_an_operation_that_is_held_up_is_done_once(self, open_job: MakeBackend, line: BadLine, name: str) -> None:
        operation = OPERATIONS[name]
        for job in at_every_request(line):
            node, other = begun(open_job, job)
            doing = held(line, job, node, operation)
            line.release()
            found = ended(doing)
            if found is None:  # it has given up, and what it asked for was done or not
                found = operation.do(other)
            assert same(found, operation.do(other)), "the second time"
            check(other, operation)

    @pytest.mark.parametrize("name", ["append", "amend", "remove", "heartbeat", "enter"])
    def test_a_request_that_arrives_after_its_connection_was_given_up_undoes_nothing(
        self, open_job: MakeBackend, line: BadLine, name: str
    ) -> None:
        for job in at_every_request(line):
            node, other = begun(open_job, job)
            doing = held(line, job, node, OPERATIONS[name])
            closing = background(node.close)
            ended(doing)
            newest, serial, row = SECOND, 0, ("node", 0, b"0")
            match name:
                case "append":
                    newest = RIVAL if other.append(FIRST, RIVAL, b"rival") else SECOND
                    assert other.append(newest, THIRD, b"3"), "one of the two stands there"
                case "amend":
                    other.amend("node", 3, b"3")
                    row = ("node", 3, b"3")
                case "remove":
                    other.remove("node")
                case "heartbeat":
                    assert other.heartbeat("node", 6).revision == 0
                case "enter":
                    serial = other.enter("late", b"0")
            line.release()
            outcome(closing, PATIENCE, f"close() did not return within {PATIENCE:g} s")
            rows = [(each.node_id, each.revision, each.value) for each in other.roster()]
            assert rows[:1] == ([] if name == "remove" else [row])
            if name == "append":
                assert other.wait(Cursor(), roster=False, timeout=0).head == 3
                assert [other.read(index) for index in (2, 3)] == [b"rival" if newest == RIVAL else b"2", b"3"]
            elif name == "enter":
                assert [each.serial for each in other.roster()][1:] == [serial]
                assert other.enter("another", b"") > serial
            elif name == "heartbeat":
                assert [each.heartbeat in (5, 6) for each in other.roster()] == [True]
                assert other.heartbeat("node", 7).head == 1

    def test_a_waiter_hears_of_what_came_while_its_line_was_held(
        self, connect: Connect, line: BadLine, store: Store
    ) -> None:
        assert store.append(ORIGIN, FIRST, b"1")
        waiter, writer = connect(), connect()
        waiting = long_wait(waiter, Cursor(1), roster=False)
        line.silence()
        doing = background(lambda: writer.append(FIRST, SECOND, b"2"))
        assert line.await_held(doing, PATIENCE)
        line.release()
        if ended(doing) is None:
            assert connect().append(FIRST, SECOND, b"2")
        found = ended(waiting)
        if found is None:
            found = outcome(long_wait(connect(), Cursor(1), roster=False), PATIENCE, "the waiter did not hear of it")
        assert found.head == 2


class SilentLineConformance(HeldLineConformance):
    """Tests of a connection that gets no answer at all, for a store that is reached over a line.

    Let the connections' timeouts be short: each operation waits for one.
    """

    def test_an_operation_without_an_answer_ends_with_an_error_and_the_store_is_as_good_as_before(
        self, open_job: MakeBackend, store: Store, connect: Connect, line: BadLine
    ) -> None:
        assert store.append(ORIGIN, FIRST, b"1")
        store.enter("node", b"0")
        nodes = {name: open_job("job") for name in OPERATIONS}
        line.silence()
        doing = {name: background(lambda o=o, s=nodes[name]: o.do(s)) for name, o in OPERATIONS.items()}  # type: ignore[misc]
        doing["connect"] = background(store.connect)
        for name, future in doing.items():
            with pytest.raises(RendezvousConnectionError):
                outcome(future, PATIENCE, f"{name}() without an answer did not end within {PATIENCE:g} s: no timeout?")
        line.release()
        again = connect()
        assert again.append(FIRST, SECOND, b"2"), "the very same entry: it is there, or it lands now"
        again.remove("node")
        again.amend("late", 1, b"1")
        serial = again.enter("late", b"0")
        assert again.enter("late", b"0") == serial
        assert [(row.node_id, row.serial) for row in again.roster()] == [("late", serial)]
        assert [again.read(index) for index in (1, 2, 3)] == [b"1", b"2", None]
        for name, node in nodes.items():  # of no use any more, or right
            try:
                assert (node.read(1), node.read(3)) == (b"1", None), name
            except RendezvousConnectionError:
                continue


def begun(open_job: MakeBackend, job: str) -> tuple[Store, Store]:
    """Two connections to a job with one entry and one row."""
    node, other = open_job(job), open_job(job)
    assert node.append(ORIGIN, FIRST, b"1")
    node.enter("node", b"0")
    return node, other


def held(line: BadLine, job: str, store: Store, operation: Operation) -> Future[Any]:
    """Begin an operation; return when the request that the job's name says is held, or when there was none."""
    line.hold(int(job.rpartition(" ")[2]))
    doing = background(lambda: operation.do(store))
    if not line.await_held(doing, PATIENCE):
        line.release()  # else it would hold a request of something else
    return doing


def ended(doing: Future[Any]) -> Any:
    """Return what an operation has come to; None where it does not know."""
    try:
        found = outcome(doing, PATIENCE, f"an operation that was held up did not end within {PATIENCE:g} s")
    except RendezvousConnectionError:
        return None
    return True if found is None else found


def same(first: Any, second: Any) -> bool:
    """Return True if a repeated operation had the same result."""
    return bool((True if first is None else first) == (True if second is None else second))


def check(store: Store, operation: Operation) -> None:
    """Check that the store holds what the operation leaves."""
    assert [(row.node_id, row.revision, row.value) for row in store.roster()] == list(operation.rows)
    head = store.wait(Cursor(), roster=False, timeout=0).head
    assert [store.read(index) for index in range(1, head + 2)] == [*operation.entries, None]
