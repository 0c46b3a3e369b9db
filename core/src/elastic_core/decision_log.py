"""A log of the newest decisions of an agent, from which a bug report becomes a scenario.

Decisions are calls of pure functions (``step`` of ``protocol.node``, ``decide`` of ``protocol.leader``). The log keeps
references to their arguments and results, which never change. Plugins read it: :class:`elastic_core.gates.AgentState`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

R = TypeVar("R")
CALLS_MAX = 2000
ROWS_MAX = 4000  # how many rows of nodes the calls of a leader may refer to; each of its calls has all of them
CALLS_MIN = 8  # how many calls are kept in a job of any size


@dataclass(frozen=True, slots=True)
class Decision:
    """One call of a function that decides."""

    at: float  # when it returned, in seconds since the epoch
    function: str
    arguments: tuple[object, ...]
    result: object = None
    error: str = ""  # the exception that it raised; '' if it returned


class DecisionLog:
    """The newest calls of one thread. Any thread may read them."""

    def __init__(self) -> None:
        self._calls: deque[Decision] = deque()
        self._lock = threading.Lock()

    def call(self, function: Callable[..., R], *arguments: object, rows: int = 0, idle: type | None = None) -> R:
        """Return what the function returns, and keep the call.

        The arguments refer to ``rows`` rows of nodes: the more, the fewer calls are kept. A result of the class
        ``idle`` decides nothing; of several such calls in a row the last one is kept.
        """
        name = function.__name__
        try:
            result = function(*arguments)
        except Exception as exc:
            self._keep(Decision(time.time(), name, arguments, error=describe_error(exc)), rows)
            raise
        self._keep(Decision(time.time(), name, arguments, result), rows, idle)
        return result

    @property
    def calls(self) -> list[Decision]:
        """The calls, the oldest first."""
        with self._lock:
            return [*self._calls]

    def _keep(self, call: Decision, rows: int, idle: type | None = None) -> None:
        most = min(CALLS_MAX, max(CALLS_MIN, ROWS_MAX // (1 + rows)))
        with self._lock:
            if idle is not None and self._calls and all(isinstance(c.result, idle) for c in (call, self._calls[-1])):
                self._calls.pop()
            self._calls.append(call)
            while len(self._calls) > most:
                self._calls.popleft()


def describe_error(exc: Exception) -> str:
    """Return an exception as the log has it."""
    return f"{type(exc).__name__}: {exc}"
