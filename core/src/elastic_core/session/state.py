"""What the threads of a session share, and the functions of the agent that they call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from elastic_core.errors import ElasticError
from elastic_core.events import Event, Level
from elastic_core.protocol.node_events import NodeEvent, StoreLost
from elastic_core.protocol.roster import Reached
from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_core.session.contact import FENCE_SHARE, Contact
from elastic_core.session.join import Joined
from elastic_core.session.leader_driver import Judge, NodeGone
from elastic_core.session.runtime import Runtime
from elastic_core.session.summary import SumUpAnswers, no_report


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
    sum_up: SumUpAnswers = no_report


class SessionState:
    """Which ledger was read last, whether there is contact, and whether the session goes on.

    Args:
        store: What the node joined over; each thread makes its own connection.
        stop_threads: Called when the node will read no further entry.
    """

    def __init__(
        self,
        store: RendezvousBackend,
        joined: Joined,
        runtime: Runtime,
        calls: SessionCalls,
        stop_threads: Callable[[], None],
    ) -> None:
        self.store, self.runtime, self.calls = store, runtime, calls
        self._stop_threads = stop_threads
        self.info = joined.row.info
        self.node_id = self.info.node_id
        self.ledger = joined.ledger  # What the node has read. Only the reader changes it, with ``wake`` held.
        self.unread_since: float | None = None
        """Since when heartbeats bring that the store has other entries than this node has read."""
        self.contact = Contact(runtime.now(), calls.publish)
        self.wake = runtime.condition()  # wakes the writer, and guards what several threads change
        self.stopping = runtime.event()
        self.lost = False  # whether this node will read no further entry

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
        self._stop_threads()
        if first and self.ledger.closed is None:
            self.calls.publish(told)
            self.calls.post(end)

    def guard(self, body: Callable[[], None]) -> None:
        """Call the body of a thread, and report a defect in it to the agent."""
        try:
            body()
        except Exception as exc:
            self.calls.crashed(exc)
