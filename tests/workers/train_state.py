"""A small DDP training that goes on where it was: dropout, momentum and a schedule, all of which show in the weights.

Reports where its state came from, each step, and at the end a digest of the weights. With ``--hold`` it stays in the
steps ``--at``, every rank, until the file of that name and the step's number is there, and takes ``--pace`` seconds
more for each step as long as some of these files are not; and behind the last batch of the epoch ``--after``. With
``--late`` rank 1 stays in its first commit until there is a file of that name. ``--global_batch`` makes the sampler
elastic; with ``--plain`` nothing is random but the order of samples, and each step's loss is that of all ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import elastic_core as elastic
import elastic_torch
from elastic_core.errors import ElasticError

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--samples", type=int, default=64)
parser.add_argument("--global_batch", type=int)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--loaders", type=int, default=0, help="workers of the loader")
parser.add_argument("--audit", type=Path)
parser.add_argument("--disk", type=Path)
parser.add_argument("--interval", type=int, default=2, help="steps between two checkpoints on disk")
parser.add_argument("--plain", action="store_true")
parser.add_argument("--deep", action="store_true", help="a model of several layers, made in another order than used")
parser.add_argument("--pace", type=float, default=0.0)
parser.add_argument("--at", type=int, nargs="*", default=[])
parser.add_argument("--hold", type=Path)
parser.add_argument("--late", action="store_true")
parser.add_argument("--after", type=int, help="the epoch after whose last batch it is held")
parser.add_argument("--fail", type=int, help="the step at which rank 1 raises, in every round")
parser.add_argument("--end", type=int, help="the step after which the script just ends")
parser.add_argument("--mark", default="train", help="the name of the state")
args = parser.parse_args()


def barred(step: int) -> bool:
    """Return True if it is to be held in a step."""
    return step in args.at and not Path(f"{args.hold}-{step}").exists()


def stay(step: int, ranks: int, disk: elastic_torch.Disk | None) -> None:
    """Be held where that is asked for, and be slow before."""
    if barred(step):
        if disk is not None:
            with contextlib.suppress(ElasticError):  # a full disk is no reason to end
                disk.wait()
        report("holding", step=step, world_size=ranks)
    while barred(step):
        time.sleep(0.02)
    if any(barred(other) for other in args.at):
        time.sleep(args.pace)


class Late:
    """A part of the state that rank 1 is late to give when it keeps its first step."""

    def state_dict(self) -> dict[str, bool]:
        """Return it, or wait."""
        if os.environ["RANK"] == "1" and not Path(f"{args.hold}-late").exists():
            report("late")
            while not Path(f"{args.hold}-late").exists():
                time.sleep(0.02)
        return {"late": True}

    def load_state_dict(self, state_dict: dict[str, bool]) -> None:
        """There is nothing to set."""


class Deep(nn.Module):
    """A model whose gradients become ready in another order than that in which its parameters were made."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(32, 1)
        self.norm = nn.BatchNorm1d(32)
        self.middle = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.dropout = nn.Dropout(0.2)
        self.first = nn.Linear(16, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From (batch, 16) to (batch, 1)."""
        x = self.norm(self.first(x)).relu()
        for layer in self.middle:
            x = self.dropout(layer(x).relu())
        out: torch.Tensor = self.last(x)
        return out


def make_loader(data: TensorDataset) -> tuple[DataLoader[tuple[torch.Tensor, ...]], object]:
    """The loader, and what it draws with."""
    if args.global_batch is None:
        torchs: DistributedSampler[object] = DistributedSampler(data, shuffle=True)
        return DataLoader(data, batch_size=4, sampler=torchs), torchs
    sampler = elastic_torch.ElasticDistributedSampler(data, global_batch_size=args.global_batch, audit_log=args.audit)
    return DataLoader(data, batch_sampler=sampler.batches(), num_workers=args.loaders), sampler


@elastic.record
def main() -> None:
    """Train."""
    elastic.init_process_group("gloo")
    if args.plain:
        torch.set_default_dtype(torch.float64)
    ranks, rank, round_ = dist.get_world_size(), dist.get_rank(), os.environ["ELASTIC_ROUND"]
    torch.manual_seed(0 if args.plain else rank)
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(args.samples, 16, generator=generator)
    loader, sampler = make_loader(TensorDataset(inputs, inputs.sum(1, keepdim=True).sin()))
    dropout = nn.Dropout(0.0 if args.plain else 0.2)
    small = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), dropout, nn.Linear(32, 1))
    model = DistributedDataParallel(Deep() if args.deep else small, bucket_cap_mb=0.005 if args.deep else None)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [10, 20, 30])
    disk = None if args.disk is None else elastic_torch.Disk(args.disk, interval=args.interval)
    state = elastic.TrainState(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        sampler=sampler,
        disk=disk,
        name=args.mark,
        extra={"late": Late()} if args.late else {},
        compare_ranks=not args.late,  # it asks for the state, too
    )
    restored = state.restore()
    tier = restored.tier.value if restored else None
    numbers = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()[:8]
    report("began", step=state.step, tier=tier, round=round_, world_size=ranks, numbers=numbers)

    for epoch in state.epochs(args.epochs):
        total = torch.zeros(())
        for x, y in state.batches(loader, accumulate=args.accumulate):
            if state.step == args.end:
                return
            stay(state.step, ranks, disk)
            with contextlib.nullcontext() if state.sync_gradients else model.no_sync():
                noisy = x if args.plain else x + 0.1 * torch.randn_like(x)
                loss = nn.functional.mse_loss(model(noisy), y) * state.loss_weight()
                loss.backward()
            total += loss.detach()
            if state.step == args.fail and rank == 1:
                raise ValueError("no such layer")
            if state.sync_gradients:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                if args.plain:
                    dist.all_reduce(total)
                report("step", step=state.step + 1, epoch=epoch, world_size=ranks, loss=total.item() / ranks)
                total.zero_()
        if epoch == args.after:
            report("after", step=state.step, loss=loss.item())
            while not Path(f"{args.hold}-after").exists():
                time.sleep(0.02)
    if state.stopping:
        report("stopped", step=state.step, world_size=ranks)
        return
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    report("done", digest=digest.hexdigest(), step=state.step)


main()
