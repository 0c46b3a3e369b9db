"""The worker's end of its channel to its agent: one inherited descriptor, whose number a variable names.

A report is a JSON object with a ``type``, in one packet of a socketpair, so that those of a worker and of what it has
forked never mix. ``initialized`` says that the process group is there, ``failed`` that an exception has ended the
program and the interpreter is about to follow, ``over`` that it has ended otherwise, ``step`` and ``leaves`` how far it
has come (``graceful_stop.py``, which also reads what the agent sends: ``plan``, ``stop_at``, ``go_on``), ``progress``
what a script says of that (``progress.py``).
``agent/worker_channels.py`` is the agent's end. What is left with the agent (``fd_store.py``) goes the same way.

Imported by the warden and the fork server too, so by few and cheap means.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
from collections.abc import Iterator, Mapping

CONTROL_VARIABLE = "ELASTIC_CONTROL_FD"
LONGEST = 4096  # bytes that a report may have; the agent ignores longer ones
INITIALIZED, FAILED, OVER = "initialized", "failed", "over"
STEP, LEAVES, PROGRESS = "step", "leaves", "progress"
"""The last ``step`` that a rank comes to without another report; that it stops after ``step``, as it was told; what a
script reports (``progress.py``)."""
PLAN, STOP_AT, GO_ON = "plan", "stop_at", "go_on"
"""Notices, from the agent: hold after the next report; stop after ``step``; do not wait any longer."""
HOLD, HELD, RELEASE = "hold", "held", "release"
"""Types of what is asked of the agent: to keep a descriptor, to give one, to let one go."""
KIND = (socket.AF_UNIX, socket.SOCK_SEQPACKET)
"""What the descriptor is; another one may have got its number meanwhile, or in a child."""


@contextlib.contextmanager
def channel(environ: Mapping[str, str] = os.environ) -> Iterator[socket.socket | None]:
    """Yield this worker's channel, which stays open afterwards; None where there is no agent of ours."""
    try:
        end = socket.socket(fileno=int(environ[CONTROL_VARIABLE]))
    except (KeyError, ValueError, OSError):
        yield None
        return
    try:
        yield end if (end.family, end.type) == KIND else None
    finally:
        end.detach()


def wait_until_ready(end: socket.socket, event: int, seconds: float) -> bool:
    """Wait for ``seconds`` until a socket has an event of :mod:`select`, such as POLLIN; whether it has."""
    poll = select.poll()
    poll.register(end, event)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def report(type_: str) -> bool:
    """Tell this worker's agent something; whether it has been sent.

    It never waits, and nothing is wrong where there is no agent: then, and if the agent is too far behind, it is not
    sent.
    """
    with channel() as agent:
        if agent is None:
            return False
        try:
            agent.send(json.dumps({"type": type_}).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            return False
    return True
