"""Which cloud a machine is of, from what its firmware says of itself: files only, no request is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

DMI = Path("/sys/class/dmi/id")
FILES = ("sys_vendor", "bios_vendor", "product_name", "chassis_asset_tag")
AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"  # of every machine of Azure; "Microsoft Corporation" is any Hyper-V


def read_dmi(folder: Path = DMI) -> dict[str, str]:
    """Return what the firmware says, as far as it can be read."""
    found = {}
    for name in FILES:
        try:
            found[name] = (folder / name).read_text(errors="replace").strip()
        except OSError:
            continue
    return found


def cloud_of(dmi: Mapping[str, str]) -> str:
    """Return ``aws``, ``gcp`` or ``azure``; '' for a machine of none of them."""
    if dmi.get("sys_vendor") == "Amazon EC2" or dmi.get("bios_vendor") == "Amazon EC2":
        return "aws"
    if dmi.get("product_name") == "Google Compute Engine":
        return "gcp"
    return "azure" if dmi.get("chassis_asset_tag") == AZURE_TAG else ""


def chosen(wanted: str, read: Callable[[], Mapping[str, str]] = read_dmi) -> str:
    """Return the cloud for a value of ``--notices``; '' for none."""
    return cloud_of(read()) if wanted == "auto" else wanted
