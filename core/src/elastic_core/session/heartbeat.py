"""The heartbeat: a counter that shows that the node is alive, on its own thread and connection (rule L1).

Nothing else runs on it: no hooks, no reconnects, no name look-ups. The counter counts the replies to heartbeats, so it
stops for a node that can send but not receive. It also stops when the agent's loop does not tick, since a stuck
agent takes no part in the job. Replies bring the leader's counter, and so this thread notices when that has stopped.
"""

from __future__ import annotations

import contextlib

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_core.protocol.failure_detector import CONTACT_GAP_MAX_SECONDS, DeposedLeader, contact_gap
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.row_delay import spread_fraction
from elastic_core.protocol.succession import LeaderSigns, succession_place, takeover_at
from elastic_core.rendezvous.backend import HeartbeatReply, RendezvousBackend, confirmed_at
from elastic_core.session.connections import SessionConnections
from elastic_core.session.contact import CONFIRMED_SHARE
from elastic_core.session.leave import append_leader
from elastic_core.session.row_check import RowCheck
from elastic_core.session.state import SessionState

LOOKS_APART_PLACES = 0.02
"""How much later each node looks up its place in the succession than the node before it, in places: 10 ms."""
TAKEOVER_RETRY_SECONDS = 0.1
"""The interval of checks of a leader that seems to be gone, while other nodes come before this one."""


class Heartbeat:
    """The heartbeat's thread."""

    def __init__(self, state: SessionState, connections: SessionConnections) -> None:
        self._state, self._connections = state, connections
        self._node_id, runtime = state.node_id, state.runtime
        self._row_check = RowCheck(state.node_id, state.calls.publish, runtime.codec)
        with contextlib.suppress(RendezvousConnectionError):  # the thread makes one later
            connections.made["heartbeat"] = state.store.connect()
        self._now = now = runtime.now
        self.count = 1
        """The heartbeat that is sent next."""
        self.answered_in = 0.0
        """How many seconds the store took to answer the newest heartbeat."""
        self._contact_at = self._leader_changed_at = self._ticked_at = self._tried_at = now()
        self._leader_heartbeat: int | None = None
        self._watched = state.ledger.leader
        self._cut_off = False  # whether the connection has broken since the last heartbeat
        self._place = 0.0
        """How many nodes succeed the leader before this one; a node without a rank finds that out when it matters."""
        self._guessed = False
        self._follow(state.ledger)

    def tick(self) -> None:
        """Record that the agent's loop is alive."""
        self._ticked_at = self._now()

    def _follow(self, ledger: Ledger) -> None:
        """Go on from a ledger that has grown, in which this node has another place in the succession."""
        self._ledger = ledger
        self._place, self._guessed = 0.0, False
        if ledger.is_member(self._node_id):
            self._place = succession_place(ledger, (), self._node_id)

    def run(self) -> None:
        """Heartbeat until the session is over; the thread's body."""
        if self._connections.made["heartbeat"] is None:
            self._mend_later()
        heartbeat_at = self._now() + spread_fraction(self._node_id) * self._ledger.settings.timing.beat_interval
        while True:
            with self._state.pulse:
                while not self._state.over and (wait := self._pause(heartbeat_at)) > 0:
                    self._state.pulse.wait(wait)
                if self._state.over:
                    return
                store, ledger = self._connections.made["heartbeat"], self._ledger
            interval, self._tried_at = ledger.settings.timing.beat_interval, self._now()
            if store is not None and self._now() - self._ticked_at < 2 * interval + CONTACT_GAP_MAX_SECONDS:
                self._heartbeat(store, ledger)
            if self._now() >= heartbeat_at:
                heartbeat_at = self._now() + interval

    def _pause(self, heartbeat_at: float) -> float:
        """Return the seconds until there is something to do, by the newest ledger."""
        if self._ledger is not self._state.ledger:
            self._follow(self._state.ledger)
        due = heartbeat_at
        if self._connections.made["heartbeat"] is not None and self._heir(self._ledger):
            takeover = takeover_at(self._ledger, self._signs(), self._place)
            due = min(due, max(takeover, self._tried_at + TAKEOVER_RETRY_SECONDS))
        return due - self._now()

    def _heartbeat(self, store: RendezvousBackend, ledger: Ledger) -> None:
        try:
            reply = store.heartbeat(self._node_id, self.count, ledger.leader)
            row_lost = reply.revision is None and self._state.outbox.is_listed
            self._absorb(store, reply, ledger)
            if (row_lost or reply.head < ledger.head.index) and ledger.closed is None:
                self._connections.compare()
                return
            signs = self._signs()
            if self._heir(ledger) and self._now() >= takeover_at(ledger, signs, self._place):
                if not ledger.is_member(self._node_id):
                    self._place = self._find_place(store, ledger)
                if self._now() >= takeover_at(ledger, signs, self._place):
                    self._succeed(ledger)
        except RendezvousConnectionError as exc:
            with self._state.pulse:
                self._connections.made["heartbeat"] = None
            store.close()
            self._connections.failed("heartbeat", exc)
            self._mend_later()
        except RendezvousStateError as exc:
            self._state.give_up(exc)  # a follower's reader does not read the roster, and may never meet it

    def _find_place(self, store: RendezvousBackend, ledger: Ledger) -> float:
        """Return the place of a node without a rank, in order of arrival.

        Only the whole roster shows it, and thousands of nodes must not read it at once. A node that came long after the
        leader (or before it) reads it a little later, when mostly another one has taken the leader's place.
        """
        if self._guessed:
            return succession_place(ledger, [row.node_id for row in store.roster() if not row.broken], self._node_id)
        self._guessed = True
        serials = {row.node_id: row.serial for row in store.roster((self._node_id, ledger.leader))}
        return LOOKS_APART_PLACES * max(1, abs(serials.get(self._node_id, 0) - serials.get(ledger.leader, 0)))

    def _absorb(self, store: RendezvousBackend, reply: HeartbeatReply, ledger: Ledger) -> None:
        now = self._now()
        self.count, self.answered_in = self.count + 1, now - self._tried_at
        gap = self._cut_off or now - self._contact_at > contact_gap(ledger.settings.timing)
        if gap:
            self._state.gap_at, self._cut_off = now, False
        if gap or self._watched != ledger.leader or reply.watched != self._leader_heartbeat:
            self._watched, self._leader_heartbeat, self._leader_changed_at = ledger.leader, reply.watched, now
        self._contact_at = now
        self._count_as_contact(store, current=ledger.head.index <= reply.head <= self._state.ledger.head.index)
        self._state.outbox.row_seen(reply.revision)

    def _count_as_contact(self, store: RendezvousBackend, *, current: bool) -> None:
        """Record an answer; ``current`` says whether this node had read all that the store held."""
        state, began = self._state, self._tried_at
        state.contact.worked("heartbeat")
        self._connections.heartbeat_at = began
        if current:
            state.unread_since = None
            max_age = CONFIRMED_SHARE * state.ledger.settings.timing.fence_after
            state.contact.current(min(began, confirmed_at(store, max_age)))
        elif state.unread_since is None:
            state.unread_since = began
        if self._row_check.is_due(ledger := state.ledger, self._now()):
            state.outbox.later(lambda store: self._row_check.look(store, ledger))

    def _mend_later(self) -> None:
        state = self._state
        state.runtime.thread(target=state.guard, args=(self._mend,), name="elastic-mend", daemon=True).start()

    def _mend(self) -> None:
        """Make a new connection, and heartbeat over it from then on."""
        if (store := self._connections.connect("heartbeat")) is None:
            return
        with self._state.pulse:
            if goes_on := not self._state.over:
                self._connections.made["heartbeat"], self._cut_off = store, True
                self._state.pulse.notify()
        if not goes_on:
            store.close()

    def _heir(self, ledger: Ledger) -> bool:
        return ledger.leader != self._node_id and ledger.closed is None

    def _signs(self) -> LeaderSigns:
        return LeaderSigns(
            heartbeat_changed_at=self._leader_changed_at,
            reported_at=self._state.reported_at,
            gap_at=self._state.gap_at,
        )

    def _succeed(self, ledger: Ledger) -> None:
        """Have this node become the leader."""
        silence = self._now() - self._leader_changed_at
        why = f"no heartbeat from the leader, {ledger.leader}, for {silence:.1f} s"
        if unanswered := silence < ledger.settings.timing.lost_after:
            why = f"the leader, {ledger.leader}, did not answer an incident"
        state, heartbeat = self._state, self._leader_heartbeat or 0
        with state.wake:
            state.heard = DeposedLeader(ledger.leader, heartbeat, self._leader_changed_at, unanswered)
            state.outbox.later(lambda store: append_leader(state, store, ledger, state.node_id, why))
