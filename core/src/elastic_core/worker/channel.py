"""The worker's end of its channel to its agent: one inherited descriptor, whose number a variable names.

A report is a JSON object with a ``type``, in one packet of a socketpair, so that reports of a worker and of its forks
never mix. ``agent/worker_channels.py`` is the agent's end. The warden and the starter import this module too, so it
must stay cheap.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import time
from collections.abc import Iterator, Mapping

CONTROL_VARIABLE = "ELASTIC_CONTROL_FD"
LONGEST = 4096  # bytes that a report may have; the agent ignores longer ones
RECORDING, INITIALIZED, FAILED, OVER = "recording", "initialized", "failed", "over"
"""The worker records the exception that ends it; the process group is ready; such an exception has ended the program;
the program has ended otherwise."""
STEP, LEAVES, PROGRESS = "step", "leaves", "progress"
"""A rank has taken ``step``, and takes ``ahead`` more without a report; it stops after ``step``, as it was told; what a
script reports (``progress.py``)."""
PLAN, STOP_AT, GO_ON = "plan", "stop_at", "go_on"
"""Notices, from the agent: hold after the next report; stop after ``step``; do not wait any longer."""
KIND = (socket.AF_UNIX, socket.SOCK_SEQPACKET)  # of the descriptor; another file may have got its number meanwhile


@contextlib.contextmanager
def open_channel(environ: Mapping[str, str] = os.environ) -> Iterator[socket.socket | None]:
    """Yield this worker's channel, which stays open afterwards; None if ``elastic run`` has not started the worker."""
    try:
        end = socket.socket(fileno=int(environ[CONTROL_VARIABLE]))
    except (KeyError, ValueError, OSError):
        yield None
        return
    try:
        yield end if (end.family, end.type) == KIND else None
    finally:
        end.detach()


def wait_until_ready(end: socket.socket | int, event: int, seconds: float) -> bool:
    """Wait for ``seconds`` until a descriptor has an event of :mod:`select`, such as POLLIN; whether it has."""
    poll = select.poll()
    poll.register(end, event)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def send(end: socket.socket, message: Mapping[str, object], patience: float = 0.0) -> bool:
    """Send a packet, and wait up to ``patience`` seconds for room; whether it was sent."""
    deadline = time.monotonic() + patience
    while True:
        try:
            end.send(json.dumps(message).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            if not patience or not wait_until_ready(end, select.POLLOUT, deadline - time.monotonic()):
                return False
        except OSError:
            return False
        else:
            return True


def report(type_: str) -> bool:
    """Send a report to this worker's agent, without waiting; False if there is no agent, or no room for it."""
    with open_channel() as agent:
        return agent is not None and send(agent, {"type": type_})
