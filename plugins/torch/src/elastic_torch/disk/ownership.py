"""The right of this run and round to save in a directory: by the fence, and by a lock that shows that it is alive."""

from __future__ import annotations

import contextlib
import gc
import os
import weakref

from elastic_torch.disk import fence
from elastic_torch.disk.collective import Collective, collective_of
from elastic_torch.disk.errors import CheckpointRefusedError
from elastic_torch.disk.fence import Identity
from elastic_torch.disk.saver import Saver
from elastic_torch.disk.shared_dirs import discover, unknown
from elastic_torch.disk.storage import Storage
from elastic_torch.version import Position


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
