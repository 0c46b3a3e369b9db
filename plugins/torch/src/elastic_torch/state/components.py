"""The things that a training state is made of, as users have them."""

from __future__ import annotations

import random
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel


class Stateful(Protocol):
    """An optimizer, a scheduler, a scaler, a module: whatever can say what it is, and become it again."""

    def state_dict(self) -> dict[str, Any]:
        """What it is."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Become that."""


class _Generator:
    """A random generator, as a thing that has a state."""

    def __init__(self, generator: torch.Generator | np.random.Generator | random.Random) -> None:
        self._generator = generator

    def state_dict(self) -> dict[str, Any]:
        match self._generator:
            case torch.Generator():
                return {"state": self._generator.get_state()}
            case np.random.Generator():
                return {"state": self._generator.bit_generator.state}
        return {"state": self._generator.getstate()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        match self._generator:
            case torch.Generator():
                self._generator.set_state(state_dict["state"])
            case np.random.Generator():
                self._generator.bit_generator.state = state_dict["state"]
            case _:
                self._generator.setstate(state_dict["state"])


def stateful(name: str, thing: Any) -> Stateful:
    """A thing as a part of a state; generators of torch, numpy and Python are such things, too.

    Raises:
        TypeError: It has none; says which it is.
    """
    if isinstance(thing, torch.Generator | np.random.Generator | random.Random):
        return _Generator(thing)
    if not (callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))):
        raise TypeError(f"{name} is a {type(thing).__qualname__}, which has no state_dict() and load_state_dict().")
    return thing  # type: ignore[no-any-return]  # it has what the protocol asks for


def data_parallel(model: torch.nn.Module) -> DistributedDataParallel | None:
    """The DDP module that a model is, or that ``torch.compile`` has wrapped."""
    while not isinstance(model, DistributedDataParallel):
        inner = getattr(model, "_orig_mod", None)
        if not isinstance(inner, torch.nn.Module):
            return None
        model = inner
    return model


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """What is inside of DDP and ``torch.compile``."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), torch.nn.Module):
            model = inner
        else:
            return model
