"""From a round's members to everybody's ranks: who is which worker of which."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_core.protocol.entries import Member, Members


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
    everybody = members if isinstance(members, Members) else Members(members)
    if (group_rank := everybody.group_ranks.get(node_id)) is None:
        raise ValueError(f"{node_id} is no member of this round")
    mine, (role_ranks, role_sizes) = everybody[group_rank], everybody.role_ranks
    return Place(
        group_rank=group_rank,
        group_world_size=len(everybody),
        first_rank=everybody.first_ranks[group_rank],
        local_world_size=mine.local_world_size,
        world_size=everybody.first_ranks[-1],
        first_role_rank=role_ranks[group_rank],
        role_world_size=role_sizes[mine.role],
    )
