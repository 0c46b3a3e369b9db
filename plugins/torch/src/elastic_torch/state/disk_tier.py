"""The interface of ``TrainState`` to checkpoints on disk, the tier that outlives the job."""

from __future__ import annotations

from typing import Any, Protocol


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
