"""A training whose loader knows how far it is, and whose ranks have something of their own.

Reports the samples of each step. ``--loader`` says what the loader is and where ``TrainState`` is given it; in the
steps ``--at`` every rank is held until the file ``--hold`` with the step's number is there.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import elastic_core as elastic
import elastic_torch

SAMPLES, BATCH = 480, 12
parser = argparse.ArgumentParser()
parser.add_argument(
    "--loader", choices=["per_rank", "extra", "sampler", "iterable", "stream", "plain"], default="per_rank"
)
parser.add_argument("--loaders", type=int, default=0, help="workers of the loader")
parser.add_argument("--lossy", action="store_true")
parser.add_argument("--differ", action="store_true", help="what is declared to be the same differs")
parser.add_argument("--differ_after", type=int, default=0, help="it differs after so many steps")
parser.add_argument("--disk", type=Path)
parser.add_argument("--at", type=int, nargs="*", default=[])
parser.add_argument("--hold", type=Path)
args = parser.parse_args()


class Numbers(Dataset[torch.Tensor]):
    """Each sample is its own number."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)])


class Stream(IterableDataset[torch.Tensor]):
    """The same, of which each rank reads every n-th."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(dist.get_rank(), SAMPLES, dist.get_world_size()):
            yield torch.tensor([float(index)])


class StatefulStream(Stream):
    """One that knows how far it is."""

    def __init__(self) -> None:
        self._at: int | None = None

    def __iter__(self) -> Iterator[torch.Tensor]:
        begin = dist.get_rank() if self._at is None else self._at
        for index in range(begin, SAMPLES, dist.get_world_size()):
            self._at = index + dist.get_world_size()
            yield torch.tensor([float(index)])
        self._at = None

    def state_dict(self) -> dict[str, int | None]:
        """The next sample."""
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, int | None]) -> None:
        """Go on there."""
        self._at = state["at"]


class Own:
    """Something that each rank has of its own."""

    def __init__(self, value: int) -> None:
        self.value = value

    def state_dict(self) -> dict[str, int]:
        """Its value."""
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Become that."""
        self.value = state["value"]

    def load_rank_states(self, states: list[dict[str, int]], rank: int, ranks: int) -> None:
        """Of those of another number of ranks."""
        self.value = 1000 * ranks + sum(state["value"] for state in states)


def make_loader() -> tuple[DataLoader[torch.Tensor], DistributedSampler[torch.Tensor] | None]:
    """The loader, and the sampler that it draws with, if it is one with an order for each epoch."""
    if args.loader == "iterable":
        return StatefulDataLoader(Stream(), batch_size=BATCH), None
    if args.loader == "stream":
        return StatefulDataLoader(StatefulStream(), batch_size=BATCH), None
    if args.loader == "plain":
        return DataLoader(Stream(), batch_size=BATCH), None
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(Numbers())
    return StatefulDataLoader(Numbers(), BATCH, sampler=sampler, num_workers=args.loaders), sampler


@elastic.record
def main() -> None:
    """Train."""
    elastic.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    loader, sampler = make_loader()
    own = Own(100 * rank)
    given: dict[str, Any] = {"per_rank": {"own": own}}
    if args.loader in ("per_rank", "iterable", "stream"):
        given["per_rank"]["loader"] = loader
    elif args.loader == "extra":
        given["extra"] = {"loader": loader}
    elif args.loader == "sampler":
        given["sampler"] = loader
    mine = Own(rank if args.differ else 0)
    if args.differ or args.differ_after:
        given["extra"] = {"mine": mine}
    disk = None if args.disk is None else elastic_torch.Disk(args.disk, interval=1000)
    state = elastic.TrainState(model=model, optimizer=optimizer, disk=disk, exact_samples=not args.lossy, **given)
    restored = state.restore()
    tier = restored.tier.value if restored else None
    report("began", step=state.step, tier=tier, own=own.value, round=os.environ["ELASTIC_ROUND"], world_size=ranks)
    for epoch in state.epochs(2):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for x in state.batches(loader):
            if state.step in args.at and not Path(f"{args.hold}-{state.step}").exists():
                report("holding", step=state.step, world_size=ranks)
                while not Path(f"{args.hold}-{state.step}").exists():
                    time.sleep(0.02)
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            own.value += 1
            if state.step + 1 == args.differ_after:
                mine.value = rank
            report("step", step=state.step + 1, epoch=epoch, world_size=ranks, samples=[int(n) for n in x[:, 0]])
    report("stopped" if state.stopping else "done", step=state.step, world_size=ranks)


main()
