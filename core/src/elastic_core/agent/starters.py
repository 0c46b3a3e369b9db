"""The agent's side of the starter: begins it with the run's settings, and waits until it forks workers.

Every launch waits for the imports of this module before the starter can begin (``agent/start.py``).
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from elastic_core.config.environment import inheritable
from elastic_core.errors import PluginError
from elastic_core.starter import find_starter, installed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.agent.interruption import Interruption
    from elastic_core.config.run import RunConfig
    from elastic_core.events import Event
    from elastic_core.warden.client import Warden
    from elastic_core.warden.messages import WardenEvent

PATIENCE = 60.0  # seconds that a new node waits for its starter before it joins; a running job goes on meanwhile


def begin(warden: Warden, config: RunConfig, environ: Mapping[str, str]) -> None:
    """Begin the starter of a run, if a plugin brings one that takes it; the agent does without one that fails."""
    starter = None
    try:
        warden.starter_problem, starter = None, find_starter(config, inheritable(environ))
    except PluginError as exc:
        warden.starter_problem = exc
    warden.begin_starter(starter)


def problem(warden: Warden, config: RunConfig) -> Event | None:
    """Return the event that workers start as new interpreters although they need not; call it without a starter."""
    from elastic_core.config.program import ProgramKind
    from elastic_core.distributions import brought
    from elastic_core.errors import how_to_install
    from elastic_core.events import Event, Level

    if (failed := warden.starter_problem) is not None:
        return Event("no_starter", f"each worker starts as a new interpreter. {failed.message}", Level.WARNING)
    if config.program.kind is ProgramKind.EXECUTABLE or any(installed()):
        return None
    message = "each worker starts as a new interpreter and imports everything by itself; forked workers start faster"
    hint = how_to_install(next(iter(brought("starters").values())))
    return Event("no_starter", f"{message}.\n{hint}")


def wait_until_ready(
    warden: Warden,
    interruption: Interruption | None = None,
    before: Iterable[WardenEvent] = (),
    now: Callable[[], float] = time.monotonic,
) -> list[WardenEvent]:
    """Return the events of the warden until its starter is ready, and has imported all that it is to import, or cannot.

    Ends earlier if there is no process that forks workers, after ``PATIENCE``, or at the ``interruption``.
    ``before`` are the events so far.
    """
    from elastic_core.warden import messages

    grows = warden.starter is not None and warden.starter.growth
    last = messages.StarterGrown | messages.StarterStayed if grows else messages.StarterReady
    over = last | messages.StarterFailed | messages.WardenDied
    if grows:
        warden.grow_starter()
    heard = [*before]
    deadline = now() + PATIENCE
    while not any(isinstance(event, over) for event in heard) and (left := deadline - now()) > 0:
        if interruption is None:
            select.select([warden], [], [], left)
        elif not interruption.wait([warden], left):
            break
        heard += warden.receive()
    return heard
