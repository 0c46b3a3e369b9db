"""States as JSON and tensors: what ``state_dict()`` returns, taken apart and put together again, without pickle.

What JSON has no type for is an object with one key, which names the type; so is every dictionary, since the keys of
JSON's are strings. Floats survive to the last bit (``repr``).

``torch.distributed.checkpoint`` keeps values by the names that lead to them, and so forgets keys that are no strings,
tuples and empty containers. A state's *form* is saved with it: all of it but the tensors.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

Take = Callable[[int], torch.Tensor]  # the tensor with this number
TakeDTensor = Callable[[str], Any]  # the DTensor with this name
DTensors = MutableMapping[str, Any]  # DTensors by name: by their place in the state
_Where: TypeAlias = "tuple[_Where, object] | None"
"""A place in the state: what that is in, and its key or number there; None is the state itself."""


def take_apart(state: Any, shards: DTensors | None = None) -> tuple[Any, list[torch.Tensor]]:
    """Return a state as something that JSON can say, and its tensors, in the order of their numbers there.

    Args:
        state: What a ``state_dict()`` has returned, or several of them.
        shards: Where DTensors are put, by name; of each, this rank's part is among the tensors. Without it they are
            refused.

    Returns:
        The tensors themselves, detached, not copies; arrays share their memory too.

    Raises:
        TypeError: Something in it cannot be kept; says what, and where.
    """
    tensors: list[torch.Tensor] = []
    return _apart(state, _Leaves(tensors, shards), None), tensors


def put_together(said: Any, take: Take, shard: TakeDTensor | None = None) -> Any:
    """Return what :func:`take_apart` was given; raise ValueError if it cannot have come from there."""
    match said:
        case None | bool() | int() | float() | str():
            return said
        case list():
            return [put_together(item, take, shard) for item in said]
        case dict() if len(said) == 1:
            [(kind, value)] = said.items()
            return _together(kind, value, take, shard)
    raise ValueError(f"{said!r:.80} is no part of a state")


@dataclass(frozen=True, slots=True)
class _Leaves:
    tensors: list[torch.Tensor]
    shards: DTensors | None


def _apart(value: Any, found: _Leaves | None, where: _Where) -> Any:
    """Take a part of a state apart; only its form, where no leaves are collected."""
    match value:
        case torch.Tensor():  # first, since most are
            if found is None:
                return {"tensor": 0}
            if type(value).__name__ == "DTensor":
                return _shard(value, found, where)
            found.tensors.append(_dense(value, where))
            return {"tensor": len(found.tensors) - 1}
        case None | bool() | str():
            return value
        case np.generic():  # before int and float: some are those, too
            return {"scalar": [value.dtype.str, _plain(value.item(), where)]}
        case int() | float() if type(value) in (int, float):
            return value
        case list():
            return [_apart(item, found, (where, index)) for index, item in enumerate(value)]
        case tuple():
            return {"tuple": [_apart(item, found, (where, index)) for index, item in enumerate(value)]}
        case Mapping():
            kind = "counter" if isinstance(value, Counter) else "dict"
            return {kind: [[_key(key, where), _apart(item, found, (where, key))] for key, item in value.items()]}
        case np.ndarray() if value.dtype.kind in "biufc":
            if found is None:
                return {"array": 0}
            found.tensors.append(torch.from_numpy(np.ascontiguousarray(value)))
            return {"array": len(found.tensors) - 1}
        case bytes() | bytearray():
            return {"bytes": base64.b64encode(value).decode()}
        case torch.dtype() | torch.device():
            return {type(value).__name__: str(value).removeprefix("torch.")}
    raise TypeError(
        f"{_told(where)} is a {type(value).__qualname__}, which cannot be kept: a state may have tensors, arrays, "
        "numbers, strings, and lists, tuples and dictionaries of these."
    )


def _told(where: _Where) -> str:
    return "state" if where is None else f"{_told(where[0])}[{where[1]!r}]"


def _key(key: Any, where: _Where) -> Any:
    if type(key) is str:
        return key
    if type(key) not in (int, float, bool, type(None), tuple):
        raise TypeError(f"{_told(where)} has the key {key!r}, a {type(key).__qualname__}, which cannot be kept.")
    return _apart(key, _Leaves([], None), where)


def _plain(value: Any, where: _Where) -> bool | int | float:
    if not isinstance(value, bool | int | float):
        raise TypeError(f"{_told(where)} is a number of numpy's that cannot be kept: {value!r}.")
    return value


def _dense(tensor: torch.Tensor, where: _Where) -> torch.Tensor:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise TypeError(f"{_told(where)} is a tensor that is sparse, quantized or without data, which cannot be kept.")
    return tensor.detach() if tensor.requires_grad else tensor


def _shard(tensor: Any, found: _Leaves, place: _Where) -> Any:
    """Return a DTensor: the number of this rank's part, its name, and what ``memory.sharded.dtensors`` says of it."""
    from elastic_torch.memory.sharded.dtensors import described, local_part

    where = _told(place)
    if found.shards is None:
        raise TypeError(f"{where} is a DTensor, but the model has none: give TrainState the model that is sharded.")
    found.shards[where] = tensor
    found.tensors.append(_dense(local_part(tensor), place))
    return {"shard": [len(found.tensors) - 1, where, *described(tensor, where)]}


def _together(kind: str, value: Any, take: Take, shard: TakeDTensor | None) -> Any:
    def pairs() -> Any:
        return ((put_together(key, take), put_together(item, take, shard)) for key, item in value)

    match kind:
        case "shard" if shard is not None:
            return shard(value[1])
        case "tensor":
            return take(int(value))
        case "array":
            return take(int(value)).numpy()
        case "dict":
            return dict(pairs())
        case "counter":
            return Counter(dict(pairs()))
        case "tuple":
            return tuple(put_together(item, take, shard) for item in value)
        case "bytes":
            return base64.b64decode(value)
        case "scalar":
            return np.dtype(value[0]).type(value[1])
        case "dtype" if isinstance(found := getattr(torch, value, None), torch.dtype):
            return found
        case "device":
            return torch.device(value)
    raise ValueError(f"{kind!r:.80} is no part of a state")


def leaves(value: Any, place: str = "state") -> Iterator[tuple[str, Any]]:
    """Yield what a state consists of, each with its place: all that is no mapping, list or tuple."""
    match value:
        case Mapping():
            for key, item in value.items():
                yield from leaves(item, f"{place}[{key!r}]")
        case list() | tuple():
            for index, item in enumerate(value):
                yield from leaves(item, f"{place}[{index}]")
        case _:
            yield place, value


def packed(state: Any) -> torch.Tensor:
    """Return a state as bytes, a tensor of uint8; raise TypeError, which says what and where, if it cannot be kept."""
    said, tensors = take_apart(state)
    return joined([said, table_of(tensors)], [tensor.cpu() for tensor in tensors])


def unpacked(content: torch.Tensor) -> Any:
    """Return what :func:`packed` was given, in new memory; raise ValueError if it cannot have come from there."""
    (said, table), elements = parted(content)
    return put_together(said, tensors_of(table, elements).__getitem__)


def joined(said: Any, tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return bytes, a tensor of uint8: the length of the JSON text, the text, and the elements of tensors."""
    text = json.dumps(said).encode()
    head = torch.frombuffer(bytearray(len(text).to_bytes(8, "little") + text), dtype=torch.uint8)
    return torch.cat([head, *(bytes_of(tensor) for tensor in tensors)])


def parted(content: torch.Tensor) -> tuple[Any, torch.Tensor]:
    """Return what JSON has said in the bytes of :func:`joined`, and the elements."""
    end = 8 + int.from_bytes(content[:8].numpy().tobytes(), "little")
    return json.loads(content[8:end].numpy().tobytes()), content[end:]


def table_of(tensors: Iterable[torch.Tensor]) -> list[list[Any]]:
    """Return the type and the shape of each tensor, for JSON."""
    return [[str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for tensor in tensors]


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a contiguous tensor, as uint8 of shape (bytes,)."""
    return tensor.reshape(-1).view(torch.uint8)


def tensors_of(table: Iterable[Sequence[Any]], content: torch.Tensor) -> list[torch.Tensor]:
    """Return new tensors of these types and shapes, filled from ``content``, uint8 of shape (bytes,)."""
    tensors, start = [], 0
    for name, shape in table:
        tensor = torch.empty(shape, dtype=getattr(torch, name))
        end = start + tensor.numel() * tensor.element_size()
        bytes_of(tensor).copy_(content[start:end])
        tensors.append(tensor)
        start = end
    return tensors


def form_of(state: Mapping[str, Any]) -> str:
    """Return the form of a state, of its tensors only where they are; raise TypeError for what cannot be kept."""
    return json.dumps(_apart(state, None, None))


def restored(form: str, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state of this form with a checkpoint's tensors (keys may be texts); ValueError names what lacks one."""
    state = _filled(json.loads(form), saved, "state")
    if not isinstance(state, dict):
        raise ValueError(f"{form!r:.80} is no form of a state")
    return state


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
