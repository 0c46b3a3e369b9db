"""The program of a run, of any kind."""

from __future__ import annotations

import enum
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastic_core.digest import hex_digest

RUN_PATH = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"  # as in torchrun


class ProgramKind(enum.Enum):
    """How the program is started."""

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


_BEFORE_TARGET: Mapping[ProgramKind, Sequence[str]] = {
    ProgramKind.SCRIPT: (),
    ProgramKind.MODULE: ("-m",),
    ProgramKind.RUN_PATH: ("-c", RUN_PATH),
}  # the interpreter's arguments before the target


def interpreter(environ: Mapping[str, str]) -> list[str]:
    """Return the command of the interpreter for workers: this one, or ``PYTHON_EXEC``, unbuffered."""
    return [environ.get("PYTHON_EXEC") or sys.executable, "-u"]


def python_program(program: Program) -> list[str]:
    """Return the interpreter's arguments that are the same for all workers; [] for an executable."""
    before = _BEFORE_TARGET.get(program.kind)
    return [] if before is None else [*before, program.target]


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
