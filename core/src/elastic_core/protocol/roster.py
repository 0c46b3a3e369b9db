"""Roster rows: what each node says about itself. Only that node writes its row.

A row that no other node waits for may be delayed: after a ROUND all members say that they run, and if they did so at
once, the rows of the first would delay it for the last. What rows say of workers is only for people. Each amendment has
the leader read the roster, so that all members amend their rows together.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from elastic_core.incidents import Incident
from elastic_core.protocol.entries import Offer, Round
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.schema import SKIPPABLE
from elastic_core.protocol.settings import Versions


class Phase(str, Enum):
    """The phase of a node. Having *read* a ROUND or a HALT is not a phase; ``NodeRow.head`` shows it."""

    WAITING = "waiting"  # has no workers and no part in a round yet
    RUNNING = "running"  # has workers of round k, or is still stopping them
    STOPPED = "stopped"  # every process of round k is gone
    FINISHED = "finished"
    """Every worker of round k exited with 0. Stands even if the node is lost afterwards (rule L7)."""


SLOTS = 64
"""Slots of a host that its nodes look at. For later slots, only a newer node on the slot proves anything. The
node that looks and the leader must use the same number, so changing it needs a new protocol version."""


@dataclass(frozen=True, slots=True)
class Slots:
    """A look at the slots of a host, which shows which nodes are gone (rule S8)."""

    at: int = 0  # when it began, in nanoseconds of the host's monotonic clock; 0 if nothing can be proved
    held: tuple[int, ...] = ()  # those of the first SLOTS slots that other processes held


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """The part of a row that never changes."""

    node_id: str  # the random id of this node incarnation, never used again
    host: str
    host_id: str
    """The same for all node incarnations that share slots and a monotonic clock, until the next boot; '' for a node of
    a foreign handler, which cannot be asked anything."""
    slot: int  # Which of its host's slots it holds. Two live nodes never hold the same slot (rule S8).
    slots: Slots = Slots()  # its first look at the other slots, just after it took its own
    local_world_size: int
    role: str
    versions: Versions
    node_rank: int | None = None  # ``--node_rank``: its rank among the nodes; None to have it assigned
    order: str = field(default="", metadata=SKIPPABLE)  # where it stands among others when ranks are assigned
    address: str = ""  # the address at which peers probe it (rule L5)
    port: int = 0  # the TCP port at which peers probe it; 0 if they do not
    network: str = field(default="", metadata=SKIPPABLE)  # the same for nodes that reach each other by loopback

    def __str__(self) -> str:
        return self.host if self.slot == 0 else f"{self.host} (agent {self.slot + 1})"


@dataclass(frozen=True, slots=True)
class LastCheckpoint:
    """The newest checkpoint of a round's script that a node has noticed (rule L13). Ages are the run's, in seconds."""

    at: float  # the run's age then; before the first one of the round, when the node began to watch for one
    saved: bool = False  # whether there was one in this round
    newer: bool = field(default=False, metadata=SKIPPABLE)
    """True if one of this round is newer than all of earlier rounds that the node has noticed (rule L10)."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A question that a node, or a command, wants all members of the round to be asked (rule L14)."""

    name: str
    value: str  # JSON
    known: int  # the index of the newest ANSWERS of that name that the node had read; a newer one serves it


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a node's monitors."""

    to: int  # the index of the QUESTION; or of the HALT, before the workers are stopped after it
    text: str  # JSON; after a HALT a text for people


@dataclass(frozen=True, slots=True)
class SavedStep:
    """A state of the training that was saved, in memory or on disk."""

    step: int | None  # None if it is not known
    seconds: float  # since the node noticed it


@dataclass(frozen=True, slots=True)
class Reached:
    """The progress of a round on a node (rule L10)."""

    round: int
    step: int | None = None  # the newest step of a rank, if its steps count on over rounds
    moved: bool = False  # whether a rank came from one step to another
    saved: bool = False  # whether a checkpoint was saved that is newer than those of earlier rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalWorkers:
    """The workers of round k on one node, in order of local rank, for ``elastic status``; no decision depends on them.

    All seconds were counted by the node's clock when it wrote them. Its heartbeats since then tell how old they are.
    """

    heartbeat: int  # the node's heartbeat when it wrote them
    pids: tuple[int | None, ...]  # None for a worker that has not started yet
    steps: tuple[int | None, ...]  # None where no step is known
    seconds: tuple[float | None, ...]  # since each of them made progress; None where none is known
    snapshot: SavedStep | None = None  # the newest in the node's memory
    checkpoint: SavedStep | None = None  # the newest that the node has noticed
    store: float = 0.0  # how many seconds the store took to answer the newest heartbeat
    notes: Mapping[str, str] = field(default_factory=dict, metadata=SKIPPABLE)  # what monitors have noted, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One decoded row."""

    info: NodeInfo
    run: str = ""  # the run that the node has joined; '' while it only looks
    phase: Phase = Phase.WAITING
    round: int = 0  # the number k of the phase's round
    head: int = 0  # the index of the newest ledger entry that the node has read
    epoch: int = 0  # The epoch of that entry. If it is older than the run's, the node has not read of the RESUME yet.
    offer: Offer | None = None
    incident: Incident | None = None  # the node's first failure in round k
    alike: int = 0
    """Of a stopped node: how many of its workers failed with the message of that failure, or of the HALT's."""
    leaving: bool = False
    """True if the node leaves and is not in the next round. Its phase still says whether its workers are gone."""
    returns: bool = field(default=False, metadata=SKIPPABLE)
    """True if it leaves only to enter again, through its health checks (rule L17)."""
    grace: float = 0.0  # seconds that its workers have to stop together with all others; 0 if they are stopped at once
    takes_notices: bool = False  # whether all its workers of round k have reported a step, so that they take a PLAN
    answered: int = 0  # the index of the PLAN that it has answered; 0 for none
    steps: tuple[int, ...] = ()
    """The answer: for each local rank its last step, read after the notice of the PLAN was written."""
    stepped_down: bool = False  # whether the workers of round k have stopped by themselves, as STOP_AT told them
    progressed: bool = False  # whether round k made progress on this node (rule L4)
    reached: Reached | None = field(default=None, metadata=SKIPPABLE)
    """The progress of round k here; at its start, that of the round before (rule L10)."""
    checkpoint: LastCheckpoint | None = field(default=None, metadata=SKIPPABLE)
    """The newest checkpoint of round k; None if the node does not notice any (rule L13)."""
    probed: int = 0  # the newest round after whose failure it has probed its peers; 0 for none
    unreachable: tuple[str, ...] = ()  # the ids of the peers that it did not reach then
    drain: tuple[str, ...] = ()
    """The ids of nodes that are to leave. Such a row is a request of ``elastic drain``."""
    release: tuple[str, ...] = ()
    """The ids of nodes that are gone for good. Such a row is a request of ``elastic release``."""
    unread: tuple[str, ...] = ()
    """On the leader's row: the ids of nodes whose rows it cannot read, at most MAX_UNREAD_ROWS."""
    slots: Slots | None = None
    """Its newest look at its host's slots when it wrote this row; None if there was none since the first."""

    asks: tuple[Ask, ...] = field(default=(), metadata=SKIPPABLE)
    """The questions that its monitors ask in round k. Such a row of no node is a request of a command."""
    answer: Answer | None = field(default=None, metadata=SKIPPABLE)
    workers: LocalWorkers | None = field(default=None, metadata=SKIPPABLE)

    @property
    def is_request(self) -> bool:
        """True if this is the row of a request of a person, and no node's."""
        return bool(self.drain or self.release or (self.asks and not self.run))

    @property
    def is_departing(self) -> bool:
        """True if the node leaves for good."""
        return self.leaving and not self.returns

    def within(self, epoch: int) -> NodeRow:
        """Return the row as it counts in this epoch: one of another epoch shows no entry read, no answer and no offer.

        A round that was lost with the older epoch may have used the offer.
        """
        if self.epoch == epoch or not (self.head or self.answered or self.offer):
            return self
        return replace(self, head=0, answered=0, offer=None)


def find_gone_nodes(rows: Iterable[NodeRow]) -> frozenset[str]:
    """Return the ids of the nodes whose last process is gone, as rows of their hosts prove (rule S8).

    A slot is held as long as one process of its node lives. So a node that took its slot before an instant at which the
    slot was free, or was taken by another node, is gone for good. Both instants are of their host's clock, so it makes
    no difference what the store forgets and in which order it takes rows.
    """
    hosts: dict[str, list[NodeRow]] = {}
    for row in rows:
        hosts.setdefault(row.info.host_id, []).append(row)
    return frozenset(node_id for shared in hosts.values() if len(shared) > 1 for node_id in _find_gone_on_host(shared))


def _find_gone_on_host(rows: list[NodeRow]) -> list[str]:
    """Return the ids of the nodes of one host whose last process is gone."""
    looked_at = {row.info.slot for row in rows if row.info.slot < SLOTS}
    freed: dict[int, int] = {}  # when each slot was last known to be free
    for row in rows:
        own, look = row.info.slot, row.slots or row.info.slots
        for slot in looked_at.difference(look.held, (own,)):
            freed[slot] = max(look.at, freed.get(slot, 0))
        freed[own] = max(row.info.slots.at, freed.get(own, 0))
    return [row.info.node_id for row in rows if 0 < row.info.slots.at < freed[row.info.slot]]


# When a row is written -----------------------------------------------------------------------------------------------

ROW_DELAY_PER_MEMBER_SECONDS = 0.001  # the delay of a row grows by this much with each member of the round
ROW_DELAY_MAX_SECONDS = 0.25
"""Longest delay of a row: a member that does not show within 1 s that it read the ROUND is suspected (rule L2)."""
SPREAD_ABOVE_MEMBERS = 64  # in a round of more members, what all of them do after an entry is spread over time

WORKERS_INTERVAL_SECONDS = 5.0  # between two amendments of a row for how far its node's workers are, at least
WORKERS_INTERVAL_PER_MEMBER_SECONDS = 0.03  # the same for each member: 33 rows a second in any round
WORKERS_SPREAD_SECONDS = 1.0  # over which a large round spreads them; and the least time after the round's start


def max_row_delay(current: Round) -> float:
    """Return for how many seconds a member of a round may hold back that it has read the ROUND and runs."""
    return min(ROW_DELAY_MAX_SECONDS, ROW_DELAY_PER_MEMBER_SECONDS * len(current.members))


def spread_fraction(node_id: str) -> float:
    """Return a number from 0 to 1 that differs between nodes, by which they spread what all of them have to do."""
    return zlib.crc32(node_id.encode()) / (1 << 32)


def row_delay(row: NodeRow, ledger: Ledger) -> float:
    """Return for how many seconds a row may be held back; 0 for a row that another node waits for.

    Rank 0's row is such a row: it offers the store of the next round, and a restart needs that.
    """
    current = ledger.round
    if current is None or not ledger.is_live or ledger.planned_stop is not None or row.phase is not Phase.RUNNING:
        return 0.0
    if row.incident is not None or row.leaving or row.stepped_down or current.members[0].node_id == row.info.node_id:
        return 0.0
    within = max_row_delay(current)
    if len(current.members) <= SPREAD_ABOVE_MEMBERS:
        return within
    return within * (1 + spread_fraction(row.info.node_id)) / 2  # in the first half, all members read the ROUND


def seconds_to_workers_row(age: float, members: int, node_id: str) -> float:
    """Return the seconds until a member next says how far its workers are; all nodes know the run's ``age`` alike."""
    interval = max(WORKERS_INTERVAL_SECONDS, WORKERS_INTERVAL_PER_MEMBER_SECONDS * members)
    left = interval - age % interval
    if members > SPREAD_ABOVE_MEMBERS:
        left += WORKERS_SPREAD_SECONDS * spread_fraction(node_id)
    return left if left >= WORKERS_SPREAD_SECONDS else left + interval
