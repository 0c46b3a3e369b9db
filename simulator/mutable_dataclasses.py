"""Mutable dataclasses for core, in processes that only play plans.

A frozen dataclass sets each field through ``object.__setattr__``, which takes a sixth of a plan's time, and
``dataclasses.replace`` reads the definition of each field, which takes a tenth. Other tests and the type checker ensure
that no code changes a frozen dataclass.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any


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

    dataclasses.dataclass, dataclasses.replace = dataclass, _replace


def _replace(obj: Any, /, **changes: Any) -> Any:
    """Return a copy with these fields, as :func:`dataclasses.replace`."""
    cls: Any = type(obj)
    names, values = _reader(cls)
    return cls(**{**dict(zip(names, values(obj), strict=True)), **changes})


@cache
def _reader(cls: type) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    """Return the names of the fields that are arguments of a dataclass, and a function that returns their values."""
    names = tuple(field.name for field in dataclasses.fields(cls) if field.init)
    return names, attrgetter(*names) if len(names) > 1 else lambda obj: tuple(getattr(obj, name) for name in names)
