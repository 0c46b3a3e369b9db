"""What a script may expect of ``elastic_core.TrainState``, whichever library brings it (``elastic_train_state``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeVar

_T = TypeVar("_T")


class TrainingState(Protocol):
    """A model, and everything else that its training depends on: saved after steps, restored when a round begins.

    It is made with keywords, on all ranks with the same: ``model``, and as far as there are any ``optimizer``,
    ``scheduler``, ``sampler`` and ``extra``, a mapping of names to other things with ``state_dict()`` and
    ``load_state_dict()``. A library may take more than these, and says so if it does not take one of them.
    """

    step: int  # steps committed so far
    epoch: int  # the epoch in progress, from 0
    stopping: bool
    """Whether all ranks stop after this step, which is kept, so that nodes may join or leave: the script ends."""

    def restore(self) -> Any:
        """Become the newest state that all ranks have; None if there is none, and something true otherwise.

        All ranks call it, once, before the first step.
        """

    def commit(self) -> None:
        """Count a step, save the state if it is time, and learn whether to stop here
        (``elastic_core.worker.graceful_stop``).

        All ranks call it after the same steps.
        """

    def epochs(self, count: int) -> Iterator[int]:
        """Return the epochs that are left of ``count``, from the one in progress, until ``stopping``."""

    def batches(self, loader: Iterable[_T]) -> Iterator[_T]:
        """Return the batches left of the epoch, until ``stopping``; asking for the next commits a batch."""
