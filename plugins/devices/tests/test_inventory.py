from __future__ import annotations

from collections.abc import Callable

import pytest

from elastic_devices.inventory import Device, Machine, amd, intel, nvidia, pci_address

MachineOf = Callable[..., Machine]

KFD = "sys/class/kfd/kfd/topology/nodes"
INFORMATION = """Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 18
GPU UUID: \t GPU-{uuid}
Bus Type: \t PCIe
Device Minor: \t 0"""


def card(number: int, address: str, vendor: str = "0x8086", tiles: int = 0) -> tuple[dict[str, str], dict[str, str]]:
    """The files and the link of a graphics card."""
    place = f"sys/devices/pci/{address}"
    files = {f"{place}/vendor": vendor} | {f"{place}/tile{tile}/id": "" for tile in range(tiles)}
    return files, {f"sys/class/drm/renderD{number}/device": place}


def test_a_machine_without_any_of_it_has_no_accelerators(machine_of: MachineOf) -> None:
    machine = machine_of()
    assert (nvidia(machine), amd(machine), intel(machine)) == ((), (), ())


def test_without_nvml_nvidias_gpus_are_read_from_the_drivers_files(machine_of: MachineOf) -> None:
    gpus = "proc/driver/nvidia/gpus"
    machine = machine_of(
        {
            f"{gpus}/0000:AF:00.0/information": INFORMATION.format(uuid="b1"),
            f"{gpus}/0000:3B:00.0/information": INFORMATION.format(uuid="a0"),
            f"{gpus}/0000:d8:00.0/power": "unreadable information",
        }
    )
    assert nvidia(machine) == (
        Device("0000:3b:00.0", "GPU-a0"),
        Device("0000:af:00.0", "GPU-b1"),
        Device("0000:d8:00.0"),
    )


def test_amds_gpus_are_the_nodes_with_simd_units_in_the_order_of_their_numbers(machine_of: MachineOf) -> None:
    gpu = "cpu_cores_count 0\nsimd_count 304\nname gfx942\ndomain {domain}\nlocation_id {location}\nunique_id {unique}"
    machine = machine_of(
        {
            f"{KFD}/0/properties": "cpu_cores_count 64\nsimd_count 0\nlocation_id 0",
            f"{KFD}/10/properties": gpu.format(domain=1, location=0x0503, unique=0),
            f"{KFD}/2/properties": gpu.format(domain=0, location=0xC108, unique=0x1F2E),
            f"{KFD}/3/gpu_id": "a container may not read its properties",
        }
    )
    assert amd(machine) == (Device("0000:c1:01.0", "GPU-0000000000001f2e"), Device("0001:05:00.3"))


def test_intels_gpus_are_render_nodes_of_its_vendor_id_with_the_integrated_one_last(machine_of: MachineOf) -> None:
    cards = [
        card(128, "0000:00:02.0"),
        card(129, "0000:9a:00.0", tiles=2),
        card(130, "0000:4d:00.0"),
        card(131, "0000:65:00.0", vendor="0x10de"),
    ]
    files = {name: text for files, _ in cards for name, text in files.items()}
    links = {name: target for _, links in cards for name, target in links.items()}
    connector = {"sys/class/drm/card1-DP-1/device": "sys/devices/pci/0000:9a:00.0"}
    found = intel(machine_of(files, links=links | connector))
    assert found == (Device("0000:4d:00.0"), Device("0000:9a:00.0", tiles=2), Device("0000:00:02.0"))
    assert [device.integrated for device in found] == [False, False, True]


@pytest.mark.parametrize(
    ("place", "text"),
    [((0, 0x3B, 0), "0000:3b:00.0"), ((0x10001, 1, 31, 7), "10001:01:1f.7"), ((2, 0, 2), "0002:00:02.0")],
)
def test_an_address_is_written_as_sysfs_writes_it(place: tuple[int, ...], text: str) -> None:
    assert pci_address(*place) == text
