"""Ledger entries, the records in which decisions are written. ``ledger`` says what state follows from them.

A ROUND has its members in a compact form, from which their ranks follow.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, partial
from itertools import accumulate
from typing import Annotated, Any, NamedTuple, TypeAlias, cast

from elastic_core.incidents import Failure, Incident
from elastic_core.protocol.schema import ROW, SKIPPABLE, Form, SchemaError, kind_name
from elastic_core.protocol.settings import Settings
from elastic_core.rendezvous.backend import Link

# The members of a round ----------------------------------------------------------------------------------------------


class Member(NamedTuple):
    """One node in a round, at its place in rank order."""

    node_id: str
    local_world_size: int
    role: str


class Members(tuple[Member, ...]):
    """The nodes of a round in rank order, with their ranks.

    Ranks are computed once and shared by all rounds with the same members, so the cost of a restart does not grow with
    the job.
    """

    @cached_property
    def group_ranks(self) -> dict[str, int]:
        """The rank of each node among the nodes, by node id, in order."""
        return {member.node_id: rank for rank, member in enumerate(self)}

    @cached_property
    def first_ranks(self) -> list[int]:
        """The rank of each node's local rank 0, and last the world size."""
        return list(accumulate((member.local_world_size for member in self), initial=0))

    @cached_property
    def role_ranks(self) -> tuple[list[int], dict[str, int]]:
        """The first rank of each node among the workers of its role, and the number of workers of each role."""
        sizes: dict[str, int] = {}
        firsts = []
        for member in self:
            firsts.append(first := sizes.get(member.role, 0))
            sizes[member.role] = first + member.local_world_size
        return firsts, sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A node's place in a round. The two group fields count nodes, all others count workers."""

    group_rank: int
    group_world_size: int
    first_rank: int  # rank of the node's local rank 0; its other workers follow
    local_world_size: int
    world_size: int
    first_role_rank: int
    role_world_size: int


def place(members: tuple[Member, ...], node_id: str) -> Place:
    """Return the place of a member; ValueError for another node. All ranks are exactly 0 .. world_size - 1 (I3)."""
    ranked = members if isinstance(members, Members) else Members(members)
    if (group_rank := ranked.group_ranks.get(node_id)) is None:
        raise ValueError(f"{node_id} is no member of this round")
    mine, (role_ranks, role_sizes) = ranked[group_rank], ranked.role_ranks
    return Place(
        group_rank=group_rank,
        group_world_size=len(ranked),
        first_rank=ranked.first_ranks[group_rank],
        local_world_size=mine.local_world_size,
        world_size=ranked.first_ranks[-1],
        first_role_rank=role_ranks[group_rank],
        role_world_size=role_sizes[mine.role],
    )


_make_member = partial(tuple.__new__, Member)  # in half the time of ``Member(...)``
_ID_DIGITS = 12  # hex digits of an agent's id
_FIRST_KIND = ord("0")  # the character of the first kind of nodes


def _pack(members: tuple[Member, ...]) -> list[Any]:
    """Return ``[ids, kinds, which]``: the ids, the kinds of nodes (local world size and role), and each node's kind.

    Ids of 12 hex digits, as agents have them, take 8 characters each in one text. ``which`` has one character for each
    node; it is '' if there is only one kind.
    """
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(member[1:] for member in members))}
    which = "".join(chr(_FIRST_KIND + kinds[member[1:]]) for member in members) if len(kinds) > 1 else ""
    return [_pack_ids([member.node_id for member in members]), list(kinds), which]


def _pack_ids(ids: list[str]) -> str | list[str]:
    """Return ids of 12 hex digits as base64 of their bytes, any others as they are."""
    with contextlib.suppress(ValueError):
        text = "".join(ids)
        raw = bytes.fromhex(text)
        if raw.hex() == text and all(len(node_id) == _ID_DIGITS for node_id in ids):
            return base64.b64encode(raw).decode()
    return ids


def _unpack(packed: object) -> tuple[Member, ...]:
    """Return the members, checked column by column because there may be thousands; raise SchemaError for bad ones."""
    match packed:
        case [str() | list() as ids, list() as kinds, str() as which] if all(map(_is_kind, kinds)):
            with contextlib.suppress(ValueError, LookupError):
                if isinstance(ids, str):
                    text = base64.b64decode(ids, validate=True).hex()
                    ids = [text[at : at + _ID_DIGITS] for at in range(0, len(text), _ID_DIGITS)]
                numbers = [ord(letter) - _FIRST_KIND for letter in which] or [0] * len(ids)
                if {*map(type, ids)} <= {str} and min(numbers, default=0) >= 0:
                    return tuple(_make_member((i, *kinds[kind])) for i, kind in zip(ids, numbers, strict=True))
    raise SchemaError("", "are not of the schema")


def _is_kind(value: object) -> bool:
    """Return True if a value is ``[local world size, role]``."""
    return type(value) is list and [*map(type, value)] == [int, str]


COLUMNS = Form(_unpack, _pack)  # the form of the members of a ROUND: 8 or 9 bytes for each

MAX_LOSSES = 3  # losses after which a host is left out while other nodes are enough (rule L4)


@dataclass(frozen=True, slots=True)
class HostLosses:
    """The number of losses of a host, and the age of the last one."""

    count: int
    age: float  # the :attr:`Entry.age` of the ROUND that counted the last loss


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A host that a failure policy wants left out (rule L12)."""

    host_id: str
    until: int | None = None  # the run's age in seconds at which it is admitted again; None for never


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentRestart:
    """A failure that spent a restart, and when the run went on."""

    failure: Annotated[Failure, ROW]
    age: float  # the :attr:`Entry.age` of the ROUND that followed


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """The job's memory across rounds and leaders. Every entry carries it."""

    restarts: int = 0  # restarts spent, of ``--max_restarts``
    barren: int = 0  # rounds in a row that ended without progress (rule L4)
    worst_seen: float = 0.0
    """The longest delay, in seconds, with which a member showed that it had read an entry (rule L2)."""
    losses: Mapping[str, Annotated[HostLosses, ROW]] = field(default_factory=dict)
    """By host id: hosts that were lost and have a row again, or were lost within the last hour. At most 256."""
    excluded: tuple[Annotated[Exclusion, ROW], ...] = ()
    """Hosts that a failure policy wants left out while other nodes are enough, the newest last. At most 256."""
    failures: tuple[Annotated[SpentRestart, ROW], ...] = ()
    """The newest failures that spent a restart, oldest first, at most ``MAX_FAILURES`` (rule L10)."""

    def bad_hosts(self, age: float) -> set[str]:
        """Return the host ids to leave out while other nodes are enough: excluded, or lost too often (L4, L5, L12)."""
        lost = {host for host, losses in self.losses.items() if losses.count >= MAX_LOSSES}
        return lost | self.excluded_at(age).keys()

    def excluded_at(self, age: float) -> dict[str, int | None]:
        """Return the host ids that are still excluded at this age of the run, each with its end (rule L12)."""
        return {one.host_id: one.until for one in self.excluded if one.until is None or age < one.until}


@dataclass(frozen=True, slots=True)
class Anchors:
    """Indices of the entries on which the present state stands; 0 for none."""

    open: int = 0
    leader: int = 0  # The newest OPEN or LEADER. Only nodes that have read it get a place in a round (rule S7).
    round: int = 0  # the newest ROUND that spells out its members
    latest: int = 0  # the newest ROUND of any form
    halt: int = 0  # the HALT or CLOSED that ended that round; 0 while the round is live
    plan: int = 0  # the PLAN for the live round
    stop_at: int = 0  # the STOP_AT of that PLAN
    over: int = 0  # the OVER of the halted round
    kept: int = 0  # all entries before this one are tombstones, except those that are named above


# The entries ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Offer:
    """An address on one node for the workers' store of one round."""

    address: str
    port: int
    id: str
    hosted: bool = False  # whether a store listens there already; otherwise rank 0's worker opens one


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """OPEN: a run begins."""

    scheduler_uid: str | None
    settings: Settings
    former: tuple[str, ...] = field(default=(), metadata=SKIPPABLE)
    """The runs before it in this ledger, the newest first, at most MAX_FORMER_RUNS: these never take its place (S3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """LEADER: ``Entry.leader`` decides from here on, in a term that is higher by one."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """ROUND: start workers. Either ``members`` or ``same_as`` is given."""

    number: int
    offer: Offer
    members: Annotated[tuple[Member, ...], COLUMNS] = ()
    same_as: int = 0  # the number of the round that has the same members in the same order; 0 if ``members`` lists them
    charged: bool = False
    """True if this round spent a restart. It is given back if a member that is dropped later never saw this round."""
    why: str = ""
    verdict: str = field(default="", metadata=SKIPPABLE)  # the policy that allowed this restart, and its reason
    hosts: tuple[str, ...] = ()
    """The members' hosts in rank order, for messages, as many as fit into HOSTS_BYTES. Empty with ``same_as``."""

    def __post_init__(self) -> None:
        if not isinstance(self.members, Members):
            object.__setattr__(self, "members", Members(self.members))

    @property
    def group_ranks(self) -> dict[str, int]:
        """The rank of each member among the nodes, by node id, in order."""
        return cast(Members, self.members).group_ranks

    @property
    def world_size(self) -> int:
        """The number of its ranks."""
        return sum(member.local_world_size for member in self.members)

    def host_of(self, node_id: str) -> str | None:
        """Return the host of a member; None for other nodes, and for members whose hosts did not fit."""
        rank = self.group_ranks.get(node_id, len(self.hosts))
        return self.hosts[rank] if rank < len(self.hosts) else None


class HaltReason(str, Enum):
    """Why a round was halted."""

    FAILURE = "failure"
    GIVING_UP = "giving_up"
    """A failure after which the policies give up. CLOSED follows, unless it turns out that a node was lost."""
    NODE_LOST = "node_lost"
    NODE_LEFT = "node_left"
    UNSEEN = "unseen"  # a member did not show that it read the ROUND
    RESIZE = "resize"


FAILURE_REASONS = (HaltReason.FAILURE, HaltReason.GIVING_UP)
"""The reasons of a HALT after which all members of the round probe each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """HALT: stop the workers of ``round``."""

    round: int
    reason: HaltReason
    why: str
    incident: Incident | None = None
    planned: bool = False
    """True if nothing is wrong with the workers, so that they get time to save. Implied by a resize."""
    verdict: str = field(default="", metadata=SKIPPABLE)  # with GIVING_UP, the reason of the failure policies
    requeue: bool = field(default=False, metadata=SKIPPABLE)  # with GIVING_UP, whether they want the job requeued


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """PLAN: the workers of a live round will stop together, at a step that STOP_AT will name.

    They go on until then. Any HALT or ROUND overrides the PLAN.
    """

    round: int
    reason: HaltReason  # the reason of the HALT that will end the round
    why: str
    deadline: float  # seconds from receipt, by each node's own clock, after which the round is halted in any case

    def __post_init__(self) -> None:
        if not self.deadline > 0:
            raise ValueError(f"the deadline of a plan is {self.deadline:g} s")


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAt:
    """STOP_AT: the step of a PLAN. No rank has reached it yet, and each rank stops there."""

    round: int
    step: int
    leaving: bool = True  # whether a node of the round leaves, possibly since the PLAN; otherwise nodes only join


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """OVER: the halted round is over, because a member has stopped and no other member can train on (rule S4).

    A leader that waits for nodes writes it. The rows that prove it can be lost with the store. The next leader then
    knows it from the ledger, or from a RESUME, and need not wait for the fence.
    """

    round: int
    left: tuple[str, ...] = ()  # the ids of members that have left, at most MAX_LEFT_MEMBERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """DRAIN: these nodes are to leave, as if they had received SIGTERM."""

    nodes: tuple[str, ...]  # their ids
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """QUESTION: the members of a live round are asked something that monitors answer (rule L14)."""

    round: int
    name: str
    value: str  # what the first node that asks has added, JSON
    asked_by: str  # the hosts that ask, for people


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """ANSWERS: what the plugins of the leader make of the answers to a QUESTION (rule L14)."""

    round: int
    name: str
    question: int  # the index of that QUESTION
    report: str  # JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """CLOSED: the run is over for good (I12)."""

    success: bool
    why: str
    exit_code: int
    incident: Incident | None = None  # the root cause: the first failure across all nodes
    requeue: bool = False
    abandoned: bool = False
    """True if a node of the next run closed it because none of its nodes was alive. That is not a verdict (rule S6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """RESUME: a run goes on over a store that lost it (rule S3).

    The entry has the bodies of the lost entries on which the state stands. It counts as if they followed each other.
    """

    opened: Open
    round: Round  # the newest round, with its members listed
    halt: Halt | None = None  # the HALT of that round; None while it is live
    plan: Plan | None = None
    stop_at: StopAt | None = None
    over: Over | None = None
    epoch: int
    index: int  # the index of the newest lost entry; ``epoch`` is its epoch
    why: str = ""

    @property
    def parts(self) -> Iterator[Round | Halt | Plan | StopAt | Over]:
        """The bodies that followed the OPEN, in order."""
        every = (self.round, self.plan, self.stop_at, self.halt, self.over)
        return (part for part in every if part is not None)


Body: TypeAlias = "Open | Leader | Round | Halt | Plan | StopAt | Over | Drain | Question | Answers | Closed | Resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One ledger entry."""

    index: int
    id: str
    prev: str
    run: str  # the run's own random uid; a job id can see many runs
    term: int
    author: str
    leader: str  # the node that decides after this entry: the author, or the successor that a leaving leader names
    elapsed: float
    """Seconds since the author read the previous entry, by its monotonic clock: a duration, never an instant."""
    since_halt: float = 0.0
    """The age of the newest HALT in seconds, the sum of :attr:`elapsed` since; 0 for that HALT, and without one. Except
    for clock drift it is never more than the time that has passed, because each author counts from when it had read the
    entry before, which had been written by then."""
    counters: Counters
    anchors: Anchors
    body: Body
    age: float = 0.0  # seconds since the run was opened: the sum of :attr:`elapsed` of all its entries
    epoch: int = 0  # How often the run was resumed. Indices are comparable only within one epoch.

    @property
    def link(self) -> Link:
        """The entry's place in the chain."""
        return Link(self.index, self.id)

    @property
    def kind(self) -> str:
        """The name of the kind of its body, e.g. ``STOP_AT``."""
        return kind_name(type(self.body))
