"""The ranks of a node's workers in a round, from the round's members."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_core.protocol.entries import Member, Members


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
    """Return the place of ``node_id``; ranks are exactly 0 .. world_size - 1 over all nodes (I3).

    Raises:
        ValueError: It is not a member.
    """
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
