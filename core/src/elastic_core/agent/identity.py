"""Who this node is: the machine that it runs on, and its seat there."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from pathlib import Path

from elastic_core.errors import ElasticError

_MACHINE_ID = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK_NAMESPACE = Path("/proc/self/ns/net")


def host_id() -> str:
    """16 hex digits, the same for all agents in one network namespace of one machine, until it boots again."""
    machine_id = next((text for path in _MACHINE_ID if (text := _text(path))), "")  # images without one are common
    parts = (machine_id, _text(_BOOT_ID), str(_NETWORK_NAMESPACE.stat().st_ino))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def host_name() -> str:
    """This host's name as it knows itself, for people; nobody looks it up."""
    return socket.gethostname()


class Seat:
    """One of this host's places in a job: whoever holds it is the only one (rule S8).

    It is the name of an abstract unix socket. Binding that is atomic, it is known throughout the network namespace, as
    :func:`host_id` is, and it vanishes with the last process that holds the descriptor, without a file to be left
    behind. The warden holds it until its last process is gone, so that who takes a seat again knows that all of its
    former holder is dead.
    """

    def __init__(self, number: int, held: socket.socket) -> None:
        self.number = number
        self._held = held

    @classmethod
    def take(cls, job: str) -> Seat:
        """Take the lowest free seat of ``job``, any text that is the same for all its agents.

        Raises:
            ElasticError: This host lets nobody sit down.
        """
        held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        key = hashlib.sha256(job.encode(errors="surrogateescape")).hexdigest()[:32]
        number = 0
        while True:
            try:
                held.bind(f"\0elastic/{os.getuid()}/{key}/{number}")
            except OSError as exc:
                if exc.errno != errno.EADDRINUSE:
                    held.close()
                    raise ElasticError(f"No seat on this host could be taken for the job: {exc}.") from exc
                number += 1
            else:
                return cls(number, held)

    def fileno(self) -> int:
        """The descriptor that is the seat, to be held by the warden, too."""
        return self._held.fileno()

    def close(self) -> None:
        """Let go of it; it is free once all others have."""
        self._held.close()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
