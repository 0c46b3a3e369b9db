"""Train a small CNN on scanned digits, with as many workers as there are at the moment.

Nothing in here knows of Elastic: the script runs unchanged under torchrun. It survives because it does what every such
script should: rank 0 saves a checkpoint after each epoch, and whoever is started goes on from the newest one.
"""

from __future__ import annotations

import argparse
import os
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def digits() -> tuple[Tensor, Tensor]:
    """scikit-learn's 1,797 images (N, 1, 8, 8), from 0 to 1, and what they show (N); to import it costs a second."""
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = torch.from_numpy(np.loadtxt(str(file), delimiter=",", dtype=np.float32))
    return table[:, :-1].reshape(-1, 1, 8, 8) / 16, table[:, -1].long()


def cnn() -> nn.Sequential:
    """Two convolutions and two linear layers, about 38,000 parameters."""
    convolutions = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()]
    head = [nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)]
    return nn.Sequential(*convolutions, *head)


def save(path: Path, state: dict[str, object]) -> None:
    """Write beside, then rename: wherever this is cut short, the last whole checkpoint is still there."""
    beside = path.with_name(path.name + ".new")
    with beside.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def train(args: argparse.Namespace) -> None:
    """Train, from the checkpoint if there is one, and measure the accuracy."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(cnn())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    first = 1
    if args.checkpoint.exists():
        state = torch.load(args.checkpoint)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first += state["epoch"]

    images, labels = digits()
    test = torch.arange(len(images)) % 5 == 0
    training = TensorDataset(images[~test], labels[~test])
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(training)
    loader = DataLoader(training, batch_size=max(1, args.batch_size // world_size), sampler=sampler)
    for epoch in range(first, args.epochs + 1):
        torch.manual_seed(epoch * world_size + rank)
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()  # waits for every rank's gradients
            optimizer.step()
            if rank == 0 and epoch == first and step == 0:
                print(f"{world_size} workers train from epoch {epoch}", flush=True)
        if rank == 0:
            whole = {"epoch": epoch, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            save(args.checkpoint, whole)
            print(f"epoch {epoch}/{args.epochs}: loss {loss.item():.4f}, {world_size} workers", flush=True)
    if rank == 0:
        model.eval()
        with torch.no_grad():
            hits = model.module(images[test]).argmax(1) == labels[test]
        print(f"test accuracy {hits.float().mean().item():.4f} on {len(hits)} images", flush=True)


def main() -> None:
    """Join the others, train, and leave."""
    parser = argparse.ArgumentParser(description="Train a small CNN on scanned digits.")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64, help="of all workers together, however many they are")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--checkpoint", type=Path, default=Path("digits.pt"), help="on a disk that all nodes share")
    args = parser.parse_args()
    dist.init_process_group()
    train(args)
    dist.destroy_process_group()  # after the model is gone: torch can deadlock where DDP holds the group last


if __name__ == "__main__":
    main()
