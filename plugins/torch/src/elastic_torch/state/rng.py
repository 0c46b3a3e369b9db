"""The random generators of a worker: torch's, its GPU's, Python's and numpy's."""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch


def _apply(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


class Generators:
    """The rank's random generators, and where they were when the epoch's loader began.

    Unless they are ``kept``, they do not belong to the state: :meth:`state` is None, and nothing is set.
    """

    def __init__(self, *, kept: bool) -> None:
        self._kept = kept
        self._epoch: torch.Tensor | None = None
        """torch's generator when the epoch's loader began: it gives the loader's order and its workers' seeds."""
        self._pending: Mapping[str, Any] | None = None
        """Of a restored state, to be set when its loader has begun."""

    def state(self) -> dict[str, Any] | None:
        """Return where they are, and where they were when the epoch's loader began."""
        if not self._kept:
            return None
        now: dict[str, Any] = {
            "torch": torch.get_rng_state(),
            "python": random.getstate(),
            "numpy": np.random.get_state(legacy=False),
        }
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            now["cuda"] = torch.cuda.get_rng_state()
        return {"now": now, "epoch": self._epoch}

    def load(self, state: Mapping[str, Any]) -> None:
        """Set what :meth:`state` has returned."""
        if self._kept:
            self._epoch, self._pending = state["epoch"], state["now"]
            _apply(state["now"])

    def reseed(self, run: str, *numbers: int) -> None:
        """Begin anew from a run's uid and other numbers; unlike ones give unlike sequences."""
        if self._kept:
            seeds = [number % 2**64 for number in (zlib.crc32(run.encode()), *numbers)]
            words = np.random.SeedSequence(seeds).generate_state(2, np.uint64).tolist()
            torch.manual_seed(words[0])  # every device's
            random.seed(words[1])
            np.random.seed(words[1] % 2**32)

    @contextlib.contextmanager
    def at_epoch_start(self, *, resumed: bool) -> Iterator[None]:
        """Make the iterator of the epoch's loader within this.

        The loader of an epoch that is resumed takes its seeds from where torch's generator was when the epoch began;
        after that the generators are set to where they were at the restored step.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            _apply(pending)
        if resumed and pending is not None and self._epoch is not None:
            torch.set_rng_state(self._epoch)
        else:
            self._epoch = torch.get_rng_state()
        yield
        if resumed and pending is not None:
            _apply(pending)
