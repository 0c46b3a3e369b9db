"""Sharded states as checkpoints on disk have them: torch's own form, which other programs and other sizes can load.

Parameters and what optimizers keep for them go by the parameters' names (``torch.distributed.checkpoint.state_dict``),
not by numbers, as the memory tier has them for the same script.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from elastic_torch.disk.dcp import Loose


def named(model: torch.nn.Module, parts: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """A state with the model's and the optimizers' parts by parameters' names.

    An optimizer that has not made a step yet is given the state that a step without gradients makes: torch does that.

    Args:
        model: The module.
        parts: What else has a state, by name; optimizers among it.
        state: All of it, by these names.
    """
    changed: dict[str, Any] = {"model": get_model_state_dict(model)}
    for part, thing in parts.items():
        if isinstance(thing, Optimizer):
            changed[part] = get_optimizer_state_dict(model, thing)
    return {**state, **changed}


def take_over(model: torch.nn.Module, parts: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """Become what :func:`named` has returned, as far as model and optimizers go; the same state, by numbers again."""
    set_model_state_dict(model, state["model"])
    options = StateDictOptions(strict=False)  # parameters that never had a gradient have no state in there
    changed: dict[str, Any] = {"model": model.state_dict()}
    for part, thing in parts.items():
        if isinstance(thing, Optimizer):
            set_optimizer_state_dict(model, thing, state[part], options=options)
            changed[part] = thing.state_dict()
    return {**state, **changed}


def wanted(state: Mapping[str, Any]) -> dict[str, Any]:
    """What to have a checkpoint loaded into: what is sharded as it is here, and of all else whatever was saved.

    All of the model has to be in there; an optimizer has nothing for parameters that never had a gradient.
    """
    loose = {key: Loose(value) if _sharded(value) else None for key, value in state.items() if key != "model"}
    return {"model": state["model"], **loose}


def _sharded(state: Any) -> bool:
    if isinstance(state, Mapping):
        return any(_sharded(item) for item in state.values())
    if isinstance(state, (list, tuple)):
        return any(_sharded(item) for item in state)
    return isinstance(state, DTensor)
