"""The disk tier as one ``TrainState`` uses it: when it saves, what it writes, and whether to go on from there."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from elastic_core.errors import ElasticError
from elastic_torch.version import Place, Stamp

logger = logging.getLogger("elastic_torch.state")


class AnyCheckpoint(Protocol):
    """A checkpoint that is there, the same on all ranks."""

    @property
    def run_uid(self) -> str:
        """Which run saved it."""

    @property
    def round(self) -> int:
        """In which round of that."""

    @property
    def step(self) -> int:
        """After which step."""


class AnyLoaded(Protocol):
    """A loaded checkpoint."""

    @property
    def checkpoint(self) -> AnyCheckpoint:
        """From where."""

    @property
    def state(self) -> dict[str, Any]:
        """The state that was saved there, tensors in host memory."""


class DiskTier(Protocol):
    """Checkpoints, complete or not there at all. All ranks call the same methods in the same order."""

    def due(self, step: int, *, last: bool = False) -> bool:
        """Return True if this step is to be saved. Asked after every step; the same answer on all ranks.

        ``last``: no other step follows in this process, and this one has not been saved: asked once more, then.
        """

    def save(self, state_dict: dict[str, Any], step: int) -> object:
        """Save a state. Training waits until it has been copied. What several ranks give one name to is the same."""

    def wait(self) -> object:
        """Wait until everything is written that :meth:`save` was given.

        Raises:
            CheckpointError: The last one was not saved, which the log says as well.
        """

    def newest(self, *, verify: bool = True) -> AnyCheckpoint | None:
        """Return the newest checkpoint, wherever it is; not ``verify``: as far as a look at names tells."""

    def load(self, into: dict[str, Any] | None = None) -> AnyLoaded | None:
        """Return the newest intact one; it may be older than what ``newest(verify=False)`` said.

        For sharded states, ``into`` is what it is loaded into, with None for the names of which all comes as it
        was saved.
        """


class Checkpoints:
    """The checkpoints of one training; without a tier, none.

    ``saved`` is called with the step of a checkpoint that is on disk, from any thread.
    """

    def __init__(self, tier: DiskTier | None, place: Place, saved: Callable[[int], None]) -> None:
        self._tier, self._place, self._saved = tier, place, saved
        self._there: int | None = None  # the step that was saved or loaded last

    def after(self, step: int, state: Callable[[], dict[str, Any]]) -> None:
        """Save a finished step, if a checkpoint is due."""
        if self._tier is not None and self._tier.due(step) and step != self._there:
            self._save(step, state)

    def last(self, step: int, state: Callable[[], dict[str, Any]], *, save: bool = True, ends: bool = False) -> None:
        """Save the last step of this process, if it is not there, and wait until all checkpoints are.

        So the process group may go, and the process. What cannot be saved the tier has said in its log. Where training
        ``ends``, no run goes on from memory.

        Raises:
            CheckpointError: Training is over, and its last step is not on disk.
        """
        if self._tier is None:
            return
        if save:
            self.begin_last(step, state)
        with contextlib.nullcontext() if ends else contextlib.suppress(ElasticError):
            self._tier.wait()

    def begin_last(self, step: int, state: Callable[[], dict[str, Any]]) -> None:
        """Begin :meth:`last`: the checkpoint is written while something else is done."""
        if self._tier is not None and step not in (0, self._there) and self._tier.due(step, last=True):
            self._save(step, state)

    def _save(self, step: int, state: Callable[[], dict[str, Any]]) -> None:
        assert self._tier is not None
        future = self._tier.save(state(), step)
        self._there = step
        if isinstance(future, Future):
            future.add_done_callback(lambda done: self._saved(step) if done.exception() is None else None)

    def newest(self) -> AnyCheckpoint | None:
        """Return the newest checkpoint by its name, None without any; CheckpointError if none loads. Collective."""
        return None if self._tier is None else self._tier.newest(verify=False)

    def newer_than(self, snapshot: Stamp | None, load: Callable[[DiskTier], AnyLoaded | None]) -> AnyLoaded | None:
        """Return the newest intact checkpoint, if it is newer than the newest snapshot; the same on all ranks.

        Where there is a snapshot, a disk that cannot be read is no reason not to go on from that.
        """
        if self._tier is None:
            return None
        try:
            newest = self._tier.newest(verify=False)
            loaded = load(self._tier) if newest is not None and self._counts(newest, snapshot) else None
        except (ElasticError, OSError) as error:
            if snapshot is None:
                raise
            if self._place.local_rank == 0:
                text = "No checkpoint on disk can be loaded. Training goes on from step %d, which is in memory. %s"
                logger.warning(text, snapshot.step, error)
            return None
        if loaded is None or not self._counts(loaded.checkpoint, snapshot):
            return None
        self._there = loaded.checkpoint.step
        return loaded

    def _counts(self, found: AnyCheckpoint, snapshot: Stamp | None) -> bool:
        """Return True if it is newer than the snapshot; those of other runs are older than any."""
        if snapshot is None:
            return True
        return found.run_uid == self._place.run and Stamp(found.round, found.step) > snapshot
