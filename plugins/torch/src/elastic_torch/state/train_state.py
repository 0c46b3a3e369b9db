"""``TrainState``: what a training is, so that it goes on after a failure as if there had been none.

``commit()`` after a step, ``restore()`` at the top. The rooms below: ``tree`` takes a state apart, ``snapshot`` and
``memory`` keep it in shared memory, ``agreement`` decides which state all go on from, ``peers`` brings it to others:
``whole`` calls these, ``shards`` does the same for sharded models. ``tiers`` says what is asked of checkpoints on disk,
``checkpoints`` when to save and load one, ``form`` what they forget. ``rescued`` has a failed job's newest state
written out by the agents, and reads it. ``accumulation`` counts the batches of a step, ``progress`` tells error files
how far it is.
"""

from __future__ import annotations

import functools
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist

from elastic_core.errors import UsageError
from elastic_core.worker.graceful_stop import should_checkpoint, somebody_leaves
from elastic_torch.data import loaders
from elastic_torch.data.sampler import ElasticBatchSampler
from elastic_torch.data.seeded_dataset import SeededDataset
from elastic_torch.memory.replicated import Whole, memory_tier
from elastic_torch.memory.rescue import Rescue
from elastic_torch.state import rng as generators, state_tree as tree
from elastic_torch.state.accumulation import Accumulation
from elastic_torch.state.checkpoints import Checkpoints, packed, unpacked
from elastic_torch.state.components import Stateful, data_parallel, stateful, unwrapped
from elastic_torch.state.digests import differences
from elastic_torch.state.disk_tier import Checkpoint, DiskTier, Loaded
from elastic_torch.state.gradient_order import GradientOrder
from elastic_torch.state.progress import follow
from elastic_torch.state.state_choice import Tier
from elastic_torch.state.state_exchange import Peers
from elastic_torch.state.structure import form_of, restored
from elastic_torch.version import Place, Stamp, digest

_T = TypeVar("_T")
_NAME = re.compile(r"[\w.:-]{1,64}", re.ASCII)
"""With which the agent takes what is kept under it."""


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
        if state.stopping:  # for other nodes to go on
            sys.exit()

    It is the same script at the first start and after each restart: with the state of the newest step that all ranks
    have (``state_choice.choose``), in the same epoch, at the next batch, with the same random numbers. That state comes
    from the memory that the agent of this node has kept, or from another rank over the process group, or from a
    checkpoint.

    When nodes join or leave, both loops end after one and the same step on all ranks, which is kept: ``stopping`` is
    True then. The script has only to end, with exit code 0, and the job goes on with other nodes.

    All ranks make one, with the same arguments, and call its methods after the same steps.

    Args:
        model: The module; one wrapped in DDP or compiled is taken for what is inside. Of one that is sharded (FSDP2,
            DTensor) each rank keeps its part, and another node a replica of it.
        optimizer: The optimizer.
        scheduler: The scheduler of its learning rate.
        sampler: What the loader draws with. If it has ``state_dict()`` and ``load_state_dict()``, it knows by itself
            how far it is; if it has ``advance()``, that is called once for each batch, before its step is kept, and
            ``set_epoch()`` for each epoch. In the midst of an epoch an ``ElasticDistributedSampler`` goes on with any
            number of ranks, and so does one with an attribute ``elastic`` that is true; others only with as many.
        rng: Whether the random generators belong to the state: torch's, the GPU's, Python's, numpy's.
        extra: Anything else that has a state, by name: a scaler, an average of weights.
        per_rank: What each rank has of its own, by name: a loader that has a state, an optimizer that is spread over
            ranks. Each rank goes on with that of the rank that had its number. All ranks' are gathered in each commit,
            so keep them small. Where the number of ranks has changed, they need a method
            ``load_rank_states(states, rank, ranks)``, which is given those of all ranks there were.
        exact_samples: Whether an epoch that cannot go on with another number of ranks, each sample being used once, is
            refused; else a warning says so, and samples are skipped or repeated.
        compare_ranks: Whether the first commit of a process finds out if all that is the same on all ranks is.
        disk: Checkpoints that outlive the job: saved when they are due, and once more where training stops or ends.
        snapshot_every: Steps between two snapshots in memory.
        replicate_every: Snapshots of a sharded model from one to the next that another node keeps a replica of.
        name: Unlike that of any other state of the same worker, which is refused once both have kept a step.

    Attributes:
        step: Steps committed so far.
        epoch: The epoch in progress, from 0.
        batch: Its batches that are done; each of them is one of every rank.
        stopping: Whether all ranks stop here, so that nodes may join or leave (``should_checkpoint``).

    Raises:
        TypeError: Something has no state.
        ValueError: A value is wrong.
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
        per_rank: Mapping[str, Any] | None = None,
        exact_samples: bool = True,
        compare_ranks: bool = True,
        disk: DiskTier | None = None,
        snapshot_every: int = 1,
        replicate_every: int = 10,
        name: str = "train",
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(f"name={name!r}: it has 1 to 64 letters, digits and _.:- in it.")
        if snapshot_every < 1:
            raise ValueError(f"snapshot_every={snapshot_every}: it counts steps, from 1.")
        if replicate_every < 1:
            raise ValueError(f"replicate_every={replicate_every}: it counts snapshots, from 1.")
        self.step = self.epoch = self.batch = 0
        self.stopping = False
        self._model = unwrapped(model)
        self._gradients = GradientOrder(data_parallel(model))
        self._peers = Peers()
        self._has_committed = False
        self._parts: dict[str, Stateful] = {}
        own = {key: thing for key, thing in {"sampler": sampler, **(extra or {})}.items() if loaders.is_stateful(thing)}
        extra = {key: thing for key, thing in (extra or {}).items() if key not in own}
        sampler = None if "sampler" in own else sampler
        own |= per_rank or {}
        self._own_things = {key: thing for key, thing in own.items() if not loaders.counts_twice(thing)}
        """As they were given; those of ``per_rank``, and loaders with a state, wherever they were given."""
        self._per_rank = {key: stateful(f"per_rank[{key!r}]", thing) for key, thing in self._own_things.items()}
        self._everybodys: list[torch.Tensor] = []
        """By rank, what each has of its own, as of the last commit."""
        self._begins_anew: set[str] = set()
        """What of its own this rank could not take over, since there are more or fewer ranks."""
        self._exact_samples, self._compare_ranks = exact_samples, compare_ranks
        for part, thing in (("optimizer", optimizer), ("scheduler", scheduler)):
            if thing is not None:
                self._parts[part] = stateful(part, thing)
        self._sampler = sampler = sampler.sampler if isinstance(sampler, ElasticBatchSampler) else sampler
        self._accumulation = Accumulation(sampler=sampler)
        self._sampler_knows = hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict")
        if self._sampler_knows:
            self._parts["sampler"] = sampler
        self._extra = {key: stateful(f"extra[{key!r}]", thing) for key, thing in (extra or {}).items()}
        self._rng = rng
        self._epoch_rng: torch.Tensor | None = None
        """torch's generator when the epoch's loader began: its order and its workers' seeds come from there."""
        self._pending_rng: Mapping[str, Any] | None = None
        """Of a restored state, to be set when its loader has begun."""
        self._resumed = False
        """Whether the next loader is to go on in the midst of an epoch."""
        self._loader_has_ended = False
        """Whether it was committed after the loader had said that there is no other batch: its state is of the end."""
        self._epoch_is_over = False
        """Whether the last step committed was an epoch's last one, and the next epoch has not begun."""
        self._ranks = _ranks()
        """How many there were when the restored state was made, if it was."""
        self._snapshot_every = snapshot_every
        self._place = Place.found()
        things = {**self._parts, "extra": self._extra}
        self._memory = memory_tier(self._model, things, name, self._place.local_rank, replicate_every)
        self._rescue = Rescue(name, disk, self._place, whole=isinstance(self._memory, Whole))
        self._checkpoints = Checkpoints(disk, self._place, self._rescue.saved)
        follow(self)

    # The loop --------------------------------------------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of ``count``, from the one in progress; it ends early where all ranks stop.

        At the end of them the last step is saved on disk, and everything there is written before the loop is left.

        Raises:
            CheckpointError: The last step of all could not be saved on disk.
        """
        while self.epoch < count:
            if hasattr(self._sampler, "set_epoch"):
                self._sampler.set_epoch(self.epoch)
            yield self.epoch
            if self.stopping:
                return
            self.epoch += 1
            self.batch = 0
            self._resumed = self._epoch_is_over = self._loader_has_ended = False
        self._gather_own()
        self._checkpoints.last(self.step, self._to_save, ends=True)

    def batches(self, loader: Iterable[_T], *, accumulate: int = 1) -> Iterator[_T]:
        """The batches that are left of the epoch; each step is committed when the batch after it is asked for.

        It ends early where all ranks stop. Whoever leaves the loop otherwise commits the last batch by hand, or has it
        again after a restart. Where the sampler does not know how far it is, the batches that are done are drawn and
        thrown away.

        Args:
            loader: A ``DataLoader``, or whatever gives the same batches in an epoch each time.
            accumulate: Batches to one step of the optimizer, and so to one commit; an epoch's last step may have fewer.
                ``sync_gradients`` says which of them is the last one. It may be another number after a restart.

        Raises:
            UsageError: The loader draws with an elastic sampler that is not the state's, or is in another epoch.
        """
        if accumulate < 1:
            raise ValueError(f"accumulate={accumulate}: a step has one batch at least.")
        iterator, left = self._begin(loader)
        step = self._accumulation = Accumulation(accumulate, left, self._sampler)
        for batch in iterator:
            step.batch()
            yield batch
            self.batch += 1
            if hasattr(self._sampler, "advance"):
                self._sampler.advance()
            if step.batch_done():
                self._epoch_is_over = step.epoch_is_over
                self.commit()
                if self.stopping:
                    return
        if step.open:
            self._epoch_is_over = self._loader_has_ended = True
            self.commit()

    @property
    def sync_gradients(self) -> bool:
        """Whether the batch in hand completes a step: the optimizer's turn. Else gradients add up, without DDP's sync.

        Of a loader without a length nobody knows which batch is an epoch's last: the optimizer's turn for what is left
        is after the loop, then.
        """
        return self._accumulation.at_last

    def loss_weight(self, reduction: Literal["mean", "sum"] = "mean") -> float:
        """What to multiply this rank's loss of the batch in hand by, before ``backward()``.

        Then the gradient of a step is that of the mean over all of its samples, in all batches of all ranks, as if one
        process had taken them at once: with shares that differ by one, in an epoch's tail, and with ``accumulate``.
        Needs an ``ElasticDistributedSampler`` for that; with others it is 1 / ``accumulate``.

        Args:
            reduction: Whether the loss is the mean over the samples that this rank has, or their sum.

        Raises:
            ValueError: ``reduction`` is neither.
            RuntimeError: No batch of the epoch is left.
        """
        return self._accumulation.weight(reduction)

    def commit(self) -> None:
        """A step is done: count it, and keep the state. Training waits until it has been copied.

        Where all ranks are to stop after it, it is kept in memory, and on disk too unless all nodes stay and others
        only join them; ``stopping`` is True from here on, and what was saved is written when this returns.

        Raises:
            TypeError: The state has something in it that cannot be kept; says what, and where.
            UsageError: Another state of this worker has the same name. Or, in the first commit of a process, ranks
                differ in what is declared to be the same.
        """
        self.step += 1
        if not self._has_committed:
            self._first_commit()
        self._gather_own()
        due = self.step % self._snapshot_every == 0
        if due:
            self._keep()
        self._checkpoints.after(self.step, self._to_save)
        if should_checkpoint(self.step):
            self.stopping = True
            if not due:
                self._keep()
            if leaves := somebody_leaves():
                self._checkpoints.begin_last(self.step, self._to_save)  # both at once: a node that leaves has no time
                self._memory.leave()
            kept = self._memory.has(self._stamp())
            self._checkpoints.last(self.step, self._to_save, save=not (leaves or kept))

    def _first_commit(self) -> None:
        self._has_committed = True
        self._gradients.end_recording()
        self._gradients.known = self._peers.of_first(self._gradients.known)
        if not self._compare_ranks or self._peers.world == 1:
            return
        rest = self._rest()
        common = {
            "model": self._model.state_dict(),
            **rest,
            **{f"extra[{k!r}]": v for k, v in rest.get("extra", {}).items()},
        }
        common.pop("extra", None)
        local = _buffers({"model": self._model, **{f"extra[{k!r}]": thing for k, thing in self._extra.items()}})
        found = [place for place in differences(self._peers, common) if place not in local]
        if found:
            more = f", and {len(found) - 8} more" if len(found) > 8 else ""
            raise UsageError(
                f"The ranks differ in what is declared to be the same on all of them: {', '.join(found[:8])}{more}. "
                "A rank that is restored from another one would silently get that one's.",
                hint="What each rank has of its own goes into TrainState(per_rank={...}), partitions of a model into "
                "DTensors; what should be the same is to be made so: seeded alike, reduced over ranks. "
                "compare_ranks=False leaves this out.",
            )

    def _gather_own(self) -> None:
        """Give all ranks what each has of its own, so that any of them can restore any other."""
        if self._per_rank:
            own = {"rng": self._numbers() if self._rng else None}
            things = {key: thing.state_dict() for key, thing in self._per_rank.items()}
            self._everybodys = self._peers.gather_bytes(tree.packed({**own, "things": things}))

    @property
    def replicated(self) -> int | None:
        """Of a sharded model: the newest step of this round of which another node has a replica of every part."""
        return newest.step if (newest := self._memory.replicated()) else None

    # Restoring -------------------------------------------------------------------------------------------------------

    def restore(self) -> Restored | None:
        """Go back to the newest complete state, if there is any; all ranks together, once, before the first step.

        Where no rank has a snapshot in memory, that is the newest checkpoint, or a newer snapshot that agents wrote to
        a directory when the run before had failed (``rescued``).

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
        newest, tier, loaded, saved = self._memory.meet(), None, None, functools.cache(self._checkpoints.newest)
        if is_rescued := newest is None:
            newest = self._take_rescued(saved())
            is_rescued = newest is not None
        self._rescue.register(self._peers, saved)
        if not is_rescued:
            loaded = self._checkpoints.newer_than(newest, lambda disk: self._memory.load(disk, self.state_dict))
        if loaded is not None:
            tier = self._load_checkpoint(loaded)
        elif newest is not None:
            tier = self._load_snapshot(newest)
            tier = Tier.RESCUED if is_rescued else tier
        self._memory.go_on(self._stamp(), self._whole)
        if tier is None:
            return None
        self._resumed = True
        return Restored(self.step, self.epoch, tier)

    def _take_rescued(self, saved: Checkpoint | None) -> Stamp | None:
        """Have what a run that failed has left in a directory in memory, if that is newer than the checkpoint."""
        for candidate in self._rescue.find(self._peers, saved):
            if self._rescue.take(self._peers, candidate, self._memory.adopt):
                return self._memory.meet()
        return None

    def _load_checkpoint(self, loaded: Loaded) -> Tier:
        """Become what a checkpoint is."""
        self._gradients.replay(loaded.state["gradients"].tolist())
        self.load_state_dict(loaded.state)
        if self._rng:
            numbers = loaded.state.get("rng", {}).get(str(_rank()))
            if numbers is None:
                generators.reseed(digest(loaded.checkpoint.run_uid), loaded.checkpoint.round, self.step, _rank())
            else:
                self._set_generators(unpacked(numbers))
        self._load_own(loaded.state.get("per_rank"))
        return Tier.DISK

    def _load_snapshot(self, stamp: Stamp) -> Tier:
        """Become what the newest snapshot is; where this rank has it from."""
        taken = self._memory.take(self._whole)
        self._gradients.replay(taken.rest["state"]["gradients"].tolist())
        self._load(taken.model, taken.rest["state"])
        if self._rng and not taken.whole:
            generators.reseed(digest(self._place.run), stamp.round, stamp.step, _rank())
        elif self._rng and taken.rest["rng"] is not None:
            self._set_generators(taken.rest["rng"])
        self._load_own(taken.rest["per_rank"])
        return taken.tier

    def _load_own(self, kept: Mapping[str, torch.Tensor] | None) -> None:
        """Become what the rank of this number had of its own.

        Raises:
            UsageError: There is none, or it is of another number of ranks.
        """
        if not self._per_rank:
            return
        if not kept:
            raise UsageError(
                f"The state that is restored has nothing for per_rank: {', '.join(self._per_rank)}.",
                hint="It was saved without per_rank=. Begin with a new checkpoint directory, or without per_rank=.",
            )
        self._everybodys = [kept[str(rank)] for rank in range(len(kept))]
        if len(kept) == _ranks():
            mine = tree.unpacked(self._everybodys[_rank()])
            if self._rng and mine["rng"] is not None:
                self._set_generators(mine["rng"])
            for key, thing in self._per_rank.items():
                thing.load_state_dict(_named(mine["things"], key))
            return
        states = [tree.unpacked(each)["things"] for each in self._everybodys]
        for key in self._per_rank:
            if (load := getattr(self._own_things[key], "load_rank_states", None)) is not None:
                load([_named(each, key) for each in states], _rank(), _ranks())
            elif hasattr(self._own_things[key], "__iter__"):  # a loader: between two epochs it begins as it is
                if self.batch > 0 and not self._epoch_is_over:
                    exact = self._exact_samples
                    loaders.refuse_other_ranks(self.epoch, self.batch, len(kept), _ranks(), exact=exact)
                self._begins_anew.add(key)
            else:
                raise UsageError(
                    f"per_rank[{key!r}] was kept by {len(kept)} ranks, and now there are {_ranks()}.",
                    hint=f"Start with {len(kept)} ranks again, or give it a method load_rank_states(states, rank, "
                    "ranks) that makes a rank's state of those of all ranks there were.",
                )

    def _set_generators(self, numbers: Mapping[str, Any]) -> None:
        self._epoch_rng, self._pending_rng = numbers["epoch"], numbers["now"]
        generators.apply(numbers["now"])

    def _numbers(self) -> dict[str, Any]:
        return {"now": generators.capture(), "epoch": self._epoch_rng}

    # The state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What all ranks have in common: model, optimizer, scheduler, sampler, extra and progress, by these names.

        And its ``form``, a text, by which it is known again in formats whose keys are strings.
        """
        state = self._memory.named({"model": self._model.state_dict(), **self._rest()})
        return {**state, "form": form_of(state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what :meth:`state_dict` has returned, here or elsewhere, or what a checkpoint has made of it.

        Raises:
            ValueError: Something is missing; says what.
        """
        if "form" in state:
            state = restored(state["form"], state)
        state = self._memory.take_over(state)
        self._load(state["model"], state)

    def _to_save(self) -> dict[str, Any]:
        """What a checkpoint gets: what belongs to one rank alone has its number for a name."""
        numbers = {str(_rank()): packed(self._numbers())} if self._rng else {}
        return {**self.state_dict(), "rng": numbers, "per_rank": self._own_by_rank()}

    def _own_by_rank(self) -> dict[str, torch.Tensor]:
        return {str(rank): content for rank, content in enumerate(self._everybodys)}

    def _rest(self) -> dict[str, Any]:
        state: dict[str, Any] = {part: thing.state_dict() for part, thing in self._parts.items()}
        if self._extra:
            state["extra"] = {key: thing.state_dict() for key, thing in self._extra.items()}
        state["gradients"] = torch.tensor(self._gradients.known, dtype=torch.int64)
        state["progress"] = {"step": self.step, "epoch": self.epoch, "batch": self.batch, "ranks": _ranks()}
        state["progress"] |= {"over": self._epoch_is_over, "ended": self._loader_has_ended}
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
        self._ranks = int(progress["ranks"])
        self._epoch_is_over, self._loader_has_ended = bool(progress.get("over")), bool(progress.get("ended"))

    def _keep(self) -> None:
        self._memory.keep(self._stamp(), self._whole)

    def _stamp(self) -> Stamp:
        return Stamp(self._place.round, self.step)

    def _whole(self) -> list[Any]:
        """What a snapshot has: the model's state, all else, and this rank's generators."""
        rng = self._numbers() if self._rng else None
        return [self._model.state_dict(), {"state": self._rest(), "rng": rng, "per_rank": self._own_by_rank()}]

    def _begin(self, loader: Iterable[_T]) -> tuple[Iterator[_T], int | None]:
        """The loader's iterator, at the first batch that is left, with the generators as they were then.

        Returns:
            And how many batches are left, where the loader has a length.
        """
        loaders.check_sampler(loader, self._sampler, self.epoch)
        own = self._is_own(loader)
        if isinstance(data := getattr(loader, "dataset", None), SeededDataset):
            data.set_epoch(self.epoch)
        resumed, self._resumed = self._resumed and self.batch > 0, False
        # A loader that goes on from its last batch ends at once; one that goes on from its end begins an epoch.
        over = resumed and self._epoch_is_over and (self._loader_has_ended or not own)
        if resumed and not over and self._ranks != _ranks() and not (own or self._goes_on(loader)):
            exact = self._exact_samples
            loaders.refuse_other_ranks(self.epoch, self.batch, self._ranks, _ranks(), exact=exact)
        pending, self._pending_rng = self._pending_rng, None
        if pending is not None:
            generators.apply(pending)
        if resumed and pending is not None and self._epoch_rng is not None:
            torch.set_rng_state(self._epoch_rng)
        else:
            self._epoch_rng = torch.get_rng_state()
        left, iterator = (0, iter(())) if over else (loaders.length(loader), iter(loader))
        if resumed and not over and not self._sampler_knows:
            if not own:
                loaders.skip(iterator, self.batch)
            left = None if left is None else left - self.batch
        if resumed and pending is not None:
            generators.apply(pending)
        return iterator, left

    def _goes_on(self, loader: object) -> bool:
        return loaders.goes_on_with_any_ranks(self._sampler) and (loader is self._sampler or self._sampler_knows)

    def _is_own(self, loader: object) -> bool:
        """Whether a loader knows by itself how far it is, and was restored.

        Raises:
            UsageError: It is restored, and its sampler too; or it is in ``extra``, as if all ranks had the same.
        """
        if any(loader is thing for thing in self._extra.values()):
            raise UsageError(
                "The loader is in extra=, as if its position was the same on all ranks.",
                hint="Give it as per_rank={'loader': loader}: each rank has a position of its own.",
            )
        name = next((key for key, thing in self._own_things.items() if thing is loader), None)
        if name is not None and loaders.draws_elastically(loader):
            raise UsageError(
                f"The loader {name!r} has a state of its own, and its sampler, which is elastic, has one too.",
                hint="Give TrainState the sampler only: TrainState(..., sampler=sampler).",
            )
        return name is not None and name not in self._begins_anew


def _named(states: Mapping[str, Any], key: str) -> Any:
    if key not in states:
        raise UsageError(
            f"The state that is restored has no per_rank[{key!r}].",
            hint="Give per_rank= the same names as when it was saved.",
        )
    return states[key]


def _buffers(things: Mapping[str, object]) -> set[str]:
    """The places of the modules' buffers: each rank's are of its own batches, and DDP takes rank 0's (BatchNorm)."""
    modules = {name: thing for name, thing in things.items() if isinstance(thing, torch.nn.Module)}
    return {f"{name}[{buffer!r}]" for name, module in modules.items() for buffer, _ in module.named_buffers()}


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1
