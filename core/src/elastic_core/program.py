"""The program that the user wants to run, whatever its kind."""

from __future__ import annotations

import enum
from dataclasses import dataclass


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
