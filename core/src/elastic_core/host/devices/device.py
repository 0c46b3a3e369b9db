"""One accelerator, and how its address on the PCI bus is written."""

from __future__ import annotations

from dataclasses import dataclass

_INTEGRATED = "0000:00:02."  # where every Intel GPU that is part of its processor sits


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator.

    Attributes:
        address: Where it is on the PCI bus, as sysfs writes it: ``0000:3b:00.0``.
        uuid: ``GPU-…``, or '' where nobody tells.
        partitions: The UUIDs of its MIG devices, ``MIG-…``.
        tiles: How many devices Level Zero makes of it (Intel); 1 for others.
    """

    address: str
    uuid: str = ""
    partitions: tuple[str, ...] = ()
    tiles: int = 1

    @property
    def integrated(self) -> bool:
        """Whether it is part of an Intel processor."""
        return self.address.startswith(_INTEGRATED)


def pci_address(domain: int, bus: int, device: int, function: int = 0) -> str:
    """``0000:3b:00.0``."""
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"
