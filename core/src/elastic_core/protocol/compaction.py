"""Which ledger entries may shrink: those that everybody has passed, and that nothing newer stands on."""

from __future__ import annotations

from elastic_core.protocol.failure_detector import Watch
from elastic_core.protocol.ledger import Ledger

ENTRIES_KEPT_WHOLE = 64
"""The newest entries, which stay whole: who reads a history that went wrong needs its end."""
ENTRIES_SHRUNK_AT_ONCE = 16
"""Entries to shrink in one turn of the leader, at most: a long history must not hold up a decision."""


def entries_to_shrink(ledger: Ledger, watch: Watch, kept: int, whole: int = ENTRIES_KEPT_WHOLE) -> range:
    """The entries to shrink next.

    Args:
        ledger: What the leader has read.
        watch: Who is in the roster. A node that has only just come has passed nothing yet.
        kept: All before this one are tombstones already, but for those that the head stands on.
        whole: The newest entries, which stay whole.
    """
    at = ledger.head.anchors
    first = max(kept, at.open + 1)
    needed = [index for index in (at.round, at.latest, at.halt, at.plan) if index]
    passed = [node.row.head for node in watch.nodes.values()]
    end = min([ledger.head.index - whole + 1, *needed, *passed])
    return range(first, min(end, first + ENTRIES_SHRUNK_AT_ONCE))
