"""What may take for ever, such as a resolver's answer, and is done in a thread of its own.

Nothing ends a thread that waits in the C library, so nobody waits for it longer than they can afford to. It is a
daemon, and holds up no exit.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread
from typing import TypeVar

_T = TypeVar("_T")


def asked(ask: Callable[[], _T], *, name: str = "elastic-question") -> Future[_T]:
    """What ``ask`` will return or raise, in a thread of this name."""
    answer: Future[_T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as exc:
            answer.set_exception(exc)

    Thread(target=run, name=name, daemon=True).start()
    return answer


def bounded(ask: Callable[[], _T], seconds: float) -> _T:
    """What ``ask`` returns or raises.

    Args:
        ask: Called in another thread, which goes on if this takes too long.
        seconds: How long to wait for it.

    Raises:
        TimeoutError: It has done neither in time.
    """
    answer = asked(ask)
    if not wait([answer], seconds).done:
        raise TimeoutError(f"no answer within {seconds:.3g} s")
    return answer.result()
