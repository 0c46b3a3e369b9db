"""The things that a training state is made of, as users have them."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel


class Stateful(Protocol):
    """An optimizer, a scheduler, a scaler, a module: whatever can say what it is, and become it again."""

    def state_dict(self) -> dict[str, Any]:
        """What it is."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Become that."""


def stateful(name: str, thing: Any) -> Stateful:
    """A thing as a part of a state.

    Raises:
        TypeError: It has none; says which it is.
    """
    if not (callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))):
        raise TypeError(f"{name} is a {type(thing).__qualname__}, which has no state_dict() and load_state_dict().")
    return thing  # type: ignore[no-any-return]  # it has what the protocol asks for


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """What is inside of DDP and ``torch.compile``."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), torch.nn.Module):
            model = inner
        else:
            return model
