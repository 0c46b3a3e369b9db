"""A small DDP training that goes on where it was: dropout, momentum and a schedule, all of which show in the weights.

Reports where its state came from, each step, and at the end a digest of the weights. With ``--hold`` it stays in step
``--at``, every rank, until that file is there.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
from pathlib import Path

import torch
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import elastic_core as elastic

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--samples", type=int, default=64)
parser.add_argument("--at", type=int, default=0)
parser.add_argument("--hold", type=Path)
parser.add_argument("--fail", type=int, help="the step at which rank 1 raises, in every round")
parser.add_argument("--mark", default="train", help="the name of the state")
args = parser.parse_args()


@elastic.record
def main() -> None:
    """Train."""
    elastic.init_process_group("gloo")
    torch.manual_seed(int(os.environ["RANK"]))
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(args.samples, 16, generator=generator)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    sampler: DistributedSampler[object] = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    state = elastic.TrainState(model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler, name=args.mark)
    restored = state.restore()
    report("began", step=state.step, tier=restored.tier.value if restored else None, round=os.environ["ELASTIC_ROUND"])
    for epoch in state.epochs(args.epochs):
        for x, y in state.batches(loader):
            noisy = x + 0.1 * torch.randn_like(x)
            loss = nn.functional.mse_loss(model(noisy), y)
            optimizer.zero_grad()
            loss.backward()
            if args.hold and not args.hold.exists() and state.step == args.at:
                report("holding", step=state.step)
                while not args.hold.exists():
                    signal.sigtimedwait([], 0.05)
            if state.step == args.fail and os.environ["RANK"] == "1":
                raise ValueError("no such layer")
            optimizer.step()
            scheduler.step()
            report("step", step=state.step + 1, epoch=epoch, loss=loss.item())
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    report("done", digest=digest.hexdigest(), step=state.step)


main()
