"""The names of a job's keys, and what they hold, in the form of core's records. Nothing here talks to a store.

What one job keeps, below ``elastic/<job id>/``. Keys that readers name are never deleted, since a read of a missing key
blocks. Only the bells of old changes are: a waiter names the next bell, and looks again every :data:`BELL_PATIENCE`
seconds in case that bell was deleted before the waiter came to wait for it::

    ledger/7        entry 7; written once
    newest          the newest entry once more; for a node that has just come. It may be behind: the next entry's key
                    tells
    arrivals        how many serials have been handed out
    node/<id>       the serial of this node's newest row
    row/3           the row of serial 3 ('-' once it is removed, and '' while it is not written yet)
    heartbeat/3          its heartbeat
    changes         how often anything changed: the ledger or a row in the low 32 bits, a row in the 31 bits above
    change/12       set when the twelfth change is complete; what waiters wait for; the newest KEPT_BELLS exist
"""

from __future__ import annotations

from elastic_core.rendezvous import RecordReader, quoted

ROOT = "elastic/"  # the prefix of the keys of all jobs
REMOVED = b"-"
UNWRITTEN = b""

ENTRY_APPENDED = 1
ROW_CHANGED = (1 << 32) + 1  # what a change adds to ``changes``: one atomic addition moves both counters
ROW_CYCLE = 1 << 62
"""The amount to subtract from ``changes`` at that value: TCPStore counts in signed 64-bit integers, to 2^63."""
KEPT_BELLS = 1024
"""The bells of the newest changes, which exist. Older ones are deleted, or a store would grow by 175 bytes a change."""
BELL_PATIENCE = 10.0
"""Seconds after which a waiter reads ``changes`` again: it may have been stopped for more than KEPT_BELLS changes."""
_BELLS = 1 << 32  # bells are numbered modulo this

READER = RecordReader(
    "The store",
    "Something that is not part of this job has written to the store. It has no password: keep its port private.",
)


class Keys:
    """The keys of one job; the leader names those of all rows at every look."""

    def __init__(self, run_id: str) -> None:
        self.prefix = prefix = f"{ROOT}{quoted(run_id)}/"
        self.newest, self.arrivals, self.changes = f"{prefix}newest", f"{prefix}arrivals", f"{prefix}changes"

    def ledger(self, index: int) -> str:
        """Return an entry."""
        return f"{self.prefix}ledger/{index}"

    def node(self, node_id: str) -> str:
        """Return the serial of a node's newest row."""
        return f"{self.prefix}node/{quoted(node_id)}"

    def row(self, serial: int) -> str:
        """Return a row."""
        return f"{self.prefix}row/{serial}"

    def heartbeat(self, serial: int) -> str:
        """Return a row's heartbeat."""
        return f"{self.prefix}heartbeat/{serial}"

    def change(self, number: int) -> str:
        """Return the bell of one change; the count of changes is modulo 2^32, and so are the names."""
        return f"{self.prefix}change/{number % _BELLS}"


def split_changes(count: int) -> tuple[int, int]:
    """Return the number of all changes, and the number of changes of rows."""
    return count & 0xFFFF_FFFF, count >> 32
