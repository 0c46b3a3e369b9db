"""Threads and processes that race for real. No sleeping: what must happen is awaited, and missed after a while."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

PATIENCE = 60.0
"""Seconds after which something that must happen counts as not happening."""
RACERS = 6
"""Threads in a race."""

_T = TypeVar("_T")


def background(body: Callable[[], _T]) -> Future[_T]:
    """Run ``body`` in a thread of its own, which holds nobody up if it never ends."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(body())
        except BaseException as exc:
            future.set_exception(exc)

    threading.Thread(target=run, daemon=True).start()
    return future


def race(bodies: Iterable[Callable[[], _T]]) -> list[_T]:
    """Run all at once, each in a thread, from one start; their results, in the order given."""
    racers = list(bodies)
    line = threading.Barrier(len(racers))

    def started(body: Callable[[], _T]) -> _T:
        line.wait(PATIENCE)
        return body()

    futures = [background(partial(started, body)) for body in racers]
    return [future.result(PATIENCE) for future in futures]


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

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()

    def join(self) -> None:
        """Wait until every process has done its task."""
        for process in self._processes:
            process.join(PATIENCE)
        codes = [process.exitcode for process in self._processes]
        assert codes == [0] * len(codes), f"exit codes {codes}; None is a process that did not end"
