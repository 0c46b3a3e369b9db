"""The workers' store of one round, torch's TCPStore, as a service that the fork server forks.

It listens before the round's workers are started, so none of them has to open it, and it outlives rank 0.
"""

from __future__ import annotations

import resource
import signal
from datetime import timedelta
from importlib import import_module

CONNECT_WITHIN = 60.0  # seconds that the store's own client may take; it is on the same host


def serve(host: str, port: int, socket: int) -> None:
    """Serve until killed, on the descriptor ``socket``, which is bound to ``port`` and reached at ``host``."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # every rank holds a socket; 1024 is usual for the soft limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    distributed = import_module("torch.distributed")
    store = distributed.TCPStore(
        host,
        port,
        world_size=None,
        is_master=True,
        timeout=timedelta(seconds=CONNECT_WITHIN),
        wait_for_workers=False,
        master_listen_fd=socket,
        use_libuv=True,
    )
    while store is not None:
        signal.pause()
