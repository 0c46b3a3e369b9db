"""The steps of an epoch that were drawn and committed, and the reason where fewer were committed than there are."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from elastic_core.errors import ElasticError

SET_BACK = (
    "The sampler was loaded in epoch {}, and is set back to epoch {} before a step of it: samples are used again. "
    "Count epochs from sampler.epoch, and leave the loader out of fabric.setup_dataloaders(...) and "
    "accelerator.prepare(...), which count from 0 in each process."
)


class EpochNotReadError(ElasticError, RuntimeError):
    """An epoch was read to its end, and a part of it was trained on by no rank."""


class Verdict(Enum):
    """The conclusion of a reading."""

    WHOLE = "all that was drawn is committed, or the loop was left early"
    LIMITED = "the loader gives less than the epoch has"
    NEVER = "no step was committed"
    UNCLEAR = "more was drawn than committed, for an unknown reason"
    SHARDED = "a part of what was drawn never came to the loop"


@dataclass(slots=True)
class Reading:
    """One iteration over the steps of an epoch.

    A loader reads ahead: between two commits it draws one step, and so it stays ahead by as many steps as after the
    first commit. What shards again draws one for each rank between two commits, each time.
    """

    ranks: int
    drawn: int = 0
    committed: int = 0
    weighed: int = 0  # the number of requests for the weight of a loss
    ends: int = 0
    """The number of ends that were met. A loader's workers ask again after it; a generator in between does not."""
    ahead: int = 0  # steps that were drawn and not committed, after the first commit
    rate: int = 0  # steps that were drawn between two commits, the end not being met, if it was as many each time
    rates: int = 0  # the number of times that this rate was counted
    varied: bool = False  # true if the rates differ, or another thread than the training's draws
    _at_last: int = 0
    _drawn_by: int = 0

    def draw(self) -> None:
        """Count a step that is drawn."""
        self.drawn += 1
        self._drawn_by = threading.get_ident()

    def commit(self) -> None:
        """Count a committed step."""
        since, self._at_last = self.drawn - self._at_last, self.drawn
        self.committed += 1
        self.varied |= self._drawn_by != threading.get_ident()
        if self.committed == 1:
            self.ahead = self.drawn - 1
        elif not self.ends:
            self.varied |= self.rates > 0 and since != self.rate
            self.rate, self.rates = since, self.rates + 1

    @property
    def left(self) -> int:
        """Steps that were drawn and not committed."""
        return self.drawn - self.committed

    @property
    def steady(self) -> int:
        """Steps that were drawn between two commits, if it was as many each of several times; else 0."""
        return self.rate if self.rates > 1 and not self.varied else 0

    def check(self, epoch: int, done: int, whole: int, *, ended: bool) -> None:
        """Say what is wrong with this reading of an epoch, if anything.

        ``done`` of the ``whole`` epoch's steps are committed, in earlier readings too; ``ended`` as for :func:`judge`.
        Raises EpochNotReadError where a part of it was trained on by no rank.
        """
        to_end = f"Epoch {epoch} was read to its end, but"
        match judge(self, ended=ended):
            case Verdict.WHOLE:
                return
            case Verdict.SHARDED:
                raise EpochNotReadError(
                    f"{to_end} only {done} of its {whole} steps were committed: each rank drew {self.drawn} batches, "
                    f"and was given {self.committed} of them to train on. No rank trained on the others.",
                    hint=f"A framework shards the loader once more, among {self.ranks} ranks: leave it out of "
                    "accelerator.prepare(...), and give Lightning and Fabric use_distributed_sampler=False. If none "
                    "does: call advance() once for each batch; and a DataLoader that takes the sampler itself needs "
                    "batch_size=sampler.batch_size.",
                )
            case Verdict.LIMITED:
                what = (
                    f"The loader ended after {done} of the {whole} steps of epoch {epoch}: the samples of the others "
                    "are not used in this epoch."
                )
            case Verdict.NEVER:
                what = f"{to_end} its last {self.left} steps were not committed: call advance() after each step."
            case Verdict.UNCLEAR:
                what = (
                    f"{to_end} its last {self.left} steps were not committed: call advance() once for each batch of "
                    "the loader, also with gradient accumulation. If the loop was left early, all is well."
                )
        warnings.warn(what, stacklevel=4)


def judge(reading: Reading, *, ended: bool) -> Verdict:
    """Say why steps were drawn and not committed.

    ``ended`` says that the loader is known to have come to its end, and that each of its batches is committed.
    """
    if not reading.ends:
        return Verdict.LIMITED if ended else Verdict.WHOLE
    if reading.left <= 0:
        return Verdict.WHOLE
    rate = reading.steady
    if ended:
        shares = rate > 1 and reading.ends == 1 and abs(reading.committed * rate - reading.drawn) <= rate
        return Verdict.SHARDED if shares else Verdict.LIMITED
    if reading.committed == 0:
        return Verdict.NEVER
    if rate == reading.ranks > 1 and reading.weighed < 2 * reading.committed:  # else each batch has come to the loop
        return Verdict.SHARDED
    return Verdict.WHOLE if reading.ends > 1 or reading.left <= reading.ahead + 1 else Verdict.UNCLEAR


class Steps(Iterator[list[int]]):
    """One iteration over the steps of an epoch, which counts how it is read."""

    def __init__(self, reading: Reading, steps: Iterator[list[int]], at_end: Callable[[Reading], None]) -> None:
        self._reading, self._steps, self._at_end = reading, steps, at_end

    def __next__(self) -> list[int]:
        """Return the next indices; at the end raise EpochNotReadError if no rank trained on a part of the epoch."""
        step = next(self._steps, None)
        if step is None:
            self._reading.ends += 1
            self._at_end(self._reading)
            raise StopIteration
        self._reading.draw()
        return step
