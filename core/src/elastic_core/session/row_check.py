"""Whether the leader can read this node's roster row: a node that waits for a place finds out, and says so.

A node whose row cannot be read would wait for ever. The leader's row names such nodes, and a node that is no member of
the round reads it when it has waited for ``lost_after``, and then ever more seldom.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from elastic_core.errors import RendezvousStateError
from elastic_core.events import Event, Level
from elastic_core.protocol.codec import CODEC, Codec, written_by
from elastic_core.protocol.ledger import Ledger
from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_core.session.ledger_reader import said_by
from elastic_core.version import __version__


class RowCheck:
    """When to look, and what to say.

    Args:
        publish: Takes the warning; it is said once for each leader.
    """

    def __init__(self, node_id: str, publish: Callable[[Event], None], codec: Codec = CODEC) -> None:
        self._node_id, self._publish, self._codec = node_id, publish, codec
        self._leader = ""
        self._pause = 0.0
        self._due_at = math.inf

    def is_due(self, ledger: Ledger, now: float) -> bool:
        """Whether to :meth:`look` now; to be asked with every heartbeat."""
        if ledger.leader != self._leader:
            self._leader, self._pause = ledger.leader, ledger.settings.timing.lost_after
            self._due_at = now + self._pause
        if not self._codec.can_fail:
            return False
        waits = ledger.closed is None and not ledger.is_member(self._node_id) and ledger.leader != self._node_id
        if not waits or now < self._due_at:
            return False
        self._pause *= 2
        self._due_at = now + self._pause
        return True

    def look(self, store: RendezvousBackend, ledger: Ledger) -> None:
        """Read the leader's row.

        Raises:
            RendezvousConnectionError: The store cannot be reached.
        """
        for found in store.roster([ledger.leader]):
            try:
                row = said_by(found, self._codec)
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
        f"the store; the output of {leader} says what is wrong with it."
    )
