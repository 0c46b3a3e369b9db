"""Memory files of a name, of any process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def memory_files(mark: str) -> Iterator[tuple[int, str]]:
    """Yield the processes of this host that hold or map memory of a name, and its name."""
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            fds = os.listdir(f"/proc/{entry}/fd")
            maps = Path(f"/proc/{entry}/maps").read_text()
        except OSError:
            continue
        for name in {
            link.split(" ")[0] for fd in fds if f"memfd:{mark}" in (link := _target(f"/proc/{entry}/fd/{fd}"))
        }:
            yield int(entry), name
        if f"memfd:{mark}" in maps:
            yield int(entry), "mapped"


def _target(descriptor: str) -> str:
    """Return what a descriptor is of; '' if it has been closed."""
    try:
        return os.readlink(descriptor)
    except OSError:
        return ""
