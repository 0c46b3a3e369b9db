"""A worker of the benchmark of snapshots: commits a training's state, waits to be killed, and restores it.

It reports seconds: of plain copies, and of each commit, in turn; after its death, of ``restore()`` before these.
"""

from __future__ import annotations

import argparse
import signal

from report import report

import elastic_core as elastic
from benchmarks.states import KINDS, peak, plain_copies, timed, training

COMMITS = 6
COMMITTED, RESTORED = "committed", "restored"


def main() -> None:
    """Commit and wait; or restore, commit and end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("size", type=int, help="bytes")
    args = parser.parse_args()
    trained = training(args.kind, args.size)
    state = elastic.TrainState(model=trained.model, optimizer=trained.optimizer)
    found = {}

    def restore() -> None:
        if (restored := state.restore()) is not None:
            found["tier"] = restored.tier.value

    took = timed(restore)
    if not found:
        trained.begin()
    assert trained.has_done(state.step), state.step
    copies = plain_copies(trained.tensors())
    commits = []
    with peak() as memory:
        for _ in range(COMMITS):
            trained.step()
            commits.append(timed(state.commit))
    copies += plain_copies(trained.tensors())
    if not found:
        report(COMMITTED, copies=copies, commits=commits, memory=memory[0])
        signal.pause()
    report(RESTORED, copies=copies, commits=commits, restore=took, **found)


if __name__ == "__main__":
    main()
