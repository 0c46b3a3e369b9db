"""Calls of NVIDIA's library, answered by objects that write through pointers as it does."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from elastic_devices.inventory import Device, Machine, PciInfo, nvidia, nvml_devices

LOST, NOT_FOUND, NOT_SUPPORTED, MISMATCH = 15, 6, 3, 18


@dataclass
class Library:
    """NVML on a machine with these GPUs, of which those named ``lost`` do not answer.

    A GPU's handle is its index plus one, and that of a part of it a hundred times this, plus the part's place.
    """

    gpus: list[Device]
    init: int = 0
    lost: frozenset[int] = frozenset()
    open: int = 0

    def nvmlInit_v2(self) -> int:
        self.open += self.init == 0
        return self.init

    def nvmlShutdown(self) -> int:
        self.open -= 1
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.gpus)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, handle: Any) -> int:
        handle._obj.value = index.value + 1
        return LOST if index.value in self.lost else 0

    def nvmlDeviceGetPciInfo_v3(self, handle: ctypes.c_void_p, info: Any) -> int:
        assert isinstance(info._obj, PciInfo)
        domain, bus, rest = self._gpu(handle).address.split(":")
        info._obj.domain, info._obj.bus, info._obj.device = int(domain, 16), int(bus, 16), int(rest[:2], 16)
        return 0

    def nvmlDeviceGetUUID(self, handle: ctypes.c_void_p, buffer: Any, size: ctypes.c_uint) -> int:
        gpu, part = self._gpu(handle), (handle.value or 0) % 100
        text = gpu.uuid if (handle.value or 0) < 100 else gpu.partitions[part]
        assert size.value == ctypes.sizeof(buffer) > len(text)
        buffer.value = text.encode()
        return 0 if text else NOT_SUPPORTED

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: ctypes.c_void_p, count: Any) -> int:
        count._obj.value = 7
        return 0 if self._gpu(handle).partitions else NOT_SUPPORTED

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: ctypes.c_void_p, place: ctypes.c_uint, part: Any) -> int:
        part._obj.value = (handle.value or 0) * 100 + place.value
        return 0 if place.value < len(self._gpu(handle).partitions) else NOT_FOUND

    def _gpu(self, handle: ctypes.c_void_p) -> Device:
        number = handle.value or 0
        return self.gpus[(number if number < 100 else number // 100) - 1]


TWO = [Device("0000:3b:00.0", "GPU-a0", ("MIG-1", "MIG-2")), Device("0001:5e:00.0")]


@pytest.mark.parametrize(
    ("library", "found"),
    [
        pytest.param(Library(TWO), tuple(TWO), id="all of them"),
        pytest.param(Library([]), (), id="a driver and no GPU"),
        pytest.param(Library(TWO, lost=frozenset({0})), (TWO[1],), id="one has fallen off the bus"),
        pytest.param(Library(TWO, init=MISMATCH), None, id="another driver's library"),
    ],
)
def test_every_gpu_that_answers_is_found_and_the_library_is_closed(
    library: Library, found: tuple[Device, ...] | None
) -> None:
    assert nvml_devices(library) == found
    assert library.open == 0


def test_a_library_without_its_functions_is_none() -> None:
    assert nvml_devices(object()) is None


def test_nvml_outranks_the_drivers_files_which_may_list_gpus_that_the_container_lacks(
    machine_of: Callable[..., Machine],
) -> None:
    files = {f"proc/driver/nvidia/gpus/0000:{bus:02x}:00.0/information": "" for bus in range(8)}
    assert nvidia(machine_of(files, nvml=Library(TWO))) == tuple(TWO)


def test_the_drivers_files_stand_in_where_nvml_does_not_start(machine_of: Callable[..., Machine]) -> None:
    files = {"proc/driver/nvidia/gpus/0000:3b:00.0/information": ""}
    assert nvidia(machine_of(files, nvml=Library(TWO, init=MISMATCH))) == (Device("0000:3b:00.0"),)
