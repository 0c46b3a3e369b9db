"""The program of a run, of any kind."""

from __future__ import annotations

import enum
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastic_core.digest import hex_digest

CALLS = "elastic_core.worker.function"  # the module that runs a serialized function
RUN_PATH = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"  # as in torchrun


class ProgramKind(enum.Enum):
    """How the program is started."""

    SCRIPT = "script"  # a Python file: ``elastic run train.py``
    MODULE = "module"  # a Python module: ``elastic run -m package.train``
    RUN_PATH = "run_path"  # a file, directory or archive for runpy: ``elastic run --run_path /abs/train.py``
    FUNCTION = "function"  # serialized by :mod:`elastic_core.worker.function`, for ``elastic_torchrun.launch``
    EXECUTABLE = "executable"  # anything else: ``elastic run --no_python ./train.sh``


@dataclass(frozen=True, slots=True)
class Program:
    """The program that every rank runs."""

    kind: ProgramKind
    target: str
    args: tuple[str, ...] = ()
    function: str = ""  # the qualified name of the function, for FUNCTION: its ``target`` is a directory


_BEFORE_TARGET: Mapping[ProgramKind, Sequence[str]] = {
    ProgramKind.SCRIPT: (),
    ProgramKind.MODULE: ("-m",),
    ProgramKind.RUN_PATH: ("-c", RUN_PATH),
    ProgramKind.FUNCTION: ("-m", CALLS),
}  # the interpreter's arguments before the target


def interpreter(environ: Mapping[str, str]) -> list[str]:
    """Return the command of the interpreter for workers: this one, or ``PYTHON_EXEC``, unbuffered."""
    return [environ.get("PYTHON_EXEC") or sys.executable, "-u"]


def python_program(program: Program) -> list[str]:
    """Return the interpreter's arguments that are the same for all workers; [] for an executable."""
    before = _BEFORE_TARGET.get(program.kind)
    return [] if before is None else [*before, program.target]


def function_command(
    directory: str, *, round_number: int, rank: int, python: Sequence[str] = (sys.executable, "-u")
) -> list[str]:
    """Return the command of a worker that calls the function of this directory, and writes its result there."""
    return [*python, "-m", CALLS, directory, str(round_number), str(rank)]


_INTERPRETER = re.compile(r"(python|pypy)[\d.]*|(ba|da|z|k)?sh")  # they run a file of their arguments
_OF_ONE_NODE = re.compile(r"rank|node|host|addr", re.IGNORECASE)  # options whose values differ between nodes


def name(program: Program) -> str:
    """Return the name of the script, module, function or executable, on which the nodes of a job must agree.

    Directories are left out: a checkout can lie in another directory on each node.
    """
    base = os.path.basename(os.path.normpath(program.target)) if program.target else ""
    match program.kind:
        case ProgramKind.MODULE:
            return f"-m {program.target}"
        case ProgramKind.FUNCTION:
            return program.function
        case ProgramKind.EXECUTABLE if _INTERPRETER.fullmatch(base):
            script = next((arg for arg in program.args if not arg.startswith("-")), "")
            return f"{base} {os.path.basename(script)}".rstrip()
    return base


def arguments_digest(program: Program, host: str) -> str:
    """Return 16 hex digits, equal where two nodes give the program equal arguments; '' for a function.

    Values that differ between the nodes of a job are left out: those of an option that names a rank, a node, a host or
    an address, and this ``host``'s name wherever it occurs as a word.
    """
    if program.kind is ProgramKind.FUNCTION:
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
