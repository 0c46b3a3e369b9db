"""Joins a process group by ``--dist_url``, all-reduces, and in its first lives waits there to be killed."""

from __future__ import annotations

import argparse
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from report import RANK, report

parser = argparse.ArgumentParser()
parser.add_argument("--dist_url", required=True)
parser.add_argument("--restarts", type=int, default=1)
args = parser.parse_args()

life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group(
    "gloo",
    init_method=args.dist_url,
    rank=RANK,
    world_size=int(os.environ["WORLD_SIZE"]),
    timeout=timedelta(seconds=50),
)
total = torch.ones(1)
dist.all_reduce(total)
report("met", total=int(total.item()), restart_count=life, port=int(os.environ["MASTER_PORT"]))
if life < args.restarts:
    dist.barrier()
    dist.recv(total, src=1 - RANK)  # no rank sends
dist.destroy_process_group()
