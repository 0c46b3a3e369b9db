"""Saving of one checkpoint by all ranks together, and the right of this run and round to save in a directory.

A checkpoint is written beside, checked, published by one rename, ``latest`` last, and old ones removed after that. A
process that dies anywhere in between leaves the checkpoints as they were, or with the new one complete.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import secrets
import weakref
from dataclasses import dataclass, replace
from typing import Any

from torch.distributed.tensor import DTensor

from elastic_torch.disk import catalog, dcp, fence
from elastic_torch.disk.collective import Collective, PeerFailedError, collective_of, discover, unknown
from elastic_torch.disk.errors import CheckpointError, CheckpointRefusedError, CheckpointSaveError
from elastic_torch.disk.fence import Identity
from elastic_torch.disk.manifest import METADATA, NAME, Counters, FileSum, Manifest, encode
from elastic_torch.disk.storage import Storage
from elastic_torch.state.state_tree import leaves
from elastic_torch.version import Checkpoint, Position

logger = logging.getLogger("elastic_torch.disk")


class Ownership:
    """The right of this process to save in a directory, and the number under which it does.

    The training's thread talks to all ranks over ``front``, the one that writes over ``back``.

    Attributes:
        place: The directory without symbolic links.
        shared_dirs: Which ranks see the same directory, as far as it is known.
        saver: Saves checkpoints; None until the directory was taken.
        run: The run's number in the directory; 0 until it was taken.
    """

    def __init__(
        self, storage: Storage, front: Collective, back: Collective, me: Identity, *, read_only: bool, keep: int
    ) -> None:
        self.place = os.path.realpath(storage.root)
        self.shared_dirs = unknown(front, storage)
        self.saver: Saver | None = None
        self.run = 0
        self._storage, self._front, self._back, self._me = storage, front, back, me
        self._read_only, self._keep = read_only, keep
        self._lock = contextlib.ExitStack()

    def take(self) -> None:
        """Find out which ranks see the same directory, and take it, unless it is only read. Collective.

        Raises:
            PeerFailedError: That cannot be done on some rank.
            CheckpointRefusedError: Another saver has it.
        """
        self._front.agree(self._storage.create)
        self.shared_dirs = discover(self._front, self._storage, read_only=self._read_only)
        if self._read_only:
            return
        run = self._claim()
        directories = self.shared_dirs.directories
        ours = [self._front.ranks[i] for i in directories[self.shared_dirs.mine]]
        group = self._back if len(directories) == 1 else collective_of(ours)
        self.run = run
        self.saver = Saver(storage=self._storage, everyone=self._back, group=group, me=self._me, keep=self._keep)

    def release(self) -> None:
        """Let go of the directory."""
        self._lock.close()
        if owners.get(self.place) is self:
            del owners[self.place]

    def _claim(self) -> int:
        """Take this round's turn; the number of the run."""
        first, me = self.shared_dirs.first, self._me
        self._front.agree(self._check_alone)
        parts = self._front.agree(lambda: fence.read_claims(self._storage) if first else [])
        known = [claim for part in parts for claim in part]
        run = fence.number(known, me, self._storage.root)
        newest = max(known, key=lambda claim: claim.turn, default=None)

        def take() -> None:
            if newest is not None and newest.run < run:
                fence.refuse_beside_the_living(self._storage, newest)
            fence.claim(self._storage, run, me)
            self._lock.enter_context(self._storage.hold(f"{fence.FOLDER}/run-{run:04}.lock"))
            fence.check_turn(self._storage, Position(run, me.round, 0))

        self._front.agree(lambda: take() if first else None)
        owners[self.place] = self
        return run

    def _check_alone(self) -> None:
        if owners.get(self.place) not in (None, self):
            gc.collect()  # it may have been given up
        if owners.get(self.place) not in (None, self):
            raise CheckpointRefusedError(
                f"Another Disk of this process saves in {self._storage.root} already.",
                hint="Call its close() before you make the next one, or give each a directory of its own.",
            )


owners: weakref.WeakValueDictionary[str, Ownership] = weakref.WeakValueDictionary()
"""The owner in this process, by directory: locks are between processes, so they do not separate two owners here."""


_REMEDIES = {
    errno.ENOSPC: "Free some space{or_keep_fewer}.",
    errno.EDQUOT: "Free some space{or_keep_fewer}.",
    errno.EFBIG: "Raise the limit on the size of files (ulimit -f).",
    errno.EROFS: "Have the disk made writable again: systems turn it read-only after an error.",
    errno.EACCES: "Give this user the right to write there.",
    errno.ENOENT: "If the directory is gone, make it again, or mount it.",  # we do not: the disk would be another one
}
"""The advice for errors of the system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saver:
    """One rank's part in saving."""

    storage: Storage
    everyone: Collective
    group: Collective  # the ranks that see the same directory; the first one writes what a checkpoint has once
    me: Identity
    keep: int  # the number of checkpoints that stay

    def save(self, position: Position, state: dict[str, Any], line: str, counters: Counters) -> Checkpoint:
        """Save a snapshot. Collective; on the writer's thread.

        Raises:
            CheckpointRefusedError: A later turn has begun, or this position is there already.
            CheckpointSaveError: Anything else. Nothing of it is left, and nothing that was there is gone.
        """
        try:
            return self._save(position, state, line, counters)
        except CheckpointError:
            raise
        except Exception as error:  # of the disk, of a peer, of torch: the job goes on with what it has
            raise self._failure(position, error) from error

    def _save(self, position: Position, state: dict[str, Any], line: str, counters: Counters) -> Checkpoint:
        together = frozenset(self.group.ranks)
        scattered = together != {*self.everyone.ranks} and any(self.everyone.gather(_is_scattered(state, together)))
        collective = self.everyone if scattered else self.group
        save_id = collective.lead(lambda: secrets.token_hex(4))
        staging = self.storage.staging(str(position), save_id)
        try:
            collective.agree(lambda: self._begin(position, staging) if self.group.leads else None)
            mine, content = dcp.write(collective, self.storage, staging, state)
            metadata = collective.lead(lambda: content) if scattered else content
            parts = collective.agree(lambda: self._checked(staging, mine))
            files = {name: file for part in parts for name, file in part.items()}
            manifest = Manifest(position, self.me.uid, save_id, self.me.who, line, scattered, files, counters)
            made = collective.agree(lambda: self._publish(staging, manifest, metadata) if self.group.leads else None)
        except BaseException:
            if self.group.leads:
                with contextlib.suppress(Exception):  # what is left, the next turn sweeps up
                    self.storage.remove(staging)
            raise
        if self.group.leads:
            catalog.prune(self.storage, self.keep, line)
        published = made[collective.ranks.index(self.group.ranks[0])]
        assert published is not None
        return published

    def lineage(self, position: Position) -> str:
        """Return the lineage of a run that has loaded nothing. Collective; on the writer's thread.

        Raises CheckpointSaveError where the directory cannot be read, so that nothing can be saved there.
        """
        try:
            return fence.continued_lineage(self.everyone, self.storage, self.group.leads, position.run)
        except PeerFailedError as error:
            raise self._failure(position, error) from error

    def _begin(self, position: Position, staging: str) -> None:
        """Make the folder, unless a later turn has begun."""
        fence.check_turn(self.storage, position)
        self._check_free(position)
        catalog.sweep(self.storage, position.turn)
        self.storage.make(staging)

    def _checked(self, staging: str, files: dict[str, FileSum]) -> dict[str, FileSum]:
        """Read back what was written."""
        for name, file in files.items():
            if (wrong := catalog.check(self.storage, staging, name, file)) is not None:
                raise OSError(f"what was written cannot be read back: {wrong.reason} in {wrong.where}")
        return files

    def _publish(self, staging: str, manifest: Manifest, metadata: bytes) -> Checkpoint:
        sum = dcp.write_metadata(self.storage, staging, metadata)
        self._checked(staging, {METADATA: sum})
        whole = replace(manifest, files={**manifest.files, METADATA: sum})
        if (
            not self.storage.put(f"{staging}/{NAME}", encode(whole))
            or catalog.read_manifest(self.storage, staging) != whole
        ):
            raise OSError(f"the manifest in {self.storage.path(staging)} cannot be read back")
        with self.storage.guard() as locked:
            fence.check_turn(self.storage, whole.position)
            try:
                folder = self.storage.publish(staging, str(whole.position))
            except FileExistsError as error:
                raise self._taken(whole.position) from error
            if locked:  # else `latest` stays where it is, which is not back; nothing that we read relies on it
                catalog.point(self.storage)
        return catalog.as_checkpoint(self.storage, folder, whole)

    def _check_free(self, position: Position) -> None:
        if any(position == other for other, _ in catalog.positions(self.storage)):
            raise self._taken(position)

    def _taken(self, position: Position) -> CheckpointRefusedError:
        found, _ = catalog.holdings(self.storage)
        who = next((holding.manifest.who for holding in found if holding.position == position), "another user")
        return CheckpointRefusedError(
            f"Step {position.step} of round {position.round} is saved in {self.storage.root} already, by {who}.",
            hint="One Disk saves each step once. All ranks of a job save together, in one process group.",
        )

    def _failure(self, position: Position, error: Exception) -> CheckpointError:
        try:
            fence.check_turn(self.storage, position)  # a later turn removes what we were writing
            there = catalog.positions(self.storage)
        except CheckpointRefusedError as refused:
            return refused
        except OSError:
            there = []
        newest = f"The newest is still that of step {there[0][0].step}." if there else "There is none yet."
        text = str(error) if isinstance(error, (PeerFailedError, OSError)) else f"{type(error).__name__}: {error}"
        remedies = [remedy for code, remedy in _REMEDIES.items() if os.strerror(code) in text]  # from whichever rank
        usual = "Training goes on, and the next checkpoint is tried as usual."
        kept = min(self.keep, len(there))
        or_keep_fewer = f", or keep fewer than {kept} checkpoints" if kept > 1 else ""  # one is always kept
        hint = " ".join([*(remedy.format(or_keep_fewer=or_keep_fewer) for remedy in remedies[:1]), usual])
        return CheckpointSaveError(
            f"The checkpoint of step {position.step} was not saved in {self.storage.root}: {text}. {newest}", hint=hint
        )


def _is_scattered(state: Any, together: frozenset[int]) -> bool:
    """Return True if some tensor lies on ranks besides ``together`` (global ranks), each of which has a part of it."""
    # A tensor that every rank has whole would be scattered all the same: torch saves it from one rank only.
    sharded = [leaf for _, leaf in leaves(state) if isinstance(leaf, DTensor)]
    return any(not {int(rank) for rank in leaf.device_mesh.mesh.flatten()} <= together for leaf in sharded)
