"""Checks of a sampler's arguments and of the state that it loads."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch.distributed as dist

from elastic_torch.data.audit import Step

VERSION = 1  # of the states that samplers save


def check_flag(name: str, value: object) -> bool:
    """Return a boolean.

    Raises:
        TypeError: It is none: an argument that was meant for another place.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}={value!r} is neither True nor False. Give start_index by its name.")
    return bool(value)


def start_in(start_index: int, length: int) -> int:
    """Return a place in an epoch of ``length`` samples; its end for a greater one, such as a count with fillers.

    Raises:
        ValueError: It is negative.
    """
    start = operator.index(start_index)
    if start < 0:
        raise ValueError(f"start_index={start}: the samples of an epoch count from 0.")
    return min(start, length)


def rank_or_else(given: int | None, variable: str, in_group: Callable[[], int], alone: int) -> int:
    """Return the first that is there of ``given``, the process group's, the launcher's variable, and ``alone``."""
    if given is not None:
        return operator.index(given)
    if dist.is_available() and dist.is_initialized():
        return in_group()
    return int(os.environ.get(variable, alone))


def step_size(global_batch_size: int | None, batch_size: int | None, ranks: int) -> int:
    """Return samples in a step, of all ranks; one of each where no size is given.

    Raises:
        ValueError: Both are given, or the one that is given is less than 1.
    """
    if global_batch_size is not None and batch_size is not None:
        raise ValueError(
            "global_batch_size and batch_size are both given: the samples in a step, of all ranks or of each. "
            f"Given are {global_batch_size} and {batch_size}."
        )
    if global_batch_size is None:
        name, size = "batch_size", 1 if batch_size is None else batch_size
    else:
        name, size = "global_batch_size", global_batch_size
    if operator.index(size) < 1:
        raise ValueError(f"{name}={size}: a step takes at least one sample.")
    return size * ranks if name == "batch_size" else size


def check_state(state: Mapping[str, Any], mine: Mapping[str, Any]) -> tuple[int, int, int, Step | None]:
    """Return epoch, cursor, steps and the newest step of a saved state.

    Raises:
        ValueError: It is none, or one of another order than ``mine``.
    """
    if state.get("version") != VERSION:
        raise ValueError(f"This is no state of this version of the sampler: version={state.get('version')!r}.")
    for name, value in mine.items():
        if state.get(name) != value:
            raise ValueError(
                f"The state was saved with {name}={state.get(name)!r}, and the sampler has {name}={value!r}: "
                "its position would mean other samples. Make the sampler as it was."
            )
    numbers = tuple(state.get(name) for name in ("epoch", "cursor", "step"))
    epoch, cursor, step = (number if type(number) is int and number >= 0 else -1 for number in numbers)
    if min(epoch, cursor, step) < 0 or cursor > mine["length"]:
        raise ValueError(f"This is no state of a sampler: epoch, cursor and step are {numbers!r}.")
    previous = state.get("previous")
    return epoch, cursor, step, None if previous is None else Step.of(previous)
