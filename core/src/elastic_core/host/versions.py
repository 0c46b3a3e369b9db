"""The versions that must match for one process group to span two nodes, from package metadata: nothing is imported."""

from __future__ import annotations

import platform
from importlib import metadata


def installed_versions() -> dict[str, str]:
    """Return this interpreter's versions, the fields of :class:`elastic_core.protocol.settings.Versions`."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = ""
    return {"python": platform.python_version(), "torch": torch}
