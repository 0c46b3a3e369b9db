"""The slot of an agent on its host, and its directories: for the logs and error files of a run, and temporary ones.

An agent removes its temporary directories at its end; if it was killed, its warden does. If both are killed, a plugin
can remove a directory whose *mark*, a file in it, names a slot that no process holds, as elastic-operate does. A slot
is held by the agent, its warden, its workers, and the processes that these have started (rule S8).
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from elastic_core.config.run import RunConfig
from elastic_core.digest import hex_digest
from elastic_core.errors import ElasticError, ResourceError, UsageError
from elastic_core.host.identity import boot_id, network_id
from elastic_core.protocol.roster import SLOTS, Slots

PREFIX = "elastic_"  # of the names of temporary directories
MARK = ".elastic-mark"  # the file that names the slot without which its directory may be removed


class Slot:
    """One of this host's places in a job, held by one agent at a time (rule S8).

    A slot is the name of an abstract unix socket. To bind it is atomic, the whole network namespace sees it, and it
    vanishes with the last process that holds the descriptor; no file is left behind. The warden holds it until its last
    process is gone. So if a slot is free, all processes of its former holder are dead.
    """

    def __init__(self, number: int, held: socket.socket, prefix: str) -> None:
        self.number = number  # from 0
        self.name = f"{prefix}{number}"  # of the socket, without the zero byte
        self._held, self._prefix = held, prefix
        self._others = tuple(other for other in range(SLOTS) if other != number)
        self._dated = bool(boot_id())  # else its clock may be another boot's
        self._looked = Slots(0, self._others)
        self.slots = self.look()  # the others, as seen when this one had just been taken

    @classmethod
    def take(cls, job: str) -> Slot:
        """Take the lowest free slot of ``job``, a text that its agents share; ElasticError if the host gives none."""
        held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        key = hex_digest(job, 32)
        prefix = f"elastic/{os.getuid()}/{key}/"
        for number in count():
            try:
                held.bind(f"\0{prefix}{number}")
                break
            except OSError as exc:
                if exc.errno != errno.EADDRINUSE:
                    held.close()
                    raise ElasticError(
                        f"This agent could not be numbered among the job's agents on this host: {exc}."
                    ) from exc
        return cls(number, held, prefix)

    def look(self) -> Slots:
        """Return which of the host's other slots are held; the last answer, if too many files are open to look."""
        at = time.monotonic_ns() if self._dated else 0  # before the look, which may miss slots that are taken meanwhile
        with suppress(OSError):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
                held = tuple(other for other in self._others if _is_bound(asking, f"{self._prefix}{other}"))
            self._looked = Slots(at, held)
        return self._looked

    def fileno(self) -> int:
        """Return the descriptor that is the slot; the warden holds it, too."""
        return self._held.fileno()

    def close(self) -> None:
        """Close this agent's descriptor; the slot is free once all other holders have closed theirs."""
        self._held.close()


def names_free_slot(mark: str) -> bool:
    """Return True if a mark, a text, is of this boot and network namespace, and no process holds the slot it names.

    The test does not bind the slot, so a newcomer does not find it taken meanwhile.

    Raises:
        OSError: The boot has no id, or too many files are open.
    """
    system, _, slot = mark.partition("\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
        return bool(slot) and system == _this_system() and not _is_bound(asking, slot)


def _is_bound(asking: socket.socket, name: str) -> bool:
    return asking.connect_ex(f"\0{name}") != errno.ECONNREFUSED  # others: held, forbidden, or out of memory


def make_log_dir(path: Path) -> None:
    """Make the directory for logs, for this user alone; raise UsageError if that fails, or it is not writable."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise UsageError(f"--log_dir {str(path)!r} cannot be made: {exc.strerror}.") from exc
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"--log_dir {str(path)!r} is not writable.")


def make_directories(path: Path) -> None:
    """Make a directory and those above it that are missing, for this user and their group, or raise OSError."""
    for missing in reversed([each for each in (path, *path.parents) if not each.exists()]):
        missing.mkdir(mode=0o750, exist_ok=True)


def log_directory(config: RunConfig, run_uid: str, *, keep: bool = False) -> tuple[Path, bool]:
    """Return the directory for the logs and error files of this run, and whether it is removed at the end.

    ``keep`` tells that a plugin keeps files there.

    Raises:
        ResourceError: No directory for temporary files is writable, and one is needed.
    """
    name = f"{urllib.parse.quote(config.rdzv_id, safe='')}_{run_uid}"
    if config.log_dir is not None:
        return config.log_dir / name, False
    wanted = keep or config.redirects.any or config.tee.any or config.local_ranks_filter is not None
    try:
        return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{name[:80]}_")), not wanted
    except OSError as exc:  # a read-only root, or full disks
        raise ResourceError(
            f"The agent needs a directory for temporary files: {exc.strerror}.",
            hint="Mount a writable /tmp (Kubernetes: an emptyDir), or name another directory with --log_dir or TMPDIR.",
        ) from exc


def remove_round(directory: Path, *, temporary: bool) -> None:
    """Remove the directory of a round that is over. Where logs are kept, remove only its empty directories."""
    if temporary:
        shutil.rmtree(directory, ignore_errors=True)
        return
    for path in (*directory.glob("rank_*"), directory):
        with suppress(OSError):  # it has a log
            path.rmdir()


@contextmanager
def marked(directory: Path, slot: str) -> Iterator[None]:
    """Mark this directory, so that it can be removed if all processes that hold the slot of this name are killed.

    It is a new one, for this user alone. If the mark cannot be written, no other agent removes it.
    """
    with suppress(OSError):
        text = f"{_this_system()}\n{slot}"
        (directory / MARK).touch(0o600, exist_ok=False)
        (directory / MARK).write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(directory / MARK)


def _this_system() -> str:
    """Return an id of the boot and the network namespace, since only their processes see who holds a slot."""
    if not (boot := boot_id()):
        raise OSError("the boot has no id")
    return f"{boot} {network_id()}"
