"""One job's directory of the ``file`` backend: what is in it, and when it may be made."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_rdzv_file.disk import PLANTED, Numbered, store_errors


class JobDirectory:
    """The paths in one job's directory, and the shared memory of its connections."""

    def __init__(self, directory: str, *, parent_is_ours: bool = False, shared: bool = False) -> None:
        self.directory = directory
        self._shared = shared
        self._parent = os.path.dirname(directory)
        self._parent_is_ours = parent_is_ours
        self.ledger = Numbered(f"{directory}/ledger")
        self.serials = Numbered(f"{directory}/serials")
        self.roster = f"{directory}/roster"
        self.values = f"{directory}/values"
        self.heartbeats = f"{directory}/heartbeats"
        self.scratch = f"{directory}/scratch"
        self._device: int | None = None  # the file system that it was on when it was first seen

    def make(self) -> None:
        """Make the directories that are not there, also when they were deleted under a running job.

        Only this job's user may enter: who can write here decides what the job does, and incidents quote its output.
        Users that share a job make the directory themselves, with the mode they want, and say that it is shared.

        Raises:
            RendezvousStateError: The job's directory is not one, or was planted by another user.
            RendezvousConnectionError: It cannot be made, or its file system is no longer mounted there.
        """
        with store_errors(self.directory):
            self._check_mount()
            with suppress(FileExistsError):
                os.mkdir(self.directory, 0o700)
            status = os.lstat(self.directory)
            if not stat.S_ISDIR(status.st_mode):
                raise RendezvousStateError(f"{self.directory!r} is not a directory.", hint=PLANTED)
            if not self._shared:
                self._check_private(status)
            numbered = (self.ledger.directory, self.serials.directory)
            for part in (*numbered, self.roster, self.values, self.heartbeats, self.scratch):
                Path(part).mkdir(exist_ok=True)

    def erase(self) -> None:
        """Delete it, with all that is in it; and its parent if that was made for it, and no other job is there.

        Raises:
            OSError: That is not permitted.
        """
        with suppress(FileNotFoundError):
            shutil.rmtree(self.directory)
        if self._parent_is_ours:
            with suppress(OSError):  # another process is there
                os.rmdir(self._parent)

    def _check_private(self, status: os.stat_result) -> None:
        """Refuse a directory in which others decide: they own it, or all users may write there."""
        mode, fault = stat.S_IMODE(status.st_mode), ""
        if status.st_uid not in (os.geteuid(), 0):
            fault = f"belongs to another user ({status.st_uid})"
        elif mode & stat.S_IWOTH:
            fault = f"can be written to by every user (mode {mode:04o})"
        if fault:
            raise RendezvousStateError(
                f"{self.directory!r} {fault}: every writer there decides what the job does.",
                hint="Use a directory of this user's. If several users are to share the job, or the file server has "
                "other user ids than this host, say --rdzv_conf shared=true.",
            )

    def _check_mount(self) -> None:
        """Refuse to begin anew, each host for itself, on the bare mount point of a share that is gone."""
        device = os.stat(self._parent).st_dev
        if self._device is None:
            self._device = device
        elif device != self._device:
            raise RendezvousConnectionError(
                f"The rendezvous directory does not work: another file system is mounted at "
                f"{self._parent!r} than before, or none.",
                hint="Mount it again: the nodes of a job meet there.",
            )
