"""Starters: a *starter* is a process that forks workers on request, faster than interpreters start. A plugin brings it.

The request for it is the first act of a launch, so it is found without a scan of entry points, which takes 46 ms: its
distribution installs a file ``elastic_starters/NAME.txt`` beside its package, with ``module:function``. The function is
called with the run as far as it is known, and the environment that all workers share; it returns a :class:`Starter`, or
None if the run is to have none. Without a starter, each worker is a new interpreter.
``elastic_core.warden`` has what the process itself needs; ``warden.starter`` describes its protocol.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from elastic_core.config.run import RunConfig

FOLDER = "elastic_starters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """A process that forks workers on request, as the warden starts it.

    It begins with the workers' own command. Just before its interpreter turns to the program, ``entry`` is called with
    the descriptor of a socket to the warden, the names of the modules that a fresh interpreter has, and a function that
    executes a worker's startup files. The call returns in forked workers only, whose interpreters then run the program
    as fresh ones would.
    """

    entry: str  # ``module:function``
    python: tuple[str, ...]  # the workers' interpreter with its flags: ``("/usr/bin/python3", "-u")``
    program: tuple[str, ...]
    """The rest of a worker's command: ``("train.py", "--lr", "1")``. Workers may differ in the arguments."""
    env: Mapping[str, str]  # the environment that all workers share
    imports: tuple[str, ...]  # the modules that it imports before it forks workers, for people
    order: Mapping[str, Any] = field(default_factory=dict)  # its first message, JSON
    store: str = ""
    """``module:function`` of a service that serves the workers' store; ``""`` if the worker of rank 0 is to serve it.
    It is called with ``host``, ``port``, and ``socket``, a descriptor that is bound to that port."""

    def request(self) -> dict[str, Any]:
        """Return what the warden is told of it: JSON, with the directories in which its process finds its modules."""
        packages = dict.fromkeys(re.split("[.:]", name)[0] for name in (__name__, self.entry, self.store) if name)
        specs = [found for name in packages if (found := find_spec(name)) is not None]
        paths = [path for found in specs for path in found.submodule_search_locations or [str(found.origin)]]
        names = ("entry", "python", "program", "env", "imports", "order")
        return {**{name: getattr(self, name) for name in names}, "roots": [os.path.dirname(path) for path in paths]}


Find: TypeAlias = "Callable[[RunConfig, Mapping[str, str]], Starter | None]"


def find_starter(config: RunConfig, environ: Mapping[str, str]) -> Starter | None:
    """Return the starter of a run: the first that a file names, and whose function returns one; None without one.

    Raises:
        PluginError: A file names no function, or the function has raised; the message has its path.
    """
    for path, name in installed():
        module, _, function = name.partition(":")
        try:
            find: Find = getattr(import_module(module), function)
            if (found := find(config, environ)) is not None:
                json.dumps(found.request())  # as the warden gets it
                return found
        except Exception as exc:
            from elastic_core.errors import PluginError, in_one_line

            raise PluginError(f"The file {path} names {name!r}, which fails: {in_one_line(exc)}") from exc
    return None


def installed() -> Iterator[tuple[str, str]]:
    """Yield the path of each file that names a starter, in the order of ``sys.path``, and its text."""
    for directory in sys.path:
        folder = os.path.join(directory, FOLDER)
        try:
            files = sorted(os.listdir(folder))
        except OSError:
            continue
        for path in (os.path.join(folder, file) for file in files if file.endswith(".txt")):
            with open(path, encoding="utf-8") as text:
                yield path, text.read().strip()
