"""The suspicion that a worker hangs: tables of its signs of progress, and looks at made-up workers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from elastic_core.monitors import RunningRound, WorkerView
from elastic_core.progress import Progress
from elastic_core.progress_table import ProgressTable
from elastic_hangs.watch import (
    HangWatch,
    Signs,
    Use,
    hang_check_interval,
    makes_progress,
    steps_advance,
    uses_cpu,
    window_seconds,
)

NOW, WINDOW = 1000.0, 300.0
LONG_AGO, JUST_NOW = NOW - WINDOW, NOW - 1.0


@pytest.mark.parametrize(
    ("stepped", "printed", "computed", "progress"),
    [
        pytest.param(JUST_NOW, LONG_AGO, LONG_AGO, True, id="a new step"),
        pytest.param(LONG_AGO, JUST_NOW, LONG_AGO, True, id="output"),
        pytest.param(LONG_AGO, LONG_AGO, JUST_NOW, False, id="steps are known, and it computes at one step"),
        pytest.param(LONG_AGO, LONG_AGO, LONG_AGO, False, id="nothing"),
        pytest.param(None, LONG_AGO, JUST_NOW, True, id="no step is known, and it computes"),
        pytest.param(None, JUST_NOW, LONG_AGO, True, id="no step is known, and it prints"),
        pytest.param(None, LONG_AGO, LONG_AGO, False, id="no step is known, and it does nothing"),
    ],
)
def test_steps_output_and_computation_count_as_progress(
    stepped: float | None, printed: float, computed: float, progress: bool
) -> None:
    assert makes_progress(Signs(stepped, printed, computed), NOW, WINDOW) is progress


@pytest.mark.parametrize(
    ("use", "works"),
    [
        pytest.param(Use(110.0, 0.0, 0, 0, 0, 0), False, id="nothing"),
        pytest.param(Use(110.0, 0.2, 0, 0, 0, 0), False, id="two percent of a core"),
        pytest.param(Use(110.0, 0.4, 0, 0, 0, 0), True, id="four percent of a core"),
        pytest.param(Use(110.0, 0.0, 0, 13, 13, 0), False, id="wakes once a second"),
        pytest.param(Use(110.0, 0.0, 0, 14, 0, 0), True, id="calls"),
        pytest.param(Use(110.0, 0.0, 0, 0, 14, 0), True, id="receives"),
        pytest.param(Use(110.0, 0.0, 13 * 4096, 0, 0, 0), False, id="a log"),
        pytest.param(Use(110.0, 0.0, 100_000, 0, 0, 0), True, id="a child copies to a slow disk"),
        pytest.param(Use(110.0, 0.0, 4096, 0, 0, 1), True, id="waits for a slow disk"),
        pytest.param(Use(110.0, 0.0, 0, 0, 0, 1), False, id="waits for a file server that is dead"),
    ],
)
def test_use_of_the_machine_may_be_work(use: Use, works: bool) -> None:
    assert use.may_work_since(Use(100.0, 0.0, 0, 0, 0, 2), waits_in="do_wait") is works


@pytest.mark.parametrize(
    ("given", "longest", "window"),
    [(None, None, 300.0), (None, 12.0, 300.0), (None, 60.0, 600.0), (20.0, 60.0, 20.0)],
)
def test_the_window_is_ten_steps_at_least(given: float | None, longest: float | None, window: float) -> None:
    assert window_seconds(given, longest) == window


@pytest.mark.parametrize(
    ("age", "window", "longest", "advances"),
    [
        pytest.param(31.0, 300.0, 30.0, True, id="a silent rank is suspected, and the others come to new steps"),
        pytest.param(150.0, 300.0, None, True, id="no interval is known yet"),
        pytest.param(290.0, 300.0, 10.0, False, id="the last step is as old as the window, less one step"),
        pytest.param(250.0, 300.0, 30.0, True, id="it may be a slow step"),
        pytest.param(2.7, 3.0, 0.1, False, id="a short window, with two looks"),
        pytest.param(1.0, 3.0, 9.0, True, id="a step was longer than the window, which the user has set"),
        pytest.param(1.2, 3.0, 9.0, False, id="in the first half of a window that is shorter than a step"),
    ],
)
def test_whether_steps_advance(age: float, window: float, longest: float | None, advances: bool) -> None:
    assert steps_advance(age, window, longest) is advances


@pytest.mark.parametrize(("window", "seconds"), [(2.0, 0.2), (100.0, 2.0), (300.0, 5.0), (3000.0, 5.0)])
def test_the_interval_of_looks(window: float, seconds: float) -> None:
    assert hang_check_interval(window) == seconds


@pytest.mark.parametrize(
    ("seconds", "elapsed", "used"), [(0.01, 0.2, False), (0.02, 0.2, True), (0.05, 5.0, False), (0.06, 5.0, True)]
)
def test_a_process_that_uses_less_than_a_hundredth_of_a_core_waits(seconds: float, elapsed: float, used: bool) -> None:
    assert uses_cpu(seconds, elapsed) is used


@dataclass
class Clock:
    at: float = 0.0

    def __call__(self) -> float:
        return self.at


@dataclass
class Looked:
    """A worker, of which each look takes a view."""

    rank: int = 0
    pid: int = 10
    tail: bytes = b""
    hides_stdout: bool = False

    def view(self) -> WorkerView:
        return WorkerView(self.rank, 0, self.pid, None, False, (self.tail,), self.hides_stdout)


def worker(rank: int = 0, pid: int = 10) -> Looked:
    return Looked(rank, pid)


class TestWatch:
    def setup_method(self) -> None:
        self.clock, self.used = Clock(), dict.fromkeys((10, 11, 12), 0.0)
        self.progress = ProgressTable(now=self.clock)
        self.progress.begin(1)
        self.round = RunningRound(1, "run", ["n1"], Path(), self.progress)
        self.written = 0
        self.watch = HangWatch(
            10.0,
            self.round,
            cpu=lambda pid: self.used[pid],
            written=lambda pid: self.written,
            uses=lambda pids: {pid: Use(self.clock.at, self.used[pid], 0, 0, 0, 0) for pid in pids},
            now=self.clock,
        )

    def look(self, at: float, *workers: Looked) -> float:
        self.clock.at = at
        return self.watch.look([worker.view() for worker in workers])

    def test_a_worker_that_does_nothing_is_suspected_after_the_window(self) -> None:
        one = worker()
        assert [self.look(at, one) for at in (0.0, 5.0, 9.9, 10.0)] == [0.0, 0.0, 0.0, 10.0]

    def test_the_use_of_a_worker_is_noted_when_its_silence_begins(self) -> None:
        one, other = worker(), worker(1, 11)
        for at in (0.0, 0.9, 1.0, 2.0):
            self.used[11] += 0.5
            self.look(at, one, other)
        assert {pid: use.at for pid, use in self.watch.quiet.items()} == {10: 1.0}
        one.tail = b"episode 1"
        self.look(2.5, one, other)
        assert self.watch.quiet == {}

    @pytest.mark.parametrize("steps", [False, True], ids=["without steps", "with steps"])
    def test_silence_counts_anew_after_a_pause_of_the_agent(self, steps: bool) -> None:
        """Its machine may have stood still, or its process group may have been stopped and continued."""
        one = worker()
        if steps:
            self.progress.observe(0, Progress(step=7))
        for at in (0.0, 5.0):
            self.look(at, one)
        assert (self.look(20.0, one), self.watch.quiet, self.watch.advances()) == (0.0, {}, True)
        assert [self.look(at, one) for at in (25.0, 29.0, 30.0)] == [0.0, 0.0, 10.0]
        assert (set(self.watch.quiet), self.watch.advances()) == ({10}, False)

    def test_a_worker_is_judged_by_a_silence_of_half_the_window_at_least(self) -> None:
        one = worker()
        for at in (0.0, 1.0):
            self.look(at, one)
        judged = []
        for self.clock.at in (1.0, 5.9, 6.0):
            judged.append(self.watch.quiet_use(10) is not None)
        assert judged == [False, False, True]

    @pytest.mark.parametrize(("burst", "judged"), [(0.06, True), (0.2, False)], ids=["a short one", "a long one"])
    def test_a_burst_of_cpu_use_ends_a_silence_only_if_it_is_no_short_one(self, burst: float, judged: bool) -> None:
        """A thread in the background of a worker that hangs works now and then."""
        one = worker()
        for at in (0.0, 1.0, 5.0):
            self.look(at, one)
        self.used[10] += burst
        for at in (5.2, 7.0):
            self.look(at, one)
        assert (self.watch.quiet_use(10) is not None) is judged

    def test_the_silence_of_a_worker_ends_with_the_worker(self) -> None:
        one, other = worker(), worker(1, 11)
        for at in (0.0, 1.0):
            self.look(at, one, other)
        self.look(2.0, one)
        assert set(self.watch.quiet) == {10}

    def test_a_worker_that_computes_is_not_silent_though_its_children_have_taken_their_times_along(self) -> None:
        one = worker()
        self.used[10] = 500.0
        for at in (0.0, 1.0):
            self.look(at, one)
        self.used[10] = 3.0
        self.watch._seen[0].cpu = 2.0
        self.look(2.0, one)
        assert self.watch.quiet == {}

    def test_a_worker_prints_if_its_last_output_is_younger_than_the_window(self) -> None:
        one = worker()
        self.look(0.0, one)
        one.tail = b"episode 1"
        self.look(8.0, one)
        printed = []
        for at in (8.0, 16.0, 18.0):
            self.clock.at = at
            printed.append(self.watch.prints(0))
        assert printed == [True, True, False]

    def test_output_counts_also_if_it_is_the_same_again(self) -> None:
        one = worker()
        self.look(0.0, one)
        one.tail = bytes(bytearray(b"loss"))
        self.look(5.0, one)
        one.tail = bytes(bytearray(b"loss"))
        assert [self.look(at, one) for at in (10.0, 15.0, 20.0)] == [0.0, 0.0, 10.0]

    @pytest.mark.parametrize(("own", "suspected"), [(True, 0.0), (False, 10.0)])
    def test_bytes_that_a_worker_writes_count_where_the_agent_does_not_see_its_stdout(
        self, own: bool, suspected: float
    ) -> None:
        one = worker()
        one.hides_stdout = own
        self.look(0.0, one)
        self.written += 5
        self.look(5.0, one)
        assert [self.look(at, one) for at in (10.0, 15.0)] == [suspected, 10.0]

    def test_a_worker_that_computes_is_not_suspected_until_its_steps_are_known(self) -> None:
        one = worker()
        for at in range(30):
            self.used[10] += 0.5
            assert self.look(float(at), one) == 0.0
        self.progress.observe(0, Progress(step=7))
        for at in range(30, 41):
            self.used[10] += 0.5
            suspected = self.look(float(at), one)
        assert suspected == 10.0
        self.progress.observe(0, Progress(step=8))
        assert self.look(42.0, one) == 0.0

    def test_the_job_advances_while_any_rank_here_comes_to_new_steps(self) -> None:
        silent = worker(1, 11)
        assert not self.watch.advances(), "no step is known"
        for at in range(11):
            self.clock.at = float(at)
            self.progress.observe(0, Progress(step=at))
            suspected = self.look(float(at), silent)
        assert suspected == 10.0
        assert self.watch.advances()
        self.clock.at = 19.0
        assert not self.watch.advances()

    def test_the_last_steps_of_silent_ranks_are_known(self) -> None:
        silent, unknown = worker(1, 11), worker(2, 12)
        for at in range(11):
            self.clock.at = float(at)
            self.progress.observe(0, Progress(step=at))
            self.progress.observe(1, Progress(step=min(at, 1)))
            self.look(float(at), worker(), silent, unknown)
        assert self.watch.silent == {2: None}
        self.look(11.0, silent, unknown)
        assert self.watch.silent == {1: 1, 2: None}
        assert self.watch.positions() == {0: 10, 1: 1}

    def test_one_worker_that_hangs_is_enough(self) -> None:
        busy, idle = worker(), worker(1, 11)
        for at in range(11):
            self.used[10] += 0.5
            suspected = self.look(float(at), busy, idle)
        assert suspected == 10.0

    def test_a_worker_of_the_next_round_begins_anew(self) -> None:
        self.look(0.0, worker())
        self.look(11.0, worker(pid=12))
        assert self.look(20.0, worker(pid=12)) == 0.0

    def test_the_window_grows_with_the_longest_step(self) -> None:
        watch = HangWatch(None, self.round)
        for at, reached in ((0.0, 1), (60.0, 2)):
            self.clock.at = at
            self.progress.observe(0, Progress(step=reached))
        assert watch.window == 600.0

    @pytest.mark.parametrize("pause", [140.0, 10_000.0], ids=["less than half a window", "hours"])
    def test_a_pause_of_the_agent_is_no_long_step(self, pause: float) -> None:
        self.watch.given = None
        after = 45.0 + pause
        for at, reached in ((0.0, 1), (40.0, 2), (45.0, 2), (after, 3), (after + 5.0, 4), (after + 50.0, 5)):
            self.clock.at = at
            self.progress.observe(0, Progress(step=reached))
            self.look(at, worker())
        assert self.watch.window == 450.0
