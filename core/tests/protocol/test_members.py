"""Ranks: exactly 0 .. world size - 1, whatever the nodes' sizes and roles (I3)."""

from __future__ import annotations

import pytest

from elastic_core.protocol.entries import Member, place

MEMBERS = (Member("a", 2, "trainer"), Member("b", 1, "reader"), Member("c", 3, "trainer"))


def test_ranks_are_consecutive_over_unequal_nodes() -> None:
    places = [place(MEMBERS, name) for name in "abc"]
    ranks = [p.first_rank + local for p in places for local in range(p.local_world_size)]
    assert ranks == list(range(6))
    assert {p.world_size for p in places} == {6}
    assert [p.group_rank for p in places] == [0, 1, 2]


@pytest.mark.parametrize(("name", "first", "size"), [("a", 0, 5), ("b", 0, 1), ("c", 2, 5)])
def test_role_ranks_count_within_the_role(name: str, first: int, size: int) -> None:
    mine = place(MEMBERS, name)
    assert (mine.first_role_rank, mine.role_world_size) == (first, size)


def test_a_node_that_is_no_member_has_no_place() -> None:
    with pytest.raises(ValueError, match="x"):
        place(MEMBERS, "x")
