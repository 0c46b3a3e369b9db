"""The fd store: memory files that workers leave with their agent by name, for the node's workers of the next round.

A worker hands over a descriptor of ``memfd_create`` (:func:`hold`), and a later worker gets a copy (:func:`held`). The
memory is in no file system, and is freed once the agent has ended in whatever way. Requests are packets on the control
channel, which the agent's plugin serves (``agent.py``). Each brings a new socket for the answer, so that answers to
several threads or forks of a worker never mix. An answer that finds no room is dropped.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import select
import socket
import time
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from elastic_core.errors import ResourceError
from elastic_core.worker import KIND, LONGEST, open_channel, wait_until_ready

HOLD, HELD, RELEASE = "hold", "held", "release"  # requests: keep a descriptor, give one, close one
MOST_HELD = 256  # descriptors that are kept at once; an agent may often open 1,024
PATIENCE = 10.0  # seconds that a worker waits for its agent's answer, which normally takes a millisecond
_NAME = re.compile(r"[\w.:/-]{1,128}", re.ASCII)


class FdStore:
    """The agent's descriptors, by name."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}  # for others to read

    def obey(self, request: Mapping[str, Any], descriptors: list[int]) -> str:
        """Obey a request; return why it is malformed or has failed, '' if it is neither.

        Args:
            request: A JSON object with a type.
            descriptors: The socket for the answer and, with ``hold``, the memory file. Those that are used are taken
                out of the list; the caller closes the others.
        """
        kind, name = request["type"], request.get("name")
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            return f"its request {kind!r} has the invalid name {str(name)[:40]!r}"
        if not descriptors:
            return f"its request {kind!r} brings no socket for the answer"
        fd = descriptors.pop(0)
        try:
            answers = socket.socket(fileno=fd)
        except OSError:
            os.close(fd)
            return "the first descriptor of its request is no socket"
        with answers:
            if (answers.family, answers.type) != KIND:
                return "the first descriptor of its request is not a local socket of packets"
            try:
                if kind == HOLD:
                    refusal = self._hold(name, descriptors)
                    _send(answers, {"done": not refusal, "why": refusal})
                elif kind == RELEASE:
                    _send(answers, {"done": self._release(name)})
                else:
                    found = [self.held[name]] if name in self.held else []
                    _send(answers, {"done": bool(found)}, found)
            except Exception as error:  # else the worker would conclude that nothing is kept
                _send(answers, {"error": repr(error)})
                return f"its request {kind!r} failed: {error!r}"
        return ""

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
        if name not in self.held and len(self.held) >= MOST_HELD:
            return f"{MOST_HELD} are kept already"
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


def _send(answers: socket.socket, message: dict[str, object], descriptors: Sequence[int] = ()) -> None:
    packed = array("i", descriptors).tobytes()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)] if packed else []
    with contextlib.suppress(OSError):  # there is no room, or no reader any more
        answers.sendmsg([json.dumps(message).encode()], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def hold(name: str, fd: int, timeout: float = PATIENCE) -> bool:
    """Leave a copy of a descriptor with the agent, which replaces the one that it has under this name.

    Args:
        name: 1 to 128 letters, digits and ``_.:/-``.
        fd: A descriptor of ``os.memfd_create``. It stays the caller's.
        timeout: Seconds to wait for the answer.

    Returns:
        Whether the agent keeps it; False without an agent of ``elastic run``, or without an answer.

    Raises:
        ResourceError: The agent does not keep it: it is no memory file, or there are too many already.
    """
    answer, _ = _ask(HOLD, name, timeout, fd)
    if answer and not answer.get("done"):
        raise ResourceError(f"The agent does not keep {name!r}: {answer.get('why')}.")
    return bool(answer)


def held(name: str, timeout: float = PATIENCE) -> int | None:
    """Return a copy of the descriptor that the agent keeps under this name, which the caller has to close.

    None if there is none, no agent of ``elastic run`` that keeps any, or no answer within ``timeout`` seconds. Raise
    ResourceError if the agent cannot say.
    """
    return _ask(HELD, name, timeout)[1]


def release(name: str, timeout: float = PATIENCE) -> bool:
    """Have the agent close the descriptor that it keeps under this name; whether there was one."""
    return bool(_ask(RELEASE, name, timeout)[0].get("done"))


def _ask(type_: str, name: str, timeout: float, *descriptors: int) -> tuple[dict[str, Any], int | None]:
    """Return the agent's answer, {} if there is none, and its descriptor; raise ResourceError if it could not obey."""
    deadline = time.monotonic() + timeout
    ours, theirs = socket.socketpair(*KIND)
    with ours:
        with theirs, open_channel() as agent:
            if agent is None or not wait_until_ready(agent, select.POLLOUT, timeout):
                return {}, None
            packet = json.dumps({"type": type_, "name": name}).encode()
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [theirs.fileno(), *descriptors]).tobytes())]
            try:
                agent.sendmsg([packet], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except OSError:
                return {}, None
        if not wait_until_ready(ours, select.POLLIN, deadline - time.monotonic()):
            return {}, None
        try:
            data, ancillary, _, _ = ours.recvmsg(LONGEST, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
            answer = json.loads(data)
        except (OSError, ValueError):  # end-of-file: the agent did not take the request
            return {}, None
        if failed := answer.get("error"):
            raise ResourceError(f"The agent cannot say what it keeps of the training: {type_!r} failed with {failed}.")
        received = array("i", b"".join(packed for _, _, packed in ancillary))
        return answer, received[0] if received else None
