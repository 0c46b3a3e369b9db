"""A healthy training over gloo that pauses in one way, ``--how``, again and again, for ``--minutes``.

``--window`` is the time without progress after which Elastic suspects a hang. Pauses without any sign of life are
shorter than it, or, where steps are known, than ten steps before. Pauses in which one rank works are longer.
"""

from __future__ import annotations

import argparse
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--how", required=True)
parser.add_argument("--window", type=float, required=True)
parser.add_argument("--minutes", type=float, required=True)
args = parser.parse_args()
RANK, WINDOW = int(os.environ["RANK"]), args.window


def wait() -> None:
    """Wait as for a disk, a GPU or a lock."""
    time.sleep(random.uniform(0.02, 0.15))


def work(seconds: float) -> None:
    """Work as an evaluation or a compiler does: in many places, with some 5 % of a CPU."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        wait()
        sum(range(500_000))
        wait()
        sorted(range(100_000), reverse=True)
        wait()
        sum(range(200_000))
        wait()
        max(range(200_000))
        wait()


class Samples(Dataset[int]):
    """Most come at once, a few after long."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        time.sleep(0.7 * WINDOW if index == 5 else 0.05)
        return index


def slow_steps(step: int) -> None:
    """Take long for every step, without a sign of life; some take nine times as long as the others."""
    time.sleep(WINDOW * (0.9 if step % 7 == 6 else 0.1))


def slower_steps(step: int) -> None:
    """Take longer for a step than the least window: eight times the longest before."""
    time.sleep(WINDOW * (0.3 if step < 8 else 2.5))


def long_evaluation(step: int) -> None:
    """Evaluate on rank 0 for four windows; the others wait in a barrier."""
    if step % 5 == 4:
        if RANK == 0:
            work(4 * WINDOW)
        dist.barrier()


def long_first_step(step: int) -> None:
    """Compile for three windows before the first step, and before every twelfth."""
    if step % 12 == 0:
        work(3 * WINDOW)
    else:
        sum(range(3_000_000))
        time.sleep(0.2 * WINDOW)


def loader(step: int) -> None:
    """Wait for worker processes of a DataLoader."""
    for batch in DataLoader(Samples(), batch_size=1, num_workers=1):
        del batch


def checkpoint(step: int) -> None:
    """Save on rank 0 for two windows, in pieces that reach the disk; the others wait in a barrier."""
    if step % 4 == 3:
        if RANK == 0:
            path = Path(f"checkpoint-{os.getpid()}")
            until = time.monotonic() + 2 * WINDOW
            while time.monotonic() < until:
                state = {name: torch.rand(50_000) for name in "abcd"}
                torch.save(state, path)
                with path.open("rb+") as file:
                    os.fsync(file.fileno())
                time.sleep(random.uniform(0.05, 0.2))
            path.unlink()
        dist.barrier()


def hang(step: int) -> None:
    """Hang for good on rank 1: the control, which must be reported."""
    if step == 5 and RANK == 1:
        threading.Event().wait(60 * args.minutes)


WAYS: Mapping[str, Callable[[int], None]] = {
    function.__name__: function
    for function in (slow_steps, slower_steps, long_evaluation, long_first_step, loader, checkpoint, hang)
}

dist.init_process_group("gloo")
ends_at, step, over = time.monotonic() + 60 * args.minutes, 0, torch.zeros(1)
while not over:
    WAYS[args.how](step)
    time.sleep(random.uniform(0.005, 0.015) * WINDOW)
    over = torch.tensor([float(time.monotonic() > ends_at)])
    dist.all_reduce(over, op=dist.ReduceOp.MAX)
    if RANK == 0 and os.environ.get("PAUSES_PRINT") == "1":
        print(f"step: {step}  loss: {1 / (1 + step):.4f}", flush=True)
    step += 1
dist.destroy_process_group()
