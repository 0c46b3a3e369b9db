"""Runs an agent to its end, then tells plugins of it (``elastic_agent_ends``)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial

from elastic_core.agent.gates import repeats_request
from elastic_core.agent.report import Ending, Publish
from elastic_core.agent.supervisor import Supervisor
from elastic_core.events import Event, Level
from elastic_core.exit_codes import ExitCode, signal_name
from elastic_core.gates import LOOK_SECONDS, AgentEnd
from elastic_core.protocol.entries import Closed


def run(agent: Supervisor) -> Ending:
    """Run an agent to its end, close it, and have plugins rescue its memory if no other node continues from that.

    This is done also if the agent raises an :class:`Exception`, since all other nodes may fail in the same way. Other
    exceptions, such as KeyboardInterrupt, stop this node only. The caller closes its resources afterwards.
    """
    ending, failed = None, False
    try:
        with closing(agent):
            ending = agent.run()
        return ending
    except Exception:
        failed = ending is None
        raise
    finally:
        try:
            _tell_plugins(agent, ending, failed=failed)
        except Exception as error:  # must not replace the agent's own ending or exception
            _publish_lost(agent.resources.node.publish, repr(error))


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


def _tell_plugins(agent: Supervisor, ending: Ending | None, *, failed: bool) -> None:
    """Call the plugins at the agent's end."""
    node, untaken = agent.resources.node, agent.resources.loop.untaken_signals
    is_last = partial(is_needed, ending, agent.closed, agent.leaves_others, failed=failed)
    end = AgentEnd(str(node.info), node.publish, partial(received, untaken, agent.signalled_at), is_last, failed)
    for plugin in node.plugins.implementations("elastic_agent_ends"):
        try:
            plugin(end=end)
        except Exception as error:
            _publish_lost(node.publish, f"the plugin {plugin.plugin!r} raised {error!r}")


def _publish_lost(publish: Publish, why: str) -> None:
    publish(Event("rescue_failed", f"what a plugin keeps in memory for workers may be lost: {why}", Level.ERROR))
