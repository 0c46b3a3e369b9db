"""What a session tells its agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from elastic_core.events import Event
from elastic_core.protocol.node import NodeEvent
from elastic_core.session.leader_driver import Judge, NodeGone


@dataclass(frozen=True, slots=True)
class SessionCalls:
    """What a session tells its agent. All are called from the session's threads and must return at once."""

    post: Callable[[NodeEvent], None]
    publish: Callable[[Event], None]
    judge: Judge
    crashed: Callable[[BaseException], None]
    """A thread met a defect; the agent ends with it."""
    node_gone: NodeGone | None = None
    """Asks the plugins whether a node is gone for good, on a thread of its own; None where there is none to ask."""
