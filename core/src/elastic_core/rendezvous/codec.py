"""JSON in and out of the store: versioned, checked against the schema, bounded. Nothing from the network is unpickled.

The schema is the dataclasses' own annotations. :func:`decode_entry` and :func:`decode_row` build every value from
exactly the fields that its class declares; anything missing, unknown or of another type is refused, naming where.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from elastic_core.errors import RendezvousStateError
from elastic_core.rendezvous.backend import MAX_VALUE_BYTES
from elastic_core.rendezvous.entries import (
    Chair,
    Closed,
    Drain,
    Entry,
    Halt,
    Member,
    Open,
    Plan,
    Resume,
    Round,
    StopAt,
)
from elastic_core.rendezvous.rows import NodeRow
from elastic_core.rendezvous.settings import PROTOCOL

_T = TypeVar("_T")

_KINDS: Mapping[str, type] = {
    "OPEN": Open,
    "CHAIR": Chair,
    "ROUND": Round,
    "HALT": Halt,
    "PLAN": Plan,
    "STOP_AT": StopAt,
    "DRAIN": Drain,
    "CLOSED": Closed,
    "RESUME": Resume,
}
_NAMES: Mapping[type, str] = {body: name for name, body in _KINDS.items()}


def encode_entry(entry: Entry) -> bytes:
    """An entry as bytes; a ROUND costs about 16 bytes a member.

    Raises:
        RendezvousStateError: It would be larger than a store must take.
    """
    plain = _plain(entry)
    plain["kind"] = _NAMES[type(entry.body)]
    if isinstance(entry.body, Round):
        plain["body"]["members"] = _pack_members(entry.body.members)
    if isinstance(entry.body, Resume):
        plain["body"]["round"]["members"] = _pack_members(entry.body.round.members)
    return _dump(plain, f"ledger entry {entry.index}")


def decode_entry(data: bytes) -> Entry:
    """The entry that ``data`` holds.

    Raises:
        RendezvousStateError: Too large, no JSON, another protocol version, or not of the schema.
    """
    plain = _load(data, "A ledger entry")
    body = _KINDS.get(str(plain.pop("kind", None)))
    if body is None:
        raise RendezvousStateError("A ledger entry is of no known kind.", hint=_FOREIGN)
    raw = plain.get("body")
    sealed = raw.get("round") if body is Resume and isinstance(raw, dict) else raw
    members: tuple[Member, ...] = ()
    if body in (Round, Resume) and isinstance(sealed, dict):
        members = _unpack_members(sealed.pop("members", None))
    entry = _build(Entry, plain, "entry", {"body": body})
    match entry.body:
        case Round() as plan:
            return dataclasses.replace(entry, body=dataclasses.replace(plan, members=members))
        case Resume(round=plan) as resumed:
            plan = dataclasses.replace(plan, members=members)
            return dataclasses.replace(entry, body=dataclasses.replace(resumed, round=plan))
    return entry


def encode_row(row: NodeRow) -> bytes:
    """A roster row as bytes.

    Raises:
        RendezvousStateError: It would be larger than a store must take.
    """
    return _dump(_plain(row), f"the roster row of {row.info.node_id}")


def decode_row(data: bytes) -> NodeRow:
    """The row that ``data`` holds.

    Raises:
        RendezvousStateError: Too large, no JSON, another protocol version, or not of the schema.
    """
    return _build(NodeRow, _load(data, "A roster row"), "row", {})


_FOREIGN = (
    "Something else writes under this job id, or an agent of another version of Elastic runs. "
    "Use another --rdzv_id, or the same version everywhere."
)


def _dump(plain: dict[str, Any], what: str) -> bytes:
    data = json.dumps({"v": PROTOCOL, **plain}, separators=(",", ":"), allow_nan=False).encode()
    if len(data) > MAX_VALUE_BYTES:
        raise RendezvousStateError(
            f"The value for {what} has {len(data)} bytes; at most {MAX_VALUE_BYTES} are allowed."
        )
    return data


def _load(data: bytes, what: str) -> dict[str, Any]:
    if len(data) > MAX_VALUE_BYTES:
        raise RendezvousStateError(f"{what} has {len(data)} bytes; at most {MAX_VALUE_BYTES} are read.", hint=_FOREIGN)
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise RendezvousStateError(f"{what} is not JSON: it begins with {data[:40]!r}.", hint=_FOREIGN) from exc
    if not isinstance(plain, dict):
        raise RendezvousStateError(f"{what} is not a JSON object: it begins with {data[:40]!r}.", hint=_FOREIGN)
    version = plain.pop("v", None)
    if version != PROTOCOL:
        raise RendezvousStateError(
            f"{what} is of protocol version {version!r}; this node speaks {PROTOCOL}.", hint=_FOREIGN
        )
    return plain


def _pack_members(members: tuple[Member, ...]) -> list[Any]:
    """``[ids, sizes, roles]``, the last two collapsed to one value where all nodes have the same, as they mostly do."""

    def collapsed(values: list[Any]) -> Any:
        return values[0] if values and all(value == values[0] for value in values) else values

    ids = [member.node_id for member in members]
    return [ids, collapsed([m.local_world_size for m in members]), collapsed([m.role for m in members])]


def _unpack_members(packed: object) -> tuple[Member, ...]:
    """The members; checked column by column, since there may be thousands."""
    match packed:
        case [list() as ids, sizes, roles]:
            sizes = sizes if isinstance(sizes, list) else [sizes] * len(ids)
            roles = roles if isinstance(roles, list) else [roles] * len(ids)
            columns = ((ids, str), (sizes, int), (roles, str))
            if len(sizes) == len(roles) == len(ids) and all({*map(type, column)} <= {kind} for column, kind in columns):
                return tuple(map(Member, ids, sizes, roles))
    raise RendezvousStateError("A ROUND's members are not of the schema.", hint=_FOREIGN)


def _plain(value: Any) -> Any:
    """Dataclasses, enums and tuples as JSON's own types; fields that have their default's value stay out."""
    if dataclasses.is_dataclass(value):
        plain = {}
        for item in dataclasses.fields(value):
            part = getattr(value, item.name)
            if item.default is not dataclasses.MISSING and part == item.default:
                continue
            plain[item.name] = _plain(part)
        return plain
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    return value


@functools.cache
def _schema(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """A dataclass's field types, and the names of the fields without a default."""
    hints = typing.get_type_hints(kind)
    missing = dataclasses.MISSING
    required = {f.name for f in dataclasses.fields(kind) if f.default is missing and f.default_factory is missing}
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}, frozenset(required)


def _build(kind: type[_T], plain: object, where: str, override: Mapping[str, Any]) -> _T:
    if not isinstance(plain, dict):
        raise _wrong(where, plain)
    shape: Any = kind  # a class is hashable, which mypy does not know of type[T]
    hints, required = _schema(shape)
    for name in plain:
        if name not in hints:
            raise RendezvousStateError(f"{where} has an unknown field {name!r}.", hint=_FOREIGN)
    for name in required:
        if name not in plain:
            raise RendezvousStateError(f"{where} lacks the field {name!r}.", hint=_FOREIGN)
    parts = {name: _check(override.get(name, hints[name]), part, f"{where}.{name}") for name, part in plain.items()}
    try:
        return kind(**parts)
    except ValueError as exc:
        raise RendezvousStateError(f"{where} cannot be: {exc}.", hint=_FOREIGN) from exc


def _check(hint: Any, value: Any, where: str) -> Any:
    """``value`` as the annotation ``hint`` wants it, or RendezvousStateError."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        (inner,) = [arg for arg in args if arg is not type(None)]
        return _check(inner, value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_check(args[0], part, f"{where}[{i}]") for i, part in enumerate(value))
    if origin is not None and isinstance(value, dict):
        return {key: _check(args[1], part, f"{where}[{key!r}]") for key, part in value.items()}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _build(hint, value, where, {})
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        try:
            return hint(value)
        except ValueError as exc:
            raise _wrong(where, value) from exc
    if hint is float:
        if type(value) in (int, float) and math.isfinite(value):
            return float(value)
    elif type(value) is hint:
        return value
    raise _wrong(where, value)


def _wrong(where: str, value: object) -> RendezvousStateError:
    return RendezvousStateError(f"{where} is {repr(value)[:60]}, which is not of its type.", hint=_FOREIGN)
