"""The program that the user wants to run, whatever its kind."""

from __future__ import annotations

import enum
import sys
from collections.abc import Mapping
from dataclasses import dataclass

CALLS = "elastic_core.agent.calls"
"""The module that runs a function which was written down."""
RUN_PATH = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
"""What ``--run_path`` makes of a script, as torchrun does."""


class ProgramKind(enum.Enum):
    """How the program is started."""

    SCRIPT = "script"
    """A Python file: ``elastic run train.py``."""
    MODULE = "module"
    """A Python module: ``elastic run -m package.train``."""
    RUN_PATH = "run_path"
    """A Python file, directory or archive, run by :func:`runpy.run_path`: ``elastic run --run_path /abs/train.py``."""
    FUNCTION = "function"
    """A Python function, written down by :mod:`elastic_core.agent.calls`: ``elastic_core.launch`` and its like."""
    EXECUTABLE = "executable"
    """Anything else: ``elastic run --no_python ./train.sh``."""


@dataclass(frozen=True, slots=True)
class Program:
    """What every rank runs."""

    kind: ProgramKind
    target: str
    args: tuple[str, ...] = ()


def interpreter(environ: Mapping[str, str]) -> list[str]:
    """What runs a worker's script: this interpreter, or ``PYTHON_EXEC``, unbuffered."""
    return [environ.get("PYTHON_EXEC") or sys.executable, "-u"]


def python_program(program: Program) -> list[str]:
    """What the interpreter is told to run, without what differs from worker to worker; [] where it runs nothing."""
    match program.kind:
        case ProgramKind.SCRIPT:
            return [program.target]
        case ProgramKind.MODULE:
            return ["-m", program.target]
        case ProgramKind.RUN_PATH:
            return ["-c", RUN_PATH, program.target]
        case ProgramKind.FUNCTION:
            return ["-m", CALLS, program.target]
        case ProgramKind.EXECUTABLE:
            return []
