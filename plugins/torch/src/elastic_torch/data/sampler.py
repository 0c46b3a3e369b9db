"""A sampler whose position survives a change of the number of workers: ``DistributedSampler``, made elastic."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch.distributed as dist
from torch.utils.data import BatchSampler, Sampler

from elastic_core.errors import UsageError
from elastic_torch.data import partition, sharders
from elastic_torch.data.audit import Step, audit_log as log_of
from elastic_torch.data.permutation import Order
from elastic_torch.data.step_counts import SET_BACK, Reading, Steps, Verdict, judge

VERSION = 1  # of the states that samplers save
CHUNK = 8192  # places that are looked up in the order at once: few for a fast first batch, many for numpy


class ElasticDistributedSampler(Sampler[int]):
    """The samples of one rank, and how far all ranks have come, counted in samples.

    Each step takes the next ``global_batch_size`` samples of the epoch's order, however many ranks there are, and the
    ranks share them out (``partition.py``). The order comes from seed and epoch alone (``permutation.py``). So after
    any change of the number of ranks every sample of the epoch is still used exactly once, and the steps are those of
    one process.

    Only :meth:`advance` moves the position. What a loader has fetched ahead does not count: a new iteration, in
    this process or after a restart, begins after the last step that was committed::

        sampler = ElasticDistributedSampler(dataset, global_batch_size=256)
        loader = DataLoader(dataset, batch_sampler=sampler.batches(), num_workers=4)
        for epoch in range(sampler.epoch, epochs):
            sampler.set_epoch(epoch)
            for x, y in loader:
                loss = cross_entropy(model(x), y) * sampler.loss_weight()
                optimizer.zero_grad(); loss.backward(); optimizer.step()
                sampler.advance()

    The tail of an epoch, smaller than a batch, is a last step of its own, or left out with ``drop_last``. No sample is
    ever taken again to fill it. Where a step has fewer samples than there are ranks, a rank without one gets the step's
    first sample as a stand-in, since DDP needs every rank in its collectives: ``loss_weight()`` is 0 then, and it
    counts for nothing in the gradients, nor in the audit log.

    All ranks have the same position; nothing is exchanged. The dataset must be the same on all ranks and in all rounds.

    Without a size it is torchelastic's sampler of that name: it hands out an epoch, rank by rank in turn, to a loader
    with any ``batch_size``, and counts no steps. A script that is restarted begins where it says, in samples of all
    ranks: ``ElasticDistributedSampler(dataset, start_index=n)``, or ``set_epoch(epoch, n)``. Unlike torch's, n is a
    place in the epoch's order, so that what comes after it has not been used, and only the first epoch begins there.

    Args:
        dataset: Anything with a length, in samples.
        num_replicas: Ranks among which steps are shared out. By default those of the process group, before it is there
            ``WORLD_SIZE``, or else 1.
        rank: This one of them; by default likewise.
        shuffle: Whether each epoch has an order of its own; else all have the dataset's.
        seed: For the orders; the same on all ranks.
        drop_last: Whether an epoch's tail is left out.
        global_batch_size: Samples in a step, of all ranks together. This, or ``batch_size``, or neither.
        batch_size: Samples in a step, of each rank: the step is ``batch_size * num_replicas`` samples, and so changes
            with the number of ranks, while samples are still used exactly once.
        start_index: How many samples of the first epoch are left out, from the front of its order: those that an
            earlier run has used, on all ranks together.
        audit_log: A file to which each committed step is appended, as a line of JSON, for ``elastic audit-data``. Rank
            0 writes it; with ``{rank}`` in the name each rank writes one of its own, which also shows that they agree.

    Attributes:
        is_driven: Whether a ``TrainState`` draws and commits the steps.
        epoch_is_held: Whether :meth:`set_epoch` does nothing for now, since one is drawing.
        batch_size: Samples of this rank in a full step, at least 1: what a ``DataLoader`` is given that takes the
            sampler itself, ``DataLoader(dataset, batch_size=sampler.batch_size, sampler=sampler)``.

    Raises:
        TypeError: ``shuffle`` is no boolean: torchelastic's fourth argument, ``start_index``, goes by its name here.
        ValueError: A value is out of its range, both sizes are given, or an audit log of steps without a size.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        global_batch_size: int | None = None,
        batch_size: int | None = None,
        start_index: int = 0,
        audit_log: str | Path | None = None,
    ) -> None:
        self.dataset = dataset
        self.num_replicas = _rank_or_else(num_replicas, "WORLD_SIZE", dist.get_world_size, 1)
        self.rank = _rank_or_else(rank, "RANK", dist.get_rank, 0)
        if self.num_replicas < 1 or not 0 <= self.rank < self.num_replicas:
            raise ValueError(f"rank={self.rank} of num_replicas={self.num_replicas}: ranks count from 0 to one less.")
        if not isinstance(shuffle, bool | np.bool_):  # an argument that was meant for another place
            raise TypeError(f"shuffle={shuffle!r} is neither True nor False. Give start_index by its name.")
        self.shuffle = bool(shuffle)
        self.seed = operator.index(seed)
        self.drop_last = bool(drop_last)
        self._counts_steps = (global_batch_size, batch_size) != (None, None)
        if not self._counts_steps and audit_log is not None:
            raise ValueError("An audit log is of steps: give global_batch_size or batch_size, the samples in one.")
        self.global_batch_size = _step_size(global_batch_size, batch_size, self.num_replicas)
        self._length = len(dataset)
        if self._length < (self.global_batch_size if self.drop_last else 1):
            tail = f" are fewer than a step of {self.global_batch_size}, and drop_last leaves them out"
            raise ValueError(f"There is nothing to train on: {self._length} samples{tail if self._length else ''}.")
        self.batch_size = max(1, len(self._share(0, self.global_batch_size)))
        self._epoch = self._step = 0
        self._cursor = self._start_index = _start_in(start_index, self._length)
        self._previous: Step | None = None
        self._handed_out = 0  # the end of the last step that the newest iteration has begun
        self._reading: Reading | None = None  # the newest iteration; None before the first one
        self.is_driven = self.epoch_is_held = self._ended_here = self._has_loaded = False
        self._log = None if audit_log is None else log_of(audit_log, self.rank)
        self._log_begun = False
        if self.global_batch_size < self.num_replicas:
            idle = self.num_replicas - self.global_batch_size
            warnings.warn(
                f"global_batch_size={self.global_batch_size} for {self.num_replicas} ranks leaves {idle} of them idle.",
                stacklevel=2,
            )

    # Where we are ----------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch that is in progress, from 0."""
        return self._epoch

    @property
    def cursor(self) -> int:
        """Samples of the epoch that committed steps have used, of all ranks."""
        return self._cursor

    @property
    def step(self) -> int:
        """Steps committed so far, over all epochs."""
        return self._step

    @property
    def epoch_is_over(self) -> bool:
        """True if no step of the epoch is left."""
        return self.steps_left == 0

    @property
    def steps_left(self) -> int:
        """The number of steps of the epoch that are not committed."""
        return self._steps_after(self._cursor)

    @property
    def steps_in_epoch(self) -> int:
        """The number of steps of a whole epoch."""
        return self._steps_after(0)

    def _steps_after(self, cursor: int) -> int:
        return partition.steps_left(
            cursor, length=self._length, global_batch_size=self.global_batch_size, drop_last=self.drop_last
        )

    @property
    def share(self) -> int:
        """Samples of this rank in the step in progress: the first that is not committed. 0 for a stand-in."""
        return len(self._share(self._cursor, self._stop_after(self._cursor)))

    def samples_ahead(self, steps: int = 1) -> int:
        """Return samples in the next so many steps, of all ranks together; fewer where the epoch ends before."""
        stop = self._cursor
        for _ in range(steps):
            stop = self._stop_after(stop)
        return stop - self._cursor

    def loss_weight(self, reduction: Literal["mean", "sum"] = "mean") -> float:
        """Return what to multiply this rank's loss by, in the step in progress, so that the update is one process's.

        For a loss that is the mean over this rank's n_r samples: W · n_r / n, with W ranks and n samples in the step
        (:func:`elastic_torch.data.partition.loss_weight` derives it, and takes counts of tokens too). For one that is
        their sum: W / n, and 0 for a stand-in. DDP and FSDP average gradients over ranks, which makes it the gradient
        of the mean over all n samples; the average over ranks of the weighted losses is that mean itself.

        Raises:
            ValueError: ``reduction`` is neither.
            RuntimeError: No step of the epoch is left, or the sampler has no size of a step.
        """
        self._check_counts_steps("loss_weight")
        if self._reading is not None:
            self._reading.weighed += 1
        total, mine = self._stop_after(self._cursor) - self._cursor, self.share
        if total == 0:
            raise RuntimeError(f"Epoch {self._epoch} has no step left to weight a loss of: advance() comes after it.")
        if reduction == "mean":
            return partition.loss_weight(mine, total, self.num_replicas)
        if reduction == "sum":
            return partition.loss_weight(min(mine, 1), total, self.num_replicas)
        raise ValueError(f"reduction={reduction!r} is neither 'mean' nor 'sum'.")

    # Samples ---------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[int]:
        """Return indices of the dataset for this rank, from the committed position to the end of the epoch.

        Raises:
            RuntimeError: The epoch has been trained to its end, and the next one was not set.
        """
        return (index for batch in self._batches() for index in batch)

    def __len__(self) -> int:
        """Return the number of this rank's indices in a whole epoch, wherever in it we are; see ``steps_left``."""
        whole, tail = divmod(self._length, self.global_batch_size)
        last = max(1, len(self._share(0, tail))) if tail and not self.drop_last else 0
        return whole * self.batch_size + last

    def batches(self) -> ElasticBatchSampler:
        """Return this rank's part of each step, as a ``batch_sampler`` for ``DataLoader``."""
        return ElasticBatchSampler(self)

    def _batches(self) -> Iterator[list[int]]:
        if self._ended_here:
            raise RuntimeError(f"Epoch {self._epoch} is over: call set_epoch({self._epoch + 1}) to go on.")
        self._handed_out = self._cursor
        self._reading = Reading(self.num_replicas)
        steps = self._generate(self._reading, self._epoch, self._cursor)
        return Steps(self._reading, steps, self._check_end)

    def _check_end(self, reading: Reading) -> None:
        if reading is self._reading and judge(reading, ended=False) is Verdict.SHARDED:
            self.check_read(ended=False)

    def _generate(self, reading: Reading, epoch: int, cursor: int) -> Iterator[list[int]]:
        sharders.refuse_callers(lambda thing: thing is self)
        order = Order(self._length, self.seed, epoch, self.shuffle)
        at_once = max(1, CHUNK // self.batch_size)
        while cursor < self._stop_after(cursor):
            ends = [self._stop_after(cursor)]
            while len(ends) < at_once and ends[-1] < (after := self._stop_after(ends[-1])):
                ends.append(after)
            # A rank without a sample takes the first of the step: it counts for nothing.
            mine = [self._share(a, b) or range(a, a + 1) for a, b in pairwise([cursor, *ends])]
            places = np.concatenate([np.arange(part.start, part.stop, dtype=np.int64) for part in mine])
            found = iter(order.at(places).tolist())
            for part, end in zip(mine, ends, strict=True):
                if reading is self._reading:
                    self._handed_out = end
                yield [next(found) for _ in part]
            cursor = ends[-1]

    def check_read(self, *, ended: bool) -> None:
        """Find out if what was drawn of the epoch was trained on.

        ``ended`` says that the loader is known to have come to its end, and that each of its batches is committed.

        Raises:
            EpochNotReadError: A part of it was drawn, and trained on by no rank.
        """
        known = ended or not self.is_driven  # a TrainState commits all that its loader gives, and sees its end
        if self._reading is not None and self._counts_steps and known and not self.epoch_is_over:
            whole = self.steps_in_epoch
            self._reading.check(self._epoch, whole - self.steps_left, whole, ended=ended)

    def _stop_after(self, cursor: int) -> int:
        return cursor + partition.step_size(
            cursor, length=self._length, global_batch_size=self.global_batch_size, drop_last=self.drop_last
        )

    def _share(self, start: int, stop: int) -> range:
        return partition.share(start, stop, rank=self.rank, world_size=self.num_replicas)

    # Progress --------------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Commit the step in progress: its samples are used. Call it once for each batch, after the update.

        With gradient accumulation each batch is a step here: commit it after its backward pass, and save states only
        after updates.

        Raises:
            RuntimeError: No batch was taken for it, no step of the epoch is left, or the sampler has no size of a step.
        """
        self._check_counts_steps("advance")
        start, stop = self._cursor, self._stop_after(self._cursor)
        if stop == start or stop > self._handed_out:
            raise RuntimeError(
                f"advance() was called more often than batches of epoch {self._epoch} were taken: call it once for "
                "each. A DataLoader that is given the sampler itself needs batch_size=sampler.batch_size."
            )
        done = Step(
            step=self._step,
            epoch=self._epoch,
            start=start,
            stop=stop,
            world_size=self.num_replicas,
            global_batch_size=self.global_batch_size,
            drop_last=self.drop_last,
            **self._order_facts(),
        )
        if self._log is not None:
            self._begin_log()
            self._log.step(done, self._share(start, stop))
        if self._reading is not None:
            self._reading.commit()
        self._has_loaded = False
        self._previous = done
        self._cursor = stop
        self._step += 1
        self._ended_here = self.epoch_is_over

    def set_epoch(self, epoch: int, start_index: int | None = None) -> None:
        """Begin an epoch; where it is the one in progress, stay where we are.

        Call it before each epoch's iteration. An epoch may be left before its end; its remaining samples are then not
        used, and the audit says so.

        Args:
            epoch: Which, from 0.
            start_index: How many samples of it were used before, on all ranks together; all from its length on. By
                default none, and for the first epoch of this sampler those that it was made with.

        Raises:
            ValueError: One of them is negative.
        """
        epoch = operator.index(epoch)
        if epoch < 0:
            raise ValueError(f"epoch={epoch}: epochs count from 0.")
        if self.epoch_is_held:
            return
        if start_index is None:
            if epoch == self._epoch:
                return
            start = 0 if self._reading is not None else self._start_index
        else:
            start = _start_in(start_index, self._length)
        if epoch != self._epoch:
            self.check_read(ended=False)
            if self._has_loaded and epoch < self._epoch:
                warnings.warn(SET_BACK.format(self._epoch, epoch), stacklevel=2)
        self._epoch = epoch
        self._cursor = self._handed_out = start
        self._reading = Reading(self.num_replicas)
        self._ended_here = False

    # State -----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the committed position, the same on all ranks; JSON can hold it."""
        return {
            "version": VERSION,
            "epoch": self._epoch,
            "cursor": self._cursor,
            "step": self._step,
            **self._order_facts(),
            "previous": None if self._previous is None else asdict(self._previous),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another sampler was, of any rank and any number of them.

        ``global_batch_size`` and ``drop_last`` may differ from then on. Iterate anew afterwards: an iteration that has
        begun goes on as it was.

        Raises:
            ValueError: It is of another dataset, seed or order, in which the position means other samples; or it is no
                state of a sampler.
        """
        epoch, cursor, step, previous = _check_state(state, self._order_facts())
        self._epoch, self._cursor, self._step, self._previous = epoch, cursor, step, previous
        self._handed_out = cursor
        self._reading = Reading(self.num_replicas)
        self._has_loaded, self._ended_here, self._log_begun = True, False, False
        self._begin_log()

    def _order_facts(self) -> dict[str, Any]:
        order = Order(self._length, self.seed, 0, self.shuffle).name
        return {"length": self._length, "seed": self.seed, "order": order}

    def _check_counts_steps(self, method: str) -> None:
        if not self._counts_steps:
            raise RuntimeError(
                f"{method}() is about steps, and this sampler does not know how many samples one has: make it with "
                "global_batch_size or batch_size."
            )

    def _begin_log(self) -> None:
        if not self._log_begun and self._log is not None:
            self._log.resumption(step=self._step, epoch=self._epoch, cursor=self._cursor, previous=self._previous)
            self._log_begun = True


class ElasticBatchSampler(BatchSampler):
    """One rank's part of each step: what a ``DataLoader`` takes as ``batch_sampler``.

    Its batches may differ in size by one between ranks; see :class:`ElasticDistributedSampler`.

    Args:
        sampler: The sampler, whose ``batches()`` makes this.
        batch_size: Not used: frameworks that make a batch sampler anew give it. It is the sampler's.
        drop_last: Likewise.

    Raises:
        UsageError: A framework has put another sampler in the place of the elastic one.
    """

    sampler: ElasticDistributedSampler

    def __init__(
        self, sampler: ElasticDistributedSampler, batch_size: int | None = None, drop_last: bool | None = None
    ) -> None:
        if not isinstance(sampler, ElasticDistributedSampler):
            package = sharders.package_of(sampler)
            raise UsageError(
                f"A {type(sampler).__name__} of {package} was put in the place of the ElasticDistributedSampler that "
                "gives each rank its part: samples would be used twice, or by none.",
                hint="Give use_distributed_sampler=False, to Trainer(...) or fabric.setup_dataloaders(...).",
            )
        super().__init__(sampler, sampler.batch_size, sampler.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        """Return indices of the dataset for each step, from the committed position to the end of the epoch."""
        return self.sampler._batches()

    def __len__(self) -> int:
        """Return the number of steps of a whole epoch, wherever in it we are; see ``steps_left``."""
        return self.sampler.steps_in_epoch

    @property
    def steps_left(self) -> int:
        """The number of steps of the epoch that are not committed."""
        return self.sampler.steps_left

    def set_epoch(self, epoch: int, start_index: int | None = None) -> None:
        """Set the sampler's epoch, for frameworks that look for this method here."""
        self.sampler.set_epoch(epoch, start_index)


def _start_in(start_index: int, length: int) -> int:
    """Return a place in an epoch, its end for a greater one; raise ValueError if it is negative."""
    start = operator.index(start_index)
    if start < 0:
        raise ValueError(f"start_index={start}: the samples of an epoch count from 0.")
    return min(start, length)


def _rank_or_else(given: int | None, variable: str, in_group: Callable[[], int], alone: int) -> int:
    """Return the first that is there of ``given``, the process group's, the launcher's variable, and ``alone``."""
    if given is not None:
        return operator.index(given)
    if dist.is_available() and dist.is_initialized():
        return in_group()
    return int(os.environ.get(variable, alone))


def _step_size(global_batch_size: int | None, batch_size: int | None, ranks: int) -> int:
    """Return samples in a step of all ranks, one of each by default; raise ValueError for two sizes, or one below 1."""
    if global_batch_size is not None and batch_size is not None:
        raise ValueError(
            "global_batch_size and batch_size are both given: the samples in a step, of all ranks or of each. "
            f"Given are {global_batch_size} and {batch_size}."
        )
    if global_batch_size is None:
        name, size = "batch_size", 1 if batch_size is None else batch_size
    else:
        name, size = "global_batch_size", global_batch_size
    if operator.index(size) < 1:
        raise ValueError(f"{name}={size}: a step takes at least one sample.")
    return size * ranks if name == "batch_size" else size


def _check_state(state: Mapping[str, Any], mine: Mapping[str, Any]) -> tuple[int, int, int, Step | None]:
    """Return epoch, cursor, steps and newest step of a state; raise ValueError if it is none, or not of ``mine``."""
    if state.get("version") != VERSION:
        raise ValueError(f"This is no state of this version of the sampler: version={state.get('version')!r}.")
    for name, value in mine.items():
        if state.get(name) != value:
            raise ValueError(
                f"The state was saved with {name}={state.get(name)!r}, and the sampler has {name}={value!r}: "
                "its position would mean other samples. Make the sampler as it was."
            )
    numbers = tuple(state.get(name) for name in ("epoch", "cursor", "step"))
    epoch, cursor, step = (number if type(number) is int and number >= 0 else -1 for number in numbers)
    if min(epoch, cursor, step) < 0 or cursor > mine["length"]:
        raise ValueError(f"This is no state of a sampler: epoch, cursor and step are {numbers!r}.")
    previous = state.get("previous")
    return epoch, cursor, step, None if previous is None else Step.of(previous)
