"""The newest state of a training: a snapshot in memory, a snapshot in a file of a run that failed, or a checkpoint."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from elastic_torch.memory.rescue import Rescue
from elastic_torch.memory.tier import MemoryTier
from elastic_torch.state.checkpoints import Checkpoints
from elastic_torch.state.disk_tier import AnyLoaded
from elastic_torch.state.state_exchange import Peers
from elastic_torch.version import Stamp


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest state; at most one of the first two attributes is taken: the checkpoint, where it is there.

    Attributes:
        snapshot: The stamp of the snapshot in memory, if there is one.
        checkpoint: The checkpoint that was loaded, if there is one that is newer.
        is_rescued: Whether the snapshot was read from a file.
    """

    snapshot: Stamp | None
    checkpoint: AnyLoaded | None
    is_rescued: bool


def find_newest(
    memory: MemoryTier, rescue: Rescue, checkpoints: Checkpoints, peers: Peers, state: Callable[[], dict[str, Any]]
) -> Newest:
    """Find the newest state, and read it into memory where it is in a file. Collective; the same on all ranks.

    Args:
        memory: The snapshots in memory.
        rescue: The files that agents wrote when a run had failed; they are told where to write this run's.
        checkpoints: The checkpoints on disk.
        peers: All ranks.
        state: The state as it is now, into which a sharded checkpoint is loaded.
    """
    snapshot, saved, is_rescued = memory.meet(), functools.cache(checkpoints.newest), False
    if snapshot is None:
        for candidate in rescue.find(peers, saved()):
            if rescue.take(peers, candidate, memory.adopt):
                snapshot = memory.meet()
                is_rescued = snapshot is not None
                break
    rescue.register(peers, saved)
    loaded = None if is_rescued else checkpoints.newer_than(snapshot, lambda disk: memory.load(disk, state))
    return Newest(snapshot, loaded, is_rescued)
