"""An agent's slot in its job on this host (rule S8)."""

from __future__ import annotations

import errno
import os
import socket
import time
from contextlib import suppress

from elastic_core.digest import hex_digest
from elastic_core.errors import ElasticError
from elastic_core.host.identity import boot_id
from elastic_core.protocol.roster import SLOTS, Slots


class Slot:
    """One of this host's places in a job, held by one agent at a time (rule S8).

    A slot is the name of an abstract unix socket. To bind it is atomic, the whole network namespace sees it, and it
    vanishes with the last process that holds the descriptor; no file is left behind. The warden holds it until its last
    process is gone. So if a slot is free, all processes of its former holder are dead.
    """

    def __init__(self, number: int, held: socket.socket, prefix: str) -> None:
        self.number = number  # from 0
        self.name = f"{prefix}{number}"  # of the socket, without the zero byte
        self._held, self._prefix = held, prefix
        self._others = tuple(other for other in range(SLOTS) if other != number)
        self._dated = bool(boot_id())  # else its clock may be another boot's
        self._looked = Slots(0, self._others)
        self.slots = self.look()  # the others, as seen when this one had just been taken

    @classmethod
    def take(cls, job: str) -> Slot:
        """Take the lowest free slot of ``job``, a text that is the same for all its agents.

        Raises:
            ElasticError: This host gives no slot.
        """
        held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        key = hex_digest(job, 32)
        prefix, number = f"elastic/{os.getuid()}/{key}/", 0
        while True:
            try:
                held.bind(f"\0{prefix}{number}")
            except OSError as exc:
                if exc.errno != errno.EADDRINUSE:
                    held.close()
                    raise ElasticError(
                        f"This agent could not be numbered among the job's agents on this host: {exc}."
                    ) from exc
                number += 1
            else:
                return cls(number, held, prefix)

    def look(self) -> Slots:
        """Return which of the host's other slots are held; the last answer, if too many files are open to look."""
        at = time.monotonic_ns() if self._dated else 0  # before the look, which may miss slots that are taken meanwhile
        with suppress(OSError):
            with _asking_socket() as asking:
                held = tuple(other for other in self._others if _is_bound(asking, f"{self._prefix}{other}"))
            self._looked = Slots(at, held)
        return self._looked

    def fileno(self) -> int:
        """Return the descriptor that is the slot; the warden holds it, too."""
        return self._held.fileno()

    def close(self) -> None:
        """Close this agent's descriptor; the slot is free once all other holders have closed theirs."""
        self._held.close()


def is_held(name: str) -> bool:
    """Return True if a slot's name is bound. The test does not bind it, so a newcomer does not find it taken meanwhile.

    Raises:
        OSError: Too many files are open.
    """
    with _asking_socket() as asking:
        return _is_bound(asking, name)


def _asking_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


def _is_bound(asking: socket.socket, name: str) -> bool:
    return asking.connect_ex(f"\0{name}") != errno.ECONNREFUSED  # others: held, forbidden, or out of memory
