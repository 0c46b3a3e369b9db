"""What an import can change about its process as a whole: a worker would have it before its program begins."""

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
    """Return the state that forks inherit, by what it is called in a sentence."""
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
    """Which of the state an import has changed; None if nothing."""
    now = process_state()
    return next((f"it changes {name}" for name in before if now[name] != before[name]), None)


def shared_mappings() -> int:
    """How many writable mappings this process shares with its forks, as those of a lock of multiprocessing."""
    with open("/proc/self/maps", "rb") as file:
        return file.read().count(b" rw-s ")


def own_memory() -> int:
    """Bytes of memory that this process has for itself, or shares with forks until one of them writes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        _, resident, shared, *_ = file.read().split()
    return (int(resident) - int(shared)) * mmap.PAGESIZE


@contextlib.contextmanager
def killed_first() -> Iterator[None]:
    """When memory runs out in here, let this process die, or a fork of it, before any worker."""
    with contextlib.ExitStack() as undo:
        with contextlib.suppress(OSError), open(_OOM_SCORE, encoding="ascii") as file:
            undo.callback(_set_oom_score, file.read())
            _set_oom_score("1000")
        yield


def _set_oom_score(score: str) -> None:
    with contextlib.suppress(OSError), open(_OOM_SCORE, "w", encoding="ascii") as file:
        file.write(score)
