"""The batches that make one step of the optimizer: which is its last, and what each one's loss counts for."""

from __future__ import annotations

from typing import Any, Literal


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
        self._samples = 0
        """Samples in it, of all ranks; 0 before its first batch, and where the sampler does not say."""

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
