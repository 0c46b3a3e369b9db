"""The names of a job's keys, and what they hold, in the form of core's records. Nothing here talks to a store.

What one job keeps, below ``PREFIX/<job id>/``, all on one lease of a week that heartbeats renew::

    head            the newest entry's link; what an append compares, and a heartbeat reads
    state/newest    the newest entry once more; what followers watch, who so need not read it
    state/roster    rewritten with every enter, amend and remove; its revision is the roster's version
    ledger/7        entry 7; written once
    arrivals        rewritten for every serial that is handed out; how often that was, etcd counts
    row/<node>      a row
    heartbeat/<node>     its heartbeat

API v2 changes one key at a time, and so has a little more (``backend_v2``).
"""

from __future__ import annotations

import hashlib

from elastic_core.errors import RendezvousStateError
from elastic_core.rendezvous import ORIGIN, RecordReader, quoted

EXPIRY = 7 * 86400  # seconds after the last heartbeat at which a job's keys are gone
RENEW = 3600.0  # seconds between two renewals of that by one agent

_HINT = "Something that is not part of this job has written to etcd; give the job a prefix (etcd_prefix) of its own."
READER = RecordReader("etcd", _HINT)


class Keys:
    """The keys of one job in API v3; ``state``, ``rows`` and ``heartbeats`` are prefixes of keys."""

    def __init__(self, prefix: str, run_id: str) -> None:
        self._job = job = f"{prefix}/{quoted(run_id)}/".encode()
        self.head, self.arrivals = job + b"head", job + b"arrivals"
        self.state, self.newest, self.roster = job + b"state/", job + b"state/newest", job + b"state/roster"
        self.rows, self.heartbeats = job + b"row/", job + b"heartbeat/"
        self.lease = int.from_bytes(hashlib.sha256(job + b"lease").digest()[:8], "big") >> 1 or 1
        """The number of the job's lease, a positive int64: made from the job's name, so that every node knows it."""

    def ledger(self, index: int) -> bytes:
        """Return the key of an entry."""
        return self._job + b"ledger/%d" % index

    def row(self, node_id: str) -> bytes:
        """Return the key of a node's row."""
        return self.rows + quoted(node_id).encode()

    def heartbeat(self, node_id: str) -> bytes:
        """Return the key of a node's heartbeat."""
        return self.heartbeats + quoted(node_id).encode()


def check_newest(head: bytes | None, newest: bytes | None) -> None:
    """Refuse a head beside another newest entry: they are written together, and who waits for the one would build on it
    and be refused by the other for ever.

    Raises:
        RendezvousStateError: They are of different entries, or one is not there.
    """
    links = READER.link(head), ORIGIN if newest is None else READER.entry(newest).link
    if links[0] != links[1]:
        first, second = (f"entry {link.index}" if link.index else "nothing" for link in links)
        raise RendezvousStateError(
            f"etcd holds {first} as the job's head, and {second} as its newest entry.", hint=_HINT
        )
