"""What :class:`~elastic_torch.state.TrainState` asks of the tier that outlives the job: checkpoints on disk."""

from __future__ import annotations

from typing import Any, Protocol

from elastic_torch.stamp import Stamp


class Found(Protocol):
    """A checkpoint that is there."""

    @property
    def run(self) -> str:
        """The uid of the run that wrote it."""

    @property
    def stamp(self) -> Stamp:
        """When it was made."""


class DiskTier(Protocol):
    """Checkpoints, complete or not there at all. All calls are made on the thread that trains."""

    def due(self, step: int) -> bool:
        """Whether this step is to be saved: the same answer on all ranks."""

    def save(self, state_dict: dict[str, Any], step: int) -> object:
        """Save a state; all ranks call it after the same step. Training waits until the state has been copied."""

    def newest(self) -> Found | None:
        """The newest intact checkpoint that this rank can read."""

    def load(self, state_dict: dict[str, Any], found: Found) -> dict[str, Any]:
        """That state. ``state_dict`` is one of the same form, whose tensors may be filled in place.

        Only the ranks that have found it call this.
        """
