"""Starts an agent: first the warden, then the starter, then the rest of the agent.

The starter imports modules for seconds, so it starts before plugins are loaded and before most of the agent is
imported here, which takes a quarter of a second. The warden starts the starter, so it is started first, while the
command line is read. The imports at the top of this file delay every launch, so they are few.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

from elastic_core.config.environment import inheritable
from elastic_core.errors import PluginError
from elastic_core.starter import find_starter
from elastic_core.warden.client import CLOSING, Warden
from elastic_core.warden.linux import open_standard_streams, subreaping

if TYPE_CHECKING:
    from elastic_core.agent.report import Ending
    from elastic_core.config.run import RunConfig
    from elastic_core.plugins.manager import Plugins
    from elastic_core.session.join import FormerNode


@contextmanager
def begun(*, alone: bool = True) -> Iterator[Warden]:
    """Yield a warden, for :func:`run`. Main thread only. ResourceError without one; ``alone`` is :class:`Warden`'s."""
    open_standard_streams()
    with subreaping():
        warden = Warden(alone=alone)
        try:
            yield warden
        finally:
            warden.close(CLOSING)


def begin_starter(config: RunConfig, warden: Warden) -> None:
    """Have the warden begin the starter of a run, if a plugin brings one that takes it; without one that fails.

    ``config`` needs its final program, number of workers and settings of plugins, and no more.
    """
    starter = None
    try:
        warden.starter_problem, starter = None, find_starter(config, inheritable(os.environ))
    except PluginError as exc:
        warden.starter_problem = exc
    warden.begin_starter(starter)


def run(config: RunConfig, plugins: Plugins, warden: Warden | None = None, *, alone: bool = True) -> Ending:
    """Run one agent to its end. Main thread only.

    ``warden`` is the one that :func:`begin_starter` got for this run, to be closed here; None to start both now,
    with ``alone`` as of :func:`begun`.

    Raises:
        ElasticError: No worker was started: the store cannot be reached, the job refuses the node, too few nodes.
    """
    if config.log_dir is not None:
        from elastic_core.agent.directories import make_log_dir

        make_log_dir(config.log_dir)
    former: FormerNode | None = None
    while (ending := _run_once(config, plugins, warden, alone=alone, former=former)).rejoin:
        # The store has another run, to which this node belongs now (S3, S6), or the node is to be checked (L17).
        warden, former = None, ending.former
    return ending


def _run_once(
    config: RunConfig, plugins: Plugins, warden: Warden | None, *, alone: bool, former: FormerNode | None
) -> Ending:
    with ExitStack() as stack:
        if warden is None:
            warden = stack.enter_context(begun(alone=alone))
            begin_starter(config, warden)

        from elastic_core.agent import membership  # imported here: see the top
        from elastic_core.agent.directories import Slot
        from elastic_core.agent.resources import Launch

        slot = stack.enter_context(closing(Slot.take(config.rdzv_id)))  # not the endpoint too: it has many spellings
        stack.callback(warden.close, CLOSING)  # before the slot is free for the next agent
        warden.hold(slot.fileno())
        warden.keep_off()  # plugins may have started something
        return membership.connect_and_run(
            Launch(config=config, plugins=plugins, slot=slot, warden=warden, former=former)
        )
