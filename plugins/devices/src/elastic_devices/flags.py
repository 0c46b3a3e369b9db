"""The flags of this distribution. A launch that names one imports this module early, so it imports next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from elastic_core import hookimpl
from elastic_core.config import Flag
from elastic_core.config.parse import one_of, switch

SECTION = "Placement"
VIRTUAL_LOCAL_RANK = Flag(
    name="virtual_local_rank",
    text="Every worker sees only its own GPU, as device 0, and has LOCAL_RANK=0.",
    section=SECTION,
    parse=switch,
    default="0",
    after="use_env",
)
NUMA_BINDING: Flag[str | None] = Flag(
    name="numa_binding",
    text="Bind each worker to CPUs near its GPU: node, socket, exclusive or core-complex.",
    section=SECTION,
    parse=partial(one_of, ("node", "socket", "exclusive", "core-complex")),
    metavar="MODE",
    after=VIRTUAL_LOCAL_RANK.name,
)


@hookimpl
def elastic_flags() -> Sequence[Flag[Any]]:
    """Return the flags that ``elastic_devices.plugin`` reads."""
    return (VIRTUAL_LOCAL_RANK, NUMA_BINDING)
