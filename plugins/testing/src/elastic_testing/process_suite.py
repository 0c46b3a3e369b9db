"""The same contract between processes: for stores that outlive the process that uses them."""

# ruff: noqa: D102  (a test's name says what it checks)

from __future__ import annotations

import pickle
from contextlib import closing
from multiprocessing import get_context
from multiprocessing.reduction import ForkingPickler
from multiprocessing.synchronize import Event

import pytest

from elastic_core.rendezvous import ORIGIN, Cursor, Link
from elastic_testing.connections import Connect, MakeBackend, Store, await_head, long_wait, woken
from elastic_testing.linearizability_suite import LinearizabilityConformance
from elastic_testing.race import PATIENCE, Crew


class ProcessConformance(LinearizabilityConformance):
    """The same promises between processes. Override the fixtures ``make_backend`` and ``opener``."""

    @pytest.fixture
    def opener(self) -> MakeBackend:
        """To be overridden: like ``make_backend``, for the same store, but picklable (a module's function, a partial).

        It is called in a fresh interpreter, with the first connection open in this one.
        """
        raise NotImplementedError(f"{type(self).__name__} must override the fixture opener")

    @pytest.fixture
    def sent(self, opener: MakeBackend) -> MakeBackend:
        """Return ``opener`` in a form that can be sent to another process."""
        try:
            ForkingPickler.dumps(opener)
        except (AttributeError, TypeError, pickle.PicklingError) as exc:
            pytest.fail(
                "The fixture opener must return something picklable: a module's function, or a partial of one. "
                f"It returned {opener!r}: {exc}",
                pytrace=False,
            )
        return opener

    def test_processes_share_one_unbroken_chain(self, store: Store, sent: MakeBackend) -> None:
        with Crew(appends, [(sent, str(number), 10) for number in range(3)]) as crew:
            crew.join()
        entries = unbroken(store)
        assert sorted(author for _, author in entries) == ["0"] * 10 + ["1"] * 10 + ["2"] * 10

    def test_serials_are_handed_out_once_among_processes(self, store: Store, sent: MakeBackend) -> None:
        with Crew(enters, [(sent, str(number), 10) for number in range(3)]) as crew:
            crew.join()
        rows = store.roster()
        assert sorted({row.serial for row in rows}) == [row.serial for row in rows]
        assert {row.node_id for row in rows} == {f"{crew}-{number}" for crew in range(3) for number in range(10)}

    def test_an_append_wakes_a_waiter_in_another_process(
        self, store: Store, connect: Connect, sent: MakeBackend
    ) -> None:
        waiter, ready = connect(), get_context("spawn").Event()
        with Crew(answers, [(sent, "answerer", 4, ready)]) as crew:
            assert ready.wait(PATIENCE), "the other process did not begin to wait"
            prev = ORIGIN
            for index in range(1, 9, 2):
                crew.let_sleep()
                question = Link(index, f"question {index}")
                assert store.append(prev, question, question.id.encode())
                answered = long_wait(waiter, Cursor(index), roster=False, settled=False)
                woken(answered, "append() in another process")
                prev = Link(index + 1, f"answerer {index + 1}")
            crew.join()

    def test_writers_killed_at_any_instant_leave_a_usable_store(self, store: Store, sent: MakeBackend) -> None:
        for attempt in range(3):
            before = len(unbroken(store))
            with Crew(appends, [(sent, f"{attempt}.{number}", 1_000_000) for number in range(2)]):
                await_head(store, before, before + 5)
            killed = unbroken(store)
            prev = killed[-1][0]
            entry = Link(prev.index + 1, f"survivor {attempt}")
            assert store.append(prev, entry, entry_data(prev, entry, "survivor"))
            assert unbroken(store) == [*killed, (entry, "survivor")]


def entry_data(prev: Link, entry: Link, author: str) -> bytes:
    """Return data that repeats the entry's place in the chain, so that :func:`unbroken` can check it."""
    return "\n".join((prev.id, entry.id, author)).encode()


def unbroken(store: Store) -> list[tuple[Link, str]]:
    """All entries, each with its author, made by :func:`entry_data`; fails unless each was built on the one before."""
    found: list[tuple[Link, str]] = []
    prev = ORIGIN
    while (data := store.read(prev.index + 1)) is not None:
        built_on, entry_id, author = data.decode().split("\n")
        assert built_on == prev.id, f"entry {prev.index + 1} was built on {built_on!r}, not on {prev.id!r}"
        prev = Link(prev.index + 1, entry_id)
        found.append((prev, author))
    assert store.wait(Cursor(), roster=False, timeout=0).head == len(found)
    return found


def appends(opener: MakeBackend, author: str, count: int) -> None:
    """Append ``count`` entries, each on the newest one, while other processes do the same."""
    prev = ORIGIN
    with closing(opener("job")) as store:
        while count:
            while (data := store.read(prev.index + 1)) is not None:
                prev = Link(prev.index + 1, data.decode().split("\n")[1])
            entry = Link(prev.index + 1, f"{author}-{prev.index + 1}")
            count -= store.append(prev, entry, entry_data(prev, entry, author))


def enters(opener: MakeBackend, prefix: str, count: int) -> None:
    """Enter ``count`` rows."""
    with closing(opener("job")) as store:
        for number in range(count):
            store.enter(f"{prefix}-{number}", prefix.encode())


def answers(opener: MakeBackend, author: str, count: int, ready: Event) -> None:
    """Wait for each of ``count`` entries named ``question INDEX``, and append one named after ``author`` to it.

    ``ready`` is set just before the first wait. Only the store can end a wait within :data:`PATIENCE`.
    """
    with closing(opener("job")) as store:
        ready.set()
        for index in range(1, 2 * count, 2):
            while store.wait(Cursor(index - 1), roster=False, timeout=10 * PATIENCE).head < index:
                pass
            answer = Link(index + 1, f"{author} {index + 1}")
            assert store.append(Link(index, f"question {index}"), answer, answer.id.encode())
