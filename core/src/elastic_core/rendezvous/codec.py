"""JSON in and out of the store: versioned, checked against the schema, bounded. Nothing from the network is unpickled.

The schema is the dataclasses' own annotations. :func:`decode_entry` and :func:`decode_row` build every value from
exactly the fields that its class declares; anything missing, unknown or of another type is refused, naming where.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any, cast

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
from elastic_core.rendezvous.schema import Reader, SchemaError, Writer, reader, writer
from elastic_core.rendezvous.settings import PROTOCOL

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
    name = _NAMES[type(entry.body)]
    return _dump({**_entry_writer(name)(entry), "kind": name}, f"ledger entry {entry.index}")


def decode_entry(data: bytes) -> Entry:
    """The entry that ``data`` holds.

    Raises:
        RendezvousStateError: Too large, no JSON, another protocol version, or not of the schema.
    """
    plain = _load(data, "A ledger entry")
    name = plain.pop("kind", None)
    if not isinstance(name, str) or name not in _KINDS:
        raise RendezvousStateError("A ledger entry is of no known kind.", hint=_FOREIGN)
    return cast(Entry, _read(_entry_reader(name), plain, "entry"))


@functools.cache
def _entry_writer(name: str) -> Writer:
    sealed = writer(Round, members=_pack_members)
    bodies = {"ROUND": sealed, "RESUME": writer(Resume, round=sealed)}
    return writer(Entry, body=bodies.get(name) or writer(_KINDS[name]))


@functools.cache
def _entry_reader(name: str) -> Reader:
    sealed = reader(Round, members=_unpack_members)
    bodies = {"ROUND": sealed, "RESUME": reader(Resume, round=sealed)}
    return reader(Entry, body=bodies.get(name) or reader(_KINDS[name]))


def encode_row(row: NodeRow) -> bytes:
    """A roster row as bytes.

    Raises:
        RendezvousStateError: It would be larger than a store must take.
    """
    return _dump(writer(NodeRow)(row), f"the roster row of {row.info.node_id}")


def decode_row(data: bytes) -> NodeRow:
    """The row that ``data`` holds.

    Raises:
        RendezvousStateError: Too large, no JSON, another protocol version, or not of the schema.
    """
    return cast(NodeRow, _read(reader(NodeRow), _load(data, "A roster row"), "row"))


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


_MEMBER = functools.partial(tuple.__new__, Member)
"""What ``Member`` does, in half the time."""


def _pack_members(members: tuple[Member, ...]) -> list[Any]:
    """``[ids, sizes, roles]``, the last two collapsed to one value where all nodes have the same, as they mostly do."""

    def collapsed(values: list[Any]) -> Any:
        return values[0] if values and all(value == values[0] for value in values) else values

    ids = [member.node_id for member in members]
    return [ids, collapsed([m.local_world_size for m in members]), collapsed([m.role for m in members])]


def _unpack_members(packed: object) -> tuple[Member, ...]:
    """The members; checked column by column, since there may be thousands.

    Raises:
        SchemaError: They are something else.
    """
    match packed:
        case [list() as ids, sizes, roles]:
            sizes = sizes if isinstance(sizes, list) else [sizes] * len(ids)
            roles = roles if isinstance(roles, list) else [roles] * len(ids)
            columns = ((ids, str), (sizes, int), (roles, str))
            if len(sizes) == len(roles) == len(ids) and all({*map(type, column)} <= {kind} for column, kind in columns):
                return tuple(map(_MEMBER, zip(ids, sizes, roles, strict=True)))
    raise SchemaError("", "are not of the schema")


def _read(reading: Reader, plain: object, where: str) -> Any:
    try:
        return reading(plain)
    except SchemaError as exc:
        raise RendezvousStateError(f"{where}{exc.path} {exc.what}.", hint=_FOREIGN) from exc
