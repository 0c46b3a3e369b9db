"""The parts of a state that a checkpoint's format loses come back with its form."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elastic_torch.disk import Disk
from elastic_torch.state.state_tree import form_of, restored


def state() -> dict[str, Any]:
    return {
        "state": {0: {"step": torch.tensor(3.0), 1: [torch.ones(2), None, 5]}, "0.a": torch.zeros(1)},
        "empty": {"dict": {}, "list": [], "tuple": ()},
        "milestones": Counter({3: 1, 6: 2}),
        "betas": (0.9, 0.999),
        "pair": (torch.arange(3), {7: "seven"}),
        "numpy": np.arange(4.0),
        "number": np.int64(9),
        "not a number": float("inf"),
        "nothing": None,
    }


def plain(value: Any) -> Any:
    """Something that can be compared."""
    match value:
        case torch.Tensor() | np.ndarray():
            return (type(value).__name__, value.tolist())
        case dict():
            return (type(value).__name__, [(key, plain(item)) for key, item in value.items()])
        case list() | tuple():
            return (type(value).__name__, [plain(item) for item in value])
    return value


def test_a_state_comes_back_from_a_checkpoint_as_it_was(tmp_path: Path) -> None:
    with Disk(tmp_path) as disk:
        disk.save({**state(), "form": form_of(state())}, 1)
        loaded = disk.load()
    assert loaded is not None
    assert "0" in loaded.state["state"], "keys are strings there"
    assert plain(restored(loaded.state["form"], loaded.state)) == plain(state())


def test_a_state_that_has_kept_its_keys_comes_back_too() -> None:
    assert plain(restored(form_of(state()), state())) == plain(state())


def test_a_missing_value_is_named() -> None:
    saved = state()
    del saved["state"][0][1]
    with pytest.raises(ValueError, match=r"^The checkpoint has nothing for state\['state'\]\[0\]\[1\]\[0\]\.$"):
        restored(form_of(state()), saved)


@pytest.mark.parametrize("text", ["[1]", '{"list": []}', "3"])
def test_a_text_that_is_no_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no (form|part) of a state$"):
        restored(text, {})
