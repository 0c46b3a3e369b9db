"""Reading the machine: files below ``/proc`` and ``/sys``, and NVIDIA's management library (NVML), which both exist
to be asked without opening a device.

A container sees all of the host's files but only its own GPUs, so NVML is asked first.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NVML = "libnvidia-ml.so.1"
_UUID_SIZE = 96
_INTEL, _INTEGRATED = "0x8086", "0000:00:02.0"
"""Intel's vendor id, and the place on the bus of the graphics inside its CPUs, which nobody trains on."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """An NVIDIA GPU; GPUs are numbered in the order of their places on the bus, as NVML has it."""

    uuid: str
    """``GPU-`` and a UUID."""
    bus: str
    """Its PCI address as in sysfs, ``0000:3b:00.0``."""


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One NUMA node of the machine."""

    number: int
    cpus: frozenset[int]
    socket: int
    """Its physical package."""
    cores: tuple[frozenset[int], ...]
    """Physical cores in order, each with its hardware threads."""
    complexes: tuple[frozenset[int], ...]
    """Groups of CPUs that share a last-level cache, in order."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine below ``root``.

    Args:
        root: Where ``proc`` and ``sys`` are; another folder for tests.
        nvml: The library's name; '' not to ask it.
    """

    root: Path = Path("/")
    nvml: str = NVML

    def nvidia_gpus(self) -> list[Gpu]:
        """NVIDIA's GPUs, in order."""
        if self.nvml and (found := _ask_nvml(self.nvml)) is not None:
            return found
        folders = sorted((self.root / "proc/driver/nvidia/gpus").glob("*"))
        return [Gpu(_uuid(_read(folder / "information")), folder.name.lower()) for folder in folders]

    def amd_gpus(self) -> int:
        """How many GPUs AMD's compute driver has."""
        nodes = (self.root / "sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id")
        return sum(_read(node).strip() not in ("", "0") for node in nodes)

    def intel_gpus(self) -> int:
        """How many Intel GPUs are on the bus, those inside the CPUs aside."""
        found = 0
        for card in (self.root / "sys/class/drm").glob("renderD*/device"):
            found += _read(card / "vendor").strip() == _INTEL and card.resolve().name != _INTEGRATED
        return found

    def cpus(self) -> int:
        """How many CPUs are online."""
        online = parse_cpus(_read(self.root / "sys/devices/system/cpu/online"))
        return len(online) or os.cpu_count() or 1

    def numa_nodes(self) -> list[NumaNode]:
        """The NUMA nodes that have CPUs, in order; a machine that tells of none is one node."""
        folders = sorted((self.root / "sys/devices/system/node").glob("node[0-9]*"), key=lambda f: int(f.name[4:]))
        found = {int(folder.name[4:]): parse_cpus(_read(folder / "cpulist")) for folder in folders}
        nodes = [self._numa_node(number, cpus) for number, cpus in found.items() if cpus]
        return nodes or [self._numa_node(0, parse_cpus(_read(self.root / "sys/devices/system/cpu/online")))]

    def numa_node_of(self, gpu: Gpu) -> int | None:
        """The number of the NUMA node that a GPU is on; None where the machine does not say."""
        text = _read(self.root / "sys/bus/pci/devices" / gpu.bus / "numa_node").strip()
        return int(text) if text.isdigit() else None  # -1 for a machine with one node

    def _numa_node(self, number: int, cpus: frozenset[int]) -> NumaNode:
        package = self._of_cpu(min(cpus, default=0), "topology/physical_package_id").strip()
        return NumaNode(
            number=number,
            cpus=cpus,
            socket=int(package) if package.isdigit() else 0,
            cores=self._groups(cpus, "topology/thread_siblings_list"),
            complexes=self._groups(cpus, "cache/index3/shared_cpu_list"),
        )

    def _groups(self, cpus: frozenset[int], listing: str) -> tuple[frozenset[int], ...]:
        """The CPUs, by what each of them says whom it shares something with."""
        groups = {parse_cpus(self._of_cpu(cpu, listing)) & cpus or frozenset({cpu}) for cpu in cpus}
        return tuple(sorted(groups, key=min))

    def _of_cpu(self, cpu: int, name: str) -> str:
        return _read(self.root / f"sys/devices/system/cpu/cpu{cpu}" / name)


def parse_cpus(text: str) -> frozenset[int]:
    """The kernel's list of CPUs: ``0-3,8,10-11``."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


class _PciInfo(ctypes.Structure):
    """``nvmlPciInfo_t``."""

    _fields_ = (
        ("busIdLegacy", ctypes.c_char * 16),
        ("numbers", ctypes.c_uint * 5),
        ("busId", ctypes.c_char * 32),
    )


def _ask_nvml(name: str) -> list[Gpu] | None:
    """What NVML says; None where it is not installed or has no driver to talk to."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(name)
        if library.nvmlInit_v2() != 0:
            return None
        try:
            return list(_gpus(library))
        finally:
            library.nvmlShutdown()
    return None


def _gpus(library: ctypes.CDLL) -> Iterator[Gpu]:
    count = ctypes.c_uint()
    library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        handle, uuid, pci = ctypes.c_void_p(), ctypes.create_string_buffer(_UUID_SIZE), _PciInfo()
        library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
        library.nvmlDeviceGetUUID(handle, uuid, _UUID_SIZE)
        library.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(pci))
        domain, bus = pci.busId.decode().lower().split(":", 1) if pci.busId else ("", "")
        yield Gpu(uuid.value.decode(), f"{domain[-4:]}:{bus}")  # sysfs has four digits for the domain, NVML eight


def _uuid(information: str) -> str:
    match = re.search(r"GPU UUID:\s*(\S+)", information)
    return match[1] if match else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
