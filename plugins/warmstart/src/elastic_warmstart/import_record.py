"""Records which modules a worker imports, for its fork server, whose successor then imports them.

A worker writes into memory that it shares with the fork server, so nothing is sent, and the record is there however the
worker ends. It also has the changes of the environment and of ``sys.path``, since imports depend on these.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import sys

SIZE = 256 * 1024  # bytes of one worker's record, for some eight thousand modules; later ones are not recorded
_HEADER = 4
_IMPORT = "_find_and_load_unlocked"
"""The function of ``importlib._bootstrap`` that asks finders for an import; others only look for a module."""
_VARIABLE, _PATH = "=", "/"
"""The prefixes of lines without a module: a JSON list of a variable's name and value, an entry of ``sys.path``."""


class Record:
    """One worker's imports, in the order in which they began. Made by the fork server, before it forks the worker."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, SIZE)
        self._end, self._process = _HEADER, 0
        self._environment: dict[bytes, bytes] = {}
        self._path: list[str] = []

    def begin(self) -> None:
        """In the worker: record the imports from now on, of this process and not of its forks."""
        self._process, self._environment, self._path = os.getpid(), dict(_environment() or {}), sys.path[:]
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Record the name, and find nothing. The import system calls it for each module not yet imported."""
        asked_by = sys._getframe(1).f_back
        if self._process != os.getpid() or asked_by is None or asked_by.f_code.co_name != _IMPORT:
            return
        if (variables := _environment()) is None:  # later changes cannot be seen
            self._process = 0
            return
        if variables != self._environment:
            environment = variables.copy()  # another thread may change the original meanwhile
            for key, value in environment.items():
                if self._environment.get(key) != value:
                    self._write(_VARIABLE + json.dumps([os.fsdecode(key), os.fsdecode(value)]))
            self._environment = environment
        if sys.path != self._path:
            for entry in sys.path:
                if entry not in self._path:
                    self._write(_PATH + str(entry))
            self._path = sys.path[:]
        self._write(name)

    def _write(self, text: str) -> None:
        line = text.encode(errors="replace") + b"\n"
        end = self._end + len(line)
        if end <= SIZE:
            self._memory[self._end : end] = line
            self._memory[:_HEADER] = end.to_bytes(_HEADER, "little")
            self._end = end

    def _lines(self) -> list[str]:
        end = int.from_bytes(self._memory[:_HEADER], "little")
        return self._memory[_HEADER:end].decode(errors="replace").split("\n")[:-1] if end <= SIZE else []

    def names(self) -> list[str]:
        """In the fork server: return the modules recorded up to now."""
        return [line for line in self._lines() if not line.startswith((_VARIABLE, _PATH))]

    def variables(self) -> dict[str, str]:
        """In the fork server: return the changed variables. Lines that two threads wrote at once are skipped."""
        found: dict[str, str] = {}
        for line in self._lines():
            if line.startswith(_VARIABLE):
                with contextlib.suppress(ValueError, TypeError):
                    name, value = json.loads(line[1:])
                    found[name] = value
        return found

    def paths(self) -> list[str]:
        """In the fork server: return the entries that the worker has added to ``sys.path``."""
        return [line[1:] for line in self._lines() if line.startswith(_PATH)]

    def close(self) -> None:
        """Unmap the memory, in this process."""
        self._memory.close()


def _environment() -> dict[bytes, bytes] | None:
    """Return the dict inside ``os.environ``, which is compared in a microsecond; None if the program replaced it."""
    found = getattr(os.environ, "_data", None)
    return found if isinstance(found, dict) else None
