"""Finds out whether the job has gone on without this node, which reaches neither the store nor any peer.

The fence ends the workers of a node without contact in any case (rule S4), after minutes, in which the store may come
back. But a node whose link is down is soon replaced, and two workers of rank 0 may then write one file. An outage of
the store alone is not such a case: the peers can be reached, and the workers go on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from elastic_core.agent.probing import Unreachable, neighbours, probe, targets
from elastic_core.config.parse import OnNodeLoss
from elastic_core.protocol.entries import Round
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.node_events import Probed
from elastic_core.protocol.roster import NodeInfo
from elastic_core.session.contact import FENCE_SHARE, Contact
from elastic_core.session.runtime import Runtime

REPLACED_FACTOR = 5.0
"""A node may be replaced once it has had no contact for so many times ``lost_after``, and reaches no peer."""


class Isolation:
    """Whether this node is cut off from all others. All methods run on the agent's loop.

    Args:
        look_up: Asks the store for nodes, and calls back on another thread.
        find: Returns the targets that cannot be reached.
    """

    def __init__(
        self,
        node_id: str,
        look_up: Callable[[Sequence[str], Callable[[list[NodeInfo]], None]], None],
        runtime: Runtime,
        find: Unreachable,
    ) -> None:
        self._node_id, self._look_up, self._runtime, self._find = node_id, look_up, runtime, find
        self._known: list[NodeInfo] = []
        self._probe_at, self._alone = -math.inf, False

    def begin(self, current: Round) -> None:
        """Begin a round. The node of rank 0 asks where its neighbours are, while there is a store to ask.

        The others know the address of rank 0 from the round itself. So this costs a job one read of two rows a round.
        """
        self._known, self._alone = [], False
        if len(current.members) > 1 and current.members[0].node_id == self._node_id:
            self._look_up(neighbours(current, self._node_id), self._learn)

    def probe(self, current: Round, post: Callable[[Probed], None]) -> None:
        """Probe the peers after a failure of a round, and post the outcome (rule L5). Returns at once."""
        probe(current, self._node_id, self._look_up, post, self._runtime, self._find)

    def fence_in(self, contact: Contact, ledger: Ledger) -> float:
        """Return in how many seconds the workers of a round have to be stopped (rule S4)."""
        if self.is_replaced(contact.known_at, ledger):
            return 0.0
        fence_at = contact.at + FENCE_SHARE * ledger.settings.timing.fence_after
        return max(0.0, fence_at - self._runtime.now())

    def is_replaced(self, silent_since: float, ledger: Ledger) -> bool:
        """Whether the others may have gone on without this node, as the newest probe of its peers shows.

        Args:
            silent_since: When this node last had contact with the store.
            ledger: What it knows of the job.
        """
        current, now, agreement = ledger.round, self._runtime.now(), ledger.settings.agreement
        timing = ledger.settings.timing
        enough = current is not None and len(current.members) - 1 >= max(1, agreement.min_nodes)
        can_go_on = enough and agreement.on_node_loss is OnNodeLoss.REPLACE
        if current is None or not can_go_on or now - silent_since < REPLACED_FACTOR * timing.lost_after:
            self._alone = False
            return False
        if now >= self._probe_at:
            self._probe_at = now + timing.lost_after
            self._runtime.thread(target=self._probe, args=(current,), name="elastic-isolation", daemon=True).start()
        return self._alone

    def _learn(self, known: list[NodeInfo]) -> None:
        self._known = known

    def _probe(self, current: Round) -> None:
        aims = targets(current, self._node_id, self._known)
        try:
            failed = self._find(aims)
        except OSError:  # no descriptor is left: nothing is known
            return
        self._alone = bool(aims) and {aim.node_id for aim in aims} <= {*failed}
