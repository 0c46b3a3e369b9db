"""Compaction: which ledger entries may shrink to tombstones."""

from __future__ import annotations

from elastic_core.protocol.failure_detector import Watch
from elastic_core.protocol.ledger import Ledger

ENTRIES_KEPT_WHOLE = 64  # the newest entries are kept whole: to find out what went wrong in a run, one needs its end
ENTRIES_SHRUNK_AT_ONCE = 16
"""Most entries that one turn of the leader shrinks: a long history must not delay a decision."""


def entries_to_shrink(ledger: Ledger, watch: Watch, kept: int, whole: int = ENTRIES_KEPT_WHOLE) -> range:
    """Return the entries to shrink next: every node in the roster has read them, and no newer entry stands on them.

    All entries before ``kept`` are tombstones, except those on which the head stands. The newest ``whole`` entries
    stay. A node that has just arrived has read nothing yet.
    """
    at = ledger.head.anchors
    first = max(kept, at.open + 1)
    needed = [index for index in (at.round, at.latest, at.halt, at.plan) if index]
    passed = [node.row.head for node in watch.nodes.values()]
    end = min([ledger.head.index - whole + 1, *needed, *passed])
    return range(first, min(end, first + ENTRIES_SHRUNK_AT_ONCE))
