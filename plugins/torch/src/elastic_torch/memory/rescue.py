"""Snapshots that agents have written to a directory because their job had failed for good, and the next run's way back.

The first worker of each node tells its agent where to write them (``elastic_core.agent.snapshot_rescue`` does that).
The next run looks there when no rank has a snapshot in memory, and goes on from one that is newer than the newest
checkpoint: it is put into memory as a snapshot of round 0, and treated like any other. The files stay
where they are; once the run has saved a checkpoint, that is the newer one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from elastic_core.errors import ElasticError, ResourceError
from elastic_core.worker.fd_store import RESCUE, held, hold
from elastic_torch.memory.buffers import MOST
from elastic_torch.memory.snapshot import Buffer, Snapshot
from elastic_torch.state.disk_tier import AnyCheckpoint, DiskTier
from elastic_torch.state.state_exchange import Peers
from elastic_torch.version import Place, Stamp

logger = logging.getLogger("elastic_torch.memory")
VARIABLE = "ELASTIC_RESCUE_DIR"
FOLDER = "rescued"
"""In the directory of the checkpoints."""
_FORMAT = 1
_OTHER_RELEASE = "to go on from it, start the job with the release that wrote it"
_BLOCK = 8 << 20
_ABANDONED = 86400.0
"""Seconds after which an unfinished file counts as abandoned, where files cannot be locked."""
_ANSWER = 5.0
"""Seconds to wait for the agent: without its answer a snapshot may be written that need not be."""


@dataclass(frozen=True, slots=True)
class Rescued:
    """One snapshot that an agent has written."""

    path: str
    run: str
    """The uid of the run that failed."""
    round: int
    step: int
    rank: int | None
    """Whose part of a sharded state it is; None where it is all of a state."""
    world: int | None
    size: int
    sha256: str
    base: tuple[str, int, int] | None
    """Run, round and step of the newest checkpoint on disk when that run began; None where there was none."""
    modified: float
    """When it was written, by the clock of the file's host."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A whole state: its step, and its files by the rank that reads them."""

    step: int
    files: Mapping[int, Sequence[Rescued]]

    @property
    def first(self) -> Rescued:
        """One of them, to be named."""
        return min((file for files in self.files.values() for file in files), key=lambda file: file.path)


class Rescue:
    """Where this worker's state goes if the job fails, and what an earlier run has left there.

    Args:
        name: Of the state.
        disk: The checkpoints, if there are any. One that has an attribute ``directory`` is where snapshots go first.
        place: This worker.
        whole: Whether each rank has all of the state.
        environ: Where the directory of the user's choice is read from.
    """

    def __init__(
        self, name: str, disk: DiskTier | None, place: Place, *, whole: bool, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._name, self._place, self._whole = name, place, whole
        directory = None if disk is None else getattr(disk, "directory", None)
        self._directories = directories(name, directory, environ.get(VARIABLE, ""), sys.argv)
        self._base: Any = None
        self._saved: Sequence[int] | None = None
        self._unusable: Candidate | None = None
        self._environ = environ

    def find(self, peers: Peers, newest: AnyCheckpoint | None) -> list[Candidate]:
        """Return what can be gone on from instead of the newest checkpoint, the best first. Collective; the same on
        all ranks.
        """
        if not self._directories:
            return []
        ours = [path for path, spare in self._directories if _is_ours(path, spare)]
        if self._place.local_rank == 0:
            for path in ours:
                _remove_abandoned(path, self._name)
        listed = [asdict(found) for path in ours for found in _listed(path, self._name)]
        offers = [[_rescued(entry) for entry in each] for each in peers.gather_json(listed)]
        found, refused = candidates(offers, newest, whole=self._whole)
        if peers.rank == 0:
            for text in refused:
                logger.warning("%s", text)
        return found

    def take(self, peers: Peers, candidate: Candidate, keep: Callable[[Stamp, Snapshot], None]) -> bool:
        """Put a state into memory, where all ranks find it; whether that could be done. Collective."""
        error = ""
        try:
            for file in candidate.files.get(peers.rank, ()):
                with contextlib.closing(opened(file)) as buffer:
                    if (snapshot := buffer.read()) is None:
                        raise ValueError(f"{file.path} is of a form that this release does not read: {_OTHER_RELEASE}")
                    keep(Stamp(0, candidate.step), snapshot)
        except (OSError, ValueError, ResourceError) as exc:
            error = str(exc)
        errors = peers.gather_json(error)
        if peers.rank == 0:
            folder = Path(candidate.first.path).parent
            text = (
                "Training goes on from step %d, whose snapshot was written to %s when run %s had failed. "
                "(Who wants to go on from the newest checkpoint moves that folder away.)"
                if not any(errors)
                else "The snapshot of step %d in %s, of run %s, cannot be used: " + "; ".join(filter(None, errors))
            )
            logger.warning(text, candidate.step, folder, candidate.first.run)
        if any(errors):
            self._unusable = self._unusable or candidate
        return not any(errors)

    def check(self) -> None:
        """Refuse to begin anew where a snapshot is all that there is of a training, and could not be used.

        Raises:
            CheckpointUnreadableError: That is so, and the user has not said that it is to be ignored.
        """
        if (lost := self._unusable) is None:
            return
        from elastic_torch.disk.disk import IGNORE, ignores_unreadable  # few need it
        from elastic_torch.disk.errors import CheckpointUnreadableError

        if not ignores_unreadable(self._environ):
            raise CheckpointUnreadableError(
                f"The snapshot of step {lost.step} in {Path(lost.first.path).parent} is all that there is of this "
                "training, and cannot be used.",
                hint="The warning above says what is damaged. To start without this snapshot, move the folder "
                f"away, or set {IGNORE}=1.",
            )

    def register(self, peers: Peers, newest: Callable[[], AnyCheckpoint | None]) -> None:
        """Tell the agent of this node what to do if the job fails. Collective.

        ``newest``, a collective too, is called where no agent remembers with which checkpoint the run began: with this
        one, unless it is the run's own.
        """
        if not self._directories:
            return
        earlier = self._earlier()
        known = [base for each in peers.gather_json([earlier["base"]] if earlier else []) for base in each]
        if known:
            self._base = known[0]
        else:
            with contextlib.suppress(ElasticError, OSError):  # there is no need of a disk while there is a memory
                if (found := newest()) is not None and found.run_uid != self._place.run:
                    self._base = [found.run_uid, found.round, found.step]
        self._saved = earlier["saved"] if earlier else None
        self._tell()

    def saved(self, step: int) -> None:
        """Record that a checkpoint of this round is on disk. May be called from any thread."""
        self._saved = [self._place.round, step]
        self._tell()

    def _tell(self) -> None:
        if self._place.local_rank != 0 or not self._directories:
            return
        body = {
            "run": self._place.run,
            "whole": self._whole,
            "base": self._base,
            "saved": self._saved,
            "directories": [{"path": path, "spare": spare} for path, spare in self._directories],
        }
        fd = os.memfd_create("rescue", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.write(fd, json.dumps(body).encode())
            hold(f"{self._name}/{RESCUE}", fd, _ANSWER)
        except ResourceError as error:
            logger.warning("If the job fails, its newest step will not be written out: %s", error.message)
        finally:
            os.close(fd)

    def _earlier(self) -> dict[str, Any] | None:
        """Return what an earlier round of this run has told this node's agent."""
        fd = held(f"{self._name}/{RESCUE}", _ANSWER) if self._place.local_rank == 0 else None
        if fd is None:
            return None
        try:
            body: dict[str, Any] = json.loads(os.pread(fd, os.fstat(fd).st_size, 0))
        finally:
            os.close(fd)
        return body if body.get("run") == self._place.run else None


def directories(name: str, directory: str | None, chosen: str, command: Sequence[str]) -> list[tuple[str, bool]]:
    """Return the directories for snapshots, in order, and of each whether it is a default. Pure but for the user's id.

    Args:
        name: Of the state.
        directory: Of the checkpoints, a path or a URL; None where there are none.
        chosen: A directory that the user has named for this, or ''.
        command: The script and its arguments, by which a job without checkpoints is known again.
    """
    job = directory if directory is not None else "\0".join([os.path.abspath(command[0]), *command[1:]])
    key = hashlib.sha256(f"{job}\n{name}".encode()).hexdigest()[:16]
    found = []
    if directory is not None and "://" not in directory:
        found.append((os.path.join(directory, FOLDER), False))
    if chosen:
        found.append((os.path.join(os.path.abspath(chosen), key), False))
    elif directory is not None:
        found.append((f"/var/tmp/elastic-rescued-{os.geteuid()}/{key}", True))
    return found


def candidates(
    offers: Sequence[Sequence[Rescued]], newest: AnyCheckpoint | None, *, whole: bool
) -> tuple[list[Candidate], list[str]]:
    """Return what can be gone on from, the best first, and what is refused, in words. Pure.

    Of several runs that have failed one after the other the last one counts; of one run the newest state that is
    complete.

    Args:
        offers: What each rank sees.
        newest: The newest checkpoint: what is older than it is not gone on from.
        whole: Whether each rank has all of the state.
    """
    seen: dict[tuple[str, int, int, int | None], dict[int | None, dict[int, Rescued]]] = {}
    for present, offer in enumerate(offers):
        for file in offer:
            key = (file.run, file.round, file.step, file.world)
            seen.setdefault(key, {}).setdefault(file.rank, {}).setdefault(present, file)
    written = {run: max(f.modified for o in offers for f in o if f.run == run) for run, *_ in seen}
    found, refused, complete = list[Candidate](), list[str](), set[str]()
    for key in sorted(seen, key=lambda key: (written[key[0]], key[0], key[1:3]), reverse=True):
        run, _, step, world = key
        parts = seen[key]
        file = min((f for by in parts.values() for f in by.values()), key=lambda f: f.path)
        what = f"The snapshot of step {step} in {os.path.dirname(file.path)}, of run {run},"
        if not is_newer(file, newest):
            at = "" if newest is None else f" of step {newest.step}"
            refused.append(f"{what} is older than the newest checkpoint{at}: nothing reads it, and it may be removed.")
        elif (world is None) != whole:
            kind = "is not" if world is None else "is"
            refused.append(f"{what} is of a model that {kind} sharded, and this one {'is not' if whole else 'is'}.")
        elif missing := [rank for rank in range(world or 0) if rank not in parts]:
            if run not in complete:
                names = ", ".join(map(str, missing[:8])) + (" and more" if len(missing) > 8 else "")
                refused.append(f"{what} is incomplete: no node that is here has the part of rank {names} of {world}.")
        elif (files := _dealt(parts, len(offers))) is None:
            refused.append(f"{what} is of {world} ranks, more than four for each that is here: start with more ranks.")
        else:
            complete.add(run)
            found.append(Candidate(step, files))
    return found, refused


def is_newer(file: Rescued, newest: AnyCheckpoint | None) -> bool:
    """Whether a snapshot is newer than the newest checkpoint (rule S5): that is of the same run, or from before it."""
    if newest is None:
        return True
    if newest.run_uid == file.run:
        return (file.round, file.step) > (newest.round, newest.step)
    return file.base == (newest.run_uid, newest.round, newest.step)


def opened(file: Rescued) -> Buffer:
    """Return the snapshot in a file whose bytes are those that were written; changes to it stay in memory.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not what was written.
    """
    digest = hashlib.sha256()
    with open(file.path, "rb", buffering=0) as raw:
        block = bytearray(_BLOCK)
        while count := raw.readinto(block):
            digest.update(memoryview(block)[:count])
        if raw.tell() != file.size or digest.hexdigest() != file.sha256:
            raise ValueError(f"{file.path} is damaged: its checksum is wrong")
        return Buffer(os.dup(raw.fileno()), private=True)


def _dealt(parts: Mapping[int | None, Mapping[int, Rescued]], ranks: int) -> dict[int, list[Rescued]] | None:
    """Which present rank reads which part: the one of its number where that sees it; None where there are too many."""
    dealt: dict[int, list[Rescued]] = {rank: [] for rank in range(ranks)}
    for old, seen in sorted(parts.items(), key=lambda item: -1 if item[0] is None else item[0]):
        reader = old if old is not None and old in seen else min(seen, key=lambda rank: (len(dealt[rank]), rank))
        dealt[reader].append(seen[reader])
    return None if any(len(files) > MOST for files in dealt.values()) else dealt


def _is_ours(directory: str, spare: bool) -> bool:
    """Whether a directory was named by the user, or is in one that only this user may write to."""
    if not spare:
        return True
    with contextlib.suppress(OSError):
        parent = os.lstat(os.path.dirname(directory))
        return parent.st_uid == os.geteuid() and not parent.st_mode & 0o022
    return False


def _remove_abandoned(directory: str, name: str) -> None:
    """Remove what agents that were killed have left unfinished. An agent holds a lock on a snapshot until it counts."""
    partial, whole = (Path(directory).glob(f"*/{name}_round-*{end}") for end in ("[0-9a-f].partial", ".snapshot"))
    for path in (*partial, *whole):
        with contextlib.suppress(OSError), open(path, "r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            except OSError:  # files cannot be locked here
                if time.time() - path.stat().st_mtime < _ABANDONED:
                    continue
            if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                continue  # it was finished, or removed, meanwhile
            if path.suffix == ".snapshot":
                if any(path.with_suffix(suffix).exists() for suffix in (".json", ".partial")):
                    continue  # it counts, as may be only now that the lock is free; or an agent writes it anew
                path.with_suffix(".json.partial").unlink(missing_ok=True)
            path.unlink()
            logger.info("%s was removed: an agent that was killed had left it unfinished.", path)


def _listed(directory: str, name: str) -> Iterable[Rescued]:
    """Return the snapshots of a state in a directory; entries that are not as they should be are skipped with a
    warning.
    """
    for path in sorted(Path(directory).glob(f"*/{name}_round-*.json")):
        try:
            body = json.loads(path.read_bytes())
            snapshot = path.with_suffix(".snapshot")
            if body["format"] != _FORMAT:
                text = "%s is of format %s, and this release reads format %s, so it is passed over: %s."
                logger.warning(text, path, body["format"], _FORMAT, _OTHER_RELEASE)
            elif body["name"] == name and body["run"] == path.parent.name:
                fields = {key: body[key] for key in ("run", "round", "step", "rank", "world", "size", "sha256", "base")}
                yield _rescued({**fields, "path": str(snapshot), "modified": snapshot.stat().st_mtime})
        except (OSError, ValueError, LookupError, TypeError) as error:
            logger.warning("%s cannot be read, and is passed over: %s", path, error)


def _rescued(entry: Mapping[str, Any]) -> Rescued:
    base = entry["base"]
    return Rescued(**{**entry, "base": None if base is None else (str(base[0]), int(base[1]), int(base[2]))})
