"""The agent's plugin: shows the newest snapshot in memory, and writes snapshots to disk if the job fails for good.

Workers leave snapshots with their agent as memory files, which are gone with the agent, and a request that says where
to write them (``snapshot_format``). The agent never imports torch. The launch waits for this module, so it imports next
to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from elastic_core import hookimpl
from elastic_core.threads import prepare_later

if TYPE_CHECKING:
    from elastic_core.monitors import LeftMemory, RunningRound

elastic_hookspec_major = 2


@hookimpl
def elastic_round_starts(round: RunningRound) -> None:
    """Tell ``elastic status`` which snapshot is the newest."""
    round.answer_snapshot(newest)


def newest(held: Mapping[str, int]) -> tuple[int, int] | None:
    """Return the round and step of the newest snapshot in these memory files; None if there is none."""
    from elastic_torch.memory.snapshot_format import snapshots_in

    if not (found := snapshots_in(held.values())):
        return None
    _prepare()
    return found[0].stamp.round, found[0].stamp.step


@cache
def _prepare() -> None:
    prepare_later(0.0, lambda: import_module("elastic_torch.memory.rescue_files"), name="elastic-prepare")


@hookimpl
def elastic_rescue(left: LeftMemory) -> None:
    """Write the snapshots that exist only in memory to disk."""
    from elastic_torch.memory.rescue_files import rescue

    rescue(left)
