"""``TrainState``: keeps and restores all that a training depends on, so that a failure does not change its result.

``commit()`` after a step, ``restore()`` before the first one. ``components`` has what is the same on all ranks and what
differs; ``state_tree`` turns both into JSON and tensors. The package ``memory`` keeps snapshots, ``disk`` checkpoints;
``restore()`` finds the newest of them, over ``state_exchange``.
"""

from __future__ import annotations

import functools
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist

from elastic_core.errors import ElasticError, UsageError
from elastic_core.worker import should_checkpoint, somebody_leaves
from elastic_torch.data import loaders
from elastic_torch.data.sampler import ElasticBatchSampler, ElasticDistributedSampler
from elastic_torch.data.seeded_dataset import SeededDataset
from elastic_torch.error_file import follow
from elastic_torch.memory.rescue import Rescue
from elastic_torch.memory.tier import Tier, memory_tier
from elastic_torch.state.checkpoints import AnyCheckpoint, AnyLoaded, Checkpoints, DiskTier
from elastic_torch.state.components import Comparison, Components, Generators, PerRank, Stateful
from elastic_torch.state.state_exchange import Peers
from elastic_torch.state.state_tree import form_of, packed, restored, unpacked
from elastic_torch.version import Place, Stamp

_T = TypeVar("_T")
_NAME = re.compile(r"[\w.:-]{1,64}", re.ASCII)  # the names under which the agent keeps a state
NO_BATCH = (
    "Epoch {} goes on after its last batch, so the loop over its batches sets no variable. Code after that loop that "
    "uses one, such as `loss`, needs a value from before the loop: `loss = None`."
)


@dataclass(frozen=True, slots=True)
class Restored:
    """The state to which :meth:`TrainState.restore` went back."""

    step: int
    epoch: int
    tier: Tier  # the source of this rank's state


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
    have (``memory.tier.choose``), in the same epoch, at the next batch, with the same random numbers. That state comes
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
        compare_ranks: Whether the first commit of a process, and its 10th, 100th and so on, finds out if all that is
            the same on all ranks is.
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
        self._peers = Peers()
        self._commits = 0  # in this process
        own = {key: thing for key, thing in {"sampler": sampler, **(extra or {})}.items() if loaders.is_stateful(thing)}
        extra = {key: thing for key, thing in (extra or {}).items() if key not in own}
        sampler = None if "sampler" in own else sampler
        self._comparison = Comparison(self._peers) if compare_ranks else None
        self._generators = Generators(kept=rng)
        self._own = PerRank({**own, **(per_rank or {})}, self._peers, self._generators, exact=exact_samples)
        self._sampler = sampler = sampler.sampler if isinstance(sampler, ElasticBatchSampler) else sampler
        self._accumulation = Accumulation(sampler=sampler)
        self._common = Components(model, optimizer, scheduler, sampler, extra)
        self._exact = exact_samples
        self._resumed = False  # true if the next loader is to go on in the midst of an epoch
        self._loader_has_ended = False
        """True if the last commit came after the loader's end, so that a loader's own state is that of its end."""
        self._epoch_is_over = False
        """True if the last step committed was an epoch's last one, and the next epoch has not begun."""
        self._in_epoch = False  # the script is in the body of a loop over epochs
        self._unkept = False  # the last step is counted, and is kept when the next epoch begins
        self.lacks_batches = False  # the epoch was resumed after its last batch: no variable of its loop is set
        self._ranks = self._peers.world  # the number of ranks that made the restored state
        self._snapshot_every = snapshot_every
        self._place = Place.found()
        self._memory = memory_tier(self._common, name, self._place.local_rank, replicate_every, self._peers)
        self._rescue = Rescue(name, disk, self._place, whole=self._memory.whole)
        self._checkpoints = Checkpoints(disk, self._place, self._rescue.saved)
        follow(self)

    # The loop --------------------------------------------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the epochs that are left of ``count``, from the one in progress; it ends early where all ranks stop.

        The code between the end of :meth:`batches` and the end of the body belongs to the epoch's last step, which is
        kept when the next epoch begins: a failure before that repeats this step, and then that code, on the state
        before both. Only where all ranks stop after that very step is it kept before that code, which runs in the next
        process once more, or for the first time; no batch is left there, so the variables of the inner loop are not
        set, and a warning says so. (The same follows a failure after the last batch of a sharded model's loader that
        has no length.)

        At the end of the last epoch the step is saved on disk, and everything there is written before the loop is
        left. It is kept in memory only if that fails: code after the loop belongs to it, too.

        Raises:
            CheckpointError: The last step of all could not be saved on disk.
        """
        while self.epoch < count:
            if hasattr(self._sampler, "set_epoch"):
                self._sampler.set_epoch(self.epoch)
            if self._unkept:
                self._keep()
            self._in_epoch = True
            try:
                yield self.epoch
            finally:
                self._in_epoch = False
            self.lacks_batches = False
            if self.stopping:
                return
            self.epoch += 1
            self.batch = 0
            self._resumed = self._epoch_is_over = self._loader_has_ended = False
        self._own.gather()
        try:
            self._checkpoints.last(self.step, self._to_save, ends=True)
        except ElasticError:
            if self._unkept and self.step % self._snapshot_every == 0:
                self._memory.keep(self._stamp(), self._whole)
            raise

    def batches(self, loader: Iterable[_T], *, accumulate: int = 1) -> Iterator[_T]:
        """Yield the batches that are left of the epoch; each step is committed when the batch after it is asked for.

        The epoch's last step is then counted, and kept as :meth:`epochs` says; without such a loop it is kept at once.

        It ends early where all ranks stop. A script that leaves the loop otherwise calls :meth:`commit` for the last
        batch, or has it again after a restart. For a sampler without a state the batches that are done are drawn and
        dropped.

        Args:
            loader: A ``DataLoader``, or whatever gives the same batches in an epoch each time.
            accumulate: Batches to one step of the optimizer, and so to one commit; an epoch's last step may have fewer.
                ``sync_gradients`` says which of them is the last one. It may be another number after a restart.

        Raises:
            UsageError: The loader draws with an elastic sampler that is not the state's, or is in another epoch; or is
                sharded once more after it; or its state is restored twice; or its position means other samples to this
                number of ranks.
            EpochNotReadError: The loader has ended, and did not give all that was drawn for it.
        """
        if accumulate < 1:
            raise ValueError(f"accumulate={accumulate}: a step has one batch at least.")
        resumed, self._resumed = self._resumed and self.batch > 0, False
        iterator, left = self._begin(loader, self.batch if resumed else 0)
        step = self._accumulation = Accumulation(accumulate, left, self._sampler)
        self.lacks_batches = resumed
        for batch in loaders.drawn(iterator, self._sampler, self.epoch):
            self.lacks_batches = False
            step.batch()
            yield batch
            self.batch += 1
            if hasattr(self._sampler, "advance"):
                self._sampler.advance()
            if step.batch_done():
                self._epoch_is_over = step.epoch_is_over
                self._end_step(is_last=step.epoch_is_over)
                if self.stopping:
                    return
        if step.open:
            self._epoch_is_over = self._loader_has_ended = True
            self._end_step(is_last=True)
        elif self.lacks_batches:
            warnings.warn(NO_BATCH.format(self.epoch), stacklevel=2)
        elif self._in_epoch and not self._unkept and self._memory.whole and self._commits > self._snapshot_every:
            # The loader did not say that this was its last batch. The snapshot before it is there, of this process.
            self._memory.take_back(self._stamp())
            self._unkept = True

    def _begin(self, loader: Iterable[_T], resumed_after: int) -> tuple[Iterator[_T], int | None]:
        """Return the loader's iterator; and how many batches are left, where the loader has a length.

        ``resumed_after`` are the batches of the epoch that are done, where it is resumed from a restored state; else 0.
        """
        loaders.check_sampler(loader, self._sampler, self.epoch)
        own = self._own.restores(loader, self._common.extra)
        if isinstance(data := getattr(loader, "dataset", None), SeededDataset):
            data.set_epoch(self.epoch)
        resumed, world = resumed_after > 0, self._peers.world
        # A loader that goes on from its last batch ends at once; one that goes on from its end begins an epoch.
        over = resumed and self._epoch_is_over and (self._loader_has_ended or not own)
        if resumed and not over and self._ranks != world and not (own or self._goes_on(loader)):
            loaders.refuse_other_ranks(self.epoch, resumed_after, self._ranks, world, exact=self._exact)
        with self._generators.at_epoch_start(resumed=resumed), loaders.held(self._sampler):
            left, iterator = (0, iter(())) if over else (loaders.left(loader, self._sampler), iter(loader))
            if resumed and not over and not self._common.sampler_knows:
                if not own:
                    for _ in range(resumed_after):
                        next(iterator, None)
                left = None if left is None else left - resumed_after
        return iterator, left

    def _goes_on(self, loader: object) -> bool:
        """Return True if the loader's position means the same samples to any number of ranks."""
        elastic = isinstance(self._sampler, ElasticDistributedSampler) or getattr(self._sampler, "elastic", False)
        return bool(elastic) and (loader is self._sampler or self._common.sampler_knows)

    @property
    def sync_gradients(self) -> bool:
        """True if this batch completes a step: the optimizer's turn. Else gradients add up, without DDP's sync.

        With a loader that has no length the last batch of an epoch is not known: the step of the optimizer for the
        gradients that are left is then after the loop.
        """
        return self._accumulation.at_last

    def loss_weight(self, reduction: Literal["mean", "sum"] = "mean") -> float:
        """Return what to multiply this rank's loss of the batch in hand by, before ``backward()``.

        Then the gradient of a step is that of the mean over all of its samples, in all batches of all ranks, as if one
        process had taken them at once: with shares that differ by one, in an epoch's tail, and with ``accumulate``.
        Needs an ``ElasticDistributedSampler`` for that; with others it is 1 / ``accumulate``.

        ``reduction`` says whether the loss is the mean over the samples that this rank has, or their sum.

        Raises:
            ValueError: ``reduction`` is neither.
            RuntimeError: No batch of the epoch is left.
        """
        return self._accumulation.weight(reduction)

    def commit(self) -> None:
        """Count a step, and keep the state after it. Training waits until the state has been copied.

        After an epoch's last batch, whose step is counted, it keeps that step now: before a ``break`` out of the loop
        over epochs, or before work that takes long.

        Where all ranks are to stop after it, it is kept in memory, and on disk too unless all nodes stay and others
        only join them; ``stopping`` is True from here on, and what was saved is written when this returns.

        Raises:
            TypeError: The state has something in it that cannot be kept; says what, and where.
            UsageError: Another state of this worker has the same name. Or, in the first step of all, ranks differ in
                what is declared to be the same; in later ones that is a warning.
        """
        if self._unkept:  # the step is counted
            self._keep()
        else:
            self._end_step()

    def _end_step(self, *, is_last: bool = False) -> None:
        """Count a step, and keep the state after it; the loop over epochs keeps an epoch's last one."""
        self.step += 1
        self._commits += 1
        if self._commits == 1:
            self._common.share_gradient_order(self._peers)
        if self._comparison is not None and self._comparison.due(self._commits):
            state = {"model": self._common.model.state_dict(), **self._rest()}
            self._comparison.make(state, self._common, first=self.step == 1)
        self._unkept = is_last and self._in_epoch
        if not self._unkept:
            self._keep()
        if should_checkpoint(self.step):
            self.stopping = True
            if self._unkept:
                self._keep()
            if self.step % self._snapshot_every:
                self._memory.keep(self._stamp(), self._whole)
            if leaves := somebody_leaves():
                self._checkpoints.begin_last(self.step, self._to_save)  # both at once: a node that leaves has no time
                self._memory.leave()
            kept = self._memory.has(self._stamp())
            self._checkpoints.last(self.step, self._to_save, save=not (leaves or kept))

    def _keep(self) -> None:
        """Keep the state in memory, and on disk, where that is due after the last step."""
        self._unkept = False
        self._own.gather()
        if self.step % self._snapshot_every == 0:
            self._memory.keep(self._stamp(), self._whole)
        self._checkpoints.after(self.step, self._to_save)

    @property
    def replicated(self) -> int | None:
        """Of a sharded model: the newest step of this round of which another node has a replica of every part."""
        return newest.step if (newest := self._memory.replicated()) else None

    # Restoring -------------------------------------------------------------------------------------------------------

    def restore(self) -> Restored | None:
        """Go back to the newest complete state, if there is any; all ranks together, once, before the first step.

        Where no rank has a snapshot in memory, that is the newest checkpoint, or a newer snapshot that agents wrote to
        a directory when the run before had failed (``memory.rescue``).

        A rank that gets its state from another one has generators of its own, seeded from the state's stamp and the
        rank: there is no other place where those of the lost one could come from.

        Raises:
            UsageError: There are other ranks, but no process group.
            CheckpointUnreadableError: There are checkpoints, or such a snapshot, and none can be loaded.
        """
        if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise UsageError(
                "restore() needs the process group, to agree with the other ranks.",
                hint="Call elastic.init_process_group() before it.",
            )
        stamp, saved = self._memory.meet(), functools.cache(self._checkpoints.newest)
        rescued = None if stamp is not None else self._adopt_rescued(saved)
        self._rescue.register(self._peers, saved)
        tier = None
        if rescued is not None:
            self._load_snapshot(rescued)
            tier = Tier.RESCUED
        elif loaded := self._checkpoints.newer_than(stamp, lambda disk: self._memory.load(disk, self.state_dict)):
            tier = self._load_checkpoint(loaded)
        elif stamp is not None:
            tier = self._load_snapshot(stamp)
        self._memory.go_on(self._stamp(), self._whole)
        if tier is None:
            self._rescue.check()
            return None
        self._resumed = True
        return Restored(self.step, self.epoch, tier)

    def _adopt_rescued(self, saved: Callable[[], AnyCheckpoint | None]) -> Stamp | None:
        """Read the snapshot of a run that has failed into memory, where it is newer than what is saved; its stamp."""
        for candidate in self._rescue.find(self._peers, saved()):
            if self._rescue.take(self._peers, candidate, self._memory.adopt):
                return self._memory.meet()
        return None

    def _load_checkpoint(self, loaded: AnyLoaded) -> Tier:
        self._common.gradients.replay(loaded.state["gradients"].tolist())
        self.load_state_dict(loaded.state)
        numbers = loaded.state.get("rng", {}).get(str(self._peers.rank))
        if not isinstance(numbers, torch.Tensor):
            self._generators.reseed(loaded.checkpoint.run_uid, loaded.checkpoint.round, self.step, self._peers.rank)
        else:
            self._generators.load(unpacked(numbers))
        self._own.load(loaded.state.get("per_rank"), self.epoch, self._batches_of_epoch)
        return Tier.DISK

    def _load_snapshot(self, stamp: Stamp) -> Tier:
        """Load the snapshot with this stamp; where this rank has it from."""
        taken = self._memory.take(self._whole)
        self._common.gradients.replay(taken.rest["state"]["gradients"].tolist())
        self._load(taken.model, taken.rest["state"])
        if not taken.whole:
            self._generators.reseed(self._place.run, stamp.round, stamp.step, self._peers.rank)
        elif taken.rest["rng"] is not None:
            self._generators.load(taken.rest["rng"])
        self._own.load(taken.rest["per_rank"], self.epoch, self._batches_of_epoch)
        return taken.tier

    @property
    def _batches_of_epoch(self) -> int:
        """Batches of an epoch in progress that are done; 0 between two epochs."""
        return 0 if self._epoch_is_over else self.batch

    # The state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what all ranks share: model, optimizer, scheduler, sampler, extra and progress, by these names.

        And its ``form``, a text, by which it is known again in formats whose keys are strings.
        """
        state = self._memory.named({"model": self._common.model.state_dict(), **self._rest()})
        return {**state, "form": form_of(state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what :meth:`state_dict` has returned, here or elsewhere, or what a checkpoint has made of it.

        Raises:
            ValueError: Something is missing; says what.
        """
        if "form" in state:
            state = restored(state["form"], state)
        state = self._memory.take_over(state)
        self._load(state["model"], state)

    def _to_save(self) -> dict[str, Any]:
        """Return the state for a checkpoint: parts that belong to one rank alone are named by its number."""
        now = self._generators.state()
        numbers = {} if now is None else {str(self._peers.rank): packed(now)}
        return {**self.state_dict(), "rng": numbers, "per_rank": self._own.by_rank()}

    def _rest(self) -> dict[str, Any]:
        progress = {"step": self.step, "epoch": self.epoch, "batch": self.batch, "ranks": self._peers.world}
        progress |= {"over": self._epoch_is_over, "ended": self._loader_has_ended}
        return {**self._common.state(), "progress": progress}

    def _load(self, model: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
        self._common.load(model, rest)
        progress = rest["progress"]
        self.step, self.epoch, self.batch = (int(progress[key]) for key in ("step", "epoch", "batch"))
        self._ranks = int(progress["ranks"])
        self._epoch_is_over, self._loader_has_ended = bool(progress.get("over")), bool(progress.get("ended"))

    def _stamp(self) -> Stamp:
        return Stamp(self._place.round, self.step)

    def _whole(self) -> list[Any]:
        """Return the state for a snapshot: the model's, everything else, and this rank's generators."""
        rest = {"state": self._rest(), "rng": self._generators.state(), "per_rank": self._own.by_rank()}
        return [self._common.model.state_dict(), rest]


class Accumulation:
    """The position of an epoch's loop within a step.

    ``left`` are the batches that the loop has before it; None where that is not known. A sampler that weights
    losses (``loss_weight``) says how many samples are in each.
    """

    def __init__(self, size: int = 1, left: int | None = None, sampler: Any = None) -> None:
        self._size, self._left, self._sampler = size, left, sampler
        self._weighs = hasattr(sampler, "loss_weight") and hasattr(sampler, "samples_ahead")
        self._done = 0  # batches of the step in progress that are done
        self._of = size  # the number of batches of the step
        self._samples = 0  # in it, of all ranks; 0 before its first batch, and where the sampler does not say

    @property
    def open(self) -> bool:
        """True if the step in progress has batches that are done."""
        return self._done > 0

    @property
    def epoch_is_over(self) -> bool:
        """True if no batch is left, as far as that is known."""
        return self._left == 0

    @property
    def at_last(self) -> bool:
        """True if the batch in hand completes the step."""
        return self._done + 1 >= self._of

    def batch(self) -> None:
        """Begin a batch."""
        if self._done == 0:
            self._of = self._size if self._left is None else max(1, min(self._size, self._left))
            self._samples = self._sampler.samples_ahead(self._of) if self._weighs else 0

    def batch_done(self) -> bool:
        """Count a finished batch; return whether the step is finished."""
        self._done += 1
        if self._left is not None:
            self._left -= 1
        if self._done < self._of:
            return False
        self._done = 0
        return True

    def weight(self, reduction: Literal["mean", "sum"]) -> float:
        """Return the factor for this rank's loss of the batch in hand that makes the step's gradient one process's.

        With a sampler that weights losses, the batch counts for its n of the step's N samples: the sampler's weight,
        times n / N. Else all batches of a step count alike.

        Raises:
            ValueError: ``reduction`` is neither, or a sum of an unknown number of samples.
        """
        if self._weighs:
            here: int = self._sampler.samples_ahead(1)
            weight: float = self._sampler.loss_weight(reduction)
            return weight * here / (self._samples or here)
        if reduction != "mean":
            raise ValueError(f"reduction={reduction!r} needs an ElasticDistributedSampler; others weight means.")
        return 1 / self._of
