"""An agent's first steps, in the order of what they hold up: its seat, its warden, and the template on its way.

The template imports for seconds what this process never does, so it is sent off before the rest of the agent is even
imported here: that takes a fifth of a second, which a second core has to spare.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from elastic_core.agent import preloading
from elastic_core.agent.identity import Seat
from elastic_core.agent.logs import make_log_dir
from elastic_core.agent.processes import open_standard_streams, subreaping
from elastic_core.agent.warden import CLOSING, Warden
from elastic_core.config import RunConfig
from elastic_core.environment import inheritable
from elastic_core.plugins import Plugins

if TYPE_CHECKING:
    from elastic_core.agent.outcome import Ending


def run(config: RunConfig, plugins: Plugins, *, alone: bool = True) -> Ending:
    """Run one agent to its end; the CLI's and any caller's way in. Main thread only.

    ``alone`` says that nothing else in this process starts processes, as :meth:`Warden.start` has it.

    Raises:
        ElasticError: What the user must hear before anything was started: no store, refused, too few nodes.
    """
    open_standard_streams()
    if config.log_dir is not None:
        make_log_dir(config.log_dir)
    while (ending := _run_once(config, plugins, alone=alone)).rejoin:
        pass  # the store lost this node's run, and has another now: begin again, as a node that was never there (S3)
    return ending


def _run_once(config: RunConfig, plugins: Plugins, *, alone: bool) -> Ending:
    with subreaping(), _seat(config) as seat, warden_for(config, plugins, seat, alone=alone) as (warden, names):
        from elastic_core.agent import supervisor  # see the top

        return supervisor.supervise(config, plugins, seat, warden, names)


@contextmanager
def _seat(config: RunConfig) -> Iterator[Seat]:
    seat = Seat.take(config.rdzv_id)  # not the endpoint too: it has many spellings
    try:
        yield seat
    finally:
        seat.close()


@contextmanager
def warden_for(
    config: RunConfig, plugins: Plugins, seat: Seat, *, alone: bool
) -> Iterator[tuple[Warden, tuple[str, ...]]]:
    """A warden that holds the seat, and what its template imports; () without a template.

    Raises:
        ResourceError: No process could be made.
        PluginError: A plugin failed to say what it wants preloaded.
    """
    names = preloading.modules(config, plugins)
    warden = Warden.start(hold=[seat.fileno()], alone=alone)
    try:
        if names:
            preloading.preload(warden, names, config, inheritable(os.environ))
        yield warden, names
    finally:
        warden.close(CLOSING)
