"""Detection of file systems that all nodes of a cluster see, by the type of a directory's mount.

The type is the same on all nodes, at any time, and needs no other node: a node that comes alone, or comes back, decides
as the others did. (A directory that the automounter brings has its type only once something has looked at it, so each
candidate is looked at before the mounts are read.) A test by a file that another node has to see would not: who waits
for whom, and for how long, would decide, and nodes that decide differently never meet.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

VARIABLE = "ELASTIC_SHARED_DIRECTORY"
FOLDER = f".elastic-{os.getuid()}"  # in the shared directory, with a folder for each job; users may share a project
NETWORK_TYPES = frozenset(
    (
        *("afs", "beegfs", "beegfs_nodev", "ceph", "cifs", "dvs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4"),
        *("ocfs2", "orangefs", "panfs", "pvfs2", "quobyte", "smb3", "vast", "wekafs"),
        *("fuse.beegfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.daos", "fuse.glusterfs", "fuse.juicefs", "fuse.moosefs"),
        *("fuse.quobyte", "fuse.sshfs"),
    )
)
"""Types of file systems that several hosts mount. Not among them: ``9p`` and ``virtiofs``, with which a virtual machine
sees its own host, and file systems over object stores, whose ``link`` and ``rename`` are not atomic."""


def resolve(directory: str) -> str | None:
    """Return a directory without symbolic links, mounted; None if it is none in which this user can make a folder."""
    try:
        os.stat(os.path.join(directory, ""))  # the automounter mounts it now; with the slash also what a link names
    except OSError:
        return None
    return os.path.realpath(directory) if os.access(directory, os.W_OK | os.X_OK) else None


def read_mounts() -> str:
    """Return what is mounted now."""
    return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")


def find(
    environ: Mapping[str, str],
    mounts: Callable[[], str] = read_mounts,
    resolve: Callable[[str], str | None] = resolve,
) -> tuple[str, str] | None:
    """Return a directory that all nodes see, and the variable that names it; None where none is known.

    Args:
        environ: ELASTIC_SHARED_DIRECTORY names one by hand, and an empty value says that there is none. Else the
            directory from which the job was submitted, then the home directory, if a network file system has it.
        mounts: Returns the text of ``/proc/self/mountinfo``.
        resolve: Returns the path of a directory, by which its mount is found; None for one that cannot be used.
    """
    if (named := environ.get(VARIABLE)) is not None:
        return (os.path.join(named, FOLDER), VARIABLE) if named else None
    for variable in ("SLURM_SUBMIT_DIR", "HOME"):
        directory = environ.get(variable)
        if not directory or (path := resolve(directory)) is None:
            continue
        if file_system_type(path, _mounts(mounts())) in NETWORK_TYPES:
            return os.path.join(directory, FOLDER), variable
    return None


def file_system_type(directory: str, mounts: Iterable[tuple[str, str]]) -> str:
    """Return the type of the file system that has a directory: that of the longest mount point above it."""
    path, found, longest = Path(directory), "", -1
    for point, kind in mounts:
        if path.is_relative_to(point) and len(point) >= longest:  # of two at one point the later one hides the other
            found, longest = kind, len(point)
    return found


def _mounts(text: str) -> Iterable[tuple[str, str]]:
    """Yield mount point and type of each line of a mountinfo: ``36 35 98:0 /root /point options - type source``."""
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        fields = before.split()
        if dash and len(fields) > 4 and after:
            point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
            yield point, after.split()[0]
