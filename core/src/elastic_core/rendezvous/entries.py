"""What stands in the ledger: the entries, and the words that they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from elastic_core.incidents import Incident
from elastic_core.rendezvous.backend import Link
from elastic_core.rendezvous.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What the job remembers across rounds and chairs; every entry carries it."""

    restarts: int = 0
    """Restarts spent, of ``--max_restarts``."""
    barren: int = 0
    """Rounds in a row that ended without progress (rule L4)."""
    worst_seen: float = 0.0
    """The longest that a member took to show that it had seen an entry, in seconds (rule L2)."""
    losses: Mapping[str, int] = field(default_factory=dict)
    """How often each host was lost, by stable host id."""
    excluded: tuple[str, ...] = ()
    """Host ids that a failure policy wants left out while others suffice."""


@dataclass(frozen=True, slots=True)
class Anchors:
    """Indices of the entries that the present state stands on; 0 for none."""

    open: int = 0
    chair: int = 0
    """The newest OPEN or CHAIR: rule S7 seats only nodes that have seen it."""
    round: int = 0
    """The newest ROUND that spells out its members."""
    latest: int = 0
    """The newest ROUND of any form."""
    halt: int = 0
    """The HALT or CLOSED that ended that round; 0 while the round is live."""
    kept: int = 0
    """All entries before this one are tombstones, save those that are named above."""


@dataclass(frozen=True, slots=True)
class Member:
    """One node in a round, at its place in rank order."""

    node_id: str
    local_world_size: int
    role: str


@dataclass(frozen=True, slots=True)
class Offer:
    """A place for the workers' store on one node: serves one round, then a new one is made."""

    address: str
    port: int
    id: str
    hosted: bool = False
    """Whether a store listens there already; else rank 0's worker opens one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """A run begins."""

    scheduler_uid: str | None
    settings: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Chair:
    """Who decides from here on is ``Entry.chair``; the term has grown by one."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Start workers. Exactly one of ``members`` and ``same_as`` is given."""

    number: int
    offer: Offer
    members: tuple[Member, ...] = ()
    same_as: int = 0
    """The number of the round whose members, in the same order, this one has; 0 when ``members`` spells them out."""
    charged: bool = False
    """Whether this round spent a restart; given back when a dropped member turns out never to have seen it."""
    why: str = ""


class HaltReason(str, Enum):
    """Why a round was ended."""

    FAILURE = "failure"
    GIVING_UP = "giving_up"
    """A failure that the policy will not restart; becomes CLOSED unless a node turns out to be lost."""
    NODE_LOST = "node_lost"
    NODE_LEFT = "node_left"
    UNSEEN = "unseen"
    """A member did not show that it had seen its round."""
    RESIZE = "resize"


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """Stop the workers of ``round``."""

    round: int
    reason: HaltReason
    why: str
    incident: Incident | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The run is over, for good (I12)."""

    success: bool
    why: str
    exit_code: int
    incident: Incident | None = None
    """The root cause: the first failure across all nodes."""
    requeue: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """A run goes on, although the store has lost its history: all of the state that the lost entries led to (S3)."""

    scheduler_uid: str | None
    settings: Settings
    round: Round
    """The newest one, with its members spelled out."""
    halt: Halt | None = None
    """What ended it; None while it is live."""
    epoch: int
    index: int
    """The place of the newest of the entries."""
    why: str = ""


Body: TypeAlias = "Open | Chair | Round | Halt | Closed | Resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One ledger entry."""

    index: int
    id: str
    prev: str
    run: str
    """The run's own random uid; a job id can see many runs."""
    term: int
    author: str
    chair: str
    """Who decides after this entry: the author, unless a leaving chair names its successor."""
    elapsed: float
    """Seconds since the previous entry, by the author's monotonic clock: a duration, never an instant."""
    counters: Counters
    anchors: Anchors
    body: Body
    epoch: int = 0
    """How often the run was resumed; indices are comparable within one epoch."""

    @property
    def link(self) -> Link:
        """This entry's place in the chain."""
        return Link(self.index, self.id)
