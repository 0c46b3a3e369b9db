"""Mutable dataclasses for core, in processes that only play plans.

A frozen dataclass sets each field through ``object.__setattr__``, which takes a sixth of a plan's time. Other tests and
the type checker ensure that no code changes one.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
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

    dataclasses.dataclass = dataclass
