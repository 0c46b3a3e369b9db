"""The heartbeat: a counter that shows that the node is alive, on its own thread and connection (rule L1).

Nothing else runs on it: no hooks, no reconnects, no name look-ups. The counter counts the replies to heartbeats, so it
stops for a node that can send but not receive. It also stops when the agent's loop does not tick, since a stuck
agent takes no part in the job. Replies bring the leader's counter, and so this thread notices when that has stopped.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from functools import partial

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_core.events import Event, Level
from elastic_core.protocol.codec import CODEC, Codec, written_by
from elastic_core.protocol.failure_detector import (
    CONTACT_GAP_MAX_SECONDS,
    DeposedLeader,
    LeaderSigns,
    contact_gap,
    succession_place,
    takeover_at,
)
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.roster import spread_fraction
from elastic_core.rendezvous.backend import HeartbeatReply, RendezvousBackend, confirmed_at
from elastic_core.session.contact import CONFIRMED_SHARE
from elastic_core.session.ledger_reader import decode_roster_row
from elastic_core.session.state import SessionState
from elastic_core.version import __version__

LOOKS_APART_PLACES = 0.02
"""The delay, in places, with which each node looks up its place in the succession after the one before it: 10 ms."""
TAKEOVER_RETRY_SECONDS = 0.1
"""The interval of checks of a leader that seems to be gone, while other nodes come before this one."""


class Heartbeat:
    """The heartbeat's thread."""

    def __init__(self, state: SessionState) -> None:
        self._state, self._node_id, runtime = state, state.node_id, state.runtime
        self._row_check = RowCheck(state.node_id, state.calls.publish, runtime.codec)
        with contextlib.suppress(RendezvousConnectionError):  # the thread makes one later
            state.connections.made["heartbeat"] = state.store.connect()
        self._now = now = runtime.now
        self.count = 1  # the heartbeat that is sent next
        self.answered_in = 0.0  # the seconds that the store took to answer the newest heartbeat
        self._contact_at = self._leader_changed_at = self._ticked_at = self._tried_at = now()
        self._watched: tuple[str, int | None] = (state.ledger.leader, None)  # the leader, and its newest heartbeat
        self._cut_off = False  # whether the connection has broken since the last heartbeat
        self._place = 0.0
        """The number of successors before this node; a node without a rank finds that out when it matters."""
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
        if self._state.connections.made["heartbeat"] is None:
            self._mend_later()
        heartbeat_at = self._now() + spread_fraction(self._node_id) * self._ledger.settings.timing.beat_interval
        while True:
            with self._state.pulse:
                while not self._state.over and (wait := self._pause(heartbeat_at)) > 0:
                    self._state.pulse.wait(wait)
                if self._state.over:
                    return
                store, ledger = self._state.connections.made["heartbeat"], self._ledger
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
        if self._state.connections.made["heartbeat"] is not None and self._heir(self._ledger):
            takeover = takeover_at(self._ledger, self._signs(), self._place)
            due = min(due, max(takeover, self._tried_at + TAKEOVER_RETRY_SECONDS))
        return due - self._now()

    def _heartbeat(self, store: RendezvousBackend, ledger: Ledger) -> None:
        try:
            reply = store.heartbeat(self._node_id, self.count, ledger.leader)
            row_lost = reply.revision is None and self._state.writer.is_listed
            self._absorb(store, reply, ledger)
            if (row_lost or reply.head < ledger.head.index) and ledger.closed is None:
                self._state.connections.compare()
                return
            signs = self._signs()
            if self._heir(ledger) and self._now() >= takeover_at(ledger, signs, self._place):
                if not ledger.is_member(self._node_id):
                    self._place = self._find_place(store, ledger)
                if self._now() >= takeover_at(ledger, signs, self._place):
                    self._succeed(ledger)
        except RendezvousConnectionError as exc:
            self._state.connections.close("heartbeat")
            self._state.connections.failed("heartbeat", exc)
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
        state, began, now = self._state, self._tried_at, self._now()
        self.count, self.answered_in = self.count + 1, now - began
        gap = self._cut_off or now - self._contact_at > contact_gap(ledger.settings.timing)
        if gap:
            state.gap_at, self._cut_off = now, False
        if gap or self._watched != (ledger.leader, reply.watched):
            self._watched, self._leader_changed_at = (ledger.leader, reply.watched), now
        self._contact_at = now
        state.contact.worked("heartbeat")
        state.connections.heartbeat_at = began
        if ledger.head.index <= reply.head <= state.ledger.head.index:  # this node had read all that the store held
            state.connections.unread_since = None
            max_age = CONFIRMED_SHARE * state.ledger.settings.timing.fence_after
            state.contact.current(min(began, confirmed_at(store, max_age)))
        elif state.connections.unread_since is None:
            state.connections.unread_since = began
        if self._row_check.is_due(newest := state.ledger, self._now()):
            state.writer.later(lambda store: self._row_check.look(store, newest))
        state.writer.row_seen(reply.revision)

    def _mend_later(self) -> None:
        """Make a new connection, over which this thread goes on."""
        self._cut_off = True
        self._state.thread("mend", partial(self._state.connections.connect, "heartbeat")).start()

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
        state, heartbeat = self._state, self._watched[1] or 0
        with state.wake:
            state.heard = DeposedLeader(ledger.leader, heartbeat, self._leader_changed_at, unanswered)
            state.writer.later(lambda store: state.append_leader(store, ledger, state.node_id, why))


class RowCheck:
    """Finds out whether the leader can read this node's roster row; a node that cannot be read would wait for ever.

    The leader's row names such nodes. A node that is no member of the round reads it when it has waited for
    ``lost_after``, and then ever more seldom. One warning is published for each leader.
    """

    def __init__(self, node_id: str, publish: Callable[[Event], None], codec: Codec = CODEC) -> None:
        self._node_id, self._publish, self._codec = node_id, publish, codec
        self._leader = ""
        self._pause = 0.0
        self._due_at = math.inf

    def is_due(self, ledger: Ledger, now: float) -> bool:
        """Return True if :meth:`look` is due; to be called with every heartbeat."""
        if ledger.leader != self._leader:
            self._leader, self._pause = ledger.leader, ledger.settings.timing.lost_after
            self._due_at = now + self._pause
        waits = ledger.closed is None and not ledger.is_member(self._node_id) and ledger.leader != self._node_id
        if not (waits and self._codec.can_fail) or now < self._due_at:
            return False
        self._pause *= 2
        self._due_at = now + self._pause
        return True

    def look(self, store: RendezvousBackend, ledger: Ledger) -> None:
        """Read the leader's row."""
        for found in store.roster([ledger.leader]):
            try:
                row = decode_roster_row(found, self._codec)
            except RendezvousStateError as exc:
                self._tell(f"This node cannot read what {ledger.leader}, which decides, writes to the store: {exc}")
                return
            if self._node_id in row.unread:
                self._tell(
                    f"{row.info}, which decides, cannot read what this node writes to the store, so this node gets no "
                    f"place in a round. {_likely_reason(written_by(found.value), str(row.info))}"
                )

    def _tell(self, message: str) -> None:
        self._due_at = math.inf
        self._publish(Event("row_unread", message, Level.WARNING))


def _likely_reason(release: str, leader: str) -> str:
    """Say why a leader with this release of elastic-core cannot read the row, and what to do."""
    if release != __version__:
        return (
            f"It runs elastic-core {release or 'of an unknown release'}, and this node {__version__}: install one "
            "release on all nodes."
        )
    return (
        f"Both run elastic-core {__version__}. See that both have the same job token, and that nothing else writes to "
        f"the store; the output of {leader} names the error in the row."
    )
