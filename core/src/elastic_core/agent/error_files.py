"""Reads the error file of a worker, and the end of its stderr.

The error file is what torch's ``@record`` writes (``torch.distributed.elastic.multiprocessing.errors``). Both are
untrusted input, and nothing here raises.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

_MOST = 1 << 20
_RANK = r"(?:\[[\w-]*\d+\]: ?)*"  # torch puts "[rank0]: " before each line of a traceback
_TERMINATE = re.compile(
    rf"^{_RANK}(?P<line>terminate called [^\n]*)(?:\n{_RANK} *what\(\): (?P<what>[^\n]*))?", re.MULTILINE
)
_ABORT = re.compile(
    rf"^{_RANK}(?P<line>(?:double free|free\(\): |munmap_chunk\(\): |malloc\(\): |corrupted |\*\*\* )[^\n]*"
    r"|[^\n]*: Assertion [^\n]* failed\.)$",
    re.MULTILINE,
)
_FATAL, _CURRENT_THREAD = b"Fatal Python error: ", b"Current thread 0x"


def error_file_data(path: Path) -> dict[str, Any]:
    """Return what an error file has in it; {} if there is none, or it is no JSON object."""
    try:
        data = json.loads(_read(path) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def last_abort_line(stderr_tail: str) -> str:
    """Return what native code wrote before it aborted (SIGABRT), in one line; '' if it wrote nothing that is known.

    ``terminate called after throwing an instance of 'std::runtime_error': what(): socket closed`` for C++, else the
    last line of the C library's, or of a failed assertion.
    """
    if terminations := list(_TERMINATE.finditer(stderr_tail)):
        last = terminations[-1]
        return one_line(f"{last['line']}: what(): {last['what'].strip()}" if last["what"] else last["line"])
    aborts = list(_ABORT.finditer(stderr_tail))
    return one_line(aborts[-1]["line"]) if aborts else ""


def one_line(text: str) -> str:
    """Return the first line of a text that is not blank, in printable characters."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return "".join(char if char.isprintable() else " " for char in first).strip()


def last_lines(data: bytes, limit: int) -> str:
    """Return the last whole lines of ``data`` in at most ``limit`` bytes; of a last line that is longer, its end."""
    end = data[-limit:]
    if len(data) > limit and data[-limit - 1 : -limit] != b"\n":
        end = end[end.find(b"\n", 0, -1) + 1 :]
    return end.decode(errors="replace")


def telling_lines(data: bytes, limit: int) -> str:
    """Return the last whole lines of stderr in at most ``limit`` bytes, with what led to a fatal signal.

    faulthandler writes the stacks of all threads after the message of native code, and may write more than ``limit``.
    Then one half is from before ``Fatal Python error``, and the other is that line and the current thread's stack.
    """
    at = data.rfind(_FATAL)
    if at < 0 or len(data) - at <= limit // 2:
        return last_lines(data, limit)
    title = data[at : data.find(b"\n", at) + 1]
    current = max(data.find(_CURRENT_THREAD, at), at + len(title))
    stack = data[current : current + limit // 2 - len(title)]
    return last_lines(data[:at], limit // 2) + (title + stack[: stack.rfind(b"\n") + 1]).decode(errors="replace")


def _read(path: Path) -> bytes | None:
    """Return a file's beginning; None unless it is a plain file. Opening never waits, as for a FIFO it would."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            return file.read(_MOST) if stat.S_ISREG(os.fstat(fd).st_mode) else None
    except OSError:
        return None
