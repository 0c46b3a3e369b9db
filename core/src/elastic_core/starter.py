"""Starters: a *starter* is a process that forks workers on request, faster than interpreters start. A plugin brings it.

The request for it is the first act of a launch, so it is found without a scan of entry points, which takes 46 ms: its
distribution installs a file ``elastic_starters/NAME.txt`` beside its package, with ``module:function``. The function is
called with the run as far as it is known, and the environment that all workers share; it returns a :class:`Starter`, or
None if the run is to have none. Without a starter, each worker is a new interpreter.
``elastic_core.warden.forks`` has what the process itself needs.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from elastic_core.config.run import RunConfig

FOLDER = "elastic_starters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """A process that forks workers on request, as the warden starts it.

    It begins with the workers' own command. Just before its interpreter turns to the program, ``entry`` is called with
    the descriptor of a socket to the warden, and the names of the modules that a fresh interpreter has. The call
    returns in forked workers only, whose interpreters then run the program as fresh ones would.

    Attributes:
        entry: ``module:function``.
        python: The workers' interpreter with its flags: ``("/usr/bin/python3", "-u")``.
        program: The rest of a worker's command: ``("train.py", "--lr", "1")``. Workers may differ in the arguments.
        env: The environment that all workers share.
        imports: The modules that it imports before it forks workers, for people.
        order: Its first message, JSON.
        growth: The requests, JSON, to fork a process that imports more and replaces it; each after so many seconds
            without a new worker. After new workers, they begin again with the second.
        store: ``module:function`` of a service that serves the workers' store; ``""`` if the worker of rank 0 is to
            serve it. It is called with ``host``, ``port``, and ``socket``, a descriptor that is bound to that port.
    """

    entry: str
    python: tuple[str, ...]
    program: tuple[str, ...]
    env: Mapping[str, str]
    imports: tuple[str, ...]
    order: Mapping[str, Any] = field(default_factory=dict)
    growth: tuple[tuple[float, Mapping[str, Any]], ...] = ()
    store: str = ""

    def request(self) -> dict[str, Any]:
        """Return what the warden is told of it: JSON, with the directories in which its process finds its modules."""
        packages = dict.fromkeys((__name__.partition(".")[0], re.split("[.:]", self.entry)[0]))
        modules = [import_module(name) for name in packages]
        roots = [
            os.path.dirname(path) for found in modules for path in getattr(found, "__path__", (str(found.__file__),))
        ]
        names = ("entry", "python", "program", "env", "imports", "order", "growth")
        return {**{name: getattr(self, name) for name in names}, "roots": roots}


Find: TypeAlias = "Callable[[RunConfig, Mapping[str, str]], Starter | None]"


def find_starter() -> Find | None:
    """Return the function of the first starter that is installed; None without one.

    Raises:
        Exception: What it is named by is no ``module:function``, or the import of its module has raised.
    """
    name = next(_installed(), None)
    if name is None:
        return None
    module, _, function = name.partition(":")
    found: Find = getattr(import_module(module), function)
    return found


def _installed() -> Iterator[str]:
    for directory in sys.path:
        try:
            files = sorted(os.listdir(os.path.join(directory, FOLDER)))
        except OSError:
            continue
        for file in files:
            if file.endswith(".txt"):
                with open(os.path.join(directory, FOLDER, file), encoding="utf-8") as text:
                    yield text.read().strip()
