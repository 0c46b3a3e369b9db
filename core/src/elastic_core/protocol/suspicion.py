"""Suspicion: which members have not shown that they read an entry, and when they are suspected for it (rule L2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from elastic_core.protocol.entries import HaltReason, Resume, Round
from elastic_core.protocol.leader_view import SUSPICION_FACTOR, LeaderView, head_patience

REPLACED_SECONDS = 0.25
"""The limit after a failure that only follows from the loss of a peer, where enough nodes wait to replace those that
have not shown it: one that is only slow becomes a node that waits."""
LAST_CHANCE_SECONDS = 0.1  # how long a node that has already been suspected once gets to show that it is alive


def is_silent_old_leader(view: LeaderView, node_id: str) -> bool:
    """Return True if a node is the old leader, was deposed for not answering an incident, and is still silent.

    A row from an older epoch does not tell: then the answer is False.
    """
    old, node, leader = view.watch.deposed, view.get(node_id), view.ledger.head.anchors.leader
    if old is None or not old.unanswered or old.node_id != node_id:
        return False
    return node is None or (node.row.epoch == view.ledger.head.epoch and node.row.head < leader)


@dataclass(frozen=True)
class Suspicion:
    """The suspicion of the members of the newest round, live or halted, that are slow to show what they have read."""

    view: LeaderView
    round: Round

    def suspectable_members(self, index: int) -> list[str]:
        """Return the members behind entry ``index`` that may be suspected: those whose row the store has not lost."""
        listed = {node.node_id for node in self.view.node_views(self.round) if node.listed}
        return [node_id for node_id in self.view.members_behind(self.round, index) if node_id in listed]

    def member_suspected_at(self, node_id: str) -> float:
        """Return when a member that has not shown that it read the HALT is suspected.

        A member that has been suspected before has only LAST_CHANCE_SECONDS, within which a living agent answers: the
        old leader that was deposed for its silence, and a member that was silent about the ROUND that was halted
        because of that. A member that has not yet read of a RESUME is not known to be silent.
        """
        ledger, at = self.view.ledger, self.view.ledger.head.anchors
        node = self.view.get(node_id)
        deposed = at.halt == at.leader + 1 and is_silent_old_leader(self.view, node_id)
        unseen = ledger.halt is not None and ledger.halt.reason is HaltReason.UNSEEN
        silent = node is not None and node.row.epoch == ledger.head.epoch and node.row.head < at.latest
        if deposed or (unseen and silent):
            last = ledger.halt_at + max(LAST_CHANCE_SECONDS, SUSPICION_FACTOR * ledger.counters.worst_seen)
            return max(last, self._back_at)
        if self._can_replace_silent_members:
            worst = SUSPICION_FACTOR * ledger.counters.worst_seen
            return max(self._answered_at + max(REPLACED_SECONDS, worst), self._back_at)
        return self.silence_suspected_at

    @cached_property
    def _can_replace_silent_members(self) -> bool:
        """True if a peer was lost, as far as reports tell, and a node waits for each member that is silent since."""
        view, halt = self.view, self.view.ledger.halt
        if halt is None or halt.incident is None or isinstance(view.ledger.head.body, Resume):
            return False
        silent = view.members_behind(self.round, view.ledger.head.anchors.halt)
        follows = view.first_cause(self.round, halt.incident).follows_peer
        return follows and 0 < len(silent) <= len(view.waiting_nodes())

    @property
    def silence_suspected_at(self) -> float:
        """When members that have not shown that they read the newest ROUND or HALT are suspected."""
        return max(self._answered_at + head_patience(self.view.ledger), self._back_at)

    @property
    def _back_at(self) -> float:
        """When every living node is back after the leader was cut off from the store, as others may have been (L1)."""
        return self.view.watch.gap_at + self.view.timing.lost_after

    @cached_property
    def _answered_at(self) -> float:
        """When a member last showed that it read the newest ROUND or HALT; before the first answer, that entry's time.

        While answers keep coming in, the store or the network is slow with many nodes, and no node counts as silent.
        """
        ledger = self.view.ledger
        at, index = ledger.halt_at, ledger.head.anchors.halt
        if ledger.halt is None:
            at, index = ledger.round_at, ledger.head.anchors.latest
        return max([at, *(node.seen_at for node in self.view.node_views(self.round) if node.row.head >= index)])
