"""The memory tier of a sharded state: what ``TrainState`` talks to. ``memory.tier`` says what its methods are for.

Checkpoints on disk have torch's own form, which other programs and other sizes can load: parameters and what optimizers
keep for them go by the parameters' names (``torch.distributed.checkpoint.state_dict``), not by numbers, as in memory.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping
from functools import reduce
from operator import getitem
from typing import Any

from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from elastic_torch.disk.dcp import Loose
from elastic_torch.memory.buffers import MOST, Buffers, Snapshot
from elastic_torch.memory.sharded import plan
from elastic_torch.memory.sharded.dtensors import Brought, bring, layout_of
from elastic_torch.memory.sharded.plan import FoundState, HeldPart
from elastic_torch.memory.sharded.replicator import Replicas, Replicator, held_parts
from elastic_torch.memory.tier import MemoryTier, State, TakenState, Tier
from elastic_torch.state.checkpoints import AnyLoaded, DiskTier
from elastic_torch.state.components import Components
from elastic_torch.state.state_exchange import Peers, Transport
from elastic_torch.state.state_tree import leaves, put_together, take_apart
from elastic_torch.version import Stamp

_PARTS = "state[1]['state']"  # the places of the parts in a whole state, by name
_Path = tuple[str, ...]  # the place of an optimizer's state in a whole one: its name, or ``extra`` and its name


class ShardedMemory(MemoryTier):
    """A rank's part of a sharded state, and the replicas that it keeps of other ranks' parts."""

    whole = False

    def __init__(self, common: Components, name: str, local_rank: int, replicate_every: int, peers: Peers) -> None:
        self._replicator: Replicator | None = None
        super().__init__(Buffers(name, local_rank, MOST, pinned=self._pinned), peers)
        self._common = common
        self._replicas = Replicas(name, local_rank)
        self._every, self._kept = replicate_every, 0
        self._transport: Transport | None = None
        self._nodes: list[int] = []
        self._found: list[FoundState] = []
        self._brought: Brought | None = None
        self._newest: Stamp | None = None  # of the last snapshot; None where it could not be kept

    def replicated(self) -> Stamp | None:
        """Return the newest state of this round of which every part is on two nodes."""
        return None if self._replicator is None else self._replicator.replicated

    def meet(self) -> Stamp | None:
        """Return the newest state of which every part is somewhere."""
        self._finish()
        if self._transport is not None:
            self._transport.close()
        self._transport = Transport()
        rows = [[h.stamp.round, h.stamp.step, h.rank, h.world] for h in self._holdings()]
        everybodys = self._peers.gather_json([int(os.environ.get("GROUP_RANK", "0")), rows])
        self._nodes = [node for node, _ in everybodys]
        self._found = plan.every([[HeldPart(Stamp(*row[:2]), *row[2:]) for row in its] for _, its in everybodys])
        return self._found[0].stamp if self._found else None

    def take(self, state: State) -> TakenState:
        """Return the found state, sharded tensors filled in place; raise ValueError if it does not fit the model."""
        assert self._transport is not None
        found = self._found[0]
        mine = {
            h.rank: snapshot
            for h, snapshot in self._holdings().items()
            if (h.stamp, h.world) == (found.stamp, found.world)
        }
        present: dict[str, DTensor] = {}
        take_apart(state(), present)
        owner: dict[str, DTensor] = {}  # optimizers have no state before their first step
        for path, optimizer in self._optimizers().items():
            where = _PARTS + "".join(f"[{key!r}]" for key in path)
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            owner |= {f"{where}['state'][{i}]": p for i, p in enumerate(parameters) if isinstance(p, DTensor)}
        self._brought = brought = bring(self._transport, found, mine, present, owner)
        self._buffers.go_back_to(found.stamp)
        model, rest = brought.said
        return TakenState(
            put_together(model, brought.plain.__getitem__, brought.shards.__getitem__),
            put_together(rest, lambda number: brought.plain[number].clone(), brought.shards.__getitem__),
            brought.whole,
            Tier.MEMORY if brought.local else Tier.PEER,
        )

    def go_on(self, stamp: Stamp, state: State) -> None:
        """Begin to replicate.

        Parts that came from other ranks are kept here first, so that no part is only on the rank that sent it.
        """
        assert self._transport is not None
        transport, brought, self._transport, self._brought = self._transport, self._brought, None, None
        moved = brought is not None and not brought.exact
        if moved:
            self._copy(stamp, state)
        partner = [to for to in plan.partners(self._nodes) if to is not None]
        able = transport.agree(self._buffers.outlives)  # and all have what was moved
        if not able or not partner:
            if able:
                self._replicas.let_go(0)
            transport.close()
            return
        twice = None if moved or brought is None else plan.twice(self._found, self._nodes)
        safe = self._found[0] if moved else twice
        self._replicator = Replicator(
            transport, partner, self._replicas, self._buffers.buffer_of, None if safe is None else safe.stamp
        )
        if moved:
            self._replicator.offer(self._newest)
        atexit.register(self._close)

    def keep(self, stamp: Stamp, state: State) -> None:
        """Copy this rank's part, and offer it if it is time to."""
        self._copy(stamp, state)
        self._kept += 1
        if self._replicator is not None and self._kept % self._every == 0:
            self._replicator.offer(self._newest)

    def has(self, stamp: Stamp) -> bool:
        """Return True if all ranks have kept that."""
        return all(self._peers.gather_stamps([stamp] if stamp == self._newest else []))

    def leave(self) -> None:
        """Have the newest snapshot replicated, if it is not, and wait for that: nothing is written here any more."""
        if self._replicator is not None:
            self._replicator.offer_last(self._newest)
        self._finish()

    def named(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a state with the model's and the optimizers' parts by parameters' names.

        An optimizer that has not made a step yet is given the state that a step without gradients makes: torch does
        that.
        """
        model = self._common.model
        changed = {path: get_optimizer_state_dict(model, its) for path, its in self._optimizers().items()}
        return _with(state, get_model_state_dict(model), changed)

    def take_over(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Become what :meth:`named` has returned, as far as model and optimizers go; the same state, by numbers."""
        model = self._common.model
        set_model_state_dict(model, state["model"])
        options = StateDictOptions(strict=False)  # parameters that never had a gradient have no state in there
        for path, its in self._optimizers().items():
            set_optimizer_state_dict(model, its, _at(state, path), options=options)
        changed = {path: its.state_dict() for path, its in self._optimizers().items()}
        return _with(state, model.state_dict(), changed)

    def load(self, disk: DiskTier, state: State) -> AnyLoaded | None:
        """Return the newest intact checkpoint, of what is sharded the parts that this rank needs."""
        new = [its for its in self._optimizers().values() if not its.state]
        loaded = None
        try:
            loaded = disk.load(_wanted({**state(), "rng": None, "per_rank": None}))
        finally:
            if loaded is None:
                for optimizer in new:
                    optimizer.state.clear()  # made only to be loaded into
        return loaded

    def _optimizers(self) -> dict[_Path, Optimizer]:
        things: dict[_Path, Any] = {(part,): its for part, its in self._common.parts.items()}
        things |= {("extra", key): its for key, its in self._common.extra.items()}
        return {path: thing for path, thing in things.items() if isinstance(thing, Optimizer)}

    def _copy(self, stamp: Stamp, state: State) -> None:
        if self._buffers.outlives:
            said, tensors = take_apart(state(), {})
            self._buffers.keep(stamp, {"rank": self._peers.rank, "world": self._peers.world, "tree": said}, tensors)
        self._newest = stamp if self._buffers.outlives else None

    def _pinned(self) -> tuple[Stamp, ...]:
        return self._replicator.pinned() if self._replicator is not None else ()

    def _holdings(self) -> dict[HeldPart, Snapshot]:
        """Return what this rank can reach: own snapshots, and replicas."""
        return {**self._replicas.holdings(), **held_parts(self._buffers.snapshots())}

    def _finish(self) -> None:
        if self._replicator is not None:
            atexit.unregister(self._close)
            self._replicator.close()
            self._replicator = None

    def _close(self) -> None:
        """Wait, at the end of the program, until all is replicated, unless an exception has ended it."""
        if self._replicator is not None and getattr(sys, "last_value", None) is not None:
            self._replicator.halt()
        else:
            self._finish()
        layout_of.cache_clear()  # which lets go of the meshes


def _with(state: Mapping[str, Any], model: dict[str, Any], changed: Mapping[_Path, Any]) -> dict[str, Any]:
    new = {**state, "model": model, **({"extra": {**state["extra"]}} if "extra" in state else {})}
    for path, its in changed.items():
        _at(new, path[:-1])[path[-1]] = its
    return new


def _at(state: Any, path: _Path) -> Any:
    return reduce(getitem, path, state)


def _wanted(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what to have a checkpoint loaded into: what is sharded as it is here, and of all else whatever was saved.

    All of the model has to be in there; an optimizer has nothing for parameters that never had a gradient.
    """
    sharded = {key for key, value in state.items() if any(isinstance(leaf, DTensor) for _, leaf in leaves(value))}
    loose = {key: Loose(value) if key in sharded else None for key, value in state.items() if key != "model"}
    return {"model": state["model"], **loose}
