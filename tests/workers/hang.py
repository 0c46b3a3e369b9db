"""All-reduces over gloo in which one rank hangs, as ``--how`` says, or only seems to; a rank that hung once goes on.

With ``--steps`` each rank reports its steps. The job ends after a dozen steps, or for ``slow`` ways when the file
``--until`` is there.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from report import RANK, report
from torch.utils.data import DataLoader, Dataset

import elastic_core
from elastic_core.worker.graceful_stop import should_checkpoint


class Stuck(Dataset[int]):
    """Its second sample never comes."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if index:
            queue.Queue[int]().get()
        return index


def load() -> None:
    """Wait for a worker process of a DataLoader."""
    for sample in DataLoader(Stuck(), batch_size=1, num_workers=1):
        del sample


def hold_the_lock() -> None:
    """Stay in native code that holds the interpreter's lock."""
    re.match(r"(a+)+b", 40 * "a")


def lock_twice() -> None:
    """Wait for a lock that this thread has."""
    lock = threading.Lock()
    with lock:
        lock.acquire()


def skip() -> None:
    """Wait for rank 0 in another collective than that in which it is."""
    dist.recv(torch.zeros(1), src=0)


def stop() -> None:
    """Be ready for SIGSTOP."""
    report("ready")
    threading.Event().wait()


def compute() -> None:
    """Compute for long, in many places."""
    while not args.until.exists():
        total = sum(range(1000))
        total += max(range(1000))


WAYS: Mapping[str, Callable[[], None]] = {
    "dataloader": load,
    "native": hold_the_lock,
    "lock": lock_twice,
    "skip": skip,
    "stop": stop,
    "slow": compute,
    "barrier": compute,
    "alone": compute,
}
parser = argparse.ArgumentParser()
parser.add_argument("--how", choices=WAYS, required=True)
parser.add_argument("--rank", type=int, default=1)
parser.add_argument("--at", type=int, default=3)
parser.add_argument("--steps", action="store_true")
parser.add_argument("--until", type=Path)
parser.add_argument("--elastic", action="store_true")
args = parser.parse_args()

if args.elastic:  # whose group answers for the flight recorder
    elastic_core.init_process_group("gloo")
else:
    dist.init_process_group("gloo")
for step in range(12):
    hangs = step == args.at and args.rank in (RANK, -1) and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if hangs:
        WAYS[args.how]()
    if step == args.at and args.how == "barrier":
        dist.barrier()
    if not (hangs and args.how == "skip"):
        dist.all_reduce(torch.ones(1))
    if args.steps:
        should_checkpoint(step)
        time.sleep(0.1)  # a report for each step
dist.destroy_process_group()
report("done")
