"""The agent's side of the warm start: which modules the fork server imports, and when.

Every launch waits for the imports of this module before the fork server can start, so they are few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from elastic_core.config import ProgramKind, interpreter, python_program, threads
from elastic_core.starter import Starter
from elastic_warmstart.flags import PRELOAD, WARM_START

if TYPE_CHECKING:
    from elastic_core.config import RunConfig

STORE_MODULE = "torch"  # a fork server that has imported this module can serve the workers' store
LATER = ("torch._dynamo",)
"""Imported by torch for the first optimizer of a program: 2 s of CPU time and 74 MB (torch 2.13), at each start of each
worker. Few programs need it to begin, so the fork server imports it when it is idle."""


def starter(config: RunConfig, environ: Mapping[str, str]) -> Starter | None:
    """Return the fork server of a run; None if every worker starts fresh."""
    if not (names := modules(config)):
        return None
    named = config.of(PRELOAD) is not None  # then it imports nothing else
    return fork_server(
        names,
        later=() if named or STORE_MODULE not in names else LATER,
        python=interpreter(environ),
        program=(*python_program(config.program), *config.program.args),  # as long as a worker's in ps
        env={**environ, **threads(config.nproc_per_node, environ)},
    )


def fork_server(
    names: tuple[str, ...],
    *,
    later: tuple[str, ...] = (),
    python: Sequence[str],
    program: Sequence[str],
    env: Mapping[str, str],
) -> Starter:
    """Return a fork server that imports some modules first, and others ``later``, with what workers have imported."""
    return Starter(
        entry="elastic_warmstart.server:run",
        python=tuple(python),
        program=tuple(program),
        env=env,
        imports=names,
        order={"modules": names, "env": env, "later": later},
        store="elastic_warmstart.worker_store:serve" if STORE_MODULE in names else "",
    )


def modules(config: RunConfig) -> tuple[str, ...]:
    """Return the modules that the fork server imports; () if every worker starts fresh."""
    if not config.of(WARM_START) or config.program.kind is ProgramKind.EXECUTABLE:
        return ()
    if (named := config.of(PRELOAD)) is not None:
        return named
    return (STORE_MODULE,) if find_spec(STORE_MODULE) is not None else ()
