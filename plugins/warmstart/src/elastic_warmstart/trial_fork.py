"""Imports modules in a throwaway fork, to see whether workers could be forked from a process that has imported them.

A module that raises, hangs or crashes there does no harm. One that leaves something behind that forks would share, or
that depends on something that differs from worker to worker, is refused.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from elastic_core.exit_codes import describe_exit
from elastic_core.warden import become_subreaper, descendants, die_with_parent, kill
from elastic_warmstart.checks import beside_main
from elastic_warmstart.child import fork
from elastic_warmstart.facts import find_initialised, open_files, tasks
from elastic_warmstart.libraries import WHILE_IMPORTING, objection
from elastic_warmstart.library_modules import import_shareable, library_roots, outside_libraries
from elastic_warmstart.process_state import MEMORY_MAX, changed_state, own_memory, process_state

UNIT_WITHIN = 60.0  # seconds that one module may take in the throwaway fork
_HARMLESS = ("/dev/null", "/dev/urandom", "/dev/random")


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
    if found := outside_libraries(names, library_roots()):
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
