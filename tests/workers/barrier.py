"""A training job in small, without torch: every step is a barrier of all ranks, kept by rank 0 at the master's address.

It starts in a tenth of a second, and fails as collectives do: a rank that loses a peer raises, or, with ``--deaf``,
blocks for ever, as under NCCL. The job ends when the file ``--until`` is there: rank 0 looks, and tells the others.
With ``--lives`` each rank writes down that it is alive: with every step, and from a thread that waits for nobody.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import NoReturn

from report import RANK, report

WORLD_SIZE = int(os.environ["WORLD_SIZE"])
ADDRESS = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
STEP, LAST = b"s", b"l"
HEARTBEAT = 0.02
"""Seconds between two signs of life."""


class Life:
    """The signs of life of this rank, each in one write, with the time by the clock that all namespaces share."""

    def __init__(self, folder: Path) -> None:
        self._number = int(os.environ["ELASTIC_ROUND"])
        path = folder / f"{self._number}-{RANK}-{os.getpid()}"
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def sign(self) -> None:
        """Write one."""
        fields = {"round": self._number, "rank": RANK, "world_size": WORLD_SIZE, "at": time.monotonic()}
        os.write(self._file, (json.dumps(fields) + "\n").encode())

    def go_on(self) -> None:
        """Write them until the process ends, whatever its other threads wait for."""
        while True:
            self.sign()
            time.sleep(HEARTBEAT)


def lost() -> NoReturn:
    """A peer is gone."""
    if args.deaf:
        while True:
            signal.pause()
    raise ConnectionError("a peer is lost")


def serve() -> list[socket.socket]:
    """Rank 0's connections to all others."""
    family = socket.AF_INET6 if ":" in ADDRESS[0] else socket.AF_INET
    listener = socket.create_server(ADDRESS, family=family)
    listener.settimeout(args.patience)
    return [listener.accept()[0] for _ in range(WORLD_SIZE - 1)]


def connect() -> list[socket.socket]:
    """The others' connection to rank 0, which may not listen yet."""
    deadline = time.monotonic() + args.patience
    while time.monotonic() < deadline:
        try:
            return [socket.create_connection(ADDRESS, args.patience)]
        except ConnectionRefusedError:
            time.sleep(0.02)
    raise TimeoutError("rank 0 never listened")


def wait_at_most(seconds: float | None) -> None:
    """Let a step wait for a peer for so long; None: for ever."""
    for peer in peers:
        peer.settimeout(seconds)


def send(peer: socket.socket, message: bytes) -> None:
    """Send, or fail as a collective does."""
    try:
        peer.sendall(message)
    except OSError:
        lost()


def receive(peer: socket.socket) -> bytes:
    """Receive, or fail as a collective does."""
    try:
        message = peer.recv(1)
    except OSError:
        message = b""
    if not message:
        lost()
    return message


def step() -> bool:
    """One barrier; whether it was the last."""
    if RANK != 0:
        send(peers[0], STEP)
        return receive(peers[0]) == LAST
    for peer in peers:
        receive(peer)
    last: bool = args.until.exists()
    for peer in peers:
        send(peer, LAST if last else STEP)
    return last


parser = argparse.ArgumentParser()
parser.add_argument("--until", type=Path, required=True)
parser.add_argument("--deaf", action="store_true")
parser.add_argument("--tell", type=float, default=math.inf, help="seconds between two reports that training goes on")
parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for the others at the start")
parser.add_argument("--stall", type=float, help="seconds that a step but the first may wait; without it for ever")
parser.add_argument("--lives", type=Path, help="the folder for signs of life, a file for each rank of each round")
args = parser.parse_args()

life = None if args.lives is None else Life(args.lives)
if life is not None:
    threading.Thread(target=life.go_on, daemon=True).start()
peers = serve() if RANK == 0 else connect()
wait_at_most(None if args.stall is None else args.patience)
first, told_at, store = True, time.monotonic(), ":".join(map(str, ADDRESS))
while not step():
    if life is not None:
        life.sign()
    if first:
        restart_count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        report("training", world_size=WORLD_SIZE, restart_count=restart_count, store=store)
        first = False
        wait_at_most(args.stall)
    elif time.monotonic() - told_at >= args.tell:
        report("step", world_size=WORLD_SIZE, store=store)
        told_at = time.monotonic()
    time.sleep(0.01)
report("done", world_size=WORLD_SIZE)
