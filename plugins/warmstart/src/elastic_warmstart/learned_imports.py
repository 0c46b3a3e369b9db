"""Has the fork server's successor import the modules that workers import, if forks can share them.

Each forked worker records what it imports. It writes into memory that it shares with the fork server, so nothing is
sent, and the record is there however the worker ends. It also has the changes of the environment and of ``sys.path``,
since imports depend on these.

Each module is tried in a throwaway fork first, where one that raises, hangs or crashes does no harm. It is left out if
it leaves something behind that forks would share (open files, and the state of the process), or depends on something
that differs from worker to worker.
"""

from __future__ import annotations

import _locale
import contextlib
import json
import math
import mmap
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from elastic_core.exit_codes import describe_exit
from elastic_core.host import descendants
from elastic_core.warden import become_subreaper, die_with_parent, kill
from elastic_warmstart.checks import beside_main, find_initialised, open_files, search_path, tasks
from elastic_warmstart.child import fork
from elastic_warmstart.libraries import CACHE, WHILE_IMPORTING, objection, without_empty_cache
from elastic_warmstart.library_modules import OURS, find, import_shareable, is_library, library_roots, own_names

MOST_RECORDS = 8  # workers whose records are kept: the newest
ALL_WITHIN = 180.0  # seconds after which no further module is tried
UNIT_WITHIN = 60.0  # seconds that one module may take in the throwaway fork
_HARMLESS = ("/dev/null", "/dev/urandom", "/dev/random")
MEMORY_MAX = 512 << 20  # bytes by which the fork server may grow through what it learns
_OOM_SCORE = "/proc/self/oom_score_adj"
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
        if (end := self._end + len(line)) <= SIZE:
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


@dataclass(frozen=True, slots=True)
class Environment:
    """The variables of workers that differ from the fork server's."""

    varying: frozenset[str]  # variables that workers were given, and that the fork server has not, or has otherwise
    set_by_workers: Mapping[str, str | None]  # the values that workers have set themselves; None for several

    def objection(self, asked: Collection[str]) -> str | None:
        """Why an import that reads these variables could differ in a worker; None if it cannot."""
        for name in sorted(asked):
            if name in self.varying:
                return f"it reads {name}, which differs from worker to worker"
            if name in self.set_by_workers and os.environ.get(name) != self.set_by_workers[name]:
                return f"it reads {name}, which the program sets"
        return None


@dataclass(slots=True)
class Trial:
    """The result of one throwaway fork."""

    imported: list[str] = field(default_factory=list)  # the modules that did no harm
    seen: int = 0  # how many modules have been handled
    name: str = ""  # the module that ended it, if one did
    reason: str = ""  # why; '' if none did


def attempt(
    names: list[str], own: Collection[str], environment: Environment, deadline: float, memory: float = math.inf
) -> Trial:
    """Import modules in a fork, until one does harm.

    ``deadline`` is by the monotonic clock, ``memory`` in bytes.

    Raises:
        OSError: No process or descriptor is left.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    pid = fork()
    if pid == 0:
        os.close(reading)
        _be_trial(names, own, environment, writing, parent, memory)
    with contextlib.suppress(OSError):  # the fork does it as well
        os.setpgid(pid, pid)
    os.close(writing)
    report = b""
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    while not (expired := not poll.poll(1000 * min(UNIT_WITHIN, max(0.0, deadline - time.monotonic())))):
        if not (data := os.read(reading, 65536)):
            break
        report += data
    os.close(reading)
    if not expired:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    os.killpg(pid, signal.SIGKILL)  # and the processes that it has started
    _, status = os.waitpid(pid, 0)
    return _outcome(names, report, "" if not expired else "its import did not end in time", status)


def _outcome(names: list[str], report: bytes, late: str, status: int) -> Trial:
    trial = Trial()
    for line, name in zip(report.decode(errors="replace").split("\n")[:-1], names, strict=False):
        word, _, reason = line.partition(" ")
        trial.seen += 1
        if word == "+":
            trial.imported.append(name)
        elif word == "-":
            trial.name, trial.reason = name, reason
            return trial
    if trial.seen < len(names):
        trial.name = names[trial.seen]
        trial.reason = late or f"a process that imported it {describe_exit(os.waitstatus_to_exitcode(status))}"
        trial.seen += 1
    return trial


def _be_trial(
    names: list[str], own: Collection[str], environment: Environment, pipe: int, parent: int, memory: float
) -> NoReturn:
    """In the fork: write ``+`` for each harmless module, ``.`` for one that is not there, ``- why`` and end."""
    temporary: list[str] = []
    try:
        os.setpgid(0, 0)
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        become_subreaper()  # so that processes that an import starts in other sessions are found and killed, too
        given, asked, temporary = os.environ.copy(), watch_environment(), watch_temporary_files()
        files, state = open_files(), process_state()
        for name in names:
            before = set(sys.modules)
            word, reason = "+" if import_shareable(name, own) else ".", None
            if fresh := set(sys.modules) - before:
                reason = left_behind(files, temporary) or environment.objection(asked) or find_change(given)
                reason = reason or changed_state(state) or describe_foreign_import(fresh, own) or spoils_forks()
            if reason is None and own_memory() > memory:
                reason = f"with it, all that is imported would take more than {MEMORY_MAX >> 20} MiB"
            os.write(pipe, f"- {reason}\n".encode(errors="replace") if reason else f"{word}\n".encode())
            if reason:
                break
    finally:
        try:
            for path in temporary:
                shutil.rmtree(path, ignore_errors=True)
                with contextlib.suppress(OSError):
                    os.unlink(path)
            for process in descendants(os.getpid()):
                kill(process)
        finally:
            os._exit(0)


def left_behind(files: Collection[tuple[str, str]], temporary: Collection[str]) -> str | None:
    """Return what an import has left that forks would share, or would not get; None for nothing."""
    if (reason := beside_main(tasks())) is not None:
        return reason
    if devices := find_initialised():
        return f"it sets up {devices[0]}"
    if fresh := sorted(name for name, _ in open_files().difference(files) if name not in _HARMLESS):
        return f"it leaves {fresh[0]} open"
    if left := [path for path in temporary if os.path.lexists(path)]:
        return f"it leaves {left[0]}"
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        if file.read().strip():
            return "it leaves a process behind"
    return None


def find_change(given: Mapping[str, str]) -> str | None:
    """Return a variable of the environment before, ``given``, that an import has changed, as a text; else None."""
    data: Mapping[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]  # watch_environment does not see it
    now = {os.fsdecode(name): os.fsdecode(value) for name, value in data.items()}
    kept = given.keys() - WHILE_IMPORTING.keys()
    found = sorted(name for name in kept if now.get(name) != given[name])
    return f"it changes {found[0]}, which is set already" if found else None


def describe_foreign_import(names: Collection[str], own: Collection[str]) -> str | None:
    """Return a text that names an imported module that is not installed or hides one of the program's; else None."""
    roots, files = library_roots(), {name: getattr(sys.modules.get(name), "__file__", None) for name in names}
    if found := [name for name, file in files.items() if isinstance(file, str) and not is_library([file], roots)]:
        return f"it imports {min(found)}, which is no installed library's"
    if hiding := [name for name in names if name.partition(".")[0] in own]:
        return f"it imports {min(hiding)}, of which the program has one of its own"
    return None


def spoils_forks() -> str | None:
    """Why forks of this process would start fresh, which only a fork can find out; None if they would not."""
    torch = sys.modules.get("torch.version")
    if getattr(torch, "cuda", None) is None and getattr(torch, "xpu", None) is None:
        return None
    if (pid := fork()) == 0:
        os._exit(objection() is not None)
    return "it asks for devices, which forks cannot use then" if os.waitpid(pid, 0)[1] else None


def watch_temporary_files() -> list[str]:
    """Return the names under which :mod:`tempfile` makes files and directories from now on."""
    made: list[str] = []

    def notice(event: str, arguments: tuple[object, ...]) -> None:
        if event in ("tempfile.mkdtemp", "tempfile.mkstemp"):
            made.append(str(arguments[0]))

    sys.addaudithook(notice)
    return made


def watch_environment() -> set[str]:
    """Return the variables that are read from ``os.environ`` from now on."""
    asked: set[str] = set()

    class Watched(dict[bytes, bytes]):
        def __getitem__(self, key: bytes) -> bytes:
            asked.add(os.fsdecode(key))
            return super().__getitem__(key)

    os.environ._data = Watched(os.environ._data)  # type: ignore[attr-defined]
    return asked


def process_state() -> dict[str, object]:
    """Return the state that forks inherit, by its name in a sentence."""
    with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
        status = dict(line.rstrip("\n").partition(":")[::2] for line in file)
    with open("/proc/self/maps", "rb") as file:
        maps = file.read()
    return {
        "the working directory": os.getcwd(),
        "the umask": status.get("Umask"),
        "the handler of a signal": [signal.getsignal(number) for number in sorted(signal.valid_signals())],
        "the locale": _locale.setlocale(_locale.LC_ALL),
        "the memory that forks share": maps.count(b" rw-s "),  # as the memory of a lock of multiprocessing
    }


def changed_state(before: Mapping[str, object]) -> str | None:
    """Return a sentence about state that an import has changed; None if it has changed none."""
    now = process_state()
    return next((f"it changes {name}" for name in before if now[name] != before[name]), None)


def own_memory() -> int:
    """Return the bytes of memory that this process has alone, or shares with forks until one of them writes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        _, resident, shared, *_ = file.read().split()
    return (int(resident) - int(shared)) * mmap.PAGESIZE


@contextlib.contextmanager
def killed_first() -> Iterator[None]:
    """Let the kernel kill this process and its forks before any worker when memory runs out meanwhile."""
    with contextlib.ExitStack() as undo:
        with contextlib.suppress(OSError), open(_OOM_SCORE, encoding="ascii") as file:
            undo.callback(_set_oom_score, file.read())
            _set_oom_score("1000")
        yield


def _set_oom_score(score: str) -> None:
    with contextlib.suppress(OSError), open(_OOM_SCORE, "w", encoding="ascii") as file:
        file.write(score)
