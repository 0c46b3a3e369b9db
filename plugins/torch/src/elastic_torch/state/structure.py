"""The structure of a state that a checkpoint's format does not keep: keys that are no strings, tuples, empty
containers.

``torch.distributed.checkpoint`` keeps values by the names that lead to them. So the state's *form* is saved with it:
all of it but the tensors, as JSON, in which keys and types stand as they are (``state_tree.py``).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch

from elastic_torch.state.state_tree import put_together, take_apart

_HOLLOW = torch.empty(0)
"""Stands for each tensor."""


def form_of(state: Mapping[str, Any]) -> str:
    """Return the form of a state; of its tensors, DTensors too, it says no more than where they are.

    Raises:
        TypeError: Something in it cannot be kept; says what, and where.
    """
    return json.dumps(take_apart(_hollow(state))[0])


def restored(form: str, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state of this form, with the tensors of what a checkpoint has given back.

    Args:
        form: As :func:`form_of` has made it.
        saved: What was loaded; its keys may have become strings.

    Raises:
        ValueError: A tensor is not there; says where. Or this is no form.
    """
    state = _filled(json.loads(form), saved, "state")
    if not isinstance(state, dict):
        raise ValueError(f"{form!r:.80} is no form of a state")
    return state


def _hollow(value: Any) -> Any:
    match value:
        case torch.Tensor():
            return _HOLLOW
        case Counter():
            return value
        case Mapping():
            return {key: _hollow(item) for key, item in value.items()}
        case list():
            return [_hollow(item) for item in value]
        case tuple():
            return tuple(_hollow(item) for item in value)
    return value


def _filled(said: Any, saved: Any, where: str) -> Any:
    match said:
        case {"tensor": _} | {"array": _}:
            if saved is None:
                raise ValueError(f"The checkpoint has nothing for {where}.")
            return saved
        case {"dict": pairs}:
            keyed = [(put_together(key, _none), item) for key, item in pairs]
            return {key: _filled(item, _at(saved, key), f"{where}[{key!r}]") for key, item in keyed}
        case list(items) | {"tuple": items}:
            found = [_filled(item, _at(saved, index), f"{where}[{index}]") for index, item in enumerate(items)]
            return found if said is items else tuple(found)
    return put_together(said, _none)


def _at(saved: Any, key: Any) -> Any:
    if isinstance(saved, Mapping):
        return saved.get(key, saved.get(str(key)))
    return saved[key] if isinstance(saved, list | tuple) and key < len(saved) else None


def _none(number: int) -> torch.Tensor:
    raise ValueError(f"tensor {number} is where none can be")
