"""The leader view: all that the leader knows when it decides, and the questions that several decisions ask about it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from elastic_core.config.run import Timing
from elastic_core.incidents import Incident, Verdict, by_cause, distance_to_cause
from elastic_core.protocol.entries import FAILURE_REASONS, Halt, HaltReason, Resume, Round
from elastic_core.protocol.failure_detector import (
    SUSPICION_FACTOR,
    NodeView,
    Watch,
    head_patience,
    is_lost,
    silence_deadline,
)
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.limits import list_names
from elastic_core.protocol.roster import NodeRow, Phase
from elastic_core.protocol.settings import Agreement

CAUSE_PATIENCE_SECONDS = 0.1
"""The wait of the leader for more reports if each reported failure follows from another, and members are missing."""
PEER_PATIENCE_SECONDS = 0.5
"""Its wait if all members report failures that follow from the loss of a peer: the rank that closed its
connections may be about to end. Workers go on meanwhile."""
REPLACED_SECONDS = 0.25
"""A silent member is suspected after at least this long where a failure only follows from the loss of a peer, and a
node waits for each silent one: one that is only slow becomes a node that waits."""
LAST_CHANCE_SECONDS = 0.1  # how long a node that has already been suspected once gets to show that it is alive
PROBE_WAIT_SECONDS = 3.0
"""The time that the leader waits for the members' probes after a HALT; on a healthy network they take milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The answer of the failure policies to the ``incident`` of one round; ``verdict`` is None until they answer."""

    round: int
    incident: Incident | None = None
    verdict: Verdict | None = None


@dataclass(frozen=True, kw_only=True)
class LeaderView:
    """The state from which :func:`~elastic_core.protocol.leader.decide` decides, by the leader's monotonic clock."""

    ledger: Ledger
    watch: Watch
    now: float  # When the roster was read. Nodes are judged as of this instant, since later rows are unknown.
    judgement: Judgement | None = None
    report: str | None = None
    """The plugins' report on the answers to the open QUESTION, JSON; '' until it is made, None if not asked for."""
    may_forget: bool = False  # whether the store can come back without its last entries (rule S3)

    @property
    def agreement(self) -> Agreement:
        """The run's settings."""
        return self.ledger.settings.agreement

    @property
    def timing(self) -> Timing:
        """The run's durations."""
        return self.ledger.settings.timing

    def judgement_of(self, number: int) -> Judgement | None:
        """Return the policies' judgement on round ``number``; None if they were not asked about it."""
        return self.judgement if self.judgement is not None and self.judgement.round == number else None

    def verdict(self, number: int) -> Verdict | None:
        """Return the policies' verdict on round ``number``; None if they were not asked, or have not answered."""
        return None if (asked := self.judgement_of(number)) is None else asked.verdict

    @property
    def age(self) -> float:
        """Seconds since the run was opened, as the ledger adds them up."""
        return self.ledger.age(self.now)

    # One node --------------------------------------------------------------------------------------------------------

    def get(self, node_id: str) -> NodeView | None:
        """Return the node view of a node; None if it has no row."""
        return self.watch.nodes.get(node_id)

    def is_lost(self, node_id: str) -> bool:
        """Return True if a node is lost."""
        return is_lost(self.watch, node_id, self.timing, self.now)

    def is_proved_gone(self, node: NodeView) -> bool:
        """Return True if a node's last process is proved to be gone, and no heartbeat contradicts that (rule S8)."""
        return node.node_id in self.watch.gone and self.is_lost(node.node_id)

    def is_leaving(self, node_id: str) -> bool:
        """Return True if a node has said that it leaves, in its row or, if the store has lost that, in an OVER."""
        node, over = self.get(node_id), self.ledger.over
        return (node is not None and node.row.leaving) or (over is not None and node_id in over.left)

    def has_finished(self, current: Round, node_id: str) -> bool:
        """Return True if every worker of a node exited with 0; this stands even when the node is lost (rule L7)."""
        node = self.get(node_id)
        return node is not None and node.row.phase is Phase.FINISHED and node.row.round == current.number

    # Several nodes ---------------------------------------------------------------------------------------------------

    def node_views(self, current: Round) -> list[NodeView]:
        """Return the members of a round that have a row, in rank order."""
        return [node for member in current.members if (node := self.get(member.node_id)) is not None]

    def incidents(self, current: Round) -> list[Incident]:
        """Return the incidents that members report of a round, the root cause first (``incidents.by_cause``)."""
        found = [node.row.incident for node in self.node_views(current) if node.row.incident is not None]
        return sorted((i for i in found if i.round == current.number), key=by_cause)

    def first_cause(self, old: Round, blamed: Incident) -> Incident:
        """Return the failure that a HALT blames, or the report of a member that is closer to the root cause."""
        return min((*self.incidents(old), blamed), key=by_cause)

    def members_behind(self, current: Round, index: int) -> list[str]:
        """Members that have not shown that they read ledger entry ``index``; a member that leaves need not."""
        return [node.node_id for node in self.node_views(current) if node.row.head < index and not node.row.leaving]

    def newcomers(self) -> list[NodeView]:
        """Return the waiting nodes, without bad hosts if the members are enough."""
        members = self.ledger.ranks
        known = [node for node_id in members if (node := self.get(node_id)) is not None]
        return self.drop_bad_hosts(self.waiting_nodes(), known, len(members) - len(known))

    def waiting_nodes(self) -> list[NodeView]:
        """Live nodes that wait for a place and have read the newest OPEN or LEADER (rule S7), and the newest ROUND, so
        that their offers are of no round before (I2): returning ones first (rule L16), then by arrival.

        A node whose row is not listed does not wait: it removed its row, or the store lost that row and the node will
        enter it again.
        """
        ledger, members = self.ledger, self.ledger.ranks
        waiting = [
            node
            for node in self.watch.nodes.values()
            if node.row.phase is Phase.WAITING
            and node.listed
            and node.row.run == ledger.head.run
            and node.row.head >= max(ledger.head.anchors.leader, ledger.head.anchors.latest)
            and node.row.offer is not None
            and not node.row.leaving
            and node.node_id not in members
            and not self.is_lost(node.node_id)
        ]
        staying = [node for i in members if (node := self.get(i)) and not (self.is_lost(i) or self.is_leaving(i))]
        known = self._hosts_left
        waiting.sort(key=lambda node: node.row.info.host_id not in known)
        return drop_unreachable(staying, drop_duplicate_ranks(staying, waiting))

    @cached_property
    def _hosts_left(self) -> frozenset[str]:
        """The ids of the hosts that the job has lost, or that a member of the newest round has left or is lost on.

        A new node on such a host returns: its data and caches are there (rule L16). Members that stay are on no such
        host.
        """
        members = [node for node_id in self.ledger.ranks if (node := self.get(node_id)) is not None]
        gone = {one.row.info.host_id for one in members if self.is_lost(one.node_id) or one.row.leaving}
        return frozenset(gone | self.ledger.counters.losses.keys())

    def drop_bad_hosts(
        self, nodes: list[NodeView], staying: Sequence[NodeView] = (), unknown: int = 0
    ) -> list[NodeView]:
        """Leave out hosts that a policy excluded or that were lost too often, if the other nodes are enough (rule L4).

        ``staying`` are in the round anyway; other nodes on their hosts are not left out. Of ``unknown`` more nodes in
        the round nothing is known.
        """
        bad = self.ledger.counters.bad_hosts(self.age) - {node.row.info.host_id for node in staying}
        good = [node for node in nodes if node.row.info.host_id not in bad]
        return good if len(good) + len(staying) + unknown >= self.agreement.min_nodes else nodes

    def places(self, current: Round) -> int:
        """Return how many of the nodes that wait a larger round would have a place for (rule L15)."""
        size = len(current.members)
        if size >= self.agreement.max_nodes:
            return 0
        return max(0, self.agreement.largest_size(size + len(self.newcomers())) - size)

    # Texts and timers ------------------------------------------------------------------------------------------------

    def describe_nodes(self, node_ids: Iterable[str]) -> str:
        """Name the nodes by their hosts, as far as known: the first eight, and how many others."""
        return list_names(map(self._describe_node, node_ids)) or "no node"

    def _describe_node(self, node_id: str) -> str:
        node = self.get(node_id)
        if node is not None:
            return str(node.row.info)
        host = None if self.ledger.round is None else self.ledger.round.host_of(node_id)
        return host or node_id

    def next_look_at(self, *deadlines: float, nodes: Iterable[NodeView] = ()) -> float | None:
        """Return when the decision can next change by itself: at a deadline, or when a silence becomes a loss."""
        missing = [self.watch.began_at + self.timing.lost_after for i in self.ledger.ranks if self.get(i) is None]
        silent = (silence_deadline(self.watch, node, self.timing) for node in nodes)
        return min((at for at in (*deadlines, *silent, *missing) if at > self.now), default=None)


def cause_known_at(view: LeaderView, current: Round, incidents: list[Incident]) -> float:
    """Return until when a round with incidents waits for the report of the root cause; -inf if it is there.

    The peers of a killed worker may report their own failure before the killed worker's node does, but the policies
    must judge the cause.
    """
    all_report = len(incidents) == len(current.members)
    if distance_to_cause(incidents[0]) == 0 or (all_report and not incidents[0].follows_peer):
        return -math.inf
    reports = [(node.row.incident, node.reported_at) for node in view.node_views(current)]
    reported_at = min(at for incident, at in reports if incident is not None and incident.round == current.number)
    return reported_at + (PEER_PATIENCE_SECONDS if all_report else CAUSE_PATIENCE_SECONDS)


@dataclass(frozen=True)
class Suspicion:
    """The suspicion of the members of the newest round, live or halted, that are slow to show what they have read."""

    view: LeaderView
    round: Round

    def suspectable_members(self, index: int) -> list[str]:
        """Return the members behind entry ``index`` that may be suspected: those whose row the store has not lost."""
        behind = self.view.members_behind(self.round, index)
        return [node_id for node_id in behind if self.view.watch.nodes[node_id].listed]

    def is_silent_old_leader(self, node_id: str) -> bool:
        """Return True if a node is the old leader, was deposed for not answering an incident, and is still silent.

        A row from an older epoch does not tell: then the answer is False.
        """
        head, old, node = self.view.ledger.head, self.view.watch.deposed, self.view.get(node_id)
        if old is None or not old.unanswered or old.node_id != node_id:
            return False
        return node is None or (node.row.epoch == head.epoch and node.row.head < head.anchors.leader)

    def member_suspected_at(self, node_id: str) -> float:
        """Return when a member that has not shown that it read the HALT is suspected.

        A member that has been suspected before has only LAST_CHANCE_SECONDS, within which a living agent answers: the
        old leader that was deposed for its silence, and a member that was silent about the ROUND that was halted
        because of that. A member that has not yet read of a RESUME is not known to be silent.
        """
        ledger, at = self.view.ledger, self.view.ledger.head.anchors
        node = self.view.get(node_id)
        deposed = at.halt == at.leader + 1 and self.is_silent_old_leader(node_id)
        unseen = ledger.halt is not None and ledger.halt.reason is HaltReason.UNSEEN
        silent = node is not None and node.row.epoch == ledger.head.epoch and node.row.head < at.latest
        if deposed or (unseen and silent):
            since, least = ledger.halt_at, LAST_CHANCE_SECONDS
        elif self._can_replace_silent_members:
            since, least = self._answered_at, REPLACED_SECONDS
        else:
            return self.silence_suspected_at
        return max(since + max(least, SUSPICION_FACTOR * ledger.counters.worst_seen), self._back_at)

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
        ledger, at = self.view.ledger, self.view.ledger.head.anchors
        read_at, index = (ledger.round_at, at.latest) if ledger.halt is None else (ledger.halt_at, at.halt)
        return max([read_at, *(node.seen_at for node in self.view.node_views(self.round) if node.row.head >= index)])


def drop_duplicate_ranks(first: Sequence[NodeView], then: Iterable[NodeView]) -> list[NodeView]:
    """Return the nodes of ``then`` whose ``--node_rank`` no node of ``first`` and no earlier node of ``then`` has."""
    taken, found = {node.row.info.node_rank for node in first} - {None}, []
    for node in then:
        if (rank := node.row.info.node_rank) not in taken:
            found.append(node)
            taken |= {rank} - {None}
    return found


def drop_unreachable(first: Sequence[NodeView], then: Iterable[NodeView]) -> list[NodeView]:
    """Return the nodes of ``then`` that reach those of ``first``, and each other: none is at the loopback address of
    another network.
    """
    networks, closed, found = set[str](), set[str](), []
    for node, stays in (*((node, True) for node in first), *((node, False) for node in then)):
        network, loops = node.row.info.network, is_at_loopback(node)
        if stays or not network or not (closed - {network} or (loops and networks - {network})):
            found += [] if stays else [node]
            networks |= {network} - {""}
            closed |= {network} - {""} if loops else set()
    return found


def is_at_loopback(node: NodeView) -> bool:
    """Return True if a node gives others an address that leads each host to itself."""
    return node.row.info.address.startswith(("127.", "::1"))


def sort_by_rank(nodes: Iterable[NodeView], staying: Collection[str] = ()) -> list[NodeView]:
    """Sort nodes by ``--node_rank``; of those without one, first the ``staying`` ones as they are, then by ``order``.

    So rank 0 always has the state of the training. Numbers in an order count as numbers: n2 comes before n10, and so
    neighbours in a network may be neighbours in rank. Nodes without an order come last, as they are.
    """

    def key(node: NodeView) -> tuple[float, bool, bool, list[tuple[bool, int, str]]]:
        rank, new, order = node.row.info.node_rank, node.node_id not in staying, node.row.info.order
        parts = [(number, "".join(part)) for number, part in groupby(order, str.isdecimal)]
        numbered = [(not number, int(part) if number else 0, "" if number else part) for number, part in parts]
        return math.inf if rank is None else rank, new, new and not order, numbered if new else []

    return sorted(nodes, key=key)


# The member that the others cannot reach, by the probes of the members of a failed round (rule L5) -------------------


def broken_connections(view: LeaderView, old: Round) -> list[tuple[str, str]]:
    """Return the pairs of members of which the first could not reach the second, by probes that still count."""
    ids = old.group_ranks
    return [
        (node.node_id, other)
        for node in view.node_views(old)
        if _is_probe_current(view, old, node.row)
        for other in node.row.unreachable
        if other in ids and other != node.node_id
    ]


def _is_probe_current(view: LeaderView, old: Round, row: NodeRow) -> bool:
    """Return True if a node's newest probe says something about this round.

    Before a HALT, the probe after the previous round counts. After a HALT for a failure, all members of the round probe
    again, and an older probe counts only from a node that started no workers since. The round may have trained for
    hours, and a node that gives no new answer may be the one whose loss ended it.
    """
    if row.probed == old.number:
        return True
    halt = view.ledger.halt
    stale = halt is not None and (halt.reason not in FAILURE_REASONS or row.round >= old.number)
    return row.probed == old.number - 1 and not stale


def find_unreachable(view: LeaderView, old: Round) -> str | None:
    """Return the member with the most broken connections; None if there are none.

    A member that reaches no other reports all of them, and one that no other reaches is reported by all of them, so
    both ends of a broken connection count. Ties are broken by reports of other members, then by reports of nodes
    outside the round (the same member may have caused them to be left out before), then by rank: the highest rank goes,
    because rank 0 has the training state.
    """
    found = broken_connections(view, old)
    ends = Counter(node_id for pair in found for node_id in pair)
    blamed = Counter(other for _, other in found)
    ids = old.group_ranks
    outside = Counter(o for node in view.watch.nodes.values() if node.node_id not in ids for o in node.row.unreachable)
    worst = max((ends[i], blamed[i], outside[i], rank, i) for rank, i in enumerate(ids))
    return worst[-1] if worst[0] else None


def describe_unreachable(view: LeaderView, old: Round, node_id: str) -> str:
    """Describe which connections of a node are broken."""
    found = broken_connections(view, old)
    by = sorted({one for one, other in found if other == node_id})
    if by:
        return f"{view.describe_nodes([node_id])} cannot be reached from {view.describe_nodes(by)}"
    missed = sorted({other for one, other in found if one == node_id})
    return f"{view.describe_nodes([node_id])} cannot reach {view.describe_nodes(missed)}"


def probes_awaited_until(view: LeaderView, old: Round, halt: Halt, fit: list[str]) -> float | None:
    """Return until when to wait for probes that are still under way; None if none are."""
    until = view.ledger.halt_at + PROBE_WAIT_SECONDS
    if halt.reason not in FAILURE_REASONS or len(old.members) < 2 or view.now >= until:
        return None
    rows = [node.row for node_id in fit if (node := view.get(node_id)) is not None]
    took_part = [row for row in rows if row.round == old.number and row.phase is not Phase.FINISHED]
    return until if any(row.info.port and row.probed < old.number for row in took_part) else None
