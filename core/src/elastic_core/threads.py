"""Calls that may never return, such as a resolver's, on daemon threads; the caller waits for a limited time."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread, Timer
from typing import TypeVar

_T = TypeVar("_T")
START_SECONDS = 15.0  # for which a machine may have no thread left
_unstarted: SimpleQueue[Thread] = SimpleQueue()


class PatientThread(Thread):
    """A thread that starts as soon as the machine has a thread to be had again, if it has none left now."""

    def start(self) -> None:
        """Start the thread, or have a thread that exists already start it, or take its place after START_SECONDS.

        Raises:
            RuntimeError: No thread can be started, and :func:`keep_spare_thread` was not called in time.
        """
        try:
            super().start()
        except RuntimeError:
            if not _starters:
                raise
            _unstarted.put(self)


_starters: list[Thread] = []


def keep_spare_thread() -> None:
    """Keep a thread that starts others later: a recovery needs some, just when workers may have taken the last."""

    def run() -> None:
        while True:
            waiting, until = _unstarted.get(), time.monotonic() + START_SECONDS
            while time.monotonic() < until:
                with suppress(RuntimeError):
                    Thread.start(waiting)
                    break
                time.sleep(0.05)
            else:
                _starters.clear()
                return waiting.run()

    if not _starters:
        _starters.append(Thread(target=run, name="elastic-starter", daemon=True))
        _starters[0].start()


def asked(
    ask: Callable[[], _T], *, then: Callable[[_T], object] | None = None, name: str = "elastic-question"
) -> Future[_T]:
    """Call ``ask`` on a daemon thread of this name; the future gets its result or exception.

    ``then`` is called with the result, on the same thread.
    """
    answer: Future[_T] = Future()

    def run() -> None:
        try:
            found = ask()
            if then is not None:
                then(found)
            answer.set_result(found)
        except BaseException as exc:
            answer.set_exception(exc)

    PatientThread(target=run, name=name, daemon=True).start()
    return answer


def prepare_later(seconds: float, prepare: Callable[[], object], *, name: str) -> None:
    """Call ``prepare`` on a daemon thread of this name, after so many seconds.

    If it fails, or no thread can be started, its work is done when it is needed, and reported then.
    """

    def run() -> None:
        with suppress(Exception):
            prepare()

    timer = Timer(seconds, run)
    timer.name, timer.daemon = name, True
    with suppress(RuntimeError):
        timer.start()


def bounded(ask: Callable[[], _T], seconds: float) -> _T:
    """Return the result of ``ask``, called on another thread, which goes on after a timeout.

    Raises:
        TimeoutError: The call takes longer than ``seconds``.
    """
    answer = asked(ask)
    if not wait([answer], seconds).done:
        raise TimeoutError(f"no answer within {seconds:.3g} s")
    return answer.result()
