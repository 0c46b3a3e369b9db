"""What the threads of a session share, and the functions of the agent that they call.

The threads do not know each other. They meet here: one changes the state and notifies ``wake`` or ``pulse``, for which
the writer and the heartbeat wait. The reader waits for the store.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.errors import ElasticError
from elastic_core.events import Event, Level
from elastic_core.protocol.node_events import NodeEvent, StoreLost
from elastic_core.protocol.roster import Reached
from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_core.session.contact import FENCE_SHARE, Contact
from elastic_core.session.join import Joined
from elastic_core.session.leader_driver import Judge, NodeGone
from elastic_core.session.outbox import Outbox
from elastic_core.session.runtime import Runtime

if TYPE_CHECKING:
    from elastic_core.protocol.failure_detector import DeposedLeader
    from elastic_core.protocol.ledger import Ledger


@dataclass(frozen=True, slots=True)
class SessionCalls:
    """The agent's functions that a session calls, from its own threads. Each must return at once."""

    post: Callable[[NodeEvent], None]
    publish: Callable[[Event], None]
    judge: Judge
    crashed: Callable[[BaseException], None]  # a thread met a defect; the agent ends with it
    node_gone: NodeGone | None = None
    """Asks the plugins whether a node is gone for good, on a separate thread; None where there is none to ask."""
    reached: Callable[[], Reached | None] = lambda: None  # how far this node's workers have come


class SessionState:
    """Which ledger was read last, whether there is contact, what is to be written, and whether the session goes on.

    Args:
        store: What the node joined over; each thread makes its own connection.
    """

    def __init__(self, store: RendezvousBackend, joined: Joined, runtime: Runtime, calls: SessionCalls) -> None:
        self.store, self.runtime, self.calls = store, runtime, calls
        self.info = joined.row.info
        self.ledger = joined.ledger  # What the node has read. Only the reader changes it, with ``wake`` held.
        self.unread_since: float | None = None
        """Since when heartbeats bring that the store has other entries than this node has read."""
        self.contact = Contact(runtime.now(), calls.publish)
        self.wake = runtime.condition()  # wakes the writer, and guards what several threads change
        self.pulse = runtime.condition()  # wakes the heartbeat, and guards its connection
        self.reported_at: float | None = None
        """When this node reported an incident that the leader has to answer (rule L2); None if it has answered."""
        self.heard: DeposedLeader | None = None  # what the last leader's heartbeats were when this node took its place
        self.gap_at = -math.inf
        """When this node had the store back after it had last been cut off; -inf if it never was."""
        self.stopping = runtime.event()
        self.lost = False  # whether this node will read no further entry
        self.outbox = Outbox(self, joined.row)

    @property
    def node_id(self) -> str:
        """The node's id."""
        return self.info.node_id

    @property
    def over(self) -> bool:
        """Whether the threads are to end."""
        return self.stopping.is_set() or self.lost

    def is_cut_off(self, share: float = 1.0) -> bool:
        """Whether this node has had no contact for as long as its fence takes, or for this share of that time.

        Such a node decides nothing, and asks for no place in a round (rule S4).
        """
        fence_after = self.ledger.settings.timing.fence_after
        return self.runtime.now() - self.contact.known_at >= share * FENCE_SHARE * fence_after

    def follow(self, ledger: Ledger) -> None:
        """Go on from a ledger that has grown, which answers every report made before."""
        with self.wake, self.pulse:  # together, since the writer may report and the heartbeat may judge meanwhile
            self.ledger, self.unread_since, self.reported_at = ledger, None, None
            self.contact.live(ledger.is_live)
            self.pulse.notify()

    def report_sent(self) -> None:
        """Record that the store has this node's report of an incident, and that the leader owes an entry (rule L2)."""
        with self.pulse:
            self.reported_at = self.runtime.now()
            self.pulse.notify()

    def give_up(self, exc: ElasticError) -> None:
        """End the session, since the store is lost: healthy workers may finish without it."""
        what = " ".join(filter(None, [exc.message, exc.hint]))
        self.end(StoreLost(), Event("store_lost", f"the store is lost: {what}", Level.ERROR))

    def end(self, end: NodeEvent, told: Event) -> None:
        """End the session: heartbeats stop, and no operation counts as contact any more.

        Should others go on without this node, they wait for the fence, which stops the workers here first (rule S4).
        """
        with self.wake:
            first, self.lost = not self.over, True
            self.wake.notify()
        self.contact.end()
        with self.pulse:
            self.pulse.notify()
        self.outbox.done.set()
        if first and self.ledger.closed is None:
            self.calls.publish(told)
            self.calls.post(end)

    def guard(self, body: Callable[[], None]) -> None:
        """Call the body of a thread, and report a defect in it to the agent."""
        try:
            body()
        except Exception as exc:
            self.calls.crashed(exc)
