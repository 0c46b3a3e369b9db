"""Conversion of dataclasses to plain JSON values and back, by the annotations of their fields.

The form of each annotation is made once and cached: a leader reads thousands of rows.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

SKIPPABLE: Mapping[str, bool] = types.MappingProxyType({"skippable": True})
"""Metadata of a field with a default that was added within a protocol version. Its name is written with a mark. A
reader that does not know a marked field skips it; it refuses any other unknown field."""
MARK = "?"  # the mark, behind the name of such a field
ROW = "row"
"""The dataclass X of ``Annotated[X, ROW]`` is written as a list of its values: for values that every entry carries."""

Conversion: TypeAlias = "Callable[[Any], Any]"


class Form(NamedTuple):
    """The form of values in JSON; that of ``Annotated[X, Form(…)]`` is used in place of the one that X would have."""

    read: Conversion  # raises SchemaError
    write: Conversion | None = None  # None if JSON takes the values as they are


class SchemaError(ValueError):
    """The value at ``path`` of the JSON, such as ``.body.members[2]``, does not fit the schema; ``what`` is why."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path} {what}")
        self.path, self.what = path, what

    def within(self, step: str) -> SchemaError:
        """Return the error with ``step`` before its path."""
        return SchemaError(step + self.path, self.what)


def writer(kind: type) -> Conversion:
    """Return a function that writes a dataclass as a plain object, without fields that have their default."""
    return typing.cast(Conversion, _form(kind).write)


def reader(kind: type) -> Conversion:
    """Return a function that builds a dataclass from a plain object with exactly its fields, or raises SchemaError."""
    return _form(kind).read


def kind_name(kind: type) -> str:
    """Return the name of a dataclass that is one of several in a union, e.g. ``STOP_AT`` for StopAt."""
    return "".join(f"_{c}" if c.isupper() else c for c in kind.__name__).lstrip("_").upper()


@functools.cache
def _form(hint: Any) -> Form:
    """Return the form of values of the annotation ``hint``."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _row(args[0]) if args[1] == ROW else args[1]
    if origin in (typing.Union, types.UnionType):
        inner = [arg for arg in args if arg is not type(None)]
        return _optional(_form(inner[0])) if len(inner) == 1 else _one_of(inner)
    if origin is tuple:
        return _list(_form(args[0]))
    if origin is not None:
        return _mapping(_form(args[1]))
    if dataclasses.is_dataclass(hint):
        return _object(hint)
    if issubclass(hint, enum.Enum):
        return _member(hint)
    return Form(_number if hint is float else functools.partial(_exactly, hint))


def _optional(inner: Form) -> Form:
    read, write = inner
    return Form(
        lambda value: None if value is None else read(value),
        None if write is None else lambda value: None if value is None else write(value),
    )


def _one_of(kinds: Sequence[Any]) -> Form:
    """Return the form of one of several dataclasses: an object with the name of its class as ``kind``."""
    forms = {kind_name(kind): _form(kind) for kind in kinds}
    writers = {kind: (kind_name(kind), writer(kind)) for kind in kinds}

    def read(value: Any) -> Any:
        fields = dict(value) if type(value) is dict else {}
        name = fields.pop("kind", None)
        if not isinstance(name, str) or name not in forms:
            raise SchemaError("", "is of no known kind")
        return forms[name].read(fields)

    def write(value: Any) -> dict[str, Any]:
        name, writing = writers[type(value)]
        return {"kind": name, **writing(value)}

    return Form(read, write)


def _list(inner: Form) -> Form:
    def read(value: Any) -> Any:
        return tuple(_each(inner.read, part, index) for index, part in enumerate(_exactly(list, value)))

    write = inner.write
    return Form(read, list if write is None else lambda value: [write(part) for part in value])


def _mapping(inner: Form) -> Form:
    def read(value: Any) -> Any:
        return {key: _each(inner.read, part, key) for key, part in _exactly(dict, value).items()}

    write = inner.write
    return Form(read, dict if write is None else lambda value: {key: write(part) for key, part in value.items()})


def _object(kind: Any) -> Form:
    fields, forms = dataclasses.fields(kind), _forms_of_fields(kind)
    keys = {f.name: f.name + MARK if f.metadata.get("skippable") else f.name for f in fields}
    readers = {keys[name]: (name, form.read) for name, form in forms.items()}
    writers = [(keys[f.name], f.name, f.default, forms[f.name].write) for f in fields]
    missing = dataclasses.MISSING
    required = {f.name for f in fields if f.default is missing and f.default_factory is missing}

    def read(value: Any) -> Any:
        parts = {}
        for key, part in _exactly(dict, value).items():
            if (known := readers.get(key)) is None:
                if key.endswith(MARK):
                    continue
                raise SchemaError("", f"has an unknown field {key!r}")
            try:
                parts[known[0]] = known[1](part)
            except SchemaError as exc:
                raise exc.within(f".{key}") from None
        if not required <= parts.keys():
            raise SchemaError("", f"lacks the field {min(required - parts.keys())!r}")
        try:
            return kind(**parts)
        except ValueError as exc:
            raise SchemaError("", f"cannot be: {exc}") from exc

    def write(value: Any) -> dict[str, Any]:
        found = {}
        for key, name, default, writing in writers:
            part = getattr(value, name)
            if default is missing or part != default:
                found[key] = part if writing is None else writing(part)
        return found

    return Form(read, write)


def _row(kind: Any) -> Form:
    """Return the form of a list of a dataclass's values, without the last ones as far as they are the defaults."""
    forms, defaults = list(_forms_of_fields(kind).items()), [f.default for f in dataclasses.fields(kind)]
    required = defaults.count(dataclasses.MISSING)

    def read(value: Any) -> Any:
        if not required <= len(_exactly(list, value)) <= len(forms):
            raise _wrong(value)
        parts = zip(forms, value, strict=False)
        return kind(**{name: _each(form.read, part, name) for (name, form), part in parts})

    def write(value: Any) -> list[Any]:
        parts = [getattr(value, name) for name, _ in forms]
        while parts and parts[-1] == defaults[len(parts) - 1]:
            parts.pop()
        return [part if form.write is None else form.write(part) for (_, form), part in zip(forms, parts, strict=False)]

    return Form(read, write)


def _forms_of_fields(kind: Any) -> dict[str, Form]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {f.name: _form(hints[f.name]) for f in dataclasses.fields(kind)}


def _each(read: Conversion, part: Any, key: object) -> Any:
    try:
        return read(part)
    except SchemaError as exc:
        raise exc.within(f"[{key!r}]") from None


def _member(kind: type[enum.Enum]) -> Form:
    def read(value: Any) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise _wrong(value) from None

    return Form(read, lambda member: member.value)


def _number(value: Any) -> float:
    if type(value) in (int, float) and math.isfinite(value):
        return float(value)
    raise _wrong(value)


def _exactly(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise _wrong(value)
    return value


def _wrong(value: object) -> SchemaError:
    return SchemaError("", f"is {repr(value)[:60]}, which is not of its type")
