"""The accelerators of this machine, also those that the environment hides; and how its files are read.

Each list is made once per process: hardware does not change under an agent, and NVML can take a second to start if the
driver is not persistent. NVIDIA's GPUs come from the management library (NVML), which is not CUDA: it makes no context
on a GPU, and ``nvmlShutdown`` closes its descriptors. Source of its functions and structures:
https://docs.nvidia.com/deploy/nvml-api.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NVML = "libnvidia-ml.so.1"
NVIDIA_PLACE = "proc/driver/nvidia/gpus"
AMD_PLACE = "sys/class/kfd"
INTEL_PLACE = "sys/class/drm"
_AMD_NODES = f"{AMD_PLACE}/kfd/topology/nodes"
_INTEL = "0x8086"
_INTEGRATED = "0000:00:02."  # the address of every Intel GPU that is part of its processor
_UUID_BYTES = 96  # NVML_DEVICE_UUID_V2_BUFFER_SIZE
_SUCCESS = 0


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


@functools.cache
def nvidia(machine: Machine) -> tuple[Device, ...]:
    """Return NVIDIA's GPUs in order of their addresses: from NVML, or from the driver's files if NVML does not answer.

    It is CUDA's order with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``, and CUDA's default if all are of one kind.
    """
    if (library := machine.nvml()) is not None and (found := nvml_devices(library)) is not None:
        return found
    return tuple(
        Device(address.lower(), _nvidia_uuid(machine.read(f"{NVIDIA_PLACE}/{address}/information") or ""))
        for address in machine.names(NVIDIA_PLACE)
    )


def _nvidia_uuid(information: str) -> str:
    match = re.search(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]+)\s*$", information, re.MULTILINE)
    return match[1] if match else ""


@functools.cache
def amd(machine: Machine) -> tuple[Device, ...]:
    """Return AMD's GPUs, as the kernel's compute driver (KFD) and ROCm number them.

    The driver refuses the properties of nodes that a container may not use; nodes without SIMD units are processors.
    """
    nodes = sorted(int(name) for name in machine.names(_AMD_NODES) if name.isdecimal())
    properties = [_properties(machine.read(f"{_AMD_NODES}/{node}/properties") or "") for node in nodes]
    return tuple(_amd_device(given) for given in properties if given.get("simd_count", 0) > 0)


def _properties(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _amd_device(given: dict[str, int]) -> Device:
    location, unique = given.get("location_id", 0), given.get("unique_id", 0)
    address = pci_address(given.get("domain", 0), location >> 8 & 0xFF, location >> 3 & 0x1F, location & 0x7)
    return Device(address, f"GPU-{unique:016x}" if unique else "")


@functools.cache
def intel(machine: Machine) -> tuple[Device, ...]:
    """Return Intel's GPUs in Level Zero's order: by address, the one that is part of the processor last."""
    found = set()
    for name in machine.names(INTEL_PLACE):
        place = f"{INTEL_PLACE}/{name}/device"
        if name.startswith("renderD") and machine.read(f"{place}/vendor") == _INTEL:
            tiles = [entry for entry in machine.names(place) if re.fullmatch(r"tile\d+", entry)]
            found.add(Device(machine.target(place), tiles=max(1, len(tiles))))
    return tuple(sorted(found, key=lambda device: (device.integrated, device.address)))


class PciInfo(ctypes.Structure):
    """``nvmlPciInfo_t``: where a device is on the PCI bus."""

    _fields_ = [
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    ]


def nvml_devices(library: Any) -> tuple[Device, ...] | None:
    """Return the GPUs that answer, in order of PCI addresses; None if NVML itself does not answer."""
    try:
        if library.nvmlInit_v2() != _SUCCESS:  # such as with another driver's module
            return None
        try:
            count = ctypes.c_uint()
            if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _SUCCESS:
                return None
            found = [_device(library, index) for index in range(count.value)]
        finally:
            library.nvmlShutdown()
    except AttributeError:  # a library too old, or not NVML
        return None
    return tuple(device for device in found if device is not None)


def _device(library: Any, index: int) -> Device | None:
    handle, pci = ctypes.c_void_p(), PciInfo()
    if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != _SUCCESS:
        return None
    if library.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(pci)) != _SUCCESS:
        return None
    address = pci_address(pci.domain, pci.bus, pci.device)
    return Device(address, _uuid(library, handle), _partitions(library, handle))


def _uuid(library: Any, handle: ctypes.c_void_p) -> str:
    """Return ``GPU-…`` or ``MIG-…``; '' if it is not known."""
    buffer = ctypes.create_string_buffer(_UUID_BYTES)
    if library.nvmlDeviceGetUUID(handle, buffer, ctypes.c_uint(_UUID_BYTES)) != _SUCCESS:
        return ""
    return buffer.value.decode("ascii", errors="replace")


def _partitions(library: Any, handle: ctypes.c_void_p) -> tuple[str, ...]:
    """Return the UUIDs of its MIG devices; () for a GPU that is not divided into such."""
    most = ctypes.c_uint()
    if library.nvmlDeviceGetMaxMigDeviceCount(handle, ctypes.byref(most)) != _SUCCESS:
        return ()
    uuids = []
    for index in map(ctypes.c_uint, range(most.value)):
        part = ctypes.c_void_p()
        # Some indices are empty if there are fewer devices than the maximum.
        if library.nvmlDeviceGetMigDeviceHandleByIndex(handle, index, ctypes.byref(part)) == _SUCCESS:
            uuids.append(_uuid(library, part))
    return tuple(filter(None, uuids))
