"""From a round's members to everybody's ranks: who is which worker of which."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_core.rendezvous.ledger import Member


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One node's place in a round. Counts are of workers, except for the two group fields, which count nodes."""

    group_rank: int
    group_world_size: int
    first_rank: int
    """Rank of the node's local rank 0; the others follow on."""
    local_world_size: int
    world_size: int
    first_role_rank: int
    role_world_size: int


def place(members: tuple[Member, ...], node_id: str) -> Place:
    """The place of ``node_id``; ranks are exactly 0 .. world_size - 1 over all nodes (I3).

    Raises:
        ValueError: It is no member.
    """
    group_rank = [member.node_id for member in members].index(node_id)
    mine, before = members[group_rank], members[:group_rank]
    return Place(
        group_rank=group_rank,
        group_world_size=len(members),
        first_rank=sum(member.local_world_size for member in before),
        local_world_size=mine.local_world_size,
        world_size=sum(member.local_world_size for member in members),
        first_role_rank=sum(m.local_world_size for m in before if m.role == mine.role),
        role_world_size=sum(m.local_world_size for m in members if m.role == mine.role),
    )
