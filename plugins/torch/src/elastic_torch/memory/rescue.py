"""Snapshots that agents have written to a directory because their job had failed for good, and the next run's way back.

The first worker of each node asks its agent to write them (``agent`` does that). The next run looks there when no rank
has a snapshot in memory, and goes on from one that is newer than the newest checkpoint: it is put into memory as a
snapshot of round 0, and treated like any other. The files stay where they are; once the run has saved a checkpoint,
that is the newer one.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from elastic_core.errors import ElasticError, ResourceError
from elastic_torch.memory.buffers import MOST, Buffer, Snapshot, leave_note, read_note
from elastic_torch.memory.rescue_files import BLOCK, OTHER_RELEASE, Rescued, listed, remove_abandoned
from elastic_torch.memory.snapshot_format import RESCUE, Request, Target, request_in
from elastic_torch.state.checkpoints import AnyCheckpoint, DiskTier
from elastic_torch.state.state_exchange import Peers
from elastic_torch.version import Place, Stamp

logger = logging.getLogger("elastic_torch.memory")
VARIABLE = "ELASTIC_RESCUE_DIR"
FOLDER = "rescued"  # in the directory of the checkpoints
_ANSWER_SECONDS = 5.0  # to wait for the agent: without its answer a snapshot may be written that need not be


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
    """The directories that this worker's state goes to if the job fails, and the files of an earlier run there.

    A ``disk`` with an attribute ``directory`` is where snapshots go first. ``whole``: each rank has all of the
    state.
    """

    def __init__(
        self, name: str, disk: DiskTier | None, place: Place, *, whole: bool, environ: Mapping[str, str] = os.environ
    ) -> None:
        directory = None if disk is None else getattr(disk, "directory", None)
        targets = directories(name, directory, environ.get(VARIABLE, ""), sys.argv)
        self._request = Request(name, place.run, whole, targets=tuple(targets))
        self._place, self._environ = place, environ
        self._unusable: Candidate | None = None

    def find(self, peers: Peers, newest: AnyCheckpoint | None) -> list[Candidate]:
        """Return what can be gone on from instead of the newest checkpoint, the best first. Collective."""
        name, own = self._request.name, [target.path for target in self._request.targets if target.is_own()]
        if not self._request.targets:
            return []
        if self._place.local_rank == 0:
            for path in own:
                remove_abandoned(path, name)
        found_here = [asdict(found) for path in own for found in listed(path, name)]
        offers = [[Rescued.of(entry) for entry in each] for each in peers.gather_json(found_here)]
        found, refused = candidates(offers, newest, whole=self._request.whole)
        if peers.rank == 0:
            for text in refused:
                logger.warning("%s", text)
        return found

    def take(self, peers: Peers, candidate: Candidate, keep: Callable[[Stamp, Snapshot], None]) -> bool:
        """Put a state into memory, where all ranks find it; return whether that could be done. Collective."""
        error = ""
        try:
            for file in candidate.files.get(peers.rank, ()):
                with contextlib.closing(opened(file)) as buffer:
                    if (snapshot := buffer.read()) is None:
                        raise ValueError(f"{file.path} is of a form that this release does not read: {OTHER_RELEASE}")
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
        """Refuse, by CheckpointUnreadableError, to begin anew where a snapshot is all there is, and cannot be used.

        The user may have said that this is to be ignored.
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
        if not self._request.targets:
            return
        earlier = self._earlier()
        known = [base for each in peers.gather_json([earlier.base] if earlier else []) for base in each]
        base = known[0] if known else None
        if not known:
            with contextlib.suppress(ElasticError, OSError):  # there is no need of a disk while there is a memory
                if (found := newest()) is not None and found.run_uid != self._place.run:
                    base = [found.run_uid, found.round, found.step]
        self._request = replace(self._request, base=base, saved=earlier.saved if earlier else None)
        self._leave()

    def saved(self, step: int) -> None:
        """Record that a checkpoint of this round is on disk. May be called from any thread."""
        self._request = replace(self._request, saved=Stamp(self._place.round, step))
        self._leave()

    def _leave(self) -> None:
        """Leave the request with the agent, from the first worker of a node."""
        if self._place.local_rank != 0 or not self._request.targets:
            return
        try:
            leave_note(f"{self._request.name}/{RESCUE}", self._request.packed(), _ANSWER_SECONDS)
        except ResourceError as error:
            logger.warning("If the job fails, its newest step will not be written out: %s", error.message)

    def _earlier(self) -> Request | None:
        name = self._request.name
        text = read_note(f"{name}/{RESCUE}", _ANSWER_SECONDS) if self._place.local_rank == 0 else None
        found = None if text is None else request_in(name, text)
        return found if found is not None and found.run == self._place.run else None


def directories(name: str, directory: str | None, chosen: str, command: Sequence[str]) -> list[Target]:
    """Return the directories for snapshots, in order. Pure but for the user's id.

    A job without checkpoints is known again by its ``command``, the script and its arguments.
    """
    job = directory if directory is not None else "\0".join([os.path.abspath(command[0]), *command[1:]])
    key = hashlib.sha256(f"{job}\n{name}".encode()).hexdigest()[:16]
    found = []
    if directory is not None and "://" not in directory:
        found.append(Target(os.path.join(directory, FOLDER)))
    if chosen:
        found.append(Target(os.path.join(os.path.abspath(chosen), key)))
    elif directory is not None:
        found.append(Target(f"/var/tmp/elastic-rescued-{os.geteuid()}/{key}", spare=True))
    return found


def candidates(
    offers: Sequence[Sequence[Rescued]], newest: AnyCheckpoint | None, *, whole: bool
) -> tuple[list[Candidate], list[str]]:
    """Return what can be gone on from, the best first, and what is refused, in words. Pure.

    Of several runs that have failed one after the other the last one counts; of one run the newest state that is
    complete. Nothing that is older than ``newest`` is gone on from.
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
    """Return whether a snapshot is newer than the newest checkpoint (rule S5), of its run or from before that."""
    if newest is None:
        return True
    if newest.run_uid == file.run:
        return (file.round, file.step) > (newest.round, newest.step)
    return file.base == (newest.run_uid, newest.round, newest.step)


def opened(file: Rescued) -> Buffer:
    """Return a file's snapshot, changes to which stay in memory; raise OSError, or ValueError if it is damaged."""
    digest = hashlib.sha256()
    with open(file.path, "rb", buffering=0) as raw:
        block = bytearray(BLOCK)
        while count := raw.readinto(block):
            digest.update(memoryview(block)[:count])
        if raw.tell() != file.size or digest.hexdigest() != file.sha256:
            raise ValueError(f"{file.path} is damaged: its checksum is wrong")
        return Buffer(os.dup(raw.fileno()), private=True)


def _dealt(parts: Mapping[int | None, Mapping[int, Rescued]], ranks: int) -> dict[int, list[Rescued]] | None:
    """Return which present rank reads which part, the one of its number if that sees it; None if there are too many."""
    dealt: dict[int, list[Rescued]] = {rank: [] for rank in range(ranks)}
    for old, seen in sorted(parts.items(), key=lambda item: -1 if item[0] is None else item[0]):
        reader = old if old is not None and old in seen else min(seen, key=lambda rank: (len(dealt[rank]), rank))
        dealt[reader].append(seen[reader])
    return None if any(len(files) > MOST for files in dealt.values()) else dealt
