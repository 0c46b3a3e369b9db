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
from elastic_torch.state.state_tree import leaves

Parts = Mapping[str, Any]
"""Things that have a state, by name; under ``extra`` a mapping of more of them."""


def named(model: torch.nn.Module, parts: Parts, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with the model's and the optimizers' parts by parameters' names.

    An optimizer that has not made a step yet is given the state that a step without gradients makes: torch does that.
    """
    changed = {part: get_optimizer_state_dict(model, thing) for part, thing in optimizers(parts)}
    return _with(state, {"model": get_model_state_dict(model)}, changed)


def take_over(model: torch.nn.Module, parts: Parts, state: Mapping[str, Any]) -> dict[str, Any]:
    """Become what :func:`named` has returned, as far as model and optimizers go; the same state, by numbers again."""
    set_model_state_dict(model, state["model"])
    options = StateDictOptions(strict=False)  # parameters that never had a gradient have no state in there
    for (group, part), thing in optimizers(parts):
        saved = state[group][part] if group else state[part]
        set_optimizer_state_dict(model, thing, saved, options=options)
    changed = {part: thing.state_dict() for part, thing in optimizers(parts)}
    return _with(state, {"model": model.state_dict()}, changed)


def optimizers(parts: Parts) -> list[tuple[tuple[str, str], Optimizer]]:
    """All optimizers, by their places: a group, empty for none, and a name."""
    places = {("", part): thing for part, thing in parts.items()}
    places |= {("extra", key): thing for key, thing in parts.get("extra", {}).items()}
    return [(place, thing) for place, thing in places.items() if isinstance(thing, Optimizer)]


def _with(state: Mapping[str, Any], model: dict[str, Any], changed: Mapping[tuple[str, str], Any]) -> dict[str, Any]:
    parts = {part: its for (group, part), its in changed.items() if not group}
    extra = {part: its for (group, part), its in changed.items() if group}
    return {**state, **model, **parts, **({"extra": {**state["extra"], **extra}} if extra else {})}


def wanted(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what to have a checkpoint loaded into: what is sharded as it is here, and of all else whatever was saved.

    All of the model has to be in there; an optimizer has nothing for parameters that never had a gradient.
    """
    sharded = {key for key, value in state.items() if any(isinstance(leaf, DTensor) for _, leaf in leaves(value))}
    loose = {key: Loose(value) if key in sharded else None for key, value in state.items() if key != "model"}
    return {"model": state["model"], **loose}
