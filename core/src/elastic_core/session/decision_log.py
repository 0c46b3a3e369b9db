"""A log of the newest decisions of an agent, from which a bug report becomes a scenario.

Decisions are calls of pure functions (``step`` of ``protocol.node``, ``decide`` of ``protocol.leader``). The log keeps
references to their arguments and results, which never change, and formats nothing before it is written. Then
``python -m simulator --replay FILE`` makes the same calls again.

The file has one JSON object a line: first a header, then each call. An object of a dataclass is written in full once,
and as its number after that.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from elastic_core.version import __version__

R = TypeVar("R")
CALLS_MAX = 2000
ROWS_MAX = 4000  # how many rows of nodes the calls of a leader may refer to; each of its calls has all of them
CALLS_MIN = 8  # how many calls are kept in a job of any size


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a function that decides."""

    at: float  # when it returned, in seconds since the epoch
    function: str
    arguments: tuple[object, ...]
    result: object = None
    error: str = ""  # the exception that it raised; '' if it returned


class DecisionLog:
    """The newest calls of one thread. Any thread may read them."""

    def __init__(self) -> None:
        self._calls: deque[Call] = deque()
        self._lock = threading.Lock()

    def call(self, function: Callable[..., R], *arguments: object, rows: int = 0, idle: type | None = None) -> R:
        """Return what the function returns, and keep the call.

        Args:
            rows: How many rows of nodes the arguments refer to: the more, the fewer calls are kept.
            idle: The class of a result that decides nothing; of several such calls in a row the last one is kept.
        """
        name = function.__name__
        try:
            result = function(*arguments)
        except Exception as exc:
            self._keep(Call(time.time(), name, arguments, error=describe_error(exc)), rows)
            raise
        self._keep(Call(time.time(), name, arguments, result), rows, idle)
        return result

    @property
    def calls(self) -> list[Call]:
        """The calls, the oldest first."""
        with self._lock:
            return [*self._calls]

    def _keep(self, call: Call, rows: int, idle: type | None = None) -> None:
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


def write(logs: Iterable[DecisionLog], node_id: str, directory: Path | None) -> Path:
    """Write the calls of all logs into a new file for this user alone, in order of time, and return its path.

    Without a ``directory`` it is made where temporary files are. Raise OSError if the file cannot be written.
    """
    calls = sorted((call for log in logs for call in log.calls), key=lambda call: call.at)
    fd, name = tempfile.mkstemp(prefix=f"elastic_decisions_{node_id}_", suffix=".jsonl", dir=directory)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines(calls, node_id))
    return Path(name)


def lines(calls: Iterable[Call], node_id: str) -> Iterator[str]:
    """Yield the lines of the file."""
    yield json.dumps({"decisions": 1, "release": __version__, "node": node_id})
    numbers: dict[int, int] = {}
    for call in calls:
        plain = {each.name: _plain(getattr(call, each.name), numbers) for each in fields(call)}
        yield json.dumps(plain, separators=(",", ":"))


def _plain(value: object, numbers: dict[int, int]) -> Any:
    """Return a value as JSON. ``numbers`` has the numbers of the dataclass objects written so far, by ``id()``."""
    kind = f"{type(value).__module__}:{type(value).__qualname__}"
    if isinstance(value, Enum):
        return {"class": kind, "value": value.value}
    if value is None or isinstance(value, (str, int, float)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        if (number := numbers.get(id(value))) is not None:
            return {"same": number}
        parts = {each.name: _plain(getattr(value, each.name), numbers) for each in fields(value) if each.init}
        number = numbers[id(value)] = len(numbers)
        return {"class": kind, "number": number, "fields": parts}
    if isinstance(value, Mapping):
        return {"map": [[_plain(key, numbers), _plain(part, numbers)] for key, part in value.items()]}
    if isinstance(value, Set):
        return {"set": sorted((_plain(part, numbers) for part in value), key=str)}
    if isinstance(value, (tuple, list)):
        parts_of = [_plain(part, numbers) for part in value]
        return parts_of if type(value) in (tuple, list) else {"class": kind, "items": parts_of}
    return {"unknown": repr(value)}
