"""The same contract over a line that holds what it is given: a stopped server, a route that drops packets."""

# ruff: noqa: D102  (a test's name says what it checks)

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pytest

from elastic_core.errors import RendezvousConnectionError
from elastic_core.rendezvous import ORIGIN, Cursor, Link, RendezvousBackend
from elastic_testing.connections import Connect, Connections, MakeBackend, long_wait
from elastic_testing.faults import BadLine
from elastic_testing.line_suite import at_every_request
from elastic_testing.race import PATIENCE, background, outcome

FIRST, SECOND, THIRD, RIVAL = Link(1, "first"), Link(2, "second"), Link(3, "third"), Link(2, "rival")


@dataclass(frozen=True)
class Operation:
    """One operation, and what a store must hold after it was done once, or once and a second time.

    Each begins in a job with one entry, and one row with revision 0 and heartbeat 0.
    """

    do: Callable[[RendezvousBackend], Any]
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


class HeldLineConformance(Connections):
    """Tests of an operation that is held up. Override ``make_backend``, with connections over ``line``, and
    ``line``.
    """

    @pytest.fixture
    def line(self) -> BadLine:
        """To be overridden: what lies between the connections of ``make_backend`` and the store."""
        raise NotImplementedError(f"{type(self).__name__} must override the fixture line")

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
        self, connect: Connect, line: BadLine, store: RendezvousBackend
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
        self, open_job: MakeBackend, line: BadLine
    ) -> None:
        store = open_job("job")
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
        again = store.connect()
        try:
            assert again.append(FIRST, SECOND, b"2"), "the very same entry: it is there, or it lands now"
            again.remove("node")
            again.amend("late", 1, b"1")
            serial = again.enter("late", b"0")
            assert again.enter("late", b"0") == serial
            assert [(row.node_id, row.serial) for row in again.roster()] == [("late", serial)]
            assert [again.read(index) for index in (1, 2, 3)] == [b"1", b"2", None]
        finally:
            again.close()
        for name, node in nodes.items():  # of no use any more, or right
            try:
                assert (node.read(1), node.read(3)) == (b"1", None), name
            except RendezvousConnectionError:
                continue


def begun(open_job: MakeBackend, job: str) -> tuple[RendezvousBackend, RendezvousBackend]:
    """Two connections to a job with one entry and one row."""
    node, other = open_job(job), open_job(job)
    assert node.append(ORIGIN, FIRST, b"1")
    node.enter("node", b"0")
    return node, other


def held(line: BadLine, job: str, store: RendezvousBackend, operation: Operation) -> Future[Any]:
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


def check(store: RendezvousBackend, operation: Operation) -> None:
    """Check that the store holds what the operation leaves."""
    assert [(row.node_id, row.revision, row.value) for row in store.roster()] == list(operation.rows)
    assert store.wait(Cursor(), roster=False, timeout=0).head == len(operation.entries)
    count = len(operation.entries)
    assert [store.read(index) for index in range(1, count + 2)] == [*operation.entries, None]
