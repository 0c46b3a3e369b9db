"""Has Python processes below the warden import our ``sitecustomize`` before their program: starter and workers."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from types import ModuleType

TYPE_CHECKING = False  # typing's: see channel
if TYPE_CHECKING:
    from typing import TypeAlias

    AtEnd: TypeAlias = Callable[[Callable[[], object]], object]

STAGE = "ELASTIC_STARTUP"  # the variable by which our ``sitecustomize`` recognizes the process
PREPARE_WORKER = "worker"  # the stage of a worker that starts fresh; the files follow that it executes first
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STARTUP = os.path.join(PACKAGE, "worker", "startup")  # the directory of our ``sitecustomize``


def functions_at_end() -> AtEnd:
    """Return a function that has functions called after those of ``atexit``, the last one first.

    Call it in a starter before that imports modules, which may register with ``atexit``, and give it to
    :func:`execute` in each worker.
    """
    functions: list[Callable[[], object]] = []

    def call() -> None:
        while functions:
            with contextlib.suppress(Exception):  # the others are called all the same
                functions.pop()()

    atexit.register(call)
    return functions.append


def execute(files: Iterable[str], at_end: AtEnd) -> None:
    """In a worker that a starter has forked: execute the files of ``request["startup"]``, as a fresh one does."""
    loader = sys.modules["_frozen_importlib_external"].SourceFileLoader
    for path in files:
        module = ModuleType(os.path.basename(path).removesuffix(".py"))
        with contextlib.suppress(Exception, SystemExit):  # the program runs all the same
            exec(loader(module.__name__, path).get_code(module.__name__), module.__dict__)
            module.prepare(at_end)


def prepare_worker(argv: Sequence[str], environment: MutableMapping[str, str], files: Sequence[str]) -> None:
    """Have a Python program execute ``files`` first (``elastic_worker_startup``), if it takes our ``sitecustomize``.

    The program finds the variables that it would have had without that.
    """
    given = environment.get("PYTHONPATH")
    if files and given != "" and _takes_sitecustomize(argv):  # '' could not be told from none later
        environment["PYTHONPATH"] = STARTUP if given is None else os.pathsep.join([STARTUP, given])
        environment[STAGE] = os.pathsep.join([PREPARE_WORKER, *files])


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
