"""The agent's side of the fd store: memory files that workers leave with the agent by name, so that they outlive them.

A worker hands over a descriptor, and a later worker of the same node gets a copy. The memory is in no file system, and
is gone once the agent has ended. Requests are packets on the control channel (``worker_channels.py``): ``hold``,
``held`` and ``release``. Each brings a new socket for the answer, so that answers to several threads or forks of a
worker never mix. An answer that finds no room is dropped. ``elastic_core.worker.fd_store`` is the worker's side.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from elastic_core.worker.channel import HELD, HOLD, KIND, RELEASE

MOST_HELD = 256  # descriptors that are kept at once; an agent may often open 1,024
_NAME = re.compile(r"[\w.:/-]{1,128}", re.ASCII)


class FdStore:
    """The descriptors, by name."""

    def __init__(self, most: int = MOST_HELD) -> None:
        self._most = most
        self.held: dict[str, int] = {}  # for others to read

    def obey(self, request: Mapping[str, Any], descriptors: list[int]) -> bool:
        """Obey a request to the fd store; return whether it was one.

        Args:
            request: A JSON object with a type.
            descriptors: The socket for the answer and, with ``hold``, the memory file. Those that are used are taken
                out of the list; the caller closes the others.

        Raises:
            ValueError: It is an invalid request, which is reported with its sender.
        """
        kind, name = request["type"], request.get("name")
        if kind not in (HOLD, HELD, RELEASE):
            return False
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise ValueError(f"the name of what it would {kind} is {str(name)[:40]!r}")
        with _answers(descriptors.pop(0)) as answers:
            if kind == HOLD:
                refusal = self._hold(name, descriptors)
                _send(answers, {"done": not refusal, "why": refusal})
            elif kind == RELEASE:
                _send(answers, {"done": self._release(name)})
            else:
                found = [self.held[name]] if name in self.held else []
                _send(answers, {"done": bool(found)}, found)
        return True

    def close(self) -> None:
        """Close all descriptors."""
        for name in tuple(self.held):
            self._release(name)

    def _hold(self, name: str, descriptors: list[int]) -> str:
        """Keep a descriptor; return why it is refused, '' if it is kept."""
        if len(descriptors) != 1:
            return f"one descriptor can be kept under a name, and {len(descriptors)} came"
        if not is_memory(descriptors[0]):
            return "only memory files (memfd_create) are kept"
        if name not in self.held and len(self.held) >= self._most:
            return f"{self._most} are kept already"
        self._release(name)
        self.held[name] = descriptors.pop()
        return ""

    def _release(self, name: str) -> bool:
        if (fd := self.held.pop(name, None)) is not None:
            os.close(fd)
        return fd is not None


def is_memory(fd: int) -> bool:
    """Return True if a descriptor is of ``memfd_create``: other files may block, or stay after they are closed."""
    try:
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        return os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:") and os.fstat(fd).st_nlink == 0
    except OSError:
        return False


def _answers(fd: int) -> socket.socket:
    """Return the socket that a worker wants its answer on.

    Raises:
        ValueError: It is something else.
    """
    try:
        answers = socket.socket(fileno=fd)
    except OSError:
        os.close(fd)
        raise ValueError("what it wants its answer on is no socket") from None
    if (answers.family, answers.type) != KIND:
        answers.close()
        raise ValueError("what it wants its answer on is not a local socket of packets")
    return answers


def _send(answers: socket.socket, message: dict[str, object], descriptors: Sequence[int] = ()) -> None:
    packed = array("i", descriptors).tobytes()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)] if packed else []
    with contextlib.suppress(OSError):  # there is no room, or no reader any more
        answers.sendmsg([json.dumps(message).encode()], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
