"""Calls that may never return, such as a resolver's, on daemon threads; the caller waits for a limited time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
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


def call_later(seconds: float, call: Callable[[], object], *, name: str) -> None:
    """Call ``call`` on a daemon thread of this name, after so many seconds."""
    timer = Timer(seconds, call)
    timer.name, timer.daemon = name, True
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
