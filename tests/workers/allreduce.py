"""All-reduces over gloo until the file ``--until`` is there; reports the first one of each start.

Once the file ``--deaf`` is there, it blocks for ever where a collective fails, as under NCCL. With ``--pace`` it keeps
its pace in that folder. With ``--prints`` it prints the first text each 10 ms and the second each second, with the
number of the step for ``{n}``.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from pace import PaceKeeper
from report import RANK, report

parser = argparse.ArgumentParser()
parser.add_argument("--until", type=Path, required=True)
parser.add_argument("--deaf", type=Path)
parser.add_argument("--pace", type=Path)
parser.add_argument("--prints", nargs=2, default=())
args = parser.parse_args()


def all_reduce(tensor: torch.Tensor) -> None:
    """The greatest of all ranks' numbers, in each."""
    try:
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    except RuntimeError:
        while args.deaf and args.deaf.exists():
            signal.pause()
        raise


dist.init_process_group("gloo")
pace = PaceKeeper(args.pace) if args.pace else None
first, step = True, 0
prints = list(zip(args.prints, (0.01, 1.0), strict=False))  # none without --prints
printed_at = [0.0, 0.0]
while True:
    ended = torch.tensor([RANK == 0 and args.until.exists()], dtype=torch.int32)
    all_reduce(ended)
    if ended.item():
        break
    if pace:
        pace.step()
    step += 1
    for kind, (text, interval) in enumerate(prints):
        if time.monotonic() - printed_at[kind] > interval:
            print(text.replace("{n}", str(step)), flush=True)
            printed_at[kind] = time.monotonic()
    if first:
        place = {"restart_count": int(os.environ["TORCHELASTIC_RESTART_COUNT"]), "store": os.environ["MASTER_PORT"]}
        report("training", world_size=dist.get_world_size(), **place)
        first = False
dist.destroy_process_group()
report("done")
