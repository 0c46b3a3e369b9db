"""Train a small CNN on scanned digits, with as many workers as there are at the moment.

It survives because of three things: a sampler that counts in samples, a ``TrainState`` that keeps every step, and,
where ``--checkpoints`` names a directory, checkpoints that outlive the job. The same script runs under torchrun, which
keeps no state in memory: there it goes on from the newest checkpoint.
"""

from __future__ import annotations

import argparse
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import elastic_core as elastic
from elastic_torch import Disk, ElasticDistributedSampler


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


def train(args: argparse.Namespace) -> None:
    """Train, from where the last workers were, and measure the accuracy."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(cnn())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    images, labels = digits()
    test = torch.arange(len(images)) % 5 == 0
    training = TensorDataset(images[~test], labels[~test])
    sampler = ElasticDistributedSampler(training, global_batch_size=args.batch_size, audit_log=args.audit_log)
    loader = DataLoader(training, batch_sampler=sampler.batches())
    disk = Disk(args.checkpoints, interval=len(loader)) if args.checkpoints else None  # once an epoch

    state = elastic.TrainState(model=model, optimizer=optimizer, sampler=sampler, disk=disk)
    if state.restore() is None:
        torch.manual_seed(rank)  # from here on each rank drops out what it likes
    first = state.step
    for epoch in state.epochs(args.epochs):
        losses = []
        for x, y in state.batches(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y) * sampler.loss_weight()
            loss.backward()  # waits for every rank's gradients
            optimizer.step()
            losses.append(loss.item())
            if rank == 0 and state.step == first:
                print(f"{world_size} workers train from epoch {epoch + 1}, step {first + 1}", flush=True)
        if rank == 0 and losses and not state.stopping:
            print(f"epoch {epoch + 1}/{args.epochs}: loss {np.mean(losses):.4f}, {world_size} workers", flush=True)
    if state.stopping:
        return  # with exit code 0: the job goes on with other nodes
    if rank == 0:
        model.eval()
        with torch.no_grad():
            hits = model.module(images[test]).argmax(1) == labels[test]
        print(f"test accuracy {hits.float().mean().item():.4f} on {len(hits)} images", flush=True)


def main() -> None:
    """Join the others, and train."""
    parser = argparse.ArgumentParser(description="Train a small CNN on scanned digits.")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64, help="of all workers together, however many they are")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--checkpoints", type=Path, help="a directory; of each node, or on a disk that all share")
    parser.add_argument("--audit-log", type=Path, help="where rank 0 writes which samples each step has used")
    args = parser.parse_args()
    elastic.init_process_group("gloo")
    train(args)


if __name__ == "__main__":
    main()
