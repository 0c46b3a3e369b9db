"""Notes that a worker leaves with its agent, for the agent and the workers of the next round: texts in memory files."""

from __future__ import annotations

import os

from elastic_core.worker import held, hold
from elastic_torch.memory.snapshot_format import note_in

ANSWER_SECONDS = 10.0  # to wait for the agent


def leave(name: str, text: bytes, timeout: float = ANSWER_SECONDS) -> None:
    """Leave a note, in place of an earlier one of this name; wait ``timeout`` seconds for the agent's answer.

    Raises:
        ResourceError: The agent does not keep it.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, text)
        hold(name, fd, timeout)
    finally:
        os.close(fd)


def read(name: str, timeout: float = ANSWER_SECONDS) -> bytes | None:
    """Return the note of this name; None if there is none, or no answer within ``timeout`` seconds."""
    if (fd := held(name, timeout)) is None:
        return None
    try:
        return note_in(fd)
    finally:
        os.close(fd)
