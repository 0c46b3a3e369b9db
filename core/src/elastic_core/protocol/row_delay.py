"""The delay of a row that no other node waits for, and the interval at which a row tells how far the workers are.

After a ROUND all members say that they run. If they did so at once, the rows of the first would delay it for the last.
What rows say of workers is only for people. Each amendment has the leader read the roster, so that all members amend
their rows together.
"""

from __future__ import annotations

import zlib

from elastic_core.protocol.entries import Round
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.roster import NodeRow, Phase

ROW_DELAY_PER_MEMBER_SECONDS = 0.001  # the delay of a row grows by this much with each member of the round
ROW_DELAY_MAX_SECONDS = 0.25
"""Longest delay of a row: a member that does not show within 1 s that it read the ROUND is suspected (rule L2)."""
SPREAD_ABOVE_MEMBERS = 64  # in a round of more members, what all of them do after an entry is spread over time

WORKERS_INTERVAL_SECONDS = 5.0  # between two amendments of a row for how far its node's workers are, at least
WORKERS_INTERVAL_PER_MEMBER_SECONDS = 0.03  # the same for each member: 33 rows a second in any round
WORKERS_SPREAD_SECONDS = 1.0  # over which a large round spreads them; and the least time after the round's start


def max_row_delay(current: Round) -> float:
    """Return for how many seconds a member of a round may hold back that it has read the ROUND and runs."""
    return min(ROW_DELAY_MAX_SECONDS, ROW_DELAY_PER_MEMBER_SECONDS * len(current.members))


def spread_fraction(node_id: str) -> float:
    """Return a number from 0 to 1 that differs between nodes, by which they spread what all of them have to do."""
    return zlib.crc32(node_id.encode()) / (1 << 32)


def row_delay(row: NodeRow, ledger: Ledger) -> float:
    """Return for how many seconds a row may be held back; 0 for a row that another node waits for.

    Rank 0's row is such a row: it offers the store of the next round, and a restart needs that.
    """
    current = ledger.round
    if current is None or not ledger.is_live or ledger.planned_stop is not None or row.phase is not Phase.RUNNING:
        return 0.0
    if row.incident is not None or row.leaving or row.stepped_down or current.members[0].node_id == row.info.node_id:
        return 0.0
    within = max_row_delay(current)
    if len(current.members) <= SPREAD_ABOVE_MEMBERS:
        return within
    return within * (1 + spread_fraction(row.info.node_id)) / 2  # in the first half, all members read the ROUND


def seconds_to_workers_row(age: float, members: int, node_id: str) -> float:
    """Return the seconds until a member of a round next says how far its workers are.

    Args:
        age: Seconds since the run was opened, by the ledger, which all nodes know alike.
    """
    interval = max(WORKERS_INTERVAL_SECONDS, WORKERS_INTERVAL_PER_MEMBER_SECONDS * members)
    left = interval - age % interval
    if members > SPREAD_ABOVE_MEMBERS:
        left += WORKERS_SPREAD_SECONDS * spread_fraction(node_id)
    return left if left >= WORKERS_SPREAD_SECONDS else left + interval
