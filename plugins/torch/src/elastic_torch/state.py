"""``TrainState``: what a training is, so that it goes on after a failure as if there had been none.

``commit()`` after a step, ``restore()`` at the top. The rooms below: ``tree`` takes a state apart, ``snapshot`` and
``memory`` keep it in shared memory, ``agreement`` decides which state all ranks go on from, ``peers`` brings it to
those who have it not, ``tiers`` says what is asked of checkpoints on disk. ``shards`` does all of it for models whose
tensors are sharded.
"""

from __future__ import annotations

import json
import os
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from elastic_core.errors import UsageError
from elastic_core.recording import attach
from elastic_torch import rng as generators
from elastic_torch.agreement import Choice, Tier, choose
from elastic_torch.memory import Memory
from elastic_torch.peers import gathered, hand_over
from elastic_torch.stamp import Place, Stamp, digest
from elastic_torch.tiers import Checkpoint, DiskTier
from elastic_torch.tree import put_together, take_apart

if TYPE_CHECKING:
    from elastic_torch.shards.memory import Shards
    from elastic_torch.shards.plan import Found

_T = TypeVar("_T")


class Stateful(Protocol):
    """An optimizer, a scheduler, a scaler, a module: whatever can say what it is, and become it again."""

    def state_dict(self) -> dict[str, Any]:
        """What it is."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Become that."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What :meth:`TrainState.restore` went back to."""

    step: int
    epoch: int
    tier: Tier
    """Where this rank took it from."""


class TrainState:
    """A model, and everything else that its training depends on.

    A training loop stays a loop::

        state = TrainState(model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler)
        state.restore()
        for epoch in state.epochs(10):
            for batch in state.batches(loader):
                ...  # forward, backward, optimizer.step()

    It is the same script at the first start and after each restart: with the state of the newest step that all ranks
    have (``agreement.choose``), in the same epoch, at the next batch, with the same random numbers. That state comes
    from the memory that the agent of this node has kept, or from another rank over the process group, or from a
    checkpoint.

    All ranks make one, with the same arguments, and call its methods after the same steps.

    Args:
        model: The module; one wrapped in DDP or compiled is taken for what is inside. Of one that is sharded (FSDP2,
            DTensor) each rank keeps its part, and another node a replica of it.
        optimizer: The optimizer.
        scheduler: The scheduler of its learning rate.
        sampler: What the loader draws with. If it has ``state_dict()`` and ``load_state_dict()``, it knows by itself
            how far it is; if it has ``advance()``, that is called once for each batch, and ``set_epoch()`` for each
            epoch.
        rng: Whether the random generators belong to the state: torch's, the GPU's, Python's, numpy's.
        extra: Anything else that has a state, by name: a scaler, an average of weights.
        disk: Checkpoints that outlive the job.
        snapshot_every: Steps between two snapshots in memory.
        replicate_every: Snapshots of a sharded model from one to the next that another node keeps a replica of.
        name: Unlike that of any other state of the same worker.

    Attributes:
        step: Steps committed so far.
        epoch: The epoch in progress, from 0.
        batch: Its batches that are done on this rank.

    Raises:
        TypeError: Something has no state.
    """

    def __init__(
        self,
        *,
        model: torch.nn.Module,
        optimizer: Stateful | None = None,
        scheduler: Stateful | None = None,
        sampler: Any = None,
        rng: bool = True,
        extra: Mapping[str, Stateful] | None = None,
        disk: DiskTier | None = None,
        snapshot_every: int = 1,
        replicate_every: int = 10,
        name: str = "train",
    ) -> None:
        if snapshot_every < 1:
            raise ValueError(f"snapshot_every={snapshot_every}: it counts steps, from 1.")
        if replicate_every < 1:
            raise ValueError(f"replicate_every={replicate_every}: it counts snapshots, from 1.")
        self.step = self.epoch = self.batch = 0
        self._model = _unwrapped(model)
        self._parts: dict[str, Stateful] = {}
        for part, thing in (("optimizer", optimizer), ("scheduler", scheduler)):
            if thing is not None:
                self._parts[part] = _stateful(part, thing)
        self._sampler = sampler
        self._sampler_knows = hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict")
        if self._sampler_knows:
            self._parts["sampler"] = sampler
        self._extra = {key: _stateful(f"extra[{key!r}]", thing) for key, thing in (extra or {}).items()}
        self._rng = rng
        self._epoch_rng: torch.Tensor | None = None
        """torch's generator when the epoch's loader began: its order and its workers' seeds come from there."""
        self._pending_rng: Mapping[str, Any] | None = None
        """Of a restored state, to be set when its loader has begun."""
        self._resumed = False
        """Whether the next loader is to go on in the midst of an epoch."""
        self._disk = disk
        self._snapshot_every = snapshot_every
        self._place = Place.found()
        parts = {**self._parts, "extra": self._extra}
        self._shards = _shards_of(self._model, parts, name, self._place, replicate_every)
        self._memory = self._shards.pool if self._shards else Memory(name, self._place.local_rank)
        _states.append(weakref.ref(self))

    # The loop --------------------------------------------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of ``count``, from the one in progress."""
        while self.epoch < count:
            if hasattr(self._sampler, "set_epoch"):
                self._sampler.set_epoch(self.epoch)
            yield self.epoch
            self.epoch += 1
            self.batch = 0
            self._resumed = False

    def batches(self, loader: Iterable[_T], *, accumulate: int = 1) -> Iterator[_T]:
        """The batches that are left of the epoch; each is committed when the next one is asked for.

        Whoever leaves the loop early commits the last batch by hand, or has it again after a restart. Where the sampler
        does not know how far it is, the batches that are done are drawn and thrown away.

        Args:
            loader: A ``DataLoader``, or whatever gives the same batches in an epoch each time.
            accumulate: Batches to one step of the optimizer, and so to one commit; an epoch's last step may have fewer.
        """
        iterator = self._begin(loader)
        open_ = False
        for batch in iterator:
            yield batch
            self.batch += 1
            if hasattr(self._sampler, "advance"):
                self._sampler.advance()
            open_ = self.batch % accumulate != 0
            if not open_:
                self.commit()
        if open_:
            self.commit()

    def commit(self) -> None:
        """A step is done: count it, and keep the state. Training waits until it has been copied.

        Raises:
            TypeError: The state has something in it that cannot be kept; says what, and where.
        """
        self.step += 1
        if (self._memory.outlives or self._shards) and self.step % self._snapshot_every == 0:
            self._keep(Stamp(self._place.round, self.step))
        if self._disk is not None and self._disk.due(self.step):
            mine = {str(_rank()): self._numbers()} if self._rng else {}
            self._disk.save({**self.state_dict(), "rng": mine}, self.step)

    @property
    def replicated(self) -> int | None:
        """Of a sharded model: the newest step of this round of which another node has a replica of every part."""
        newest = self._shards.replicated if self._shards else None
        return None if newest is None else newest.step

    # Restoring -------------------------------------------------------------------------------------------------------

    def restore(self) -> Restored | None:
        """Go back to the newest complete state, if there is any; all ranks together, once, before the first step.

        A rank that gets its state from another one has generators of its own, seeded from the state's stamp and the
        rank: there is no other place where those of the lost one could come from.

        Raises:
            UsageError: There are other ranks, but no process group.
        """
        if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise UsageError(
                "restore() needs the process group, to agree with the other ranks.",
                hint="Call elastic.init_process_group() before it.",
            )
        choice = self._shards.meet() if self._shards else choose(gathered(self._memory.stamps()))
        tier = Tier.DISK if self._load_checkpoint(choice) else None
        if tier is None and choice is not None:
            tier = self._load_snapshot(choice) if isinstance(choice, Choice) else self._load_shards(choice.stamp)
        if self._shards:
            self._shards.go_on(Stamp(self._place.round, self.step), self._whole())
        if tier is None:
            return None
        self._resumed = True
        return Restored(self.step, self.epoch, tier)

    def _load_checkpoint(self, choice: Choice | Found | None) -> bool:
        """Become what the newest checkpoint is, unless the snapshot that was chosen is newer; the same on all ranks."""

        def counts(found: Checkpoint) -> bool:
            """Those of other runs are older than any snapshot."""
            return choice is None or (
                found.run_uid == self._place.run and Stamp(found.round, found.step) > choice.stamp
            )

        if self._disk is None or (newest := self._disk.newest(verify=False)) is None or not counts(newest):
            return False
        loaded = self._shards.load(self._disk, self.state_dict) if self._shards else self._disk.load()
        if loaded is None or not counts(loaded.checkpoint):
            return False
        self.load_state_dict(loaded.state)
        if self._rng:
            numbers = loaded.state.get("rng", {}).get(str(_rank()))
            if numbers is None:
                generators.reseed(digest(loaded.checkpoint.run_uid), loaded.checkpoint.round, self.step, _rank())
            else:
                tensors = [numbers["tensors"][key] for key in sorted(numbers["tensors"], key=int)]
                self._set_generators(put_together(json.loads(numbers["text"]), tensors.__getitem__))
        return True

    def _load_snapshot(self, choice: Choice) -> Tier:
        """Become what the chosen snapshot is; where this rank has it from."""
        tier, stamp = choice.tier(_rank()), choice.stamp
        if choice.without:
            hand_over(choice.source, choice.without, lambda: self._memory.slot(stamp), self._memory.room)
        self._become(stamp, whole=tier is Tier.MEMORY)
        if tier is Tier.PEER and self._rng:
            generators.reseed(digest(self._place.run), stamp.round, stamp.step, _rank())
        return tier

    def _load_shards(self, stamp: Stamp) -> Tier:
        """Become what the chosen snapshot of a sharded model is; where this rank has it from."""
        assert self._shards
        brought = self._shards.bring(self._whole(), "state[1]['state']")
        model, rest = brought.said
        others = put_together(rest, lambda number: brought.plain[number].clone(), brought.shards.__getitem__)
        self._load(put_together(model, brought.plain.__getitem__, brought.shards.__getitem__), others["state"])
        if brought.whole and self._rng and others["rng"] is not None:
            self._set_generators(others["rng"])
        elif self._rng:
            generators.reseed(digest(self._place.run), stamp.round, stamp.step, _rank())
        return Tier.MEMORY if brought.local else Tier.PEER

    def _become(self, stamp: Stamp, *, whole: bool) -> None:
        """Take over a snapshot from this rank's memory; its random numbers too, where it is this rank's ``whole``."""
        snapshot = self._memory.snapshot(stamp)
        model, rest = snapshot.said  # the model copies what it is given, others may take it as it is
        others = put_together(rest, lambda number: snapshot.views[number].clone())
        self._load(put_together(model, snapshot.views.__getitem__), others["state"])
        if whole and self._rng and others["rng"] is not None:
            self._set_generators(others["rng"])

    def _set_generators(self, numbers: Mapping[str, Any]) -> None:
        self._epoch_rng, self._pending_rng = numbers["epoch"], numbers["now"]
        generators.apply(numbers["now"])

    def _numbers(self) -> dict[str, Any]:
        """This rank's generators, as checkpoints keep them: a text and tensors."""
        said, tensors = take_apart({"now": generators.capture(), "epoch": self._epoch_rng})
        return {"text": json.dumps(said), "tensors": {str(index): tensor for index, tensor in enumerate(tensors)}}

    # The state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What all ranks have in common: model, optimizer, scheduler, sampler, extra and progress, by these names."""
        state = {"model": self._model.state_dict(), **self._rest()}
        return self._shards.named(state) if self._shards else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what :meth:`state_dict` has returned, here or elsewhere."""
        if self._shards:
            state = self._shards.take_over(state)
        self._load(state["model"], state)

    def _rest(self) -> dict[str, Any]:
        state: dict[str, Any] = {part: thing.state_dict() for part, thing in self._parts.items()}
        if self._extra:
            state["extra"] = {key: thing.state_dict() for key, thing in self._extra.items()}
        state["progress"] = {"step": self.step, "epoch": self.epoch, "batch": self.batch}
        return state

    def _load(self, model: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
        tensors = OrderedDict(model)
        tensors._metadata = self._model.state_dict()._metadata  # type: ignore[attr-defined]  # versions of its parts
        self._model.load_state_dict(tensors)
        for part, thing in self._parts.items():
            thing.load_state_dict(rest[part])
        for key, thing in self._extra.items():
            thing.load_state_dict(rest["extra"][key])
        progress = rest["progress"]
        self.step, self.epoch, self.batch = (int(progress[key]) for key in ("step", "epoch", "batch"))

    def _keep(self, stamp: Stamp) -> None:
        if self._shards:
            self._shards.keep(stamp, self._whole())
        else:
            self._memory.keep(stamp, *take_apart(self._whole()))

    def _whole(self) -> list[Any]:
        """What a snapshot has: all of the state, and this rank's generators."""
        numbers = {"now": generators.capture(), "epoch": self._epoch_rng} if self._rng else None
        return [self._model.state_dict(), {"state": self._rest(), "rng": numbers}]

    def _begin(self, loader: Iterable[_T]) -> Iterator[_T]:
        """The loader's iterator, at the first batch that is left, with the generators as they were then."""
        resumed, self._resumed = self._resumed, False
        pending, self._pending_rng = self._pending_rng, None
        if resumed and pending is not None and self._epoch_rng is not None:
            torch.set_rng_state(self._epoch_rng)
        else:
            self._epoch_rng = torch.get_rng_state()
        iterator = iter(loader)
        if resumed and not self._sampler_knows:
            for _ in range(self.batch):
                next(iterator, None)
        if pending is not None:
            generators.apply(pending)
        return iterator


_states: list[weakref.ref[TrainState]] = []
"""In the order in which they were made."""


def _progress() -> Mapping[str, object]:
    """How far the newest state is, for error files."""
    living = [state for reference in _states if (state := reference()) is not None]
    return {"step": living[-1].step, "epoch": living[-1].epoch} if living else {}


attach(_progress)


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _shards_of(
    model: torch.nn.Module, parts: Mapping[str, Any], name: str, place: Place, replicate_every: int
) -> Shards | None:
    """The memory tier of a sharded model; None for any other, which has no use for what this imports."""
    if not any(hasattr(parameter, "placements") for parameter in model.parameters()):
        return None
    from elastic_torch.shards.memory import Shards

    return Shards(model, parts, name, place.local_rank, replicate_every)


def _stateful(name: str, thing: Any) -> Stateful:
    if not (callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))):
        raise TypeError(f"{name} is a {type(thing).__qualname__}, which has no state_dict() and load_state_dict().")
    return thing  # type: ignore[no-any-return]  # it has what the protocol asks for


def _unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """What is inside of DDP and ``torch.compile``."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), torch.nn.Module):
            model = inner
        else:
            return model
