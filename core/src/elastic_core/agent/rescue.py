"""Runs an agent to its end, and has plugins write to disk what is then only in its workers' memory files.

Workers leave memory files with their agent (``fd_store.py``), which are gone with it. What is in them is known to the
library that wrote them: its plugin implements ``elastic_rescue``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial

from elastic_core.agent.gates import repeats_request
from elastic_core.agent.report import Ending
from elastic_core.agent.resources import Resources
from elastic_core.agent.supervisor import Supervisor
from elastic_core.events import Event, Level
from elastic_core.exit_codes import ExitCode, signal_name
from elastic_core.monitors import LOOK_SECONDS, LeftMemory
from elastic_core.protocol.entries import Closed

NOT_WRITTEN = "no plugin of this agent writes it to disk. Install the library with which the script keeps its state"


def run(agent: Supervisor) -> Ending:
    """Run an agent to its end, close it, and rescue its memory if no other node continues from that.

    This is done also if the agent raises an :class:`Exception`, since all other nodes may fail in the same way. Its
    newest decisions are written then, too. Other exceptions, such as KeyboardInterrupt, stop this node only. The caller
    closes its resources afterwards.
    """
    ending, failed, resources = None, False, agent.resources
    try:
        with closing(agent):
            ending = agent.run()
        return ending
    except Exception:
        failed = ending is None
        raise
    finally:
        try:
            held = resources.group.reports.fd_store.held
            if held and is_needed(ending, agent.closed, agent.leaves_others, failed=failed):
                _rescue(resources, agent.signalled_at)
        except Exception as error:  # must not replace the agent's own ending or exception
            _publish_lost(resources, f"writing it failed with {error!r}")
        if failed:
            agent.publish_decisions()


def is_needed(
    ending: Ending | None, closed: Closed | None, leaves_others: Callable[[], bool], *, failed: bool = False
) -> bool:
    """Return whether no other node continues from the memory of this node.

    Args:
        ending: How the agent ended; None if it raised.
        closed: The verdict on the job, if there is one.
        leaves_others: Whether other nodes, which have the state too, stay in the job; called only if that matters.
        failed: Whether the agent raised because of a defect, and not because it was told to stop.
    """
    # After STORE_LOST the node joins another run, which has only the checkpoints on disk.
    if ending is not None and ending.rejoin and ending.exit_code != ExitCode.STORE_LOST:
        return False
    if closed is not None:
        return not closed.success
    return failed or (ending is not None and ending.exit_code == ExitCode.STORE_LOST) or not leaves_others()


def received(signals: Callable[[], list[int]], signalled_at: float | None = None) -> str:
    """Return which signal has come that does not repeat the first one; '' for none.

    Args:
        signals: Returns the signals that the agent has received since the last call.
        signalled_at: When the agent received its first signal, by the monotonic clock; the same request may repeat it.
    """
    since = math.inf if signalled_at is None else time.monotonic() - signalled_at
    ends = [signum for signum in signals() if not repeats_request(signum, since - LOOK_SECONDS)]
    return f"the agent received {signal_name(ends[0])}" if ends else ""


def _rescue(resources: Resources, signalled_at: float | None) -> None:
    of_node = (resources.group.reports.fd_store.held, str(resources.node.info), resources.node.publish)
    left = LeftMemory(*of_node, partial(received, resources.loop.untaken_signals, signalled_at))
    plugins = resources.node.plugins.implementations("elastic_rescue")
    if not plugins:
        _publish_lost(resources, NOT_WRITTEN)
    for plugin in plugins:
        try:
            plugin(left=left)
        except Exception as error:
            _publish_lost(resources, f"writing it failed with {error!r}")


def _publish_lost(resources: Resources, why: str) -> None:
    names = ", ".join(sorted({name.partition("/")[0] for name in resources.group.reports.fd_store.held}))
    message = f"what workers have left in memory as {names} is lost: {why}"
    resources.node.publish(Event("rescue_failed", message, Level.ERROR))
