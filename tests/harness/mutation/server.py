"""A pytest session that has collected the tests and then, in place of running them, tries mutants in forked copies."""

from __future__ import annotations

import ast
import gc
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from types import FrameType

import pytest

from mutation.operators import Mutant
from mutation.trial import function_of, install, noticed_by_plans

QUICK = 1.0
"""Seconds that a test may take while its calls are noted. Slower tests start processes or wait; few of them decide."""
PATIENCE = 20.0
"""Seconds for one test or plan, after which the mutant hangs: twenty times QUICK; a plan takes far less."""
MEMORY = 8 << 30
"""Bytes of address space, beyond which the mutant fails."""

Trial = tuple[Mutant, ast.Module]
"""A mutant, and the tree of its module."""
Function = tuple[str, int]
"""The file and the first line of its code."""


@dataclass
class _Running:
    """A forked process that tries a mutant."""

    mutant: Mutant
    pid: int
    folder: str
    """For what its tests write."""
    heard_at: float
    doing: str = "the start"
    result: tuple[str, str] = ("killed", "the process ended")


@dataclass(eq=False)  # pytest keeps its plugins in sets
class Server:
    """The plugin."""

    trials: Sequence[Trial]
    jobs: int
    plans: int
    done: Callable[[Mutant, str, str], None]
    """Is called with a mutant, what became of it, and what noticed it."""
    _failed: str = ""
    _tests: dict[Function, list[pytest.Item]] = field(default_factory=dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember the first failure."""
        if report.failed:
            self._failed = self._failed or report.nodeid

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try the mutants."""
        began = time.monotonic()
        self._tests = self._survey(session.items)
        quick = {item.nodeid for items in self._tests.values() for item in items}
        took = time.monotonic() - began
        print(f"\n{len(quick)} of {len(session.items)} tests come to what is mutated ({took:.0f} s)", flush=True)
        gc.freeze()
        waiting = iter(self.trials)
        with selectors.DefaultSelector() as selector:
            while True:
                while len(selector.get_map()) < self.jobs and (trial := next(waiting, None)) is not None:
                    line, running = self._fork(*trial)
                    selector.register(line, selectors.EVENT_READ, running)
                if not selector.get_map():
                    return True
                selector.select(1.0)
                for key in list(selector.get_map().values()):
                    if self._is_over(key.fileobj, key.data):  # type: ignore[arg-type]  # what was registered
                        selector.unregister(key.fileobj)  # before it is closed: a fork may have a copy
                        key.fileobj.close()  # type: ignore[union-attr]  # what was registered

    def _survey(self, items: Sequence[pytest.Item]) -> dict[Function, list[pytest.Item]]:
        """Run all tests once, and see which of those that pass quickly come to which function, the quickest first."""
        mine, theirs = socket.socketpair()
        if not (pid := os.fork()):
            with _child(theirs), theirs.makefile("w") as out:
                wanted = {_key(mutant) for mutant, _ in self.trials}
                for number, (item, following) in enumerate(_pairs(items)):
                    called, began = set[Function](), time.monotonic()
                    with _profiled(wanted, called):
                        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
                    took = time.monotonic() - began
                    if not self._failed and called and took < QUICK:
                        out.write(json.dumps([number, took, sorted(called)]) + "\n")
                    self._failed = ""
        theirs.close()
        found: dict[Function, list[tuple[float, pytest.Item]]] = {}
        with mine, mine.makefile() as lines:
            for line in lines:
                number, took, functions = json.loads(line)
                for file, first in functions:
                    found.setdefault((file, first), []).append((took, items[number]))
        os.waitpid(pid, 0)
        return {key: [item for _, item in sorted(tests, key=lambda test: test[0])] for key, tests in found.items()}

    def _fork(self, mutant: Mutant, tree: ast.Module) -> tuple[socket.socket, _Running]:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        folder = tempfile.mkdtemp(prefix="mutant-")
        if not (pid := os.fork()):
            with _child(theirs):
                os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
                resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
                status, by = self._try(mutant, tree, lambda doing: theirs.sendall(json.dumps([doing]).encode()))
                theirs.sendall(json.dumps([status, by]).encode())
        theirs.close()
        return mine, _Running(mutant, pid, folder, time.monotonic())

    def _try(self, mutant: Mutant, tree: ast.Module, tell: Callable[[str], None]) -> tuple[str, str]:
        tests = self._tests.get(_key(mutant), [])
        install(mutant, tree)
        own = f"test_{mutant.module.rpartition('.')[2]}.py"
        for item, following in _pairs(sorted(tests, key=lambda item: item.path.name != own)):
            tell(item.nodeid)
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                return "killed", self._failed
        by = noticed_by_plans(self.plans, tell)
        return ("survived", f"{len(tests)} tests, {self.plans} plans") if by is None else ("killed", by)

    def _is_over(self, line: socket.socket, running: _Running) -> bool:
        """Hear what the process says, if it says anything; True, and it is done, if that was the last."""
        try:
            message = line.recv(65536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            if time.monotonic() - running.heard_at < PATIENCE:
                return False
            message, running.result = b"", ("killed", f"{running.doing}: hangs")
        match json.loads(message or b"[]"):
            case [doing]:
                running.doing, running.heard_at = doing, time.monotonic()
                return False
            case [status, by]:
                running.result, running.heard_at = (status, by), time.monotonic()
                return False
        os.killpg(running.pid, signal.SIGKILL)
        os.waitpid(running.pid, 0)
        shutil.rmtree(running.folder, ignore_errors=True)
        self.done(running.mutant, *running.result)
        return True


@contextmanager
def _child(line: socket.socket) -> Iterator[None]:
    """Silence a forked process, put it in a group of its own, and exit it when its work is done."""
    try:
        os.setsid()
        silence = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(silence, descriptor)
        yield
        line.close()
    except BaseException as exc:
        with suppress(OSError):
            line.sendall(json.dumps(["invalid", "".join(traceback.format_exception(exc))[-2000:]]).encode())
    finally:
        os._exit(0)


@contextmanager
def _profiled(wanted: set[Function], called: set[Function]) -> Iterator[None]:
    """Note which of these functions are called, in whatever thread."""

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (key := (frame.f_code.co_filename, frame.f_code.co_firstlineno)) in wanted:
            called.add(key)

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _key(mutant: Mutant) -> Function:
    code = function_of(mutant.module, mutant.function).__code__
    return code.co_filename, code.co_firstlineno


def _pairs(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    """Each with the one after it."""
    return zip_longest(items, items[1:])
