from __future__ import annotations

import sys
from pathlib import Path

import pytest

from elastic_core.config.program import Program, ProgramKind, find_program
from elastic_core.errors import UsageError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with one of everything; nothing in it may be imported."""
    (tmp_path / "train.py").write_text("raise SystemExit('imported')")
    (tmp_path / "train.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    for package in ("package", "runnable"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "runnable" / "__main__.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return tmp_path


def program(target: str | None, *, module: bool = False, no_python: bool = False) -> Program:
    return find_program(target, ("--lr", "1"), module=module, no_python=no_python)


@pytest.mark.parametrize("target", ["train.py", "./train.py", "runnable"])
def test_a_script_is_taken_as_typed(target: str) -> None:
    assert program(target) == Program(ProgramKind.SCRIPT, target, ("--lr", "1"))


@pytest.mark.parametrize("target", ["train", "package.train", "json.tool"])
def test_a_module_is_found_without_being_imported(target: str) -> None:
    assert program(target, module=True) == Program(ProgramKind.MODULE, target, ("--lr", "1"))
    assert "train" not in sys.modules
    assert "package" not in sys.modules


def test_run_path_wins_over_no_python_as_under_torchrun() -> None:
    found = find_program("train.py", (), module=False, no_python=True, run_path=True)
    assert found == Program(ProgramKind.RUN_PATH, "train.py", ())


def test_an_executable_is_looked_up_as_a_shell_does() -> None:
    assert program("./run.sh", no_python=True).target == "./run.sh"
    assert program("env", no_python=True).target in {"/usr/bin/env", "/bin/env"}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (None, "There is no PROGRAM to run."),
        ("trian.py", "There is no script 'trian.py'. Did you mean 'train.py'?"),
        ("./trian.py", "There is no script './trian.py'. Did you mean './train.py'?"),
        ("nowhere/train.py", "There is no script 'nowhere/train.py'."),
        ("package", "The script 'package' is a directory without a __main__.py."),
    ],
)
def test_a_script_that_is_not_there_is_refused(target: str | None, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        program(target)
    assert refused.value.message == message


@pytest.mark.parametrize(
    ("target", "message", "hint"),
    [
        (
            "pakcage.train",
            "There is no module 'pakcage', neither here nor on Python's path. Did you mean 'package'?",
            None,
        ),
        ("train.py", "'train.py' is a script, not a module.", "Leave out --module."),
        (".train", "'.train' is not the name of a module.", "For example: elastic run -m package.train"),
        ("package/train", "'package/train' is not the name of a module.", "For example: elastic run -m package.train"),
    ],
)
def test_a_module_that_is_not_there_is_refused(target: str, message: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as refused:
        program(target, module=True)
    assert (refused.value.message, refused.value.hint) == (message, hint)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nosuch", "There is no program 'nosuch' on the PATH."),
        ("rum.sh", "There is no program 'rum.sh' on the PATH. Did you mean './run.sh'?"),
        ("./rum.sh", "There is no program './rum.sh'. Did you mean './run.sh'?"),
        ("run.sh", "The program 'run.sh' is not on the PATH. Did you mean './run.sh'?"),
        ("./train.sh", "The program './train.sh' is not executable."),
        ("./package", "The program './package' is a directory."),
    ],
)
def test_an_executable_that_cannot_be_run_is_refused(target: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        program(target, no_python=True)
    assert refused.value.message == message


def test_a_module_is_run_by_python() -> None:
    with pytest.raises(UsageError, match="--module and --no_python exclude each other"):
        program("train", module=True, no_python=True)
