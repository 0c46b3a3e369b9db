"""A small FSDP2 training that goes on where it was: dropout, momentum and a schedule, all of which show in the weights.

Reports where its state came from and a digest of all of it, and the same at the end. With ``--hold`` it stays in step
``--at``, every rank, until that file is there; with ``--replicated`` it goes beyond ``--at`` only when another node has
that step, too, where there is one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import torch
from report import report
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import elastic_core as elastic

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--at", type=int, default=0)
parser.add_argument("--hold", type=Path)
parser.add_argument("--replicated", action="store_true", help="wait in step --at until another node has it")
parser.add_argument("--then", type=int, help="hold in this step, and not in --at")
parser.add_argument("--endless", action="store_true", help="go on until --hold is there and one rank is left")
parser.add_argument("--replicate-every", type=int, default=1)
parser.add_argument("--mark", default="train", help="the name of the state")
args = parser.parse_args()


class Net(nn.Module):
    """Layers whose sizes no number of ranks divides, a buffer, and a parameter without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(7, 11), nn.Linear(11, 5)])
        self.norm = nn.BatchNorm1d(11)
        self.unused = nn.Parameter(torch.ones(3))
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of a batch (N, 7), (N, 5)."""
        hidden: torch.Tensor = self.drop(self.norm(self.layers[0](x)).relu())
        result: torch.Tensor = self.layers[1](hidden)
        return result


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Of all weights and of all that the optimizer has, put together from all ranks."""
    state = [model.state_dict()[name] for name in sorted(model.state_dict()) if not name.startswith("norm.")]
    kept = optimizer.state_dict()["state"]
    state += [kept[number][key] for number in sorted(kept) for key in sorted(kept[number])]
    total = hashlib.sha256()
    for tensor in state:
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        total.update(whole.detach().numpy().tobytes())
    return total.hexdigest()


def wait(until: Callable[[], bool]) -> None:
    """Wait for a condition without an event."""
    while not until():
        signal.sigtimedwait([], 0.02)


def over() -> bool:
    """Return True if no worker is to be held any more."""
    return bool(args.hold and args.hold.exists())


@elastic.record
def main() -> None:
    """Train."""
    elastic.init_process_group("gloo")
    rank, world, nodes = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE"))
    torch.manual_seed(3)
    model = Net()
    mesh = init_device_mesh("cpu", (world,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    torch.manual_seed(rank)
    state = elastic.TrainState(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        name=args.mark,
        replicate_every=args.replicate_every,
    )
    restored = state.restore()
    tier = restored.tier.value if restored else None
    whole = digest(model, optimizer)
    report("began", step=state.step, tier=tier, round=os.environ["ELASTIC_ROUND"], world=world, digest=whole)
    while state.step < args.steps and not state.stopping and not (args.endless and world == 1 and over()):
        if args.replicated and nodes > 1 and state.step == args.at:
            wait(lambda: state.replicated == args.at)
            report("replicated", step=state.step, digest=digest(model, optimizer))
        if state.step == (args.then or args.at) and not args.endless and args.hold:
            report("holding", step=state.step, world=world, digest=digest(model, optimizer))
            wait(over)
        elif args.endless:
            signal.sigtimedwait([], 0.02)
        loss = model(torch.randn(4, 7)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        state.commit()
        report("step", step=state.step, loss=loss.item())
    report("stopped" if state.stopping else "done", digest=digest(model, optimizer), step=state.step, world=world)


main()
