"""Imports of a worker are recorded; modules that it only looks for are not."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_warmstart import learned_imports as module
from elastic_warmstart.learned_imports import Record


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Record]:
    for name in ("outer", "inner", "asked"):
        (tmp_path / f"{name}.py").write_text("import inner\n" if name == "outer" else "")
    monkeypatch.syspath_prepend(tmp_path)
    found = Record()
    found.begin()
    yield found
    sys.meta_path.remove(found)
    for name in ("outer", "inner"):
        sys.modules.pop(name, None)


def test_imports_are_recorded_in_the_order_in_which_they_begin(record: Record) -> None:
    assert importlib.util.find_spec("asked") is not None
    importlib.import_module("outer")
    importlib.import_module("outer")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("nowhere_at_all")
    assert record.names() == ["outer", "inner", "nowhere_at_all"]


def test_a_record_is_read_in_another_process_and_forks_of_the_worker_leave_it_alone(record: Record) -> None:
    if (pid := os.fork()) == 0:
        importlib.import_module("outer")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert record.names() == []
    record._process = 0
    if (pid := os.fork()) == 0:
        record._process = os.getpid()
        importlib.import_module("outer")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert record.names() == ["outer", "inner"]


def test_an_import_without_room_is_not_recorded(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIZE", 4 + len("outer\n"))
    importlib.import_module("outer")
    assert record.names() == ["outer"]


def test_variables_and_paths_that_the_program_changes_before_an_import_are_recorded_with_it(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_PROGRAM", "one\nline")
    monkeypatch.syspath_prepend(tmp_path / "vendor")
    importlib.import_module("outer")
    assert record.names() == ["outer", "inner"]
    assert record.variables().items() >= {("OF_THE_PROGRAM", "one\nline")}
    assert record.paths() == [str(tmp_path / "vendor")]


def test_a_program_may_put_another_mapping_in_the_place_of_the_environment(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "environ", dict(os.environ))
        importlib.import_module("inner")
    assert record.names() == []


def test_a_program_may_ask_all_finders_by_itself() -> None:
    program = "import sys\nfrom elastic_warmstart.learned_imports import Record\nfound = Record()\nfound.begin()\n"
    program += "assert sys.meta_path[0].find_spec('nothing', None) is None and found.names() == []"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_lines_that_two_threads_have_written_at_once_are_skipped(record: Record) -> None:
    for line in ('="ONE"', '=["TWO', '=["THREE", "3"]', "=3"):
        record._write(line)
    assert record.variables() == {"THREE": "3"}
