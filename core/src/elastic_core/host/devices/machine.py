"""Reads the machine's files and loads NVIDIA's library, for all of this package; and what an accelerator is."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NVML = "libnvidia-ml.so.1"
_INTEGRATED = "0000:00:02."  # the address of every Intel GPU that is part of its processor


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator."""

    address: str  # on the PCI bus, as sysfs writes it: ``0000:3b:00.0``
    uuid: str = ""  # ``GPU-…``, or '' if it is not known
    partitions: tuple[str, ...] = ()  # the UUIDs of its MIG devices, ``MIG-…``
    tiles: int = 1  # how many devices Level Zero makes of it (Intel); 1 for others

    @property
    def integrated(self) -> bool:
        """True if the device is part of an Intel processor."""
        return self.address.startswith(_INTEGRATED)


def pci_address(domain: int, bus: int, device: int, function: int = 0) -> str:
    """Return an address as sysfs writes it: ``0000:3b:00.0``."""
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def load_nvml() -> Any | None:
    """Load NVIDIA's management library, which comes with the driver; None on a machine without it."""
    import ctypes  # most runs do not need it

    try:
        return ctypes.CDLL(NVML)
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine, or a tree of files that stands for one."""

    root: Path = Path("/")  # the directory of ``proc`` and ``sys``
    nvml: Callable[[], Any | None] = load_nvml  # loads NVML; returns None without it
    affinity: Callable[[], frozenset[int]] = lambda: frozenset(os.sched_getaffinity(0))
    """Returns the CPUs that the agent may run on."""

    def read(self, path: str) -> str | None:
        """Return a file's text without the white space around it; None if it is missing or unreadable."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """Return a file's whole number; None if it has none."""
        try:
            return int(self.read(path) or "")
        except ValueError:
            return None

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, in alphabetical order; [] if it is missing."""
        try:
            return sorted(os.listdir(self.root / path))
        except OSError:
            return []

    def target(self, path: str) -> str:
        """Return the last part of a path once its links are followed: a device's address on its bus."""
        return (self.root / path).resolve().name
