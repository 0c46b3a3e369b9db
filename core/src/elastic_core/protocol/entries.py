"""Ledger entries: the words in which decisions are written down. What follows from them is ``ledger``'s affair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, TypeAlias, cast

from elastic_core.incidents import Incident
from elastic_core.protocol.settings import Settings
from elastic_core.rendezvous.backend import Link

MAX_LOSSES = 3
"""Losses after which a host is left out while others suffice (rule L4)."""


@dataclass(frozen=True, slots=True)
class HostLosses:
    """How often a host was lost, and when that was last."""

    count: int
    age: float
    """The :attr:`Entry.age` of the ROUND that counted the last loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What the job remembers across rounds and leaders; every entry carries it."""

    restarts: int = 0
    """Restarts spent, of ``--max_restarts``."""
    barren: int = 0
    """Rounds in a row that ended without progress (rule L4)."""
    worst_seen: float = 0.0
    """The longest that a member took to show that it had seen an entry, in seconds (rule L2)."""
    losses: Mapping[str, HostLosses] = field(default_factory=dict)
    """By stable host id: hosts that were lost and have a row again, or were lost within the last hour. At most 256."""
    excluded: tuple[str, ...] = ()
    """Host ids that a failure policy wants left out while others suffice, the newest last. At most 256."""

    def bad_hosts(self) -> set[str]:
        """The host ids that are left out while others suffice: excluded, or lost too often (rules L4, L5)."""
        return {host for host, losses in self.losses.items() if losses.count >= MAX_LOSSES} | set(self.excluded)


@dataclass(frozen=True, slots=True)
class Anchors:
    """Indices of the entries that the present state stands on; 0 for none."""

    open: int = 0
    leader: int = 0
    """The newest OPEN or LEADER: rule S7 slots only nodes that have seen it."""
    round: int = 0
    """The newest ROUND that spells out its members."""
    latest: int = 0
    """The newest ROUND of any form."""
    halt: int = 0
    """The HALT or CLOSED that ended that round; 0 while the round is live."""
    plan: int = 0
    """The PLAN for a live round; 0 where there is none."""
    stop_at: int = 0
    """The STOP_AT that answers it; 0 before there is one."""
    over: int = 0
    """The OVER of the round that was halted; 0 while there is none."""
    kept: int = 0
    """All entries before this one are tombstones, save those that are named above."""


class Member(NamedTuple):
    """One node in a round, at its place in rank order."""

    node_id: str
    local_world_size: int
    role: str


class Members(tuple[Member, ...]):
    """The nodes of a round in rank order, who know their places.

    Places are counted once, and a round with the same members shares them: what a restart costs a node does not grow
    with the job.
    """

    @cached_property
    def group_ranks(self) -> dict[str, int]:
        """Every node's, by node id, in order."""
        return {member.node_id: rank for rank, member in enumerate(self)}

    @cached_property
    def first_ranks(self) -> list[int]:
        """The rank of each node's local rank 0; the world size follows the last."""
        return list(accumulate((member.local_world_size for member in self), initial=0))

    @cached_property
    def role_ranks(self) -> tuple[list[int], dict[str, int]]:
        """The same, counted among workers of the node's role alone; and how many of each role there are."""
        sizes: dict[str, int] = {}
        firsts = []
        for member in self:
            firsts.append(first := sizes.get(member.role, 0))
            sizes[member.role] = first + member.local_world_size
        return firsts, sizes


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
class Leader:
    """Who decides from here on is ``Entry.leader``; the term has grown by one."""

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
    hosts: tuple[str, ...] = ()
    """The members' hosts, in rank order, for messages: as many as HOSTS_BYTES hold. A round that is the same as another
    leaves them out, too."""

    def __post_init__(self) -> None:
        if not isinstance(self.members, Members):
            object.__setattr__(self, "members", Members(self.members))

    @property
    def group_ranks(self) -> dict[str, int]:
        """The members' ranks among the nodes, by node id, in order."""
        return cast(Members, self.members).group_ranks

    def host_of(self, node_id: str) -> str | None:
        """The host of a member; None for other nodes, and for members beyond those whose hosts are named."""
        rank = self.group_ranks.get(node_id, len(self.hosts))
        return self.hosts[rank] if rank < len(self.hosts) else None


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
    planned: bool = False
    """Whether nothing is wrong with its workers, which then get the time to save; a resize always is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The workers of a live round are to stop together, after a step that STOP_AT will name.

    They go on until then. Any HALT or ROUND overrides it.
    """

    round: int
    reason: HaltReason
    """What the HALT will say that ends the round."""
    why: str
    deadline: float
    """Seconds from receipt, by everybody's own clock, after which the round is halted as it is."""

    def __post_init__(self) -> None:
        if not self.deadline > 0:
            raise ValueError(f"the deadline of a plan is {self.deadline:g} s")


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAt:
    """The step of the PLAN: no rank has come to it yet, and each stops when it does."""

    round: int
    step: int
    leaving: bool = True
    """Whether a node of the round leaves, be it one that has decided to since the PLAN; else others only join it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """The halted round is over: a member of it has stopped, so that no other member can train on (rule S4).

    A leader for whose next round nodes are missing writes it. The rows that prove it can be lost with the store; then
    who decides next knows it from the ledger, or from the RESUME, and need not wait for the fence.
    """

    round: int
    left: tuple[str, ...] = ()
    """The ids of members that have left in order, at most MAX_LEFT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Somebody who can write to the store wants these nodes to leave, as if they had got SIGTERM."""

    nodes: tuple[str, ...]
    """Their ids."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The run is over, for good (I12)."""

    success: bool
    why: str
    exit_code: int
    incident: Incident | None = None
    """The root cause: the first failure across all nodes."""
    requeue: bool = False
    abandoned: bool = False
    """Whether nobody of the run was alive: a node of the next run has closed it, which is no verdict (rule S6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """A run goes on, although the store has lost its history: all of the state that the lost entries led to (S3)."""

    scheduler_uid: str | None
    settings: Settings
    round: Round
    """The newest one, with its members spelled out."""
    halt: Halt | None = None
    """What ended it; None while it is live."""
    plan: Plan | None = None
    stop_at: StopAt | None = None
    over: Over | None = None
    epoch: int
    index: int
    """The place of the newest of the entries."""
    why: str = ""


Body: TypeAlias = "Open | Leader | Round | Halt | Plan | StopAt | Over | Drain | Closed | Resume"


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
    leader: str
    """Who decides after this entry: the author, unless a leaving leader names its successor."""
    elapsed: float
    """Seconds since the previous entry, by the author's monotonic clock: a duration, never an instant."""
    since_halt: float = 0.0
    """Seconds for which the newest HALT has stood, added up from :attr:`elapsed`; 0 for that HALT, and without one.

    Never more than has really passed, but for what clocks drift: each author counts from when it had read the entry
    before, and that had been written by then.
    """
    counters: Counters
    anchors: Anchors
    body: Body
    age: float = 0.0
    """Seconds since the run was opened: what :attr:`elapsed` of all its entries adds up to."""
    epoch: int = 0
    """How often the run was resumed; indices are comparable within one epoch."""

    @property
    def link(self) -> Link:
        """This entry's place in the chain."""
        return Link(self.index, self.id)
