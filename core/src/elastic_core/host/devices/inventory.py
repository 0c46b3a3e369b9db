"""The accelerators that are in this machine, whatever the environment hides.

Each list is made once per process: hardware does not change under an agent, and NVML can take a second to start where
the driver is not persistent.
"""

from __future__ import annotations

import functools
import re

from elastic_core.host.devices.device import Device, pci_address
from elastic_core.host.devices.machine import Machine

NVIDIA_PLACE = "/proc/driver/nvidia/gpus"
AMD_PLACE = "/sys/class/kfd"
INTEL_PLACE = "/sys/class/drm"

_GPUS = "proc/driver/nvidia/gpus"
_KFD = "sys/class/kfd/kfd/topology/nodes"
_DRM = "sys/class/drm"
_INTEL = "0x8086"


@functools.cache
def nvidia(machine: Machine) -> tuple[Device, ...]:
    """NVIDIA's GPUs in order of their addresses: from NVML, or from its driver's files where NVML does not answer.

    CUDA numbers them in the same order with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``. Its default puts the fastest first, which
    makes no difference where all are of one kind.
    """
    if (library := machine.nvml()) is not None:
        from elastic_core.host.devices.nvml import nvml_devices

        if (found := nvml_devices(library)) is not None:
            return found
    return tuple(
        Device(address.lower(), _nvidia_uuid(machine.read(f"{_GPUS}/{address}/information") or ""))
        for address in machine.names(_GPUS)
    )


def _nvidia_uuid(information: str) -> str:
    match = re.search(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]+)\s*$", information, re.MULTILINE)
    return match[1] if match else ""


@functools.cache
def amd(machine: Machine) -> tuple[Device, ...]:
    """AMD's GPUs, as the kernel's compute driver (KFD) numbers them, and ROCm after it.

    Of nodes that a container may not use, the driver refuses the properties; nodes without SIMD units are processors.
    """
    nodes = sorted(int(name) for name in machine.names(_KFD) if name.isdecimal())
    properties = [_properties(machine.read(f"{_KFD}/{node}/properties") or "") for node in nodes]
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
    """Intel's GPUs in order of their addresses, the one that is part of the processor last, as Level Zero has them."""
    found = set()
    for name in machine.names(_DRM):
        if name.startswith("renderD") and machine.read(f"{_DRM}/{name}/device/vendor") == _INTEL:
            tiles = [entry for entry in machine.names(f"{_DRM}/{name}/device") if re.fullmatch(r"tile\d+", entry)]
            found.add(Device(machine.target(f"{_DRM}/{name}/device"), tiles=max(1, len(tiles))))
    return tuple(sorted(found, key=lambda device: (device.integrated, device.address)))
