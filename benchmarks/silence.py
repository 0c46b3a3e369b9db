"""The time until the leader finds a silent node, by the number of rows that it has to read.

One real session leads a job over a store in memory; the other nodes are rows only, whose heartbeats a thread of this
process counts up, each at its own instant within the interval. One of them stops, and the clock runs until the ledger
has the HALT.
"""

from __future__ import annotations

import argparse
import os
import platform
import threading
import time
from dataclasses import replace

from benchmarks.agents import TICK, ElasticAgent
from benchmarks.launchers import PAGE
from benchmarks.tables import figures, paragraphs, replaced
from elastic_core.config.run import Timing
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.protocol.codec import decode_entry, decode_row, encode_row
from elastic_core.protocol.entries import Entry, Halt, HaltReason, Offer, Round
from elastic_core.protocol.roster import NodeRow, Phase, Slots
from elastic_core.rendezvous.backend import Cursor

SIZES = (500, 8_000, 20_000)
"""Nodes of the job, the leader among them."""
STEPS = 20
"""Groups of nodes that heartbeat together, spread over one interval between two heartbeats."""
RUNS = 5
FOUND = "found after"
BEGIN, END = "<!-- silence: written by benchmarks/silence.py -->", "<!-- end of silence -->"
PATIENCE = 120.0
"""Seconds until the silent node counts as not found."""


class Nodes:
    """All nodes but the leader: rows of a store, and a thread that counts up their heartbeats.

    Attributes:
        last: When the node that falls silent last heartbeat (seconds, monotonic).
    """

    def __init__(self, store: MemoryStore, like: NodeRow, count: int, interval: float) -> None:
        self._store, self._interval = LocalBackend(store), interval
        self._rows = [_row(like, at) for at in range(count)]
        self._silent = self._rows[count // 2].info.node_id
        self._falls_silent, self._over = threading.Event(), threading.Event()
        self.last = 0.0
        for row in self._rows:
            self._store.enter(row.info.node_id, encode_row(row))
        self._thread = threading.Thread(target=self._heartbeat, daemon=True)
        self._thread.start()

    def run(self, number: int, head: int) -> None:
        """Be in this round, whose entry has the index ``head``."""
        for row in self._rows:
            running = replace(row, phase=Phase.RUNNING, round=number, head=head, offer=None)
            self._store.amend(row.info.node_id, 1, encode_row(running))

    def silence(self) -> None:
        """Let the heartbeats of one of them stop."""
        self._falls_silent.set()

    def stop(self) -> None:
        """End all heartbeats."""
        self._over.set()
        self._thread.join()

    def _heartbeat(self) -> None:
        count, at = 0, time.monotonic()
        while not self._over.is_set():
            count += 1
            for step in range(STEPS):
                for row in self._rows[step::STEPS]:
                    if row.info.node_id == self._silent:
                        if self._falls_silent.is_set():
                            continue
                        self.last = time.monotonic()
                    self._store.heartbeat(row.info.node_id, count)
                at += self._interval / STEPS
                time.sleep(max(0.0, at - time.monotonic()))


def _row(like: NodeRow, at: int) -> NodeRow:
    """Return the roster row of one node. Each node has its own host."""
    host, offer = f"node{at}.cluster.example", Offer("127.0.0.1", 29501, f"o{at}")
    info = replace(like.info, node_id=f"n{at:05}", host=host, host_id=f"id{at}", slots=Slots(time.monotonic_ns()))
    return replace(like, info=info, offer=offer)


def found_after(count: int) -> float:
    """Seconds from a node's last heartbeat to the HALT, in a job of so many nodes.

    Raises:
        TimeoutError: The node was not found.
    """
    store, timing = MemoryStore(), Timing()
    leader = ElasticAgent(0, lambda *_: None, [LocalBackend(store) for _ in range(4)], (count, count))
    reader, over = LocalBackend(store), threading.Event()
    threading.Thread(target=_tick, args=(leader, over), daemon=True).start()
    leader.arrive()
    try:
        nodes = Nodes(store, _joined(reader), count - 1, timing.beat_interval)
        try:
            begun = _entry(reader, Round, after=0)
            assert isinstance(begun.body, Round)
            nodes.run(begun.body.number, begun.index)
            time.sleep(timing.lost_after)  # the leader has seen all of them run, and heartbeat
            nodes.silence()
            halted = _entry(reader, Halt, after=begun.index)
            found = time.monotonic()
            assert isinstance(halted.body, Halt)
            assert halted.body.reason is HaltReason.NODE_LOST, halted.body
            return found - nodes.last
        finally:
            nodes.stop()
    finally:
        leader.leave()
        over.set()


def _joined(reader: LocalBackend) -> NodeRow:
    """Return the leader's row, once it has joined the run."""
    while not (row := decode_row(reader.roster()[0].value)).run:
        time.sleep(0.01)
    return row


def _tick(leader: ElasticAgent, over: threading.Event) -> None:
    while not over.wait(TICK):
        leader.tick()


def _entry(reader: LocalBackend, kind: type[Round | Halt], after: int) -> Entry:
    """Return the first entry of a kind after an index, as soon as it is there."""
    index, deadline = after + 1, time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if (data := reader.read(index)) is None:
            reader.wait(Cursor(index - 1), roster=False, timeout=1.0)
        elif isinstance((entry := decode_entry(data)).body, kind):
            return entry
        else:
            index += 1
    raise TimeoutError(f"no {kind.__name__} within {PATIENCE:g} s")


def main() -> None:
    """Measure all sizes, and write the page."""
    parser = argparse.ArgumentParser(description="Measure how long the leader takes to find a silent node.")
    help = f"nodes of the job [{' '.join(map(str, SIZES))}]; the page stays as it is"
    parser.add_argument("--sizes", type=int, nargs="+", metavar="N", help=help)
    parser.add_argument("--runs", type=int, default=RUNS, help=f"silent nodes for each size [{RUNS}]")
    args = parser.parse_args()

    found = {}
    for size in args.sizes or SIZES:
        found[f"{size:,}"] = {FOUND: [found_after(size) for _ in range(args.runs)]}
        print(f"{size}: {found[f'{size:,}'][FOUND]}", flush=True)
    cores = f"{os.cpu_count()} cores, Python {platform.python_version()}."
    written = paragraphs([cores], figures("nodes", list(found), [FOUND], found))
    print("\n".join(written))
    if not args.sizes:
        PAGE.write_text(replaced(PAGE.read_text(), BEGIN, END, written))


if __name__ == "__main__":
    main()
