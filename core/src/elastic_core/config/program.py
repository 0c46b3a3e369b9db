"""The program of a run, of any kind; it is found before anything is started, without an import of it."""

from __future__ import annotations

import enum
import importlib.machinery
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from elastic_core.digest import hex_digest
from elastic_core.errors import UsageError, did_you_mean

RUN_PATH = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"  # as in torchrun


class ProgramKind(enum.Enum):
    """The ways to start a program."""

    SCRIPT = "script"  # a Python file: ``elastic run train.py``
    MODULE = "module"  # a Python module: ``elastic run -m package.train``
    RUN_PATH = "run_path"  # a file, directory or archive for runpy: ``elastic run --run_path /abs/train.py``
    EXECUTABLE = "executable"  # anything else: ``elastic run --no_python ./train.sh``


@dataclass(frozen=True, slots=True)
class Program:
    """The program that every rank runs."""

    kind: ProgramKind
    target: str
    args: tuple[str, ...] = ()
    name: str | None = None  # compared between nodes in place of the target and the arguments
    directory: str = ""  # a private directory of the program, which is removed if the agent is killed


def interpreter(environ: Mapping[str, str]) -> list[str]:
    """Return the command of the interpreter for workers: this one, or ``PYTHON_EXEC``, unbuffered."""
    return [environ.get("PYTHON_EXEC") or sys.executable, "-u"]


def python_program(program: Program) -> list[str]:
    """Return the interpreter's arguments that are the same for all workers; [] for an executable."""
    before = {ProgramKind.SCRIPT: [], ProgramKind.MODULE: ["-m"], ProgramKind.RUN_PATH: ["-c", RUN_PATH]}
    return [*before[program.kind], program.target] if program.kind in before else []


_INTERPRETER = re.compile(r"(python|pypy)[\d.]*|(ba|da|z|k)?sh")  # they run a file of their arguments
_OF_ONE_NODE = re.compile(r"rank|node|host|addr", re.IGNORECASE)  # options whose values differ between nodes


def name(program: Program) -> str:
    """Return the program's own name, or that of its script, module or executable; the nodes of a job must agree on it.

    Directories are left out: a checkout can lie in another directory on each node.
    """
    if program.name is not None:
        return program.name
    base = os.path.basename(os.path.normpath(program.target)) if program.target else ""
    match program.kind:
        case ProgramKind.MODULE:
            return f"-m {program.target}"
        case ProgramKind.EXECUTABLE if _INTERPRETER.fullmatch(base):
            script = next((arg for arg in program.args if not arg.startswith("-")), "")
            return f"{base} {os.path.basename(script)}".rstrip()
    return base


def arguments_digest(program: Program, host: str) -> str:
    """Return 16 hex digits, equal where two nodes give the program equal arguments; '' for a program with a name.

    Values that differ between the nodes of a job are left out: those of an option that names a rank, a node, a host or
    an address, and this ``host``'s name wherever it occurs as a word.
    """
    if program.name is not None:
        return ""
    compared, skip = [], False
    itself = re.compile(rf"(?<![A-Za-z0-9]){re.escape(host)}(?![A-Za-z0-9])") if host else None
    for arg in program.args:
        option, equals, _ = arg.partition("=")
        if skip and not arg.startswith("-"):
            skip = False
            continue
        of_one_node = arg.startswith("-") and _OF_ONE_NODE.search(option) is not None
        skip = of_one_node and not equals
        compared.append(option if of_one_node else itself.sub("*", arg) if itself else arg)
    return hex_digest("\0".join(compared), 16)


def find_program(
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
