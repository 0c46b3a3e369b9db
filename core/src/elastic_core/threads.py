"""Calls on threads of their own, for what may take for ever, such as a resolver's answer.

Nothing ends a thread that waits in the C library, so the caller waits for a limited time. The threads are daemons, and
hold up no exit.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread
from typing import TypeVar

_T = TypeVar("_T")


def asked(ask: Callable[[], _T], *, name: str = "elastic-question") -> Future[_T]:
    """Call ``ask`` on a thread of this name; the future has what it returns or raises."""
    answer: Future[_T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as exc:
            answer.set_exception(exc)

    Thread(target=run, name=name, daemon=True).start()
    return answer


def bounded(ask: Callable[[], _T], seconds: float) -> _T:
    """Return what ``ask`` returns or raises, on another thread, which goes on if this takes longer than ``seconds``.

    Raises:
        TimeoutError: It has done neither in time.
    """
    answer = asked(ask)
    if not wait([answer], seconds).done:
        raise TimeoutError(f"no answer within {seconds:.3g} s")
    return answer.result()
