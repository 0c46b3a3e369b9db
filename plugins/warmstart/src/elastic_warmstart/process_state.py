"""State of a process that an import can change, and that a worker would then have before its program begins."""

from __future__ import annotations

import _locale
import contextlib
import mmap
import os
import signal
from collections.abc import Iterator, Mapping

MEMORY_MAX = 512 << 20  # bytes by which the fork server may grow through what it learns
_OOM_SCORE = "/proc/self/oom_score_adj"


def process_state() -> dict[str, object]:
    """Return the state that forks inherit, by its name in a sentence."""
    with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
        status = dict(line.rstrip("\n").partition(":")[::2] for line in file)
    return {
        "the working directory": os.getcwd(),
        "the umask": status.get("Umask"),
        "the handler of a signal": [signal.getsignal(number) for number in sorted(signal.valid_signals())],
        "the locale": _locale.setlocale(_locale.LC_ALL),
        "the memory that forks share": shared_mappings(),
    }


def changed_state(before: Mapping[str, object]) -> str | None:
    """Return a sentence about state that an import has changed; None if it has changed none."""
    now = process_state()
    return next((f"it changes {name}" for name in before if now[name] != before[name]), None)


def shared_mappings() -> int:
    """Count the writable mappings that this process shares with its forks, such as a lock of multiprocessing."""
    with open("/proc/self/maps", "rb") as file:
        return file.read().count(b" rw-s ")


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
