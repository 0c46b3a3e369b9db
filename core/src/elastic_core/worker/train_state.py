"""The interface of ``elastic_core.TrainState``, whichever library implements it (``elastic_train_state``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeVar

_T = TypeVar("_T")


class TrainingState(Protocol):
    """A model and the rest of its training's state: saved after steps, restored when a round begins.

    It is made with keywords, alike on all ranks: ``model``, and if there are any ``optimizer``, ``scheduler``,
    ``sampler`` and ``extra``, a mapping of names to other objects with ``state_dict()`` and ``load_state_dict()``. A
    library may take more keywords, and raises an error for one that it does not take.
    """

    step: int  # steps committed so far
    epoch: int  # the epoch in progress, from 0
    stopping: bool
    """True if all ranks stop after this step, which is saved, so that nodes may join or leave: the script ends."""

    def restore(self) -> Any:
        """Load the newest state that all ranks have; None if there is none, a true value otherwise.

        All ranks call it, once, before the first step.
        """

    def commit(self) -> None:
        """Count a step, save the state if it is due, and set ``stopping``. All ranks call it after the same steps."""

    def epochs(self, count: int) -> Iterator[int]:
        """Return the epochs that are left of ``count``, from the one in progress, until ``stopping``."""

    def batches(self, loader: Iterable[_T]) -> Iterator[_T]:
        """Return the batches left of the epoch, until ``stopping``; asking for the next commits a batch."""
