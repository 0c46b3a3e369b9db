"""The agent's side of the warm start: which modules the fork server imports, and when to wait for them.

Every launch waits for the imports of this module before the fork server can start (``agent/start.py``).
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from elastic_core.config.environment import threads
from elastic_core.config.program import ProgramKind, interpreter, python_program

if TYPE_CHECKING:
    from elastic_core.agent.interruption import Interruption
    from elastic_core.config.run import RunConfig
    from elastic_core.warden.client import Warden
    from elastic_core.warden.messages import WardenEvent

STORE_MODULE = "torch"  # a fork server that has imported this module can serve the workers' store
LATER = ("torch._dynamo",)
"""Imported by torch for the first optimizer of a program: 2 s of CPU time and 74 MB (torch 2.13), at each start of each
worker. Few programs need it to begin, so the fork server imports it when it is idle."""
PATIENCE = 60.0  # seconds that a new node waits for its fork server before it joins; a running job goes on meanwhile


def modules(config: RunConfig) -> tuple[str, ...]:
    """Return the modules that the fork server imports; () if every worker starts fresh."""
    if not config.warm_start or config.program.kind is ProgramKind.EXECUTABLE:
        return ()
    if config.preload is not None:
        return config.preload
    return (STORE_MODULE,) if find_spec(STORE_MODULE) is not None else ()


def begin(warden: Warden, config: RunConfig, environ: Mapping[str, str]) -> None:
    """Start the fork server, if the run has one, with :func:`modules`."""
    if names := modules(config):
        warden.preload(
            names,
            later=later_modules(config, names),
            python=interpreter(environ),
            program=[*python_program(config.program), *config.program.args],  # as long as a worker's in ps
            env={**environ, **threads(config.nproc_per_node, environ)},
        )


def later_modules(config: RunConfig, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the modules that the fork server imports once it is idle; () if the user has named what to preload."""
    return LATER if config.preload is None and STORE_MODULE in names else ()


def wait_until_ready(
    warden: Warden,
    more: tuple[str, ...] = (),
    interruption: Interruption | None = None,
    before: Iterable[WardenEvent] = (),
    now: Callable[[], float] = time.monotonic,
) -> list[WardenEvent]:
    """Return the events of the warden until its fork server is ready, and has imported ``more`` or cannot.

    Ends earlier if there is no fork server, after ``PATIENCE``, or at the ``interruption``.
    ``before`` are the events so far.
    """
    from elastic_core.warden import messages

    last = messages.ForkServerGrown | messages.ForkServerStayed if more else messages.ForkServerReady
    over = last | messages.ForkServerFailed | messages.WardenDied
    heard = [*before]
    deadline = now() + PATIENCE
    while not any(isinstance(event, over) for event in heard) and (left := deadline - now()) > 0:
        if interruption is None:
            select.select([warden], [], [], left)
        elif not interruption.wait([warden], left):
            break
        heard += warden.receive()
    return heard
