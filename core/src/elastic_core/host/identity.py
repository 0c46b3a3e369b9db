"""Which machine this is."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

_MACHINE_ID = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK_NAMESPACE = Path("/proc/self/ns/net")
_CLOCK_OFFSETS = Path("/proc/self/timens_offsets")
"""What the clocks of this process's time namespace differ by from the machine's; since Linux 5.6."""


def host_id() -> str:
    """16 hex digits: the same for all agents that share their slots and the clock by which these are taken.

    So they run on one machine that has not booted since, in one network namespace, with one clock, as one user, and
    have one name for the machine: those that were started from one image of a running one must have names of their own.
    """
    machine_id = next((text for path in _MACHINE_ID if (text := _text(path))), "")  # images without one are common
    namespace = str(_NETWORK_NAMESPACE.stat().st_ino)
    parts = (machine_id, boot_id(), namespace, _text(_CLOCK_OFFSETS), str(os.getuid()), host_name())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def boot_id() -> str:
    """Return the id of this machine's running kernel, 36 characters; '' where the system does not say."""
    return _text(_BOOT_ID)


def host_name() -> str:
    """Return this host's own name, for messages; it is not resolved."""
    return socket.gethostname()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
