"""A training with Accelerate or Fabric that draws with the elastic sampler, and reports the samples of each step.

``--prepare`` gives the loader to the framework as its documentation has it; without it, as ours has it. ``--by_hand``
is a loop without a ``TrainState``. In the step ``--at`` every rank is held until the file ``--hold`` is there.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from report import report
from torch.utils.data import DataLoader, TensorDataset

import elastic_core as elastic
from elastic_torch import ElasticDistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--framework", choices=["accelerate", "fabric"], required=True)
parser.add_argument("--form", choices=["batches", "samples"], default="batches")
parser.add_argument("--prepare", action="store_true")
parser.add_argument("--by_hand", action="store_true")
parser.add_argument("--at", type=int)
parser.add_argument("--hold", type=Path)
args = parser.parse_args()


def made(model: torch.nn.Module, optimizer: Any, loader: Any) -> tuple[Any, Any, Any, Any]:
    """Return model, optimizer and loader as the framework makes them, and its function for the backward pass."""
    if args.framework == "accelerate":
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        model, optimizer = accelerator.prepare(model, optimizer)
        return model, optimizer, accelerator.prepare(loader) if args.prepare else loader, accelerator.backward
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=2)
    fabric.launch()
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(loader, use_distributed_sampler=args.prepare)
    return model, optimizer, loader, fabric.backward


@elastic.record
def main() -> None:
    """Train."""
    data = TensorDataset(torch.arange(128.0)[:, None])
    sampler = ElasticDistributedSampler(data, global_batch_size=8)
    how: dict[str, Any] = {"batch_sampler": sampler.batches()}
    if args.form == "samples":
        how = {"sampler": sampler, "batch_size": sampler.batch_size}
    model: Any = torch.nn.Linear(1, 1)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-6)
    model, optimizer, loader, backward = made(model, optimizer, DataLoader(data, **how))
    state = elastic.TrainState(model=model, optimizer=optimizer, sampler=sampler)
    state.restore()
    report("began", step=state.step, epoch=state.epoch)
    for epoch in range(2) if args.by_hand else state.epochs(2):
        sampler.set_epoch(epoch)
        for (x,) in loader if args.by_hand else state.batches(loader):
            backward(model(x).square().mean() * sampler.loss_weight())
            optimizer.step()
            optimizer.zero_grad()
            report("step", step=sampler.step + 1, epoch=epoch, samples=[int(n) for n in x[:, 0]])
            if args.by_hand:
                sampler.advance()
            while sampler.step + 1 == args.at and not args.hold.exists():
                report("holding", step=sampler.step + 1)
                time.sleep(0.1)
    report("done", step=sampler.step)


main()
