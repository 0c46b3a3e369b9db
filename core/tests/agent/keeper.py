"""A worker that gives its agent a memory file with a packet of the type ``keep``, and stays."""

from __future__ import annotations

import os
import signal
import socket

from elastic_core.worker import open_channel

fd = os.memfd_create("train")
os.write(fd, b"step 7")
with open_channel() as agent:
    assert agent is not None
    socket.send_fds(agent, [b'{"type": "keep", "name": "train"}'], [fd])
signal.pause()
