"""Limits of the parts of a ledger entry, so that every entry that a leader can decide on fits into one store value.

``MAX_VALUE_BYTES`` is the limit of a value. Each part of an entry has a share of it, in bytes of JSON, which
``docs/internals/protocol.md`` lists (rule L8). A RESUME carries all parts at once; their shares add up to less than the
limit. A job of more kinds of nodes than ``MAX_KINDS`` can exceed it: ``repair.lighten`` then leaves out parts of a
RESUME.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, TypeVar

from elastic_core.incidents import Explanation, Incident

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MAX_KINDS = 22
"""Most pairs of a local world size and a role among ``MAX_NODES`` members for which a RESUME surely fits whole. Not
enforced: roles are mostly far shorter than they may be."""
MAX_HOSTS = 256  # most hosts whose losses the ledger counts, and most hosts that it excludes
MAX_FAILURES = 32  # most failures that spent a restart which the ledger remembers
FAILURE_TEXT_BYTES = 40  # size of the host, of the exception, and of the place, of such a failure
MAX_DRAINED_NODES = 4096  # most nodes that one DRAIN names; the next DRAIN names the rest
MAX_LEFT_MEMBERS = 256
"""Most members that an OVER names as having left; if the store loses its rows, the others are unknown."""
MAX_UNREAD_ROWS = 64  # most unreadable rows that the leader's row names; the nodes of the others do not learn of it
UNREAD_ID_LENGTH = 64
"""Most characters of the id of such a row. Agents' ids have 12, but another writer may choose any id."""
HOSTS_BYTES = 4096
"""Size of the members' hosts in a ROUND. Members whose host does not fit and that have no row are shown by node id."""
NAMES_SHOWN = 8  # names in a text for users; the others are counted
WHY_BYTES = 2048
TEXT_BYTES = 1024  # size of an incident's message, of its log's path, and of its host
WHERE_BYTES = 256  # size of an incident's line, exception's type and checkpoint, and of the texts of its explanation
DETAIL_BYTES = 4096
MAX_ASKS = 8  # most questions that the monitors of a node ask at once
MAX_QUESTION_NAMES = 64  # most names of questions of a round; half of them, for those that commands ask
MAX_FORMER_RUNS = 16  # whose ids an OPEN has
OPEN_BYTES = 8192  # size of an OPEN: the settings, with the names of plugins, and the scheduler's uid
# The size of each text: of these classes by field, of all others by the names below, nested parts included. Texts of
# incidents may come from a worker.
_TEXTS: Mapping[type, Mapping[str, int]] = {
    Incident: {
        **dict.fromkeys(("node_id", "host", "message", "log", "others"), TEXT_BYTES),
        **dict.fromkeys(("exception", "where", "checkpoint"), WHERE_BYTES),
        "detail": DETAIL_BYTES,
    },
    Explanation: {"name": WHERE_BYTES, "advice": WHERE_BYTES},
}
_TEXTS_OF_BODIES = {"why": WHY_BYTES, "verdict": WHY_BYTES, "asked_by": TEXT_BYTES}

T = TypeVar("T", bound="DataclassInstance")


def list_names(names: Iterable[str]) -> str:
    """Return the first names and the number of the others, as in ``a, b, … and 12 more``; '' for none."""
    every = list(names)
    shown = ", ".join(islice(every, NAMES_SHOWN))
    more = len(every) - NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def clip(text: str, most: int, *, end: bool = False) -> str:
    """Return ``text``, or as much of its start (or ``end``) as fits into ``most`` bytes of JSON, with an ellipsis."""
    if len(text) * 12 <= most or _size(text) <= most:  # 12: JSON's escape of a character beyond the basic plane
        return text
    room = most - _size("…")

    def part(count: int) -> str:
        return text[len(text) - count :] if end else text[:count]

    kept = part(bisect_right(range(len(text)), room, key=lambda count: _size(part(count))) - 1)
    return f"…{kept}" if end else f"{kept}…"


def fit_names(names: Iterable[str], most: int) -> tuple[str, ...]:
    """Return as many of the first names as fit into ``most`` bytes of a JSON list."""
    every = list(names)
    ends = list(accumulate(_size(name) + 3 for name in every))  # quotes and a comma
    return tuple(every[: bisect_right(ends, most)])


def fit_body(body: T) -> T:
    """Return an entry's body, or a part of one, with every text cut to its share; the same object if all texts fit."""
    sizes, changes = _TEXTS.get(type(body), _TEXTS_OF_BODIES), dict[str, Any]()
    for item in fields(body):
        value = fitted = getattr(body, item.name)
        if item.name in sizes:
            fitted = clip(value, sizes[item.name], end=item.name == "detail")
        elif is_dataclass(value) and not isinstance(value, type):
            fitted = fit_body(value)
        if fitted is not value:
            changes[item.name] = fitted
    return replace(body, **changes) if changes else body


def _size(text: str) -> int:
    return len(json.dumps(text)) - 2
