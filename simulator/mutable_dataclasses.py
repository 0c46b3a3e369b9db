"""Makes core's dataclasses cheap, in a process that does nothing but play.

A frozen dataclass sets each of its fields through ``object.__setattr__``, and that alone is a sixth of the time that a
plan takes. That nobody changes one is for the other tests and the type checker to see.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any


def use_mutable_dataclasses() -> None:
    """Make every frozen dataclass that is defined from here on one that is only not supposed to be changed.

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
