"""What a node need not say at once: that it runs, which all members of a round have to say when they have read of it.

The first to read would else keep the store from giving the round to the last.
"""

from __future__ import annotations

import zlib

from elastic_core.protocol.ledger import Ledger, Round
from elastic_core.protocol.roster import NodeRow, Phase

ROW_DELAY_PER_MEMBER_SECONDS = 0.001
"""Seconds, for each member of the round."""
SPREAD_ABOVE_MEMBERS = 64
"""Members of a round, up to which what all of them do after an entry need not be spread."""
ROW_DELAY_MAX_SECONDS = 0.25
"""Seconds: who has not shown within 1 s that it read the ROUND is suspected (rule L2)."""


def max_row_delay(current: Round) -> float:
    """Seconds for which members of a round keep to themselves that they have read of it, and run."""
    return min(ROW_DELAY_MAX_SECONDS, ROW_DELAY_PER_MEMBER_SECONDS * len(current.members))


def spread_fraction(node_id: str) -> float:
    """A number from 0 to 1, another one for each node: what all do at once, each does at a time of its own."""
    return zlib.crc32(node_id.encode()) / (1 << 32)


def row_delay(row: NodeRow, ledger: Ledger) -> float:
    """Seconds for which a row need not be written; 0 for one that somebody waits for.

    Rank 0's row is one of those: it offers where the next round may meet, and a restart waits for that.
    """
    current = ledger.round
    if current is None or not ledger.is_live or ledger.plan is not None or row.phase is not Phase.RUNNING:
        return 0.0
    if row.incident is not None or row.leaving or row.stepped_down:
        return 0.0
    if current.members[0].node_id == row.info.node_id:
        return 0.0
    within = max_row_delay(current)
    if len(current.members) <= SPREAD_ABOVE_MEMBERS:
        return within
    return within * (1 + spread_fraction(row.info.node_id)) / 2  # the first half is for all to read of the round
