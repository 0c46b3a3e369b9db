"""The expectations of torch's own tests of ``@record`` and error files, for torch's decorator and for ours.

torch's are ``errors/api_test`` and ``errors/error_handler_test``. Held elsewhere: what an agent makes of its workers'
error files, whatever is in them (``plugins/causes/tests/test_find_records.py``), failures as callers see them
(``test_torch_callers.py``), and the launcher's own error file (``tests/test_error_file.py``).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing import errors as torchs

import elastic_core as elastic

Record = Callable[[Callable[..., Any]], Callable[..., Any]]
both = pytest.mark.parametrize("record", [torchs.record, elastic.record], ids=["torch", "elastic"])


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The error file of this process."""
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    return file


def raises(error: BaseException) -> None:
    raise error


def failed(error: BaseException, record: Record) -> None:
    """Have a recorded function fail; its error is raised on."""
    with pytest.raises(type(error)) as raised:
        record(raises)(error)
    assert raised.value is error


@both
def test_an_exception_is_written_down_and_raised_on(file: Path, record: Record) -> None:
    file.write_text("an older error")
    failed(KeyError("layer"), record)
    message = json.loads(file.read_text())["message"]
    assert message["message"] == "KeyError: 'layer'"
    assert set(message["extraInfo"]) == {"py_callstack", "timestamp"}
    assert int(message["extraInfo"]["timestamp"]) > 0
    assert "in raises\n    raise error\nKeyError: 'layer'" in message["extraInfo"]["py_callstack"]


@both
def test_a_function_without_an_error_writes_no_file(file: Path, record: Record) -> None:
    assert record(lambda one, *, two: one + two)(1, two=2) == 3
    failed(SystemExit(3), record)
    failed(KeyboardInterrupt(), record)
    assert not file.exists()
    assert record(raises).__name__ == "raises"


@both
def test_an_exception_is_raised_where_nobody_asked_for_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Record
) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    failed(ValueError("no file"), record)
    assert list(tmp_path.iterdir()) == []


@both
@pytest.mark.parametrize("exit_code", [1, -11])
def test_of_a_failed_job_the_first_workers_error_is_written_with_its_exit_code(
    tmp_path: Path, file: Path, record: Record, exit_code: int
) -> None:
    failures = {}
    for rank in (0, 1):
        written = {"message": f"error {rank}", "extraInfo": {"py_callstack": "…", "timestamp": str(9 - rank)}}
        (tmp_path / f"{rank}.json").write_text(json.dumps({"message": written}))
        failures[rank] = torchs.ProcessFailure(rank, 997, exit_code, str(tmp_path / f"{rank}.json"))
    failed(torchs.ChildFailedError("trainer", failures), record)
    first = {"message": "error 1", "errorCode": exit_code, "extraInfo": {"py_callstack": "…", "timestamp": "8"}}
    assert json.loads(file.read_text()) == {"message": first}


@both
def test_a_workers_error_in_another_form_is_written_as_it_is(tmp_path: Path, file: Path, record: Record) -> None:
    (tmp_path / "worker.json").write_text('{"message": "a text", "timestamp": "10"}')
    failure = torchs.ProcessFailure(0, 997, 1, str(tmp_path / "worker.json"))
    failed(torchs.ChildFailedError("trainer", {0: failure}), record)
    assert json.loads(file.read_text()) == {"message": "a text", "timestamp": "10"}


def test_of_a_failed_job_whose_worker_has_written_nothing_ours_writes_what_is_known(file: Path) -> None:
    job = torchs.ChildFailedError("trainer", {0: torchs.ProcessFailure(0, 997, -11, "none.json")})
    failed(job, torchs.record)
    assert not file.exists()
    failed(job, elastic.record)
    assert "SIGSEGV" in json.loads(file.read_text())["message"]["message"]


@pytest.mark.parametrize("module", [torchs.__name__, "elastic_core"])
def test_a_recorded_function_that_crashes_shows_its_stack(module: str) -> None:
    crashes = f"import ctypes\nfrom {module} import record\nrecord(lambda: ctypes.string_at(0))()"
    done = subprocess.run([sys.executable, "-c", crashes], capture_output=True, text=True, check=False)
    assert done.returncode == -11
    assert "Fatal Python error: Segmentation fault" in done.stderr
    assert "in <lambda>" in done.stderr
