"""Calls that may never return, such as a resolver's, on daemon threads; the caller waits for a limited time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from threading import Thread, Timer
from typing import TypeVar

_T = TypeVar("_T")


def asked(ask: Callable[[], _T], *, name: str = "elastic-question") -> Future[_T]:
    """Call ``ask`` on a daemon thread of this name; the future gets its result or exception."""
    answer: Future[_T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as exc:
            answer.set_exception(exc)

    Thread(target=run, name=name, daemon=True).start()
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
