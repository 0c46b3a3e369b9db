"""The command of a torchrun, read from its own command line: its handlers do not get it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from elastic_core.config import Program, ProgramKind, arguments_digest, name
from elastic_core.protocol import Command
from elastic_torchrun.startup import LAUNCHER


def command_of(argv: Sequence[str], host: str) -> Command:
    """Return what the nodes of one job are compared by; empty where this process is no torchrun, which cannot be known
    then.
    """
    if not _is_torchrun(argv[0] if argv else ""):
        return Command()
    try:
        given = import_module(LAUNCHER).get_args_parser().parse_args(list(argv[1:]))
        program = Program(_kind(given), given.training_script, tuple(given.training_script_args))
    except (ImportError, AttributeError, SystemExit):  # another torch, which has other flags
        return Command()
    return Command(name=name(program), arguments=arguments_digest(program, host), role=given.role)


def _is_torchrun(started_as: str) -> bool:
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return os.path.basename(started_as) == "torchrun" or (main is not None and main.name == LAUNCHER)


def _kind(given: object) -> ProgramKind:
    if getattr(given, "no_python", False):
        return ProgramKind.EXECUTABLE
    if getattr(given, "module", False):
        return ProgramKind.MODULE
    return ProgramKind.RUN_PATH if getattr(given, "run_path", False) else ProgramKind.SCRIPT
