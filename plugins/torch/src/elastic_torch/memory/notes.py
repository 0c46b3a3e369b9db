"""Notes that a worker leaves with its agent, for the agent and the workers of the next round: texts in memory files."""

from __future__ import annotations

import os

from elastic_core.worker import held, hold
from elastic_torch.memory.snapshot_format import NOTE_MAX_BYTES


def leave(name: str, text: bytes) -> None:
    """Leave a note, in place of an earlier one of this name.

    Raises:
        ResourceError: The agent does not keep it.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, text)
        hold(name, fd)
    finally:
        os.close(fd)


def read(name: str) -> bytes | None:
    """Return the note of this name; None if there is none."""
    if (fd := held(name)) is None:
        return None
    try:
        return os.pread(fd, NOTE_MAX_BYTES, 0)
    finally:
        os.close(fd)
