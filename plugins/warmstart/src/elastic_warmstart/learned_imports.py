"""Has the fork server's successor import the modules that workers import, if forks can share them.

Each module is tried in a throwaway fork first (``trial_fork``), and left out if it does harm there.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from elastic_warmstart.facts import search_path
from elastic_warmstart.import_record import Record
from elastic_warmstart.libraries import CACHE, without_empty_cache
from elastic_warmstart.library_modules import (
    OURS,
    find,
    import_shareable,
    is_library,
    library_roots,
    own_names,
)
from elastic_warmstart.process_state import MEMORY_MAX, killed_first, own_memory
from elastic_warmstart.trial_fork import Environment, attempt

MOST_RECORDS = 8  # workers whose records are kept: the newest
ALL_WITHIN = 180.0  # seconds after which no further module is tried


@dataclass
class Learning:
    """The knowledge of one fork server, and of its successors, about the workers' imports."""

    records: list[Record] = field(default_factory=list)  # of the newest workers
    tried: set[str] = field(default_factory=set)  # modules that were imported, or must not be tried again
    varying: set[str] = field(default_factory=set)
    """Variables that workers have had, and that the fork server has not, or has otherwise."""
    left_out: set[str] = field(default_factory=set)
    """The existing modules of others than the program that were tried and not imported."""
    set_by_imports: dict[str, str] = field(default_factory=dict)
    """Variables that modules have set while they were imported here: workers get them too."""

    def new_record(self, environment: Mapping[str, str], own: Mapping[str, str]) -> Record:
        """Return the record of the next worker, which has this environment; ``own`` is the fork server's."""
        self.varying |= {name for name, value in environment.items() if own.get(name) != value}
        self.records.append(Record())
        while len(self.records) > MOST_RECORDS:
            self.records.pop(0).close()
        return self.records[-1]

    def candidates(self) -> list[str]:
        """Return the untried modules that workers have imported and this process has not, in their order."""
        return self._new(dict.fromkeys(name for record in self.records for name in record.names()))

    def count_unlearned(self) -> int:
        """Count the modules that a worker will import itself: those of the newest worker that has imported any."""
        names = next(filter(None, (record.names() for record in reversed(self.records))), ())
        return len(self._new(names)) + len(self.left_out.intersection(names) - sys.modules.keys())

    def _new(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name not in sys.modules and name not in self.tried]

    def directories(self) -> list[str]:
        """Return the program's directory, and the directories that workers have added to ``sys.path``."""
        added = [path or os.curdir for record in self.records for path in record.paths()]
        program = search_path()
        # A directory that a library has added lies with the libraries, as setuptools' folder of copies does.
        own = [path for path in added if not is_library([os.path.join(path, "module")], library_roots())]
        return own if program is None else [program, *own]

    def _set_by_workers(self) -> dict[str, str | None]:
        """Return the variables that workers have set; None for a variable whose values differ."""
        found: dict[str, str | None] = {}
        for record in self.records:
            for name, value in record.variables().items():
                found[name] = value if found.get(name, value) == value else None
        return found

    def learn(self) -> Learned:
        """Import the candidates that belong to libraries and do no harm in a throwaway fork."""
        deadline, refused, imported = time.monotonic() + ALL_WITHIN, dict[str, str](), list[str]()
        candidates, own = self.candidates(), own_names(sys.orig_argv, self.directories())
        environment = Environment(frozenset(self.varying), self._set_by_workers())
        self.tried |= set(candidates)
        before, memory = dict(os.environ), own_memory() + MEMORY_MAX
        with _silence(), without_empty_cache(), killed_first(), contextlib.suppress(OSError):  # no process
            while candidates and time.monotonic() < deadline:
                trial = attempt(candidates, own, environment, deadline, memory)
                for name in trial.imported:
                    if import_shareable(name, own):
                        imported.append(name)
                candidates = candidates[trial.seen :]
                if trial.reason:
                    refused[trial.name] = trial.reason
        foreign = [name for name in self.tried - sys.modules.keys() if name.partition(".")[0] not in {*own, *OURS}]
        self.left_out = {name for name in foreign if find(name) is not None}
        self.set_by_imports |= {
            name: value for name, value in os.environ.items() if name not in before and name != CACHE
        }
        return Learned(tuple(imported), refused)


@dataclass(frozen=True, slots=True)
class Learned:
    """The modules that were imported, and those that were not, with the reason for each."""

    imported: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Discard output of imports: workers have written it already."""
    _flush()
    null, *kept = os.open(os.devnull, os.O_WRONLY), os.dup(1), os.dup(2)
    for number in (1, 2):
        os.dup2(null, number)
    os.close(null)
    try:
        yield
    finally:
        _flush()
        for number, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
