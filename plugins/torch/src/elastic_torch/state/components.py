"""The parts of a training that are the same on all ranks, and what is common to their kinds."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from elastic_torch.state.gradient_order import GradientOrder
from elastic_torch.state.state_exchange import Peers


class Stateful(Protocol):
    """An optimizer, a scheduler, a scaler, a module: anything that returns and loads a state."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Set the state."""


class _Generator:
    """A random generator, as a thing that has a state."""

    def __init__(self, generator: torch.Generator | np.random.Generator | random.Random) -> None:
        self._get: Callable[[], Any]
        self._set: Callable[[Any], object]
        match generator:
            case torch.Generator():
                self._get, self._set = generator.get_state, generator.set_state
            case np.random.Generator():
                bits = generator.bit_generator
                self._get, self._set = lambda: bits.state, lambda state: setattr(bits, "state", state)
            case _:
                self._get, self._set = generator.getstate, generator.setstate

    def state_dict(self) -> dict[str, Any]:
        return {"state": self._get()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._set(state_dict["state"])


def stateful(name: str, thing: Any) -> Stateful:
    """Return something as a part of a state; random generators of torch, numpy and Python get the two methods.

    Raises:
        TypeError: It has none; says which it is.
    """
    if isinstance(thing, torch.Generator | np.random.Generator | random.Random):
        return _Generator(thing)
    if not (callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))):
        raise TypeError(f"{name} is a {type(thing).__qualname__}, which has no state_dict() and load_state_dict().")
    return thing  # type: ignore[no-any-return]  # it has what the protocol asks for


def _unwrapped(model: torch.nn.Module) -> tuple[torch.nn.Module, DistributedDataParallel | None]:
    """Return the module without the wrappers of DDP and ``torch.compile``, and that of DDP, if it has one."""
    wrapper = None
    while True:
        if isinstance(model, DistributedDataParallel):
            wrapper = model if wrapper is None else wrapper
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), torch.nn.Module):
            model = inner
        else:
            return model, wrapper


class Components:
    """The model and all else of a training that is the same on all ranks.

    Attributes:
        model: The module without its wrappers.
        parts: Optimizer, scheduler and sampler, by these names.
        extra: Anything else, by name.
        gradients: The order in which DDP reduces gradients.
        sampler_knows: Whether the sampler's own state says how far it is.

    Raises:
        TypeError: Something has no state.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Stateful | None,
        scheduler: Stateful | None,
        sampler: Any,
        extra: Mapping[str, Any],
    ) -> None:
        self.model, wrapper = _unwrapped(model)
        self.gradients = GradientOrder(wrapper)
        given = {"optimizer": optimizer, "scheduler": scheduler}
        self.parts = {part: stateful(part, thing) for part, thing in given.items() if thing is not None}
        self.sampler_knows = hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict")
        if self.sampler_knows:
            self.parts["sampler"] = sampler
        self.extra = {key: stateful(f"extra[{key!r}]", thing) for key, thing in extra.items()}

    def share_gradient_order(self, peers: Peers) -> None:
        """Take rank 0's order of gradients on all ranks, after the first step. Collective."""
        self.gradients.end_recording()
        [self.gradients.known, *_] = peers.gather_json(self.gradients.known)

    def state(self) -> dict[str, Any]:
        """Return the state of everything but the model."""
        state: dict[str, Any] = {part: thing.state_dict() for part, thing in self.parts.items()}
        if self.extra:
            state["extra"] = {key: thing.state_dict() for key, thing in self.extra.items()}
        state["gradients"] = torch.tensor(self.gradients.known, dtype=torch.int64)
        return state

    def load(self, model: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
        """Set the model's state and what :meth:`state` has returned."""
        tensors = OrderedDict(model)
        tensors._metadata = self.model.state_dict()._metadata  # type: ignore[attr-defined]  # versions of its parts
        self.model.load_state_dict(tensors)
        for part, thing in self.parts.items():
            thing.load_state_dict(rest[part])
        for key, thing in self.extra.items():
            thing.load_state_dict(rest["extra"][key])
