"""The members of a round: their ranks, and the compact form in which an entry has them."""

from __future__ import annotations

import base64
import contextlib
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, NamedTuple

from elastic_core.protocol.schema import Form, SchemaError


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
    match value:
        case [int() as size, str()]:
            return type(size) is int
    return False


COLUMNS = Form(_unpack, _pack)
"""The form of the members of a ROUND: 8 or 9 bytes for each."""
