"""Leave memory with this worker's agent, for the workers of the next round on this node.

The agent (``agent/fd_store.py``) keeps descriptors of ``memfd_create``, each under a name that all workers of the node
share, until they are released or the agent ends in whatever way; then the memory is freed.
"""

from __future__ import annotations

import json
import select
import socket
import time
from array import array
from typing import Any

from elastic_core.errors import ResourceError
from elastic_core.worker.channel import HELD, HOLD, KIND, LONGEST, RELEASE, open_channel, wait_until_ready

PATIENCE = 10.0  # seconds that a worker waits for its agent's answer, which normally takes a millisecond


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

    None if there is none, no agent of ``elastic run``, or no answer within ``timeout`` seconds.
    """
    return _ask(HELD, name, timeout)[1]


def release(name: str, timeout: float = PATIENCE) -> bool:
    """Have the agent close the descriptor that it keeps under this name; whether there was one."""
    return bool(_ask(RELEASE, name, timeout)[0].get("done"))


def _ask(type_: str, name: str, timeout: float, *descriptors: int) -> tuple[dict[str, Any], int | None]:
    """Return the agent's answer, {} if there is none, and the descriptor that came with it."""
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
        received = array("i", b"".join(packed for _, _, packed in ancillary))
        return answer, received[0] if received else None
