"""Finds the program of the command line before anything is started, without importing or running it."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import shutil
from pathlib import Path

from elastic_core.config.program import Program, ProgramKind
from elastic_core.errors import UsageError, did_you_mean


def find(
    target: str | None, arguments: tuple[str, ...], *, module: bool, no_python: bool, run_path: bool = False
) -> Program:
    """Return the program that the command line names.

    Raises:
        UsageError: It names none, or one that does not exist or cannot be run; suggests the nearest name.
    """
    if module and no_python:
        raise UsageError("--module and --no_python exclude each other.", hint="A module is run by Python.")
    if run_path and module:
        raise UsageError("--run_path and --module exclude each other.", hint="Say one way to run PROGRAM.")
    if not target:
        raise UsageError("There is no PROGRAM to run.", hint="For example: elastic run --nproc_per_node=2 train.py")
    if module:
        _check_module(target)
        return Program(ProgramKind.MODULE, target, arguments)
    if no_python and not run_path:  # of both, torchrun obeys --run-path
        return Program(ProgramKind.EXECUTABLE, _executable(target), arguments)
    _check_script(target)
    return Program(ProgramKind.RUN_PATH if run_path else ProgramKind.SCRIPT, target, arguments)


def _check_script(target: str) -> None:
    path = Path(target)
    if path.is_dir():
        if not (path / "__main__.py").is_file():
            raise UsageError(f"The script {target!r} is a directory without a __main__.py.")
    elif not path.exists():
        raise UsageError(f"There is no script {target!r}.{did_you_mean(target, _siblings(target))}")
    elif not os.access(path, os.R_OK):
        raise UsageError(f"The script {target!r} is not readable.")


def _siblings(target: str) -> list[str]:
    """Return the files beside ``target``, with or without a leading ``./`` as in ``target``."""
    folder = os.path.dirname(target)
    try:
        return [os.path.join(folder, entry.name) for entry in os.scandir(folder or ".") if entry.is_file()]
    except OSError:
        return []


def _executable(target: str) -> str:
    """Return the executable's path, looked up as in a shell."""
    if found := shutil.which(target):
        return found
    path = Path(target)
    if path.is_dir():
        raise UsageError(f"The program {target!r} is a directory.")
    if path.is_file() and os.sep not in target:
        raise UsageError(f"The program {target!r} is not on the PATH. Did you mean './{target}'?")
    if path.is_file():
        raise UsageError(f"The program {target!r} is not executable.", hint=f"Make it so: chmod +x {target}")
    where, nearby = ("", target) if os.sep in target else (" on the PATH", f"./{target}")
    raise UsageError(f"There is no program {target!r}{where}.{did_you_mean(nearby, _siblings(nearby))}")


def _check_module(target: str) -> None:
    """Look for the top-level package only: a lookup below it would import the package."""
    if target.endswith(".py") and Path(target).is_file():
        raise UsageError(f"{target!r} is a script, not a module.", hint="Leave out --module.")
    if os.sep in target or not all(target.split(".")):
        raise UsageError(f"{target!r} is not the name of a module.", hint="For example: elastic run -m package.train")
    top = target.partition(".")[0]
    if importlib.machinery.PathFinder.find_spec(top, [os.getcwd()]) or importlib.util.find_spec(top):
        return
    here = [path.stem for path in Path().iterdir() if path.suffix == ".py" or path.is_dir()]
    raise UsageError(f"There is no module {top!r}, neither here nor on Python's path.{did_you_mean(top, here)}")
