"""Collects the Python stacks of workers without stopping them, and says where each of them is.

A worker that was prepared (``stack_dump.py``) writes its stacks into a memory file on a signal. The agent sends one
only to a process that has a handler for it and the file. The handler in C reads frames without the interpreter's lock,
so a thread that runs Python code would risk to crash: it is asked by the handler in Python. Only a main thread that
does not run, or has run for a while without calling that handler, is asked by the one in C.

Of any other process, and of one that does not answer (not prepared, or the kernel lets it run too seldom), ``py-spy``
tells the stacks where it is installed, and the kernel its state and where in the kernel it waits. ``--nonblocking``
reads its memory without pausing it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from elastic_causes.frames import Frame, parse_frames
from elastic_core.host import catches, run_nanoseconds, state_of, waits_in
from elastic_core.monitors import WorkerView
from elastic_core.protocol import clip
from elastic_hangs.judgement import (
    FINISHED,
    FULL_STACKS_BYTES,
    MAX_PLACES,
    NO_STACK,
    PLACE_BYTES,
    LocalStacks,
    waits_for_peers,
)
from elastic_hangs.stack_dump import FILE_NAME, SIGNAL, SIGNAL_ALL, SIGNAL_RUNNING
from elastic_hangs.watch import HangWatch, Use, is_in_call_that_ends, pauses, thread_nanoseconds, uses_of

ANSWER_SECONDS = 1.0  # a process that is not stopped writes its stacks within milliseconds
BRIEF_SECONDS = 0.3  # the same for one that is about to be stopped
_LATER_ANSWER_SECONDS = 0.5  # the same for a later sample of a process that has answered before
SAMPLES = 4  # how often the stacks are collected, to see whether they move
SAMPLES_SECONDS = 1.0  # from the first to the last
_STILL_SECONDS = 0.02  # a main thread waits if it does not run for so long
_NATIVE_NANOSECONDS = 30_000_000  # a main thread that has run for so long without calling the handler is in native code
_QUIET_SECONDS = 0.05  # stacks are complete when nothing more of them comes for so long
_STACKS_MAX_BYTES = 1 << 18  # of one process
PY_SPY_SECONDS = 2.0  # for all processes together
PY_SPY_PROCESSES = 16  # that are read at the same time, the others not at all
COMMAND = "py-spy"
_DENIED = "ermission"  # py-spy's error has this part of a word when it may not read another process's memory
_STATES: Mapping[str, str] = {
    "R": "running in native code",
    "S": "sleeping",
    "D": "waiting in the kernel, uninterruptibly",
    "T": "stopped by a signal (SIGSTOP): kill -CONT lets it go on",
    "t": "stopped by a debugger",
    "Z": "a zombie: it has ended and was not waited for",
}
_MACHINERY = frozenset({"wrapper", "inner", "_wrapped_call_impl", "_call_impl", "decorate_context", "_fn"})
"""Functions that only call another one."""
_THREAD = re.compile(
    r"^(Stack|(?:Current thread|Thread)(?= 0x[0-9a-f]))(?: .*)? \(most recent call first\):$", re.MULTILINE
)
_HANDLER_FILE = "elastic_hangs/stack_dump.py"  # of the handler in Python


@dataclass(frozen=True, slots=True)
class ProcessStacks:
    """The stacks of a process, and its state."""

    pid: int  # its number
    main: tuple[Frame, ...] = ()
    """The stack of its main thread, the innermost call first; empty where the process wrote none."""
    text: str = ""  # all its stacks, as faulthandler wrote them; '' for none
    state: str = ""  # its state in words, as the kernel tells it; '' where it is gone
    wchan: str = ""  # the kernel's function in which it waits; '' for none

    @property
    def place(self) -> str:
        """The place in one line: the innermost call, and the line of the user's program that led there."""
        if not self.main:
            where = f", in {self.wchan}" if self.wchan else ""
            return f"{NO_STACK}: {self.state}{where}" if self.state else "the process is gone"
        inner = self.main[0]
        users = next((frame for frame in self.main if not frame.is_library), None)
        if users is None or users == inner:
            return f"in {inner.call}"
        return f"in {_call(self.main, users)}, called at {os.path.basename(users.file)}:{users.line}"


@dataclass(slots=True)
class _Request:
    file: int  # the memory file into which it writes them
    start: int  # the size of the file before
    ran: int  # how long its main thread had run, in nanoseconds
    waits: bool = False  # whether the handler in C was asked, since the main thread does not run Python code

    @property
    def size(self) -> int:
        """The size of what the process has written."""
        return os.fstat(self.file).st_size - self.start


def collect(
    pids: Iterable[int], seconds: float = ANSWER_SECONDS, *, every_thread: bool = False, spy: PySpy | None = None
) -> dict[int, ProcessStacks]:
    """Return the stacks of these processes, which go on meanwhile. Blocks for ``seconds`` at most, and then for py-spy.

    A process answers if it was prepared (``stack_dump.py``). Of others only their state is known, and of those
    that wait for a signal, since any signal would end that.

    Args:
        seconds: How long they have to answer.
        every_thread: Whether the stacks of all threads are wanted, where none of them runs; else the main thread's.
        spy: Reads the stacks of processes that do not answer; None to leave them.
    """
    requests: dict[int, _Request] = {}
    found = dict.fromkeys(pids, "")
    try:
        for pid in found:
            if not pauses(pid) and (file := _open_file(pid)) is not None:
                requests[pid] = _Request(file, os.fstat(file).st_size, run_nanoseconds(pid))
        found |= _ask(requests, every_thread=every_thread, spy=spy)
        pending = {pid: request for pid, request in requests.items() if not found[pid]}
        _await_answers(pending, time.monotonic() + seconds)
        for pid, request in pending.items():
            found[pid] = os.pread(request.file, _STACKS_MAX_BYTES, request.start).decode(errors="replace")
    finally:
        for request in requests.values():
            os.close(request.file)
    states = {pid: state_of(pid) for pid in found}
    if spy is not None:
        found |= spy.dump([pid for pid, text in found.items() if not text and states[pid] in tuple("RSD")])
    return {
        pid: ProcessStacks(pid, main_stack(text), text, _STATES.get(states[pid], ""), waits_in(pid))
        for pid, text in found.items()
    }


def _ask(requests: Mapping[int, _Request], *, every_thread: bool, spy: PySpy | None) -> dict[int, str]:
    """Send each process the signal that is safe for what its main thread does.

    A signal would end some system calls, which Python tries again, and native code may not: of a process in such a one
    the result has the stacks that py-spy tells, and it is sent none.
    """
    threads = {pid: thread_nanoseconds(pid) for pid in requests if every_thread}
    time.sleep(_STILL_SECONDS)
    for pid, request in requests.items():
        request.waits = _waits(pid, request.ran)
    found = {} if spy is None else spy.dump([p for p, one in requests.items() if one.waits and is_in_call_that_ends(p)])
    for pid, request in requests.items():
        if found.get(pid):
            continue
        request.ran = run_nanoseconds(pid)
        all_wait = every_thread and request.waits and thread_nanoseconds(pid) == threads[pid]
        _send(pid, SIGNAL_ALL if all_wait else SIGNAL if request.waits else SIGNAL_RUNNING)
    return found


def _await_answers(requests: Mapping[int, _Request], deadline: float) -> None:
    """Wait until every process has written, and none writes any more; or until the deadline.

    A main thread that has not called the handler in Python, although it has run, is in native code.
    """
    sizes: list[int] = []
    while time.monotonic() < deadline:
        time.sleep(_QUIET_SECONDS)
        before, sizes = sizes, [request.size for request in requests.values()]
        if sizes == before and all(sizes):
            return
        for pid, request in requests.items():
            if not request.waits and not request.size:
                ran = run_nanoseconds(pid)
                if ran - request.ran >= _NATIVE_NANOSECONDS or _waits(pid, ran):
                    request.waits = True
                    _send(pid, SIGNAL)


def _waits(pid: int, ran: int) -> bool:
    """Return True if the main thread of a process waits, and has not run since it had run for so many nanoseconds.

    A stopped one does not: it may have been stopped in the middle of Python code, and would answer when it goes on.
    """
    return state_of(pid) in ("S", "D") and run_nanoseconds(pid) == ran


def _send(pid: int, signum: int) -> None:
    """Send a request, unless the process has lost its handler since it was looked at: the signal would end it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if _handles_requests(pid):
            os.kill(pid, signum)


def main_stack(text: str) -> tuple[Frame, ...]:
    """Return the stack of the thread that ran the handler, which is the main one unless that blocks signals.

    The innermost call comes first. Empty where the text has none.
    """
    _, *parts = _THREAD.split(text)
    stacks = dict(zip(parts[::2], parts[1::2], strict=True))
    frames = parse_frames(stacks.get("Stack") or stacks.get("Current thread") or stacks.get("Thread") or "")
    return tuple(frame for frame in frames if not frame.file.endswith(_HANDLER_FILE))


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request for the places of workers."""

    full: bool = False  # the whole stacks
    judge: bool = False  # whether anything moves, since a hang is suspected
    brief: bool = False  # an answer within BRIEF_SECONDS, since the workers are about to be stopped


@dataclass(frozen=True, slots=True)
class LocalRank:
    """A worker whose stacks are wanted."""

    rank: int
    pid: int | None  # None for one that is being started
    finished: bool = False
    quiet: Use | None = None  # its use when its silence began; None if it has shown progress lately
    prints: bool = False  # whether it has printed lately
    silent_at: int | None = None  # its last step, if it has shown no progress for a window; None if it is not known

    @classmethod
    def of(cls, worker: WorkerView, watch: HangWatch | None) -> LocalRank:
        """Return the rank of a worker."""
        rank, pid, finished = worker.rank, worker.pid, worker.is_over or worker.exit_code is not None
        if watch is None:
            return cls(rank, pid, finished)
        return cls(rank, pid, finished, watch.quiet_use(pid or 0), watch.prints(rank), watch.silent.get(rank))


def locate(wanted: Wanted, ranks: Sequence[LocalRank], step: int | None, *, spy: PySpy | None = None) -> LocalStacks:
    """Find out where these ranks are, and, if that is wanted, whether they move, which takes about a second more.

    ``step`` is the newest step that a rank is known to have reached.
    """
    pids = {one.rank: one.pid for one in ranks if one.pid is not None and not one.finished}
    used = uses_of(pids.values())
    before = {one.pid: one.quiet for one in ranks if one.pid in used and one.quiet is not None}
    if wanted.brief:
        first = collect(pids.values(), BRIEF_SECONDS)
    else:
        first = collect(pids.values(), every_thread=wanted.full, spy=spy)
    sampled_at = time.monotonic()
    ran = {pid: run_nanoseconds(pid) for pid, found in first.items() if found.main}
    alone = {pid for pid, found in first.items() if not waits_for_peers(found.place)}
    moved = {pid for pid, quiet in before.items() if used[pid].saves_since(quiet)}
    moved |= {pids[one.rank] for one in ranks if one.prints and one.rank in pids} & alone
    for number in range(1, SAMPLES if wanted.judge else 1):
        time.sleep(max(0.0, sampled_at + number * SAMPLES_SECONDS / (SAMPLES - 1) - time.monotonic()))
        newer = collect([pid for pid in ran if run_nanoseconds(pid) != ran[pid]], _LATER_ANSWER_SECONDS)
        moved |= {pid for pid, found in newer.items() if found.main and found.main != first[pid].main}
        ran |= {pid: run_nanoseconds(pid) for pid in newer}
    busy = {
        pid
        for pid in alone & set(used)
        if (quiet := before.get(pid)) is None or used[pid].may_work_since(quiet, first[pid].wchan)
    }
    silent = {one.rank: one.silent_at for one in ranks if one.pid in alone - moved - busy}
    texts = {str(rank): first[pid].text or first[pid].place for rank, pid in pids.items()} if wanted.full else {}
    places: dict[str, tuple[int, ...]] = {}
    for one in ranks:
        where = first[pids[one.rank]].place if one.rank in pids else FINISHED if one.finished else "being started"
        where = clip(where, PLACE_BYTES)
        places[where] = (*places.get(where, ()), one.rank)
    return LocalStacks(
        places=dict(sorted(places.items(), key=lambda item: len(item[1]))[:MAX_PLACES]),
        moved=bool(moved),
        busy=wanted.judge and bool(busy),
        step=step,
        behind={str(rank): at for rank, at in silent.items() if at is not None} if wanted.judge else {},
        texts={rank: clip(text, FULL_STACKS_BYTES // len(texts)) for rank, text in texts.items()},
    )


def _call(stack: Sequence[Frame], users: Frame) -> str:
    """Name the call of a library by which the user's line waits, and where it waits in the end if that is elsewhere.

    The call that a person knows is the outermost library function: ``all_reduce`` or ``__next__``.
    """
    outer = [frame for frame in stack[: stack.index(users)] if frame.function not in _MACHINERY]
    inner = stack[0]
    if not outer or outer[-1] == inner:
        return inner.call
    return f"{outer[-1].call} > {inner.call}"


def _open_file(pid: int) -> int | None:
    """Open the memory file into which a process writes its stacks; None where it has none, or no handler."""
    with contextlib.suppress(OSError):
        if not _handles_requests(pid):
            return None
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.readlink(path := f"/proc/{pid}/fd/{number}") == f"/memfd:{FILE_NAME} (deleted)":
                    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return None


def _handles_requests(pid: int) -> bool:
    """Return True if a process has handlers for all three signals; it does not from its last ``atexit`` function on."""
    return catches(pid, SIGNAL, SIGNAL_ALL, SIGNAL_RUNNING)


def find_command() -> str | None:
    """Return the path of py-spy: beside this interpreter, or on PATH; None where it is not installed."""
    return shutil.which(os.path.join(os.path.dirname(sys.executable), COMMAND)) or shutil.which(COMMAND)


@dataclass(slots=True)
class PySpy:
    """Runs py-spy; ``say`` receives, once, why it cannot read a process. Any thread may use it, one at a time."""

    say: Callable[[str], None] = lambda _: None
    find: Callable[[], str | None] = find_command
    _refused: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def dump(self, pids: Iterable[int], seconds: float = PY_SPY_SECONDS) -> dict[int, str]:
        """Return the stacks of the processes that it can read, in faulthandler's form. Blocks for ``seconds`` at most.

        A reader that takes longer is killed; that does not touch the process that it reads.
        """
        wanted = list(pids)[:PY_SPY_PROCESSES]
        with self._lock:
            if not wanted or self._refused or (command := self.find()) is None:
                return {}
            deadline = time.monotonic() + seconds
            readers: dict[int, subprocess.Popen[str]] = {}
            found: dict[int, str] = {}
            try:
                for pid in wanted:
                    readers[pid] = subprocess.Popen(
                        [command, "dump", "--json", "--nonblocking", "--pid", str(pid)],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        text=True,
                        errors="replace",
                    )
                for pid, reader in readers.items():
                    with suppress(subprocess.TimeoutExpired, ValueError, TypeError, KeyError, AttributeError):
                        out, err = reader.communicate(timeout=max(0.0, deadline - time.monotonic()))
                        if reader.returncode == 0:
                            found[pid] = as_text(out, pid)
                        elif _DENIED in err:
                            self._refuse()
            except OSError:  # it cannot be run
                pass
            finally:
                for reader in readers.values():
                    reader.kill()
                    reader.communicate()
            return found

    def _refuse(self) -> None:
        if not self._refused:
            self._refused = True
            self.say(
                "py-spy may not read the workers' memory (it needs CAP_SYS_PTRACE, or kernel.yama.ptrace_scope=0), so "
                "of a rank that writes no stack itself only its state is shown"
            )


def as_text(dump: str, main: int) -> str:
    """Return a dump of ``py-spy dump --json`` as faulthandler writes one, the main thread as the current one.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: It is no such dump.
    """
    lines = []
    for thread in json.loads(dump):
        name = thread.get("thread_name") or "python"
        which = "Current thread" if thread["os_thread_id"] == main else "Thread"
        lines.append(f"{which} 0x{thread['thread_id']:x} [{name}] (most recent call first):")
        lines += [
            f'  File "{frame["filename"]}", line {frame["line"]} in {frame["name"]}' for frame in thread["frames"]
        ]
    return "\n".join([*lines, ""])
