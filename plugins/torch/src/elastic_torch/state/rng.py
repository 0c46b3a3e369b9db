"""The random generators of a worker: torch's, its GPU's, Python's and numpy's."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def capture() -> dict[str, Any]:
    """Where all of them are."""
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def apply(state: Mapping[str, Any]) -> None:
    """Set all of them to where they were."""
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def reseed(*seeds: int) -> None:
    """Begin anew from numbers; unlike ones give unlike sequences."""
    words = np.random.SeedSequence([seed % 2**64 for seed in seeds]).generate_state(2, np.uint64).tolist()
    torch.manual_seed(words[0])  # every device's
    random.seed(words[1])
    np.random.seed(words[1] % 2**32)
