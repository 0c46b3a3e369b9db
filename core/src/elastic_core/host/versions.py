"""The versions that must match between the nodes of one process group, from package metadata, without an import."""

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
