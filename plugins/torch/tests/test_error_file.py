"""An error file says how far the training was."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import elastic_torch
from elastic_core.worker import error_file
from elastic_torch.error_file import record
from elastic_torch.state.train_state import TrainState


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "rank_0" / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    return path


def fail() -> None:
    raise ValueError("no such layer")


@pytest.mark.parametrize("decorate", [record, record(), error_file.record, elastic_torch.record], ids=range(4))
def test_the_step_and_the_epoch_are_written_down(file: Path, decorate: Any) -> None:
    state = TrainState(model=nn.Linear(1, 1))
    state.epoch = 2
    state.commit()
    with pytest.raises(ValueError, match="no such layer"):
        decorate(fail)()
    message = json.loads(file.read_text())["message"]
    assert message["message"] == "ValueError: no such layer (step 1, epoch 2)"
    assert message["extraInfo"]["step"] == "1"
    assert "raise ValueError" in message["extraInfo"]["py_callstack"]


def test_without_a_state_there_is_nothing_to_add(file: Path) -> None:
    gc.collect()  # the traceback of the test before may still hold its state
    with pytest.raises(ValueError, match="no such layer"):
        record(fail)()
    assert json.loads(file.read_text())["message"]["message"] == "ValueError: no such layer"


def test_torchs_error_handler_writes_in_its_own_way(file: Path) -> None:
    class Handler:
        def __init__(self) -> None:
            self.said: list[object] = []

        def initialize(self) -> None:
            self.said.append("initialized")

        def record_exception(self, error: BaseException) -> None:
            self.said.append(error)

    handler = Handler()
    with pytest.raises(ValueError, match="no such layer"):
        record(fail, error_handler=handler)()
    assert [str(said) for said in handler.said] == ["initialized", "no such layer"]
    assert not file.exists()


def test_the_result_of_the_function_is_returned() -> None:
    assert record(lambda: 7)() == 7
