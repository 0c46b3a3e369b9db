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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from elastic_core.agent.python_traceback import Frame, parse_frames
from elastic_core.warden.linux import state_of, waits_in
from elastic_core.worker.stack_dump import FILE_NAME, SIGNAL

ANSWER_SECONDS = 1.0  # a process that is not stopped writes its stacks within milliseconds
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
            return f"no Python stack: {self.state}{where}" if self.state else "the process is gone"
        inner = self.main[0]
        users = next((frame for frame in self.main if not frame.is_library), None)
        if users is None or users == inner:
            return f"in {inner.call}"
        return f"in {_call(self.main, users)}, called at {os.path.basename(users.file)}:{users.line}"


def collect(pids: Iterable[int], seconds: float = ANSWER_SECONDS) -> dict[int, ProcessStacks]:
    """Return the stacks of these processes, which go on meanwhile. Blocks for ``seconds`` at most.

    A process answers if it was prepared (``worker/stack_dump.py``). Of others only their state is known.
    """
    asked: dict[int, tuple[int, int]] = {}
    found = dict.fromkeys(pids, "")
    try:
        for pid in found:
            if (file := _open_file(pid)) is not None:
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


def summarize(places: Mapping[int, str]) -> list[str]:
    """Return one line for each place, the rarest first, from where each rank is.

    The rank that is alone somewhere is the one that the others wait for: in ``rank 3 is in __next__ …; 7 ranks (0-2,
    4-7) are in all_reduce …`` it comes first.
    """
    ranks_at: dict[str, list[int]] = {}
    for rank, place in sorted(places.items()):
        ranks_at.setdefault(place, []).append(rank)
    lines = []
    for place, ranks in sorted(ranks_at.items(), key=lambda item: (len(item[1]), item[1][0])):
        verb, who = ("is", f"rank {ranks[0]}") if len(ranks) == 1 else ("are", f"ranks {describe_ranks(ranks)}")
        gone = place.startswith(("no Python stack", "the process"))
        lines.append(f"{who}: {place}" if gone else f"{who} {verb} {place}")
    return lines


def describe_ranks(ranks: Sequence[int]) -> str:
    """Return sorted ranks as ranges, ``0-2, 4-7``."""
    spans: list[tuple[int, int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1] = spans[-1][0], rank
        else:
            spans.append((rank, rank))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


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
