"""Kills by the kernel's out-of-memory killer in this process's cgroup: ``memory.events`` of cgroup v2 and v1.

The kernel counts the processes that it kills for want of memory, for each cgroup. A worker that ends by SIGKILL while
that count grows was most probably one of them. A container sees its own cgroup at the root of ``/sys/fs/cgroup``.
Source: Linux, Documentation/admin-guide/cgroup-v2.rst (``memory.events``) and cgroup-v1/memory.rst
(``memory.oom_control``).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_V1, _V2 = ("memory.oom_control", "memory.limit_in_bytes"), ("memory.events", "memory.max")


@dataclass(frozen=True, slots=True)
class OomCounter:
    """Reads how many processes the kernel has killed for want of memory in one cgroup and those below.

    Attributes:
        file: ``memory.events`` or ``memory.oom_control``; None where the system has neither, and nothing is counted.
        limit: The file that holds the cgroup's limit of memory.
    """

    file: Path | None
    limit: Path | None = None

    def read(self) -> int:
        """Return the count so far; 0 where it cannot be read."""
        with contextlib.suppress(OSError, ValueError):
            lines = [] if self.file is None else self.file.read_text(encoding="ascii").splitlines()
            for line in lines:
                name, _, number = line.partition(" ")
                if name == "oom_kill":
                    return int(number)
        return 0

    def limit_bytes(self) -> int | None:
        """Return the cgroup's limit of memory in bytes; None where there is none."""
        with contextlib.suppress(OSError, ValueError):
            if self.limit is not None:
                limit = int(self.limit.read_text(encoding="ascii"))
                return limit if limit < 1 << 60 else None  # v1 writes a huge number for "no limit"
        return None


def find_counter(root: Path = _ROOT, own: Path = _OWN) -> OomCounter:
    """Return the counter of this process's cgroup."""
    with contextlib.suppress(OSError):
        for line in own.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            base, count, limit = (root / "memory", *_V1) if controllers else (root, *_V2)
            for directory in (base / path.lstrip("/"), base):  # the second: a container's own cgroup is the root
                if (directory / count).is_file():
                    return OomCounter(directory / count, directory / limit)
    return OomCounter(None)
