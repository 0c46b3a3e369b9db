"""Which machine this is, and the versions that must match between the nodes of one process group."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from elastic_core.digest import hex_digest

_MACHINE_ID = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK_NAMESPACE = Path("/proc/self/ns/net")
_CLOCK_OFFSETS = Path("/proc/self/timens_offsets")
"""The differences between the clocks of this process's time namespace and the machine's; since Linux 5.6."""


def host_id() -> str:
    """Return 16 hex digits, equal for all agents that share their slots and the clock of these.

    Such agents run on one machine since its last boot, in one network namespace, with one clock, as one user, and see
    one name of the machine. Machines that were started from one image of a running one must have different names.
    """
    machine_id = next((text for path in _MACHINE_ID if (text := _text(path))), "")  # images without one are common
    namespace = str(_NETWORK_NAMESPACE.stat().st_ino)
    parts = (machine_id, boot_id(), namespace, _text(_CLOCK_OFFSETS), str(os.getuid()), socket.gethostname())
    return hex_digest("\n".join(parts), 16)


def network_id() -> str:
    """Return 8 hex digits, equal for all agents that reach each other by loopback: of one network namespace."""
    return hex_digest(f"{boot_id()}\n{_NETWORK_NAMESPACE.stat().st_ino}", 8)


def boot_id() -> str:
    """Return the id of this boot of the machine, 36 characters; '' if it is not known."""
    return _text(_BOOT_ID)


def host_name() -> str:
    """Return this host's name, for messages, or the name that ``ELASTIC_HOST_NAME`` gives it; it is not resolved."""
    return os.environ.get("ELASTIC_HOST_NAME") or socket.gethostname()


def installed_versions() -> dict[str, str]:
    """Return this interpreter's versions, the fields of :class:`elastic_core.protocol.settings.Versions`."""
    import platform  # not before the starter has begun
    from importlib import metadata

    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = ""
    return {"python": platform.python_version(), "torch": torch}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
