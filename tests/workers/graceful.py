"""A training job in small that takes notices: it counts steps, and saves and leaves when should_checkpoint() says so.

A step is a barrier of all ranks, kept by rank 0 at the master's address, or, with ``--free``, each rank's own business,
so ranks are far apart. The count goes on from the file ``--state``, which rank 0 writes when all stop. With
``--ignore`` it reports steps and does not do what it is told, but leaves on SIGTERM. The job ends when the file
``--until`` is there.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from pathlib import Path

from report import RANK, report

from elastic_core.worker.graceful_stop import should_checkpoint

WORLD_SIZE = int(os.environ["WORLD_SIZE"])
ADDRESS = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
LAST, MORE = b"l", b"m"


def meet() -> list[socket.socket]:
    """Rank 0's connections to all others, or another rank's to rank 0."""
    if args.free:
        return []
    if RANK == 0:
        family = socket.AF_INET6 if ":" in ADDRESS[0] else socket.AF_INET
        with socket.create_server(ADDRESS, family=family) as listener:
            return [listener.accept()[0] for _ in range(WORLD_SIZE - 1)]
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            return [socket.create_connection(ADDRESS)]
        except ConnectionRefusedError:
            time.sleep(0.02)
    raise TimeoutError("rank 0 never listened")


def take_step() -> bool:
    """Return True if it was the last."""
    time.sleep(args.pace * (1 + 4 * RANK if args.free else 1))
    last: bool = args.until.exists()
    if RANK == 0:
        for peer in peers:
            if not peer.recv(1):
                raise ConnectionError("a peer is lost")
        for peer in peers:
            peer.sendall(LAST if last else MORE)
    elif peers:
        peers[0].sendall(MORE)
        if not (answer := peers[0].recv(1)):
            raise ConnectionError("a peer is lost")
        last = answer == LAST
    return last


def on_sigterm(*_: object) -> None:
    """Say at which step it came."""
    report("terminated", step=step)
    sys.exit(0)


parser = argparse.ArgumentParser()
parser.add_argument("--until", type=Path, required=True)
parser.add_argument("--state", type=Path, required=True)
parser.add_argument("--pace", type=float, default=0.02, help="seconds that a step takes")
parser.add_argument("--free", action="store_true")
parser.add_argument("--ignore", action="store_true")
parser.add_argument("--ignore_sigterm", action="store_true", help="as it also comes from Slurm, to all processes")
args = parser.parse_args()

if args.ignore_sigterm:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if args.ignore:
    signal.signal(signal.SIGTERM, on_sigterm)
step = began = int(args.state.read_text()) if args.state.exists() else 0
peers = meet()
report("training", world_size=WORLD_SIZE, step=step)
while not take_step():
    step += 1
    if step % 10 == 0 and step - began >= 10:  # by then every agent has heard that its workers take notices
        report("stepped", step=step, world_size=WORLD_SIZE)
    if should_checkpoint(step) and not args.ignore:
        if RANK == 0:
            beside = args.state.with_suffix(".new")
            beside.write_text(str(step))
            beside.replace(args.state)
        report("stopped", step=step, world_size=WORLD_SIZE)
        break
else:
    report("done", step=step, world_size=WORLD_SIZE)
