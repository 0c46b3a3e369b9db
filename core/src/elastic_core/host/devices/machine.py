"""The machine, as the kernel and NVIDIA's library tell of it. All reading of this package goes through here."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NVML = "libnvidia-ml.so.1"


def load_nvml() -> Any | None:
    """NVIDIA's management library, which comes with the driver; None on a machine that has none."""
    import ctypes  # so that a run that counts no devices need not pay for it

    try:
        return ctypes.CDLL(NVML)
    except OSError:
        return None


def own_affinity() -> frozenset[int]:
    """Return the CPUs that this process may run on."""
    return frozenset(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine, or a tree of files that stands for one.

    Attributes:
        root: Where ``proc`` and ``sys`` lie.
        nvml: Loads NVML; returns None where there is none.
        affinity: The CPUs that the agent may run on.
    """

    root: Path = Path("/")
    nvml: Callable[[], Any | None] = load_nvml
    affinity: Callable[[], frozenset[int]] = own_affinity

    def read(self, path: str) -> str | None:
        """Return a file's text without the white space around it; None where it is missing or not ours to read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """Return a file's whole number; None where there is none."""
        try:
            return int(self.read(path) or "")
        except ValueError:
            return None

    def names(self, path: str) -> list[str]:
        """Return what a directory holds, in alphabetical order; [] where it is missing."""
        try:
            return sorted(os.listdir(self.root / path))
        except OSError:
            return []

    def target(self, path: str) -> str:
        """Return the last part of where a path leads once its links are followed: a device's address on its bus."""
        return (self.root / path).resolve().name
