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
from collections.abc import Mapping

from elastic_core.warden.channel import close_all
from elastic_core.worker.channel import HELD, HOLD, KIND, RELEASE

MOST_HELD = 256  # descriptors that are kept at once; an agent may often open 1,024
_NAME = re.compile(r"[\w.:/-]{1,128}", re.ASCII)
_REQUESTS = (HOLD, HELD, RELEASE)


class FdStore:
    """The descriptors, by name."""

    def __init__(self, most: int = MOST_HELD) -> None:
        self._most = most
        self._held: dict[str, int] = {}

    def obey(self, packet: bytes, descriptors: list[int]) -> bool:
        """Obey a packet if it is a request to the fd store; return whether it was. Keep or close the descriptors.

        Args:
            packet: As it came.
            descriptors: The socket for the answer and, with ``hold``, the memory file.

        Raises:
            ValueError: It is an invalid request, which is reported with its sender.
        """
        try:
            try:
                request = json.loads(packet)
            except (ValueError, RecursionError):
                return False
            match request:
                case {"type": str(type_)} if type_ in _REQUESTS:
                    name = request.get("name")
                    if not (isinstance(name, str) and _NAME.fullmatch(name)):
                        raise ValueError(f"the name of what it would {type_} is {str(name)[:40]!r}")
                    with _answers(descriptors.pop(0)) as answers:
                        self._answer(answers, type_, name, descriptors)
                    return True
            return False
        finally:
            close_all(descriptors)

    @property
    def held(self) -> Mapping[str, int]:
        """The descriptors by name; the fd store closes them."""
        return self._held

    def close(self) -> None:
        """Close all descriptors."""
        while self._held:
            os.close(self._held.popitem()[1])

    def _answer(self, answers: socket.socket, type_: str, name: str, descriptors: list[int]) -> None:
        if type_ == HOLD:
            refusal = self._hold(name, descriptors)
            _send(answers, {"done": not refusal, "why": refusal})
        elif type_ == RELEASE:
            fd = self._held.pop(name, None)
            if fd is not None:
                os.close(fd)
            _send(answers, {"done": fd is not None})
        else:
            fd = self._held.get(name)
            _send(answers, {"done": fd is not None}, [] if fd is None else [fd])

    def _hold(self, name: str, descriptors: list[int]) -> str:
        """Keep a descriptor; return why it is refused, '' if it is kept."""
        if len(descriptors) != 1:
            return f"one descriptor can be kept under a name, and {len(descriptors)} came"
        if not is_memory(descriptors[0]):
            return "only memory files (memfd_create) are kept"
        if name not in self._held and len(self._held) >= self._most:
            return f"{self._most} are kept already"
        if (old := self._held.pop(name, None)) is not None:
            os.close(old)
        self._held[name] = descriptors.pop()
        return ""


def is_memory(fd: int) -> bool:
    """Whether a descriptor is of ``memfd_create``: other files may block, or stay after they are closed."""
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


def _send(answers: socket.socket, message: dict[str, object], descriptors: list[int] | None = None) -> None:
    packed = array("i", descriptors or []).tobytes()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)] if packed else []
    with contextlib.suppress(OSError):  # there is no room, or no reader any more
        answers.sendmsg([json.dumps(message).encode()], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
