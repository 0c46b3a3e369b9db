"""Has Python processes below the warden import our ``sitecustomize`` before their program: starter and workers."""

from __future__ import annotations

import os
from collections.abc import MutableMapping, Sequence

STAGE = "ELASTIC_STARTUP"  # the variable by which our ``sitecustomize`` recognizes the process
PREPARE_WORKER = "worker"  # the stage of a worker that starts fresh: it prepares to write its stacks
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STARTUP = os.path.join(PACKAGE, "worker", "startup")  # the directory of our ``sitecustomize``


def prepare_worker(argv: Sequence[str], environment: MutableMapping[str, str]) -> None:
    """Have a Python program prepare to write its stacks (``worker/stack_dump.py``), if it takes our ``sitecustomize``.

    That removes every trace of itself, so the program finds the variables that it would have had.
    """
    if environment.get("PYTHONPATH") != "" and _takes_sitecustomize(argv):  # '' could not be told from none later
        before = [environment["PYTHONPATH"]] if "PYTHONPATH" in environment else []
        environment["PYTHONPATH"] = os.pathsep.join([STARTUP, *before])
        environment[STAGE] = PREPARE_WORKER


def _takes_sitecustomize(argv: Sequence[str]) -> bool:
    """Return True if a command is a Python that imports a ``sitecustomize`` from PYTHONPATH (not -E, -I or -S)."""
    if os.path.basename(argv[0]).rstrip("0123456789.") != "python":
        return False
    rest = iter(argv[1:])
    for argument in rest:
        if not argument.startswith("-"):
            break
        for at, letter in enumerate(argument[1:], 2):
            if letter in "EIS":
                return False
            if letter in "cm":
                return True
            if letter in "WX":  # it has a value: the rest, or the next argument
                if not argument[at:]:
                    next(rest, None)
                break
    return True
