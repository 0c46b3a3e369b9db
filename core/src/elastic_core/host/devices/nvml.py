"""NVIDIA's devices that this container may use, from the management library (NVML).

NVML is not CUDA: it makes no context on a GPU, and ``nvmlShutdown`` closes its descriptors. Source of the functions and
structures: https://docs.nvidia.com/deploy/nvml-api.
"""

from __future__ import annotations

import ctypes
from typing import Any

from elastic_core.host.devices.machine import Device, pci_address

_UUID_BYTES = 96  # NVML_DEVICE_UUID_V2_BUFFER_SIZE
_SUCCESS = 0


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
