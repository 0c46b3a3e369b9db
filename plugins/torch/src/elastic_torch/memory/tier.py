"""The memory tier: what ``TrainState`` asks of the snapshots in memory that the agents hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from elastic_torch.memory.buffers import Buffers
from elastic_torch.memory.snapshot import Snapshot
from elastic_torch.state.disk_tier import AnyLoaded, DiskTier
from elastic_torch.state.state_choice import Tier
from elastic_torch.state.state_exchange import Peers
from elastic_torch.version import Stamp

State = Callable[[], Any]
"""Returns all of a state: the model's, and a mapping of everything else."""


@dataclass(frozen=True, slots=True)
class TakenState:
    """The state of a snapshot. Of its tensors only those of the model may be views of shared memory.

    Attributes:
        model: The model's.
        rest: Everything else.
        whole: Whether this rank itself has kept all of it, its random generators too.
        tier: Where it comes from.
    """

    model: Mapping[str, Any]
    rest: Mapping[str, Any]
    whole: bool
    tier: Tier


class MemoryTier:
    """The base of both memory tiers: a state that each rank has in full, and one that is sharded.

    Every method but :meth:`named` and :meth:`take_over` is for all ranks together. What is defined here is enough for a
    state that each rank has in full.

    Args:
        buffers: Where this rank's own snapshots are.
        peers: All ranks.
    """

    def __init__(self, buffers: Buffers, peers: Peers) -> None:
        self._buffers, self._peers = buffers, peers

    def meet(self) -> Stamp | None:
        """Agree on the newest snapshot; its stamp, if there is any."""
        raise NotImplementedError

    def take(self, state: State) -> TakenState:
        """Return the snapshot that :meth:`meet` has agreed on, as this rank needs it."""
        raise NotImplementedError

    def keep(self, stamp: Stamp, state: State) -> None:
        """Keep a snapshot; training waits until it has been copied."""
        raise NotImplementedError

    def has(self, stamp: Stamp) -> bool:
        """Whether all ranks have kept this snapshot."""
        raise NotImplementedError

    def adopt(self, stamp: Stamp, snapshot: Snapshot) -> None:
        """Copy a snapshot that was read from a file into a buffer; before another :meth:`meet`."""
        self._buffers.keep(stamp, snapshot.said, list(snapshot.views))

    def go_on(self, stamp: Stamp, state: State) -> None:
        """All ranks have their state, wherever from: the end of restoring."""

    def leave(self) -> None:
        """Wait until other nodes have all that this node has: a node leaves after this step."""

    def replicated(self) -> Stamp | None:
        """Return the newest snapshot of this round that another node has a replica of; None where no replicas are
        made.
        """
        return None

    def named(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a state as checkpoints have it."""
        return state

    def take_over(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make ready to load what :meth:`named` has returned."""
        return state

    def load(self, disk: DiskTier, state: State) -> AnyLoaded | None:
        """Return the newest intact checkpoint, as this rank needs it."""
        return disk.load()
