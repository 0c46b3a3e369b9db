"""Collects the Python stacks of workers without stopping them, and says where each of them is.

A worker that was prepared (``worker/stack_dump.py``) writes its stacks into a memory file on a signal. The agent sends
that signal only to a process that has a handler for it and the file. For any other process, and for one that does not
answer, the kernel still tells its state and where in the kernel it waits.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from elastic_core.agent.hangs import uses_cpu
from elastic_core.agent.python_traceback import Frame, parse_frames
from elastic_core.agent.worker import Worker
from elastic_core.protocol.limits import FULL_STACKS_BYTES, MAX_PLACES, PLACE_BYTES, clip
from elastic_core.protocol.node_events import Locate
from elastic_core.protocol.roster import LocalStacks
from elastic_core.protocol.stacks import FINISHED, NO_STACK
from elastic_core.warden.linux import cpu_seconds_of_trees, pauses, state_of, waits_in
from elastic_core.worker.stack_dump import FILE_NAME, SIGNAL

ANSWER_SECONDS = 1.0  # a process that is not stopped writes its stacks within milliseconds
SAMPLES = 4  # how often the stacks are collected, to see whether they move
SAMPLES_SECONDS = 1.0  # from the first to the last
_QUIET_SECONDS = 0.05  # stacks are complete when nothing more of them comes for so long
_STACKS_MAX_BYTES = 1 << 18  # of one process
_STATES: Mapping[str, str] = {
    "R": "running in native code",
    "S": "sleeping",
    "D": "waiting in the kernel, uninterruptibly",
    "T": "stopped by a signal (SIGSTOP): kill -CONT lets it go on",
    "t": "stopped by a debugger",
    "Z": "a zombie: it has ended and was not waited for",
}
_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ProcessStacks:
    """Where a process is.

    Attributes:
        pid: Its number.
        main: The stack of its main thread, the innermost call first; empty where the process wrote none.
        text: All its stacks, as faulthandler wrote them; '' for none.
        state: Its state in words, as the kernel tells it; '' where it is gone.
        wchan: The kernel's function in which it waits; '' for none.
    """

    pid: int
    main: tuple[Frame, ...] = ()
    text: str = ""
    state: str = ""
    wchan: str = ""

    @property
    def place(self) -> str:
        """Where the process is, in one line: the innermost call, and the line of the user's program that led there."""
        if not self.main:
            where = f", in {self.wchan}" if self.wchan else ""
            return f"{NO_STACK}: {self.state}{where}" if self.state else "the process is gone"
        inner = self.main[0]
        users = next((frame for frame in self.main if not frame.is_library), None)
        if users is None or users == inner:
            return f"in {inner.call}"
        return f"in {_call(self.main, users)}, called at {os.path.basename(users.file)}:{users.line}"


def collect(pids: Iterable[int], seconds: float = ANSWER_SECONDS) -> dict[int, ProcessStacks]:
    """Return the stacks of these processes, which go on meanwhile. Blocks for ``seconds`` at most.

    A process answers if it was prepared (``worker/stack_dump.py``). Of others only their state is known, and of those
    that wait for a signal, since any signal would end that.
    """
    asked: dict[int, tuple[int, int]] = {}
    found = dict.fromkeys(pids, "")
    try:
        for pid in found:
            if not pauses(pid) and (file := _open_file(pid)) is not None:
                asked[pid] = file, os.fstat(file).st_size
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, SIGNAL)
        _await_quiet(asked, time.monotonic() + seconds)
        for pid, (file, before) in asked.items():
            found[pid] = os.pread(file, _STACKS_MAX_BYTES, before).decode(errors="replace")
    finally:
        for file, _ in asked.values():
            os.close(file)
    return {
        pid: ProcessStacks(pid, main_stack(text), text, _STATES.get(state_of(pid), ""), waits_in(pid))
        for pid, text in found.items()
    }


def main_stack(text: str) -> tuple[Frame, ...]:
    """Return the stack of the thread that ran faulthandler's handler, which is the main one unless that blocks signals.

    The innermost call comes first. Empty where the text has none.
    """
    _, *parts = _THREAD.split(text)
    stacks = dict(zip(parts[::2], parts[1::2], strict=True))
    return tuple(parse_frames(stacks.get("Current thread") or stacks.get("Thread") or ""))


@dataclass(frozen=True, slots=True)
class LocalRank:
    """A worker of whose stacks a STACKS asks."""

    rank: int
    pid: int | None  # None for one that is being started
    finished: bool = False

    @classmethod
    def of(cls, worker: Worker) -> LocalRank:
        """Return the rank of a worker."""
        return cls(worker.assignment.rank, worker.pid, worker.exit_code is not None)


Answer: TypeAlias = "Callable[[Locate, Sequence[LocalRank], int | None], LocalStacks]"
"""Answers a STACKS: takes what it asks for, the ranks, and the newest step."""


def locate(asked: Locate, ranks: Sequence[LocalRank], step: int | None) -> LocalStacks:
    """Find out where these ranks are, and, if that is wanted, whether they move, which takes about a second more.

    ``step`` is the newest step that a rank is known to have reached.
    """
    pids = {one.rank: one.pid for one in ranks if one.pid is not None and not one.finished}
    began, used_before = time.monotonic(), cpu_seconds_of_trees(pids.values())
    first = collect(pids.values())
    moved, answering = False, [pid for pid, found in first.items() if found.main]
    for _ in range(SAMPLES - 1 if asked.judge else 0):
        time.sleep(SAMPLES_SECONDS / (SAMPLES - 1))
        newer = collect(answering, _LATER_ANSWER_SECONDS)
        moved |= any(found.main != first[pid].main for pid, found in newer.items() if found.main)
    elapsed, used = time.monotonic() - began, cpu_seconds_of_trees(pids.values())
    texts = {str(rank): first[pid].text or first[pid].place for rank, pid in pids.items()} if asked.full else {}
    places: dict[str, tuple[int, ...]] = {}
    for one in ranks:
        where = first[pids[one.rank]].place if one.rank in pids else FINISHED if one.finished else "being started"
        where = clip(where, PLACE_BYTES)
        places[where] = (*places.get(where, ()), one.rank)
    return LocalStacks(
        answers=asked.index,
        places=dict(sorted(places.items(), key=lambda item: len(item[1]))[:MAX_PLACES]),
        moved=moved,
        busy=any(uses_cpu(used[pid] - used_before[pid], elapsed) for pid in used),
        step=step,
        texts={rank: clip(text, FULL_STACKS_BYTES // len(texts)) for rank, text in texts.items()},
    )


_LATER_ANSWER_SECONDS = 0.3  # for the answer to a later sample of a process that has answered before
_MACHINERY = frozenset({"wrapper", "inner", "_wrapped_call_impl", "_call_impl", "decorate_context", "_fn"})
"""Functions that only call another one."""


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
    with contextlib.suppress(OSError, ValueError, StopIteration):
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
            caught = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt:"))
        if not caught >> (SIGNAL - 1) & 1:
            return None
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.readlink(path := f"/proc/{pid}/fd/{number}") == f"/memfd:{FILE_NAME} (deleted)":
                    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return None


def _await_quiet(asked: Mapping[int, tuple[int, int]], deadline: float) -> None:
    """Wait until every process has written, and none writes any more; or until the deadline."""
    sizes: list[int] = []
    while time.monotonic() < deadline:
        time.sleep(_QUIET_SECONDS)
        before, sizes = sizes, [os.fstat(file).st_size for file, _ in asked.values()]
        if sizes == before and all(size > start for size, (_, start) in zip(sizes, asked.values(), strict=True)):
            return
