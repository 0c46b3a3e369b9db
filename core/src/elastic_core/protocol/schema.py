"""Conversion of dataclasses to plain JSON values and back, by the annotations of their fields.

Readers and writers are built once for each class and cached: a leader reads thousands of rows.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

SKIPPABLE: Mapping[str, bool] = types.MappingProxyType({"skippable": True})
"""Metadata of a field with a default that was added within a protocol version. Its name is written with a mark. A
reader that does not know a marked field skips it; it refuses any other unknown field."""
MARK = "?"  # the mark, behind the name of such a field
ROW = "row"
"""The dataclass X of ``Annotated[X, ROW]`` is written as a list of its values: for values that every entry carries."""

Reader: TypeAlias = "Callable[[Any], Any]"
Writer: TypeAlias = "Callable[[Any], Any]"


class SchemaError(ValueError):
    """A value is not of the schema.

    Attributes:
        path: Its path in what was read, e.g. ``.body.members[2]``.
        what: What is wrong with it; follows the path in messages.
    """

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path} {what}")
        self.path, self.what = path, what

    def within(self, step: str) -> SchemaError:
        """Return the error with ``step`` before its path."""
        return SchemaError(step + self.path, self.what)


# Writing -------------------------------------------------------------------------------------------------------------


def writer(kind: type, **fields: Writer) -> Writer:
    """Return a function that writes a dataclass as a plain object, without fields that have their default.

    ``fields`` are writers of fields whose annotation does not say enough.
    """
    return _object_writer(kind, tuple(fields.items()))


@functools.cache
def _object_writer(kind: Any, fixed: tuple[tuple[str, Writer], ...]) -> Writer:
    hints, own = typing.get_type_hints(kind, include_extras=True), dict(fixed)
    fields = [(_key(f), f.name, f.default, own.get(f.name) or _writer(hints[f.name])) for f in dataclasses.fields(kind)]

    def write(value: Any) -> dict[str, Any]:
        found = {}
        for key, name, default, writing in fields:
            part = getattr(value, name)
            if default is dataclasses.MISSING or part != default:
                found[key] = part if writing is None else writing(part)
        return found

    return write


@functools.cache
def _writer(hint: Any) -> Writer | None:
    """Return a writer of values of the annotation ``hint``; None if JSON takes them as they are."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        inner = [arg for arg in args if arg is not type(None)]
        return _perhaps(_writer(inner[0])) if len(inner) == 1 else None
    if origin is typing.Annotated:
        return _row_writer(args[0])
    if origin is tuple:
        return _list_writer(_writer(args[0]))
    if origin is not None:
        return _dict_writer(_writer(args[1]))
    if dataclasses.is_dataclass(hint):
        return _object_writer(hint, ())  # type: ignore[arg-type]  # a class can be hashed
    return (lambda value: value.value) if issubclass(hint, enum.Enum) else None


def _key(item: dataclasses.Field[Any]) -> str:
    return item.name + MARK if item.metadata.get("skippable") else item.name


def _row_writer(kind: Any) -> Writer:
    """Return a writer of lists that leaves out the last values as far as they are the defaults."""
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = [(f.name, f.default, _writer(hints[f.name])) for f in dataclasses.fields(kind)]

    def write(value: Any) -> list[Any]:
        parts = [(getattr(value, name), default, writing) for name, default, writing in fields]
        while parts and parts[-1][0] == parts[-1][1]:
            parts.pop()
        return [part if writing is None else writing(part) for part, _, writing in parts]

    return write


def _perhaps(inner: Writer | None) -> Writer | None:
    return None if inner is None else lambda value: None if value is None else inner(value)


def _list_writer(inner: Writer | None) -> Writer:
    return list if inner is None else lambda value: [inner(part) for part in value]


def _dict_writer(inner: Writer | None) -> Writer:
    return dict if inner is None else lambda value: {key: inner(part) for key, part in value.items()}


# Reading -------------------------------------------------------------------------------------------------------------


def reader(kind: type, **fields: Reader) -> Reader:
    """Return a function that builds a dataclass from a plain object with exactly its fields, or raises SchemaError.

    ``fields`` are readers of fields whose annotation does not say enough.
    """
    return _object_reader(kind, tuple(fields.items()))


@functools.cache
def _object_reader(kind: Any, fixed: tuple[tuple[str, Reader], ...]) -> Reader:
    hints, own = typing.get_type_hints(kind, include_extras=True), dict(fixed)
    readers = {_key(f): (f.name, own.get(f.name) or _reader(hints[f.name])) for f in dataclasses.fields(kind)}
    missing = dataclasses.MISSING
    required = {f.name for f in dataclasses.fields(kind) if f.default is missing and f.default_factory is missing}

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _wrong(value)
        parts = {}
        for name, part in value.items():
            if (known := readers.get(name)) is None:
                if name.endswith(MARK):
                    continue
                raise SchemaError("", f"has an unknown field {name!r}")
            try:
                parts[known[0]] = known[1](part)
            except SchemaError as exc:
                raise exc.within(f".{name}") from None
        if not required <= parts.keys():
            raise SchemaError("", f"lacks the field {min(required - parts.keys())!r}")
        try:
            return kind(**parts)
        except SchemaError:
            raise
        except ValueError as exc:
            raise SchemaError("", f"cannot be: {exc}") from exc

    return read


@functools.cache
def _reader(hint: Any) -> Reader:
    """Return a reader of values of the annotation ``hint``."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        inner = [arg for arg in args if arg is not type(None)]
        return _optional(_reader(inner[0])) if len(inner) == 1 else _refuse  # a union needs a reader from `fields`
    if origin is typing.Annotated:
        return _row_reader(args[0])
    if origin is tuple:
        return _items(_reader(args[0]))
    if origin is not None:
        return _entries(_reader(args[1]))
    if dataclasses.is_dataclass(hint):
        return _object_reader(hint, ())  # type: ignore[arg-type]  # a class can be hashed
    if issubclass(hint, enum.Enum):
        return _member(hint)
    return _number if hint is float else _atom(hint)


def _optional(inner: Reader) -> Reader:
    return lambda value: None if value is None else inner(value)


def _items(inner: Reader) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not list:
            raise _wrong(value)
        return tuple(_each(inner, part, index) for index, part in enumerate(value))

    return read


def _row_reader(kind: Any) -> Reader:
    """Return a reader of what :func:`_row_writer`'s writer writes."""
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = [(f.name, _reader(hints[f.name])) for f in dataclasses.fields(kind)]
    required = sum(f.default is dataclasses.MISSING for f in dataclasses.fields(kind))

    def read(value: Any) -> Any:
        if type(value) is not list or not required <= len(value) <= len(fields):
            raise _wrong(value)
        parts = zip(fields, value, strict=False)
        return kind(**{name: _each(reading, part, name) for (name, reading), part in parts})

    return read


def _entries(inner: Reader) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _wrong(value)
        return {key: _each(inner, part, key) for key, part in value.items()}

    return read


def _each(inner: Reader, part: Any, key: object) -> Any:
    try:
        return inner(part)
    except SchemaError as exc:
        raise exc.within(f"[{key!r}]") from None


def _member(kind: type[enum.Enum]) -> Reader:
    def read(value: Any) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise _wrong(value) from None

    return read


def _number(value: Any) -> float:
    if type(value) in (int, float) and math.isfinite(value):
        return float(value)
    raise _wrong(value)


def _atom(kind: type) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise _wrong(value)
        return value

    return read


def _refuse(value: Any) -> Any:
    raise _wrong(value)


def _wrong(value: object) -> SchemaError:
    return SchemaError("", f"is {repr(value)[:60]}, which is not of its type")
