"""A module whose file has changed since it was imported is found."""

from __future__ import annotations

import itertools
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic_warmstart.library_modules import Sources


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_text("VALUE = 2")
    other.rename(path)


def moved(path: Path) -> None:
    path.parent.rename(path.parent.with_name("old"))


def written(path: Path) -> None:
    path.write_text("VALUE = 22")


def beside(path: Path) -> None:
    path.with_name("beside.py").write_text("")


def archived(path: Path) -> None:
    replaced(path.parent)


@pytest.mark.parametrize(
    ("library", "change", "found"),
    [
        (True, replaced, True),
        (True, moved, True),
        (True, Path.unlink, True),
        (True, archived, True),
        (True, written, False),
        (True, beside, False),
        (False, replaced, True),
        (False, archived, True),
        (False, written, True),
        (False, beside, False),
    ],
)
def test_a_file_that_has_changed_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: bool, change: Callable[[Path], object], found: bool
) -> None:
    path = tmp_path / "package" / "part.py"
    path.parent.mkdir()
    path.write_text("VALUE = 1")
    if change is archived:
        path.unlink()
        path.parent.rmdir()
        path.parent.write_text("VALUE = 1")
    module = types.ModuleType("part")
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "part", module)
    roots = [str(tmp_path) if library else os.path.join(tmp_path, "elsewhere")]
    sources = Sources(roots, clock=lambda: 0.0)
    sources.record()
    assert sources.find_changed() is None
    change(path)
    sources.record()
    assert [sources.find_changed(), sources.find_changed()] == [str(path) if found else None] * 2


def test_a_slow_file_system_keeps_no_worker_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "part.py"
    path.write_text("VALUE = 1")
    module = types.ModuleType("part")
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "part", module)
    seconds = itertools.count()
    sources = Sources([], clock=lambda: next(seconds))
    sources.record()
    path.unlink()
    assert sources.find_changed() is None
