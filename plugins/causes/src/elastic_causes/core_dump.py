"""The path of a process's core dump: expansion of ``/proc/sys/kernel/core_pattern``.

Source: Linux, core(5), "Naming of core dump files" and "Piping core dumps to a program".
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import signal
import stat
from pathlib import Path

_SETTINGS = Path("/proc/sys/kernel")
_SPECIFIER = re.compile(r"%(.?)", re.DOTALL)
_MOST_MATCHES = 64  # files of a pattern that are looked at
_NAMES = "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGQUIT", "SIGSEGV", "SIGSYS", "SIGTRAP", "SIGXCPU", "SIGXFSZ"
CORE_SIGNALS = frozenset(signal.Signals[name] for name in _NAMES)
"""Signals whose default action is a core dump (signal(7))."""


def core_file_glob(pattern: str, pid: int, *, uses_pid: bool = False) -> str | None:
    """Return a glob pattern for the core file of a process; None where the kernel writes no file.

    Args:
        pattern: The contents of ``core_pattern``.
        pid: The process id. What else a pattern names, such as the time, can be anything.
        uses_pid: Whether ``core_uses_pid`` is set, so that the process id follows a pattern that does not name it.
    """
    if not pattern or pattern.startswith("|"):
        return None
    parts = _SPECIFIER.split(pattern)  # literal, specifier, literal, specifier, ...
    expanded = [_expand_specifier(part, pid) if number % 2 else glob.escape(part) for number, part in enumerate(parts)]
    suffix = f".{pid}" if uses_pid and "p" not in parts[1::2] else ""
    return "".join(expanded) + suffix


def _expand_specifier(name: str, pid: int) -> str:
    if name in ("%", ""):  # a percent sign; a single one at the end of the pattern is dropped
        return name
    return str(pid) if name == "p" else "*"


def describe_core_dump(pid: int, directory: str, since: float, settings: Path = _SETTINGS) -> str:
    """Return where the core dump of a process is, in one line; '' where there is none, or it is not known.

    Args:
        pid: The process, which a signal of :data:`CORE_SIGNALS` has ended.
        directory: Its working directory, to which a relative pattern belongs; ``.`` for this process's own.
        since: When it began, in seconds since 1970. A file that is older is not its own.
        settings: The directory of ``core_pattern`` and ``core_uses_pid``.
    """
    with contextlib.suppress(OSError):
        pattern = os.fsdecode((settings / "core_pattern").read_bytes()).removesuffix("\n")
        if pattern.startswith("|") and "systemd-coredump" in pattern:
            return f"core dump: coredumpctl info {pid}"
        uses_pid = (settings / "core_uses_pid").read_text(encoding="ascii").strip() not in ("", "0")
        wanted = core_file_glob(pattern, pid, uses_pid=uses_pid)
        if wanted is None:
            return ""
        base = glob.escape(os.path.abspath(directory))  # it fails where this process's own directory is gone
        if (path := _find_newest(os.path.join(base, wanted), since)) is not None:
            return f"core dump: {path}"
    return ""


def _find_newest(wanted: str, since: float) -> str | None:
    """Return the newest file that matches and was written after ``since``; None if there is none."""
    found: list[tuple[float, str]] = []
    for path, _ in zip(glob.iglob(wanted), range(_MOST_MATCHES), strict=False):
        with contextlib.suppress(OSError):
            status = os.stat(path, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and status.st_mtime >= since:
                found.append((status.st_mtime, path))
    return max(found)[1] if found else None
