"""The flags of this distribution. A launch that names one imports this module early, so it imports next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elastic_core import hookimpl
from elastic_core.config import Flag
from elastic_core.config.parse import Wrong, switch


def modules(text: str) -> tuple[str, ...]:
    """Parse names of modules, separated by commas; '' for none."""
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in found:
        if not all(part.isidentifier() for part in name.split(".")):
            raise Wrong(f"has {name!r}, which cannot be a module's name")
    return found


WARM_START: Flag[bool] = Flag(
    name="warm_start",
    text="Fork workers from a process that has imported --preload, or start an interpreter for each.",
    section="Program",
    parse=switch,
    default="1",
    off="no_warm_start",
    after="use_env",
)
PRELOAD: Flag[tuple[str, ...] | None] = Flag(
    name="preload",
    text="The modules that the process of --warm_start imports, such as torch,transformers. With an empty list every "
    "worker starts fresh.",
    section="Program",
    parse=modules,
    metavar="MODULES",
    unset="torch, where it is installed; after the start also torch._dynamo, which every optimizer needs, and "
    "libraries that workers have imported",
    after=WARM_START.name,
)


@hookimpl
def elastic_flags() -> Sequence[Flag[Any]]:
    """Return the flags that ``elastic_warmstart.starter`` reads."""
    return (WARM_START, PRELOAD)
