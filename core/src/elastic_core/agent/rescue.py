"""Runs an agent to its end, and has plugins write to disk what is then only in its workers' memory files.

Workers leave memory files with their agent (``fd_store.py``), which are gone with it. What is in them is known to the
library that wrote them: its plugin implements ``elastic_rescue``.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from elastic_core.agent.event_loop import EventLoop, SignalReceived
from elastic_core.agent.join_gate import repeats_request
from elastic_core.agent.report import Ending
from elastic_core.agent.resources import Resources
from elastic_core.agent.supervisor import Supervisor
from elastic_core.events import Event, Level
from elastic_core.exit_codes import ExitCode, signal_name
from elastic_core.monitors import LeftMemory
from elastic_core.protocol.entries import Closed
from elastic_core.threads import asked

_T = TypeVar("_T")
ABORT_SECONDS = 5.0  # for the work to return, once it was told to stop
_OVERDUE = object()  # an event: the work has taken too long
NOT_WRITTEN = "no plugin of this agent writes it to disk. Install the library with which the script keeps its state"


@dataclass(frozen=True)
class EndingAgentMemory(LeftMemory):
    """The memory files of an agent that ends. Use it in the main thread: it installs signal handlers.

    Attributes:
        signals: The signals that end the writing.
        agent_loop: It may have received a signal that the agent has not taken.
        signalled_at: When the agent received its first signal, by the monotonic clock; the same request may repeat it.
    """

    signals: Iterable[int] = ()
    agent_loop: EventLoop | None = field(default=None, repr=False)
    signalled_at: float | None = None

    def _ends(self, event: object) -> bool:
        """Return True for a signal that does not repeat the first one."""
        since = math.inf if self.signalled_at is None else time.monotonic() - self.signalled_at
        return isinstance(event, SignalReceived) and not repeats_request(event.signum, since)

    def run(self, work: Callable[[threading.Event], _T], patience: float) -> tuple[_T, str]:
        """Run the work on a thread, and tell it to stop after a signal or ``patience`` seconds."""
        stop = threading.Event()
        with closing(EventLoop(self.signals)) as loop:  # a new one: the defect that ended the agent may be in its loop
            untaken = [] if self.agent_loop is None else self.agent_loop.untaken_signals()
            early = [*filter(self._ends, untaken)]
            why = "" if not early else f"the agent received {signal_name(early[0].signum)}"
            if early:
                stop.set()
            outcome = asked(partial(work, stop), name="elastic-rescue")
            outcome.add_done_callback(loop.post)  # wakes the loop
            loop.at(time.monotonic() + (ABORT_SECONDS if early else patience), _OVERDUE)
            while not outcome.done():
                for event in loop.take():
                    if event is _OVERDUE and why:
                        raise TimeoutError(f"{why}, and the disk does not answer")
                    if event is _OVERDUE:
                        why = f"writing has taken {patience:.0f} s"
                    elif isinstance(event, SignalReceived) and self._ends(event) and not why:
                        why = f"the agent received {signal_name(event.signum)}"
                    else:
                        continue
                    stop.set()
                    loop.at(time.monotonic() + ABORT_SECONDS, _OVERDUE)
        return outcome.result(), why


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


def _rescue(resources: Resources, signalled_at: float | None) -> None:
    of_node = (resources.group.reports.fd_store.held, str(resources.node.info), resources.node.publish)
    left = EndingAgentMemory(*of_node, resources.signals, resources.loop, signalled_at)
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
