"""Threads and processes that race for real: what must happen is awaited, and missed after a while.

Who waits is given the time to fall asleep (:func:`let_sleep`), so that a wake-up is needed and not only luck. This
makes a test sharper and cannot make it fail.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from elastic_core.threads import asked

PATIENCE = 60.0  # seconds after which something that must happen counts as not happening
WAKE_UP = 10.0
"""Seconds after which a waiter that sleeps counts as not woken.

A backend whose waiters also look by themselves now and then must not let them in its tests, or let them more seldom
than this: else a wake-up that is lost goes unseen.
"""
ASLEEP = 0.05  # seconds without running after which a thread counts as asleep; a store's answer takes less
FALLS_ASLEEP = 0.5  # most seconds to wait for that: one who looks again and again never sleeps
RACERS = 6  # threads in a race

_T = TypeVar("_T")


background = asked  # in a new daemon thread, which delays no test if it never ends


def asleep(body: Callable[[], _T]) -> Future[_T]:
    """Run ``body`` in a thread, and return once that thread is asleep or done."""
    return sleeper(body)[0]


def sleeper(body: Callable[[], _T]) -> tuple[Future[_T], Path]:
    """Run ``body`` as :func:`asleep` does; return the thread, too, as a folder ``/proc/PID/task/TID``."""
    number: Future[int] = Future()

    def run() -> _T:
        number.set_result(threading.get_native_id())
        return body()

    future = asked(run)
    task = Path("/proc/self/task", str(number.result()))
    let_sleep(task)
    return future, task


def let_sleep(task: Path) -> None:
    """Return when a thread (a folder ``/proc/PID/task/TID``) has not run for a while, is gone, or never sleeps."""
    give_up = time.monotonic() + FALLS_ASLEEP
    before = None
    while (now := _scheduled(task)) is not None and time.monotonic() < give_up:
        if now == before and "running" not in now:
            return
        before = now
        time.sleep(ASLEEP)


def times_run(task: Path) -> int:
    """Return how often a thread has run and stopped running; it must still be there."""
    lines = (task / "status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("voluntary", "nonvoluntary")))


def _scheduled(task: Path) -> str | None:
    """Return the state of a thread with its context switches; None when it is gone."""
    try:
        status = (task / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return "".join(line for line in status.splitlines() if line.startswith(("State", "voluntary", "nonvoluntary")))


def race(bodies: Iterable[Callable[[], _T]]) -> list[_T]:
    """Run all at once, each in a thread, from one start; their results, in the order given."""
    racers = list(bodies)
    line = threading.Barrier(len(racers))

    def started(body: Callable[[], _T]) -> _T:
        line.wait(PATIENCE)
        return body()

    futures = [background(partial(started, body)) for body in racers]
    return [outcome(future, PATIENCE, f"a thread in a race was not done within {PATIENCE:g} s") for future in futures]


def outcome(future: Future[_T], within: float, otherwise: str) -> _T:
    """Return what a thread returned or raised; fails with ``otherwise`` if it does neither ``within`` that time (s)."""
    done, _ = wait([future], within)
    assert done, otherwise
    return future.result()


class Crew:
    """Processes that call ``task``, one for each of ``arguments``; those left at the end of the block are killed.

    Each is a fresh interpreter, so ``task`` must be a module's function, and its arguments picklable.
    """

    def __init__(self, task: Callable[..., None], arguments: Iterable[tuple[Any, ...]]) -> None:
        context = multiprocessing.get_context("spawn")
        self._processes = [context.Process(target=task, args=each) for each in arguments]

    def __enter__(self) -> Crew:
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()

    def let_sleep(self) -> None:
        """Return when no process's main thread runs any more."""
        for process in self._processes:
            let_sleep(Path(f"/proc/{process.pid}/task/{process.pid}"))

    def join(self) -> None:
        """Wait until every process has done its task."""
        for process in self._processes:
            process.join(PATIENCE)
        codes = [process.exitcode for process in self._processes]
        assert codes == [0] * len(codes), f"exit codes {codes}; None is a process that did not end"
