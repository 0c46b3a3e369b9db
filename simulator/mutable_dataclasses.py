"""Mutable dataclasses for core, and a faster ``replace``, in processes that only play plans.

A frozen dataclass sets each field through ``object.__setattr__``, which takes a sixth of a plan's time, and
``dataclasses.replace`` takes a tenth. Other tests and the type checker ensure that no code changes a frozen object, or
replaces a field that is not there.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

_thorough_replace = dataclasses.replace


def use_mutable_dataclasses() -> None:
    """Make every dataclass that is defined as frozen from now on a mutable one with the same hash.

    Raises:
        SystemExit: Core is imported already.
    """
    early = [name for name in sys.modules if name.startswith("elastic_core")]
    if early:
        raise SystemExit(f"too late to thaw: {early[0]} is imported already")
    define = dataclasses.dataclass

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, **options: Any) -> Any:
        if frozen:
            options["unsafe_hash"] = options.get("eq", True)  # what it would have had
        decorate: Callable[[type], Any] = define(**options)
        return decorate if cls is None else decorate(cls)

    dataclasses.dataclass = dataclass
    dataclasses.replace = _replace


def _replace(old: Any, /, **changes: Any) -> Any:
    """Return what ``dataclasses.replace`` does."""
    cls: type = type(old)
    if (copy := _copier(cls)) is None:
        return _thorough_replace(old, **changes)
    new = copy(old)
    for name, value in changes.items():
        setattr(new, name, value)
    return new


@cache
def _copier(cls: type) -> Callable[[Any], Any] | None:
    """Return a function that copies the fields of an object, compiled as ``dataclass`` does its ``__init__``.

    None for a class that checks or computes fields when an object is made.
    """
    fields = dataclasses.fields(cls)
    if hasattr(cls, "__post_init__") or not all(field.init for field in fields):
        return None
    lines = ["def copy(old):", "new = create(cls)", *(f"new.{field.name} = old.{field.name}" for field in fields)]
    names: dict[str, Any] = {"cls": cls, "create": cls.__new__}
    exec("\n ".join([*lines, "return new"]), names)
    copy: Callable[[Any], Any] = names["copy"]
    return copy
