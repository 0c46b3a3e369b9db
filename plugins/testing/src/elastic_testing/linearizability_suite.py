"""The contract between connections: the calls of several processes on one store are linearizable.

The calls are random, through lost requests and restarts, and all are recorded. Each worker is a process that was forked
from the test's; for a store in the test's own memory, it is a thread. It does what an agent does: it appends to what it
has read, amends a row of its own, and connects again when a call has failed.
"""

# ruff: noqa: D102  (a test's name says what it checks)

from __future__ import annotations

import multiprocessing
import random
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from mmap import mmap
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from elastic_core.errors import RendezvousConnectionError
from elastic_core.rendezvous import ORIGIN, Cursor, Link
from elastic_testing.connections import Connections, MakeBackend, Store
from elastic_testing.faults import BadLine, Data, Keeper, LossyCalls, Lost
from elastic_testing.history import Call, check_history
from elastic_testing.race import PATIENCE, background

CALLS = 1000  # of all processes together, or fewer, where those take longer than this
SECONDS = 1.0
RESTARTS = 1  # of the store, while they work
JOB = "job"
WORKERS = 3
TAKEN_BACK = 12  # amendments of a row, about, before its owner removes it and enters another
CALLS_A_LOSS = 25  # calls for each that is lost, about, where whole calls are lost
REQUESTS_A_LOSS = 50
"""Requests for each that is lost, about, over a proxy; a call may take several, and a new connection, too."""
LONGEST_WAIT = 0.01  # seconds that a call of wait() may take
POLL = 0.002  # seconds between two looks at what workers have done, and between two attempts to connect


class LinearizabilityConformance(Connections):
    """Part of the suites for processes, bad lines and restarts, and tried with as many of these as a test class has."""

    @pytest.fixture
    def seed(self) -> int:
        """Of the random choices. Parametrize it, in a ``pytest_generate_tests``, to have more than one run."""
        return 0

    @pytest.fixture
    def line(self) -> BadLine | None:
        """See :class:`~elastic_testing.line_suite.LineConformance`; without one, whole calls are lost."""
        return None

    @pytest.fixture
    def keeper(self) -> Keeper | None:
        """See :class:`~elastic_testing.restart_suite.RestartConformance`; without one, nothing is restarted."""
        return None

    def test_the_calls_of_several_processes_are_linearizable(
        self, make_backend: MakeBackend, line: BadLine | None, keeper: Keeper | None, seed: int
    ) -> None:
        if line is None:
            line = LossyCalls()
            make_backend = line.through(make_backend)
        check_history(work(make_backend, line, keeper, calls=CALLS, seconds=SECONDS, restarts=RESTARTS, seed=str(seed)))


class Worker:
    """One process's calls."""

    def __init__(self, name: str, opens: MakeBackend, line: BadLine, seed: str) -> None:
        self.calls: list[Call] = []
        self._name, self._line, self._random = name, line, random.Random(f"{seed} {name}")
        self._first = _insist(lambda: opens(JOB))
        self._store = _insist(self._first.connect)
        self._head = ORIGIN
        self._cursor = Cursor()
        self._mine: tuple[Link, Link] | None = None  # an append of unknown outcome, and what it was built on
        self._lives = 0
        self._entered = False
        self._revision = self._heartbeats = 0
        self._others: list[str] = []

    def run(self, over: Callable[[], bool], progress: Callable[[int], None]) -> list[Call]:
        """Make calls until it is over, and say how many there are."""
        kinds = [self._append, self._read, self._wait, self._write_row, self._heartbeat, self._list]
        while not over():
            if self._random.randrange(CALLS_A_LOSS) == 0:
                self._line.lose(self._random.choice(list(Lost)), self._random.randint(1, 3))
            self._random.choices(kinds, [4, 2, 2, 3, 2, 2])[0]()
            progress(len(self.calls))
        return self.calls

    def close(self) -> None:
        """Close the connections."""
        self._store.close()
        self._first.close()

    def call(self, method: str, *arguments: Any, **named: Any) -> tuple[bool, Any]:
        """Make one call and record it; return whether its outcome is known, and the result."""
        invoked, returned, result = time.monotonic_ns(), None, None
        try:
            result = getattr(self._store, method)(*arguments, **named)
            returned = time.monotonic_ns()
        except RendezvousConnectionError:
            self._store.close()
            self._store = _insist(self._first.connect)
        self.calls.append(Call(self._name, method, (*arguments, *named.values()), result, invoked, returned))
        return returned is not None, result

    def read(self, index: int) -> bytes | None:
        """Read an entry; None also where the outcome is not known."""
        data: bytes | None = self.call("read", index)[1]
        if data is not None and index == self._head.index + 1:
            self._head = Link(index, data.decode())
        return data

    def wait(self, cursor: Cursor, *, roster: bool, timeout: float) -> None:
        """Wait for what is not in a cursor."""
        known, now = self.call("wait", cursor, roster=roster, timeout=timeout)
        if known:
            self._cursor = now if roster else Cursor(now.head, cursor.roster)

    def list(self, ids: Sequence[str] | None) -> None:
        """List rows."""
        known, rows = self.call("roster", ids)
        if known:
            self._others = [row.node_id for row in rows]

    def read_all(self) -> None:
        """Read every entry, and all rows."""
        while self.read(self._head.index + 1) is not None:
            pass
        self.wait(Cursor(self._head.index), roster=False, timeout=0)
        self.list(None)

    def _append(self) -> None:
        prev, entry = self._mine or (self._head, self._next())
        known, succeeded = self.call("append", prev, entry, entry.id.encode())
        self._mine = None if known else (prev, entry)
        if known and succeeded and prev == self._head:
            self._head = entry
        elif known:
            while self.read(self._head.index + 1) is not None:
                pass

    def _next(self) -> Link:
        return Link(self._head.index + 1, f"{self._name}-{len(self.calls)}")

    def _read(self) -> None:
        self.read(max(0, self._head.index + self._random.randint(-2, 1)))

    def _wait(self) -> None:
        head = self._random.choice([self._cursor.head, self._head.index])
        timeout = self._random.choice([0, LONGEST_WAIT * self._random.random()])
        self.wait(Cursor(head, self._cursor.roster), roster=self._random.random() < 0.5, timeout=timeout)

    @property
    def _node(self) -> str:
        return f"{self._name}.{self._lives}"

    def _write_row(self) -> None:
        """Enter, amend or remove a row. An enter or a removal is repeated until its outcome is known."""
        node = self._node
        if not self._entered:
            self._entered, _ = self.call("enter", node, b"0")
        elif self._random.randrange(TAKEN_BACK):
            self._revision += self._random.randint(1, 2)
            self.call("amend", node, self._revision, b"%d" % self._revision)
        elif self.call("remove", node)[0]:
            self._lives, self._entered, self._revision = self._lives + 1, False, 0

    def _heartbeat(self) -> None:
        self._heartbeats += 1
        self.call("heartbeat", self._node, self._heartbeats, self._random.choice([None, *self._others]))

    def _list(self) -> None:
        few = self._random.sample(self._others, min(len(self._others), 2))
        self.list(self._random.choice([None, few]))


def work(
    opens: MakeBackend, line: BadLine, keeper: Keeper | None, *, calls: int, seconds: float, restarts: int, seed: str
) -> list[Call]:
    """Let workers make calls at once, lose some of their requests, restart the store, and read all of it in the end.

    A line that is a proxy loses requests in this process, one that wraps connections in each worker. ``keeper``
    restarts the store, with its data; None if it cannot be restarted. ``calls`` and ``seconds`` are of all workers
    together, about. How the calls meet differs, whatever the ``seed``.
    """
    choice = random.Random(seed)
    parts = restarts + 1 if keeper is not None else 1
    with closing(opens(JOB)):  # the first node may be the store's host
        with Workers(opens, line, seed, forked=is_shared(opens)) as workers:
            line.lose(choice.choice(list(Lost)), 1)
            for part in range(1, parts + 1):
                until = time.monotonic() + seconds / parts
                while workers.poll() < part * calls / parts and time.monotonic() < until:
                    if line.spoilt:
                        line.lose(choice.choice(list(Lost)), choice.randint(1, 2 * REQUESTS_A_LOSS))
                if part < parts and keeper is not None:
                    keeper.restart(Data.KEPT)
            history = workers.stop()
        line.mend()
        with closing(Worker("the end", opens, line, seed)) as end:
            end.read_all()
        lost = [call for call in end.calls if call.returned is None]
        assert not lost, f"the store cannot be read, with no other client there: {lost[0]}"
    return [*history, *end.calls]


def is_shared(opens: MakeBackend) -> bool:
    """Return True if a forked process reaches the same store, which is then not in this one's memory."""
    with closing(opens("shared")) as store:
        process = _forked(_enter, opens)
        process.join(PATIENCE)
        assert process.exitcode == 0, "a forked process could not use the store: see what it printed"
        return bool(store.roster())


class Workers:
    """Workers that begin at once, as processes or threads. Processes left at the end of the block are killed."""

    def __init__(self, opens: MakeBackend, line: BadLine, seed: str, *, forked: bool) -> None:
        self._progress = memoryview(mmap(-1, 8 * WORKERS)).cast("q")  # shared with processes that are forked
        context = multiprocessing.get_context("fork")
        self._begun, self._over = context.Event(), context.Event()
        self._records: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for number in range(WORKERS):
            ours, theirs = multiprocessing.Pipe(duplex=False)
            body = partial(self._work, theirs, opens, line, number, seed)
            if forked:
                self._processes.append(_forked(body))
                theirs.close()
            else:
                background(body)
            self._records.append(ours)

    def __enter__(self) -> Workers:
        self._begun.set()  # none uses the line while others are forked, who would inherit its locks
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        for process in self._processes:
            process.kill()
            process.join()

    def poll(self) -> int:
        """Return the number of calls made by now, after a moment."""
        failed = wait(self._records, POLL)
        assert not failed, self.stop()
        return sum(self._progress)

    def stop(self) -> list[Call]:
        """Let them finish; what they have recorded."""
        self._over.set()
        calls: list[Call] = []
        for record in self._records:
            assert record.poll(PATIENCE), f"a worker was not done within {PATIENCE:g} s"
            found = record.recv()
            assert not isinstance(found, str), f"a worker has failed:\n{found}"
            calls += found
        return calls

    def _work(self, record: Connection, opens: MakeBackend, line: BadLine, number: int, seed: str) -> None:
        try:
            self._begun.wait(PATIENCE)
            with closing(Worker(f"process-{number}", opens, line, seed)) as worker:
                record.send(worker.run(self._over.is_set, partial(self._progress.__setitem__, number)))
        except BaseException:
            record.send(traceback.format_exc())


def _enter(opens: MakeBackend) -> None:
    with closing(opens("shared")) as store:
        store.enter("node", b"")


def _forked(body: Callable[..., None], *arguments: object) -> BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=body, args=arguments)
    with warnings.catch_warnings():
        # Other threads may hold locks: of the line, which none uses yet.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    return process


def _insist(connect: Callable[[], Store]) -> Store:
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            return connect()
        except RendezvousConnectionError:
            if time.monotonic() > give_up:
                raise
            time.sleep(POLL)
