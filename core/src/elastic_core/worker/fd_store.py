"""Leave memory with this worker's agent, for the workers of the next round on this node.

What is left are descriptors of ``memfd_create``, each under a name that all workers of the node share. The agent keeps
them until they are released or the job ends, in whatever way; then the memory is gone. ``agent/fd_store.py`` is its
end.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from array import array
from typing import Any

from elastic_core.errors import ResourceError
from elastic_core.worker.channel import HELD, HOLD, KIND, LONGEST, RELEASE, channel, wait_until_ready

SNAPSHOT_HEADER = struct.Struct("<8sQQQQ")
"""How a memory file begins that is a snapshot: the magic word, whether it is complete, and where a text is that says
what is in it, with its length and CRC-32; the text is JSON, a list that begins with the round and the step. ``{"rank":
1, "world": 4, `` comes next in a part of a sharded state. Whatever is behind the text does not matter."""
SNAPSHOT_MAGIC = b"elastic1"  # the last byte is the format's number
SNAPSHOT_COMPLETE = 1
RESCUE = "rescue"
"""Under ``NAME/rescue`` a worker leaves what the agent is to do with the snapshots ``NAME/…`` when the job fails for
good: ``agent/snapshot_rescue.py``."""
PATIENCE = 10.0  # seconds that a worker waits for its agent's answer, which normally takes a millisecond


def hold(name: str, fd: int, timeout: float = PATIENCE) -> bool:
    """Leave a copy of a descriptor with the agent, in the place of what it has under this name; whether it has it.

    Args:
        name: 1 to 128 letters, digits and ``_.:/-``.
        fd: Of ``os.memfd_create``. It stays the caller's.
        timeout: Seconds to wait for the answer.

    Returns:
        False where there is no agent of ours, or it does not answer.

    Raises:
        ResourceError: The agent does not keep it: it is no memory file, or there are too many already.
    """
    answer, _ = _ask(HOLD, name, timeout, [fd])
    if answer and not answer.get("done"):
        raise ResourceError(f"The agent does not keep {name!r}: {answer.get('why')}.")
    return bool(answer)


def held(name: str, timeout: float = PATIENCE) -> int | None:
    """Return a descriptor that was left with the agent under this name: a copy, which is the caller's to close.

    None where there is none, or no agent of ours, or no answer within ``timeout`` seconds.
    """
    return _ask(HELD, name, timeout)[1]


def release(name: str, timeout: float = PATIENCE) -> bool:
    """Have the agent close what it keeps under this name; whether there was something."""
    return bool(_ask(RELEASE, name, timeout)[0].get("done"))


def is_of_other_format(fd: int) -> bool:
    """Whether a memory file is a snapshot of a release that has another format."""
    magic = os.pread(fd, len(SNAPSHOT_MAGIC), 0)
    return magic != SNAPSHOT_MAGIC and magic[:-1] == SNAPSHOT_MAGIC[:-1]


def _ask(
    type_: str, name: str, timeout: float, descriptors: list[int] | None = None
) -> tuple[dict[str, Any], int | None]:
    """Return the agent's answer, {} if there is none, and the descriptor that came with it."""
    deadline = time.monotonic() + timeout
    ours, theirs = socket.socketpair(*KIND)
    with ours:
        with theirs, channel() as agent:
            if agent is None or not wait_until_ready(agent, select.POLLOUT, timeout):
                return {}, None
            rights = array("i", [theirs.fileno(), *(descriptors or [])]).tobytes()
            try:
                agent.sendmsg(
                    [json.dumps({"type": type_, "name": name}).encode()],
                    [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)],
                    socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL,
                )
            except OSError:
                return {}, None
        if not wait_until_ready(ours, select.POLLIN, deadline - time.monotonic()):
            return {}, None
        return _received(ours)


def _received(sock: socket.socket) -> tuple[dict[str, Any], int | None]:
    try:
        data, ancillary, _, _ = sock.recvmsg(LONGEST, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
        answer = json.loads(data)
    except (OSError, ValueError):  # the end: it did not take the request
        return {}, None
    descriptors = array("i", b"".join(packed for _, _, packed in ancillary))
    return answer, descriptors[0] if descriptors else None
