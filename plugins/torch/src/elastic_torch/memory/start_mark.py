"""A mark that a worker leaves with its agent if a round begins with a state that is not in memory: from disk, or anew.

The agent keeps it until the worker's first commit is over. A worker that is killed in that commit has no snapshot.
Without the mark it would look like a new rank, and would get the state of another rank, with new random numbers.
"""

from __future__ import annotations

import contextlib
import os

from elastic_core.errors import ResourceError
from elastic_core.worker import held, hold, release

_LONGEST = 32


class StartMark:
    """The mark of one worker: the number of the round."""

    def __init__(self, prefix: str) -> None:
        self._name = f"{prefix}/began"

    def round(self) -> int | None:
        """Return the round of the mark; None if there is no mark."""
        if (fd := held(self._name)) is None:
            return None
        try:
            return int(os.pread(fd, _LONGEST, 0))
        finally:
            os.close(fd)

    def leave(self, round_: int) -> None:
        """Leave the mark of a round."""
        fd = os.memfd_create(self._name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.write(fd, b"%d" % round_)
            with contextlib.suppress(ResourceError):  # the first commit says that the agent keeps nothing
                hold(self._name, fd)
        finally:
            os.close(fd)

    def release(self) -> None:
        """Remove the mark."""
        release(self._name)
