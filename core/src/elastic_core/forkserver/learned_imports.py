"""What workers import besides is imported by the fork server's successor, as far as forks can share it.

A module is imported in a throwaway fork first. Where it raises, hangs or crashes there, leaves something behind that no
fork can share, or depends on what differs from worker to worker, the successor goes without it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from elastic_core.forkserver.facts import search_path
from elastic_core.forkserver.import_record import Record
from elastic_core.forkserver.libraries import CACHE, without_empty_cache
from elastic_core.forkserver.library_modules import import_shareable, is_library, library_roots, own_names
from elastic_core.forkserver.process_state import MEMORY_MAX, killed_first, own_memory
from elastic_core.forkserver.trial_fork import Environment, attempt

MOST_RECORDS = 8  # workers whose records are kept: the newest
ALL_WITHIN = 180.0  # seconds after which no further module is tried


@dataclass
class Learning:
    """What one fork server, and its successors, know of the workers' imports.

    Attributes:
        records: The newest workers'.
        tried: Modules that were imported, or are not to be tried again.
        varying: Variables that workers have had, and that the fork server has not, or has otherwise.
        set_by_imports: Variables that modules have set while they were imported here: workers get them too.
    """

    records: list[Record] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)
    varying: set[str] = field(default_factory=set)
    set_by_imports: dict[str, str] = field(default_factory=dict)

    def new_record(self, environment: Mapping[str, str], own: Mapping[str, str]) -> Record:
        """For a worker that is about to be forked, with this environment; ``own`` is the fork server's."""
        self.varying |= {name for name, value in environment.items() if own.get(name) != value}
        self.records.append(Record())
        for old in self.records[:-MOST_RECORDS]:
            old.close()
        del self.records[:-MOST_RECORDS]
        return self.records[-1]

    def candidates(self) -> list[str]:
        """Return what workers have imported and this process has not, in their order, but for what was tried."""
        return self._new(dict.fromkeys(name for record in self.records for name in record.names()))

    def count_unlearned(self) -> int:
        """How many of them the newest worker that has imported anything has imported. One record is quickly read."""
        return len(self._new(next(filter(None, (record.names() for record in reversed(self.records))), ())))

    def _new(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name not in sys.modules and name not in self.tried]

    def directories(self) -> list[str]:
        """Where the program lies, and what workers have added to ``sys.path``."""
        added = [path or os.curdir for record in self.records for path in record.paths()]
        program = search_path()
        # What a library has added lies with the libraries, as the folder of setuptools' own copies does.
        own = [path for path in added if not is_library([os.path.join(path, "module")], library_roots())]
        return own if program is None else [program, *own]

    def _set_by_workers(self) -> dict[str, str | None]:
        """Return the variables that workers have set; None for one that has not the same value in all of them."""
        found: dict[str, str | None] = {}
        for record in self.records:
            for name, value in record.variables().items():
                found[name] = value if found.get(name, value) == value else None
        return found

    def learn(self) -> Learned:
        """Import the candidates that are libraries' and do no harm in a throwaway fork."""
        deadline, refused, imported = time.monotonic() + ALL_WITHIN, dict[str, str](), list[str]()
        candidates, own = self.candidates(), own_names(sys.orig_argv, self.directories())
        environment = Environment(frozenset(self.varying), self._set_by_workers())
        self.tried |= set(candidates)
        before, memory = dict(os.environ), own_memory() + MEMORY_MAX
        with _silence(), without_empty_cache(), killed_first(), contextlib.suppress(OSError):  # nothing is left
            while candidates and time.monotonic() < deadline:
                trial = attempt(candidates, own, environment, deadline, memory)
                for name in trial.imported:
                    if import_shareable(name, own):
                        imported.append(name)
                candidates = candidates[trial.seen :]
                if trial.reason:
                    refused[trial.name] = trial.reason
        self.set_by_imports |= {
            name: value for name, value in os.environ.items() if name not in before and name != CACHE
        }
        return Learned(tuple(imported), refused)


@dataclass(frozen=True, slots=True)
class Learned:
    """The modules that were imported, and those that were not, with the reason for each."""

    imported: tuple[str, ...]
    refused: Mapping[str, str]


NOTHING_LEARNED = Learned((), {})


class _silence:
    """Let imports write nowhere: workers have written what they say about it."""

    def __enter__(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        self._kept = [os.dup(1), os.dup(2)]
        null = os.open(os.devnull, os.O_WRONLY)
        for number in (1, 2):
            os.dup2(null, number)
        os.close(null)

    def __exit__(self, *_: object) -> None:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        for number, kept in zip((1, 2), self._kept, strict=True):
            os.dup2(kept, number)
            os.close(kept)
