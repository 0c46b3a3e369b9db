"""A worker of the benchmark of snapshots: commits a training's state, waits to be killed, and restores it.

It reports seconds: of plain copies before, and of each commit; after its death, of ``restore()`` before these.
"""

from __future__ import annotations

import argparse
import signal
import time

from report import report

import elastic_core as elastic
from benchmarks.states import KINDS, peak, plain_copies, timed, training
from elastic_torch.memory.tier import Tier

COMMITS = 6
COMMITTED, RESTORED = "committed", "restored"


def main() -> None:
    """Commit and wait; or restore, commit and end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("size", type=int, help="bytes")
    args = parser.parse_args()
    other = training(args.kind, args.size)
    other.begin()
    copies = plain_copies(other.tensors())
    del other
    trained = training(args.kind, args.size)
    state = elastic.TrainState(model=trained.model, optimizer=trained.optimizer)
    begin = time.monotonic()
    restored = state.restore()
    took = time.monotonic() - begin
    if restored is None:
        trained.begin()
    assert restored is None or restored.tier is Tier.MEMORY
    assert trained.has_done(state.step), state.step
    commits = []
    with peak() as memory:
        for _ in range(COMMITS):
            trained.step()
            commits.append(timed(state.commit))
    if restored is None:
        report(COMMITTED, copies=copies, commits=commits, memory=memory[0])
        signal.pause()
    report(RESTORED, copies=copies, commits=commits, restore=took)


if __name__ == "__main__":
    main()
