"""One accelerator, and how its address on the PCI bus is written."""

from __future__ import annotations

from dataclasses import dataclass

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
