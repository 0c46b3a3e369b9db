"""Sharded states as checkpoints on disk have them: torch's own form, which other programs and other sizes can load.

Parameters and what optimizers keep for them go by the parameters' names (``torch.distributed.checkpoint.state_dict``),
not by numbers, as the memory tier has them for the same script.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import getitem
from typing import Any

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
from elastic_torch.state.components import Components
from elastic_torch.state.state_tree import leaves

Place = tuple[str, ...]  # the place of an optimizer's state in a whole one: its name, or ``extra`` and its name


def named(common: Components, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with the model's and the optimizers' parts by parameters' names.

    An optimizer that has not made a step yet is given the state that a step without gradients makes: torch does that.
    """
    changed = {place: get_optimizer_state_dict(common.model, its) for place, its in optimizers(common).items()}
    return _with(state, get_model_state_dict(common.model), changed)


def take_over(common: Components, state: Mapping[str, Any]) -> dict[str, Any]:
    """Become what :func:`named` has returned, as far as model and optimizers go; the same state, by numbers again."""
    set_model_state_dict(common.model, state["model"])
    options = StateDictOptions(strict=False)  # parameters that never had a gradient have no state in there
    for place, its in optimizers(common).items():
        set_optimizer_state_dict(common.model, its, _at(state, place), options=options)
    changed = {place: its.state_dict() for place, its in optimizers(common).items()}
    return _with(state, common.model.state_dict(), changed)


def optimizers(common: Components) -> dict[Place, Optimizer]:
    """Return all optimizers, by their places."""
    places: dict[Place, Any] = {(part,): its for part, its in common.parts.items()}
    places |= {("extra", key): its for key, its in common.extra.items()}
    return {place: thing for place, thing in places.items() if isinstance(thing, Optimizer)}


def _with(state: Mapping[str, Any], model: dict[str, Any], changed: Mapping[Place, Any]) -> dict[str, Any]:
    new = {**state, "model": model, **({"extra": {**state["extra"]}} if "extra" in state else {})}
    for place, its in changed.items():
        _at(new, place[:-1])[place[-1]] = its
    return new


def _at(state: Any, place: Place) -> Any:
    return reduce(getitem, place, state)


def wanted(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what to have a checkpoint loaded into: what is sharded as it is here, and of all else whatever was saved.

    All of the model has to be in there; an optimizer has nothing for parameters that never had a gradient.
    """
    sharded = {key for key, value in state.items() if any(isinstance(leaf, DTensor) for _, leaf in leaves(value))}
    loose = {key: Loose(value) if key in sharded else None for key, value in state.items() if key != "model"}
    return {"model": state["model"], **loose}
