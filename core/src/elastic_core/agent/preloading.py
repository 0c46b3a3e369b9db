"""The warm start, as the agent sees it: what the template imports, and when to wait for that."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec

from elastic_core import defaults
from elastic_core.agent.warden import Died, TemplateFailed, TemplateReady, Warden, WardenEvent
from elastic_core.config import RunConfig
from elastic_core.plugins import Plugins
from elastic_core.program import ProgramKind

STORE_MODULE = "torch"
"""Who has imported this can serve the workers' store."""
LATER = ("torch._dynamo",)
"""What the first optimizer of a program has torch import: 2 s of CPU time and 74 MB (torch 2.13), in each life of each
worker. Few programs need it to begin, so the template imports it when it has nothing to do."""
PATIENCE = 60.0
"""Seconds that a newcomer waits for its template before it enrols; a running job goes on meanwhile."""


def modules(config: RunConfig, plugins: Plugins) -> tuple[str, ...]:
    """What the template is to import; () for a fresh start of every worker.

    Raises:
        PluginError: A plugin failed to say what it wants preloaded.
    """
    if not config.warm_start or config.program.kind is ProgramKind.EXECUTABLE:
        return ()
    named = config.preload
    if named is None:
        named = (STORE_MODULE,) if find_spec(STORE_MODULE) is not None else ()
    return tuple(dict.fromkeys((*named, *plugins.preload(config)))) if named else ()


def preload(warden: Warden, names: tuple[str, ...], config: RunConfig, environ: Mapping[str, str]) -> None:
    """Have the template started; ``names`` is what :func:`modules` says, and not ()."""
    environment = {**environ, **defaults.threads(config.nproc_per_node, environ)}
    python = defaults.interpreter(environ)
    later = LATER if config.preload is None and STORE_MODULE in names else ()
    warden.preload(names, later=later, python=python, program=defaults.python_program(config.program), env=environment)


def settled(warden: Warden, now: Callable[[], float] = time.monotonic) -> list[WardenEvent]:
    """What the warden says until its template is ready, or there is none, or ``PATIENCE`` is over."""
    heard: list[WardenEvent] = []
    deadline = now() + PATIENCE
    while now() < deadline:
        select.select([warden], [], [], max(0.0, deadline - now()))
        heard += warden.receive()
        if any(isinstance(event, TemplateReady | TemplateFailed | Died) for event in heard):
            break
    return heard
