"""The loss of a peer: how a worker says that another one, or the network between them, has failed."""

from __future__ import annotations

import re
from collections.abc import Mapping

PEER_LOSS_PATTERNS: Mapping[str, str] = {
    "the kernel: the peer's process has ended": r"connection (closed|reset) by peer|broken pipe",
    "gloo: the peer does not answer": r"timed out waiting \d{1,12} ?ms for (send|recv)|application timeout caused pair",
    "gloo: the peer cannot be reached": r"gloo connectfullmesh failed",
    "gloo: a rank did not come to monitored_barrier": r"failed to pass monitoredb|successfully reached monitoredb",
    "NCCL: the peer's process has ended": r"ncclremoteerror|remote process exited|peer process terminated",
    "NCCL: the peer does not answer": r"caught collective operation timeout|operations have failed or timed out",
    "NCCL: torch has given the group up": r"nccl communicator was aborted|timeout signal from another rank",
    "TCPStore: the peer does not come": r"socket timeout|wait timeout after \d{1,9} ?ms|/\d{1,6} clients joined",
    "TCPStore: the peer that holds it is gone": r"failed to recv, got 0 bytes|distnetworkerror",
}
"""Messages of a worker whose peer has failed, by their meaning; regular expressions in lower case."""
_PEER_LOSS = re.compile("|".join(PEER_LOSS_PATTERNS.values()), re.IGNORECASE)
_DISTRIBUTED = re.compile(r"/torch/distributed/(?!elastic/)")
_OF_COLLECTIVES = re.compile(
    r"gloo|nccl|c10d|tcpstore|torch[./]distributed|processgroup|monitoredbarrier|clients joined"
)


def is_peer_loss(text: str, origin: str = "") -> bool:
    """Return True if a text is that of a collective, or of torch's store, that has lost a peer.

    Args:
        text: The text of an exception with its type, or what native code wrote before it aborted.
        origin: The files of the library functions that raised it. A program's own sockets and pipes break too, so the
            text must be of gloo, NCCL or torch's store, or a function of ``torch.distributed``.
    """
    if _PEER_LOSS.search(text) is None:
        return False
    return _OF_COLLECTIVES.search(text.lower()) is not None or _DISTRIBUTED.search(origin) is not None
