"""The accelerators of this machine, also those that the environment hides.

Each list is made once per process: hardware does not change under an agent, and NVML can take a second to start if the
driver is not persistent.
"""

from __future__ import annotations

import functools
import re

from elastic_core.host.devices.machine import Device, Machine, pci_address

NVIDIA_PLACE = "proc/driver/nvidia/gpus"
AMD_PLACE = "sys/class/kfd"
INTEL_PLACE = "sys/class/drm"
_AMD_NODES = f"{AMD_PLACE}/kfd/topology/nodes"
_INTEL = "0x8086"


@functools.cache
def nvidia(machine: Machine) -> tuple[Device, ...]:
    """Return NVIDIA's GPUs in order of their addresses: from NVML, or from the driver's files if NVML does not answer.

    It is CUDA's order with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``, and CUDA's default if all are of one kind.
    """
    if (library := machine.nvml()) is not None:
        from elastic_core.host.devices.nvml import nvml_devices

        if (found := nvml_devices(library)) is not None:
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
