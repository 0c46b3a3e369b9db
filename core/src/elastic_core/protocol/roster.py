"""Roster rows: what each node says of itself, and nobody else writes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from elastic_core.incidents import Incident
from elastic_core.protocol.ledger import Offer
from elastic_core.protocol.settings import Versions


class Phase(str, Enum):
    """Where a node stands. Having *seen* a round or a halt is not a phase: ``NodeRow.head`` shows it."""

    WAITING = "waiting"
    """Has no workers and no part in a round yet."""
    RUNNING = "running"
    """Has workers of round k, or is still stopping them."""
    STOPPED = "stopped"
    """Every process of round k is gone."""
    FINISHED = "finished"
    """Every worker of round k exited with 0. Stands even if the node is lost afterwards (rule L7)."""


SLOTS = 64
"""Slots of a host that its nodes look at; of who sits beyond them, only a newer node on that slot shows anything.

Who looks and who reads of it must mean the same ones: another number is another version of the protocol.
"""


@dataclass(frozen=True, slots=True)
class Slots:
    """A look at the slots of a host, which shows who is gone (rule S8)."""

    at: int = 0
    """When it began: nanoseconds of the host's monotonic clock; 0 where nothing can be proved."""
    held: tuple[int, ...] = ()
    """Those of the first SEATS that others held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """The part of a row that never changes."""

    node_id: str
    """This incarnation's random id, never used again."""
    host: str
    host_id: str
    """The same for every incarnation that shares slots and their clock, until the machine is booted again."""
    slot: int
    """Which of its host's slots it holds; two live nodes never hold one slot (rule S8)."""
    slots: Slots = Slots()
    """What it saw of the others when it had just taken its own."""
    local_world_size: int
    role: str
    versions: Versions
    node_rank: int | None = None
    """Its place among the nodes, where they are numbered by hand; None to have it assigned."""

    address: str = ""
    """Where its peers find out whether they reach it (rule L5)."""
    port: int = 0
    """The TCP port there; 0 where nobody needs to know."""

    def __str__(self) -> str:
        return self.host if self.slot == 0 else f"{self.host} (agent {self.slot + 1})"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One row, as read."""

    info: NodeInfo
    run: str = ""
    """The run that the node has joined; '' while it is only looking."""
    phase: Phase = Phase.WAITING
    round: int = 0
    """The k of the phase."""
    head: int = 0
    """Index of the newest ledger entry that the node has seen: this answers SEEN."""
    epoch: int = 0
    """That entry's epoch; in an older one the node has not seen that the run was resumed, and nothing since."""
    offer: Offer | None = None
    incident: Incident | None = None
    """The node's first failure in round k."""
    leaving: bool = False
    """Going away: drop it from the next round. Its phase goes on saying whether its workers are gone."""
    grace: float = 0.0
    """Seconds that its workers have from then on, to stop together with all others; 0 if they are stopped at once."""
    takes_notices: bool = False
    """Whether all its workers of round k have reported a step, and so take a PLAN."""
    answered: int = 0
    """The index of the PLAN that it has answered; 0 for none."""
    steps: tuple[int, ...] = ()
    """The answer: for each local rank a step that it cannot have gone beyond without having read of the PLAN."""
    stepped_down: bool = False
    """Whether the workers of round k have stopped by themselves, as STOP_AT told them."""
    progressed: bool = False
    """Whether round k made progress on this node (rule L4)."""
    probed: int = 0
    """The newest round after whose failure it has probed its peers; 0 for none."""
    unreachable: tuple[str, ...] = ()
    """Those that it did not reach then, by node id."""
    drain: str = ""
    """The host whose agents somebody wants to leave; such a row is a request, and no node's (``elastic drain``)."""
    release: tuple[str, ...] = ()
    """The ids of nodes of which somebody vouches that they are gone for good; such a row, too, is a request
    (``elastic release``)."""
    unread: tuple[str, ...] = ()
    """The ids of nodes whose rows this node, which decides, cannot read; at most MAX_UNREAD."""
    slots: Slots | None = None
    """What it had last seen of its host's slots when it amended this; None before it has."""

    def within(self, epoch: int) -> NodeRow:
        """What it says of this epoch: who stands in another one has seen nothing of it, and offers nothing for it.

        A round that is lost with the older epoch may have been given the offer.
        """
        if self.epoch == epoch or not (self.head or self.answered or self.offer):
            return self
        return replace(self, head=0, answered=0, offer=None)


def find_gone_nodes(rows: Iterable[NodeRow]) -> frozenset[str]:
    """The ids of those whose last process is gone, as rows of their hosts prove (rule S8).

    A slot is held for as long as one of its node's processes lives. So who sat down before an instant at which the slot
    was free, or was taken by somebody else, is gone, for good. Both instants are of the clock of their host: whatever a
    store forgets, and in which order it takes rows, makes no difference.
    """
    hosts: dict[str, list[NodeRow]] = {}
    for row in rows:
        hosts.setdefault(row.info.host_id, []).append(row)
    return frozenset(node_id for shared in hosts.values() if len(shared) > 1 for node_id in _find_gone_on_host(shared))


def _find_gone_on_host(rows: list[NodeRow]) -> list[str]:
    """The same, of one host."""
    looked_at = {row.info.slot for row in rows if row.info.slot < SLOTS}
    freed: dict[int, int] = {}  # when each slot was last known to be free
    for row in rows:
        own, look = row.info.slot, row.slots or row.info.slots
        for slot in looked_at.difference(look.held, (own,)):
            freed[slot] = max(look.at, freed.get(slot, 0))
        freed[own] = max(row.info.slots.at, freed.get(own, 0))
    return [row.info.node_id for row in rows if 0 < row.info.slots.at < freed[row.info.slot]]
