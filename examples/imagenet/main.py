"""Train a ResNet on folders of images, as the ImageNet scripts do that are widely known, and survive.

This is the explicit way: a loop of one's own, and ``load_checkpoint`` and ``save_checkpoint`` of one's own. What makes
it elastic is that the sampler's position is part of the checkpoint, and that the loop asks after each step whether to
stop. A failure costs the steps since the last checkpoint; a node that joins, or leaves in time, costs none.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from images import ImageFolder
from resnet import ARCHITECTURES
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset

import elastic_core as elastic
from elastic_torch import ElasticDistributedSampler, should_checkpoint

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Training:
    """All that a checkpoint holds.

    Args:
        args: What was typed.
        dataset: What to train on.
    """

    def __init__(self, args: argparse.Namespace, dataset: ImageFolder) -> None:
        torch.manual_seed(0)
        self.model = ARCHITECTURES[args.arch](len(dataset.classes)).to(DEVICE)
        # The batch is the same for any number of workers, and so is the learning rate.
        self.optimizer = torch.optim.SGD(self.model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, args.epochs)
        self.sampler = ElasticDistributedSampler(dataset, global_batch_size=args.batch_size)
        self.best = 0.0
        """The best accuracy so far."""


def save_checkpoint(training: Training, path: Path) -> None:
    """Rank 0 writes beside, then renames: wherever that is cut short, the last whole checkpoint is still there."""
    if dist.get_rank() != 0:
        return
    state = {
        "model": training.model.state_dict(),
        "optimizer": training.optimizer.state_dict(),
        "scheduler": training.scheduler.state_dict(),
        "sampler": training.sampler.state_dict(),
        "best": training.best,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.new")
    with beside.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def load_checkpoint(training: Training, path: Path) -> bool:
    """Go on from the checkpoint, on all ranks; whether there is one."""
    if not path.exists():
        return False
    state = torch.load(path, map_location=DEVICE)
    training.model.load_state_dict(state["model"])
    training.optimizer.load_state_dict(state["optimizer"])
    training.scheduler.load_state_dict(state["scheduler"])
    training.sampler.load_state_dict(state["sampler"])
    training.best = state["best"]
    return True


def train(args: argparse.Namespace) -> None:
    """Train to the last epoch, or until all ranks are to stop."""
    dataset = ImageFolder(args.data / "train", args.image_size, augment=True)
    validation = ImageFolder(args.data / "val", args.image_size)
    training = Training(args, dataset)
    sampler = training.sampler
    resumed = load_checkpoint(training, args.checkpoint)
    if dist.get_rank() == 0:
        step = f"goes on after step {sampler.step}" if resumed else "begins"
        print(f"{dist.get_world_size()} workers: {args.arch} {step}", flush=True)
    model = DistributedDataParallel(training.model, device_ids=[DEVICE] if DEVICE.type == "cuda" else None)
    loader = DataLoader(
        dataset, batch_sampler=sampler.batches(), num_workers=args.workers, pin_memory=DEVICE.type == "cuda"
    )
    for epoch in range(sampler.epoch, args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for images, labels in loader:
            outputs = model(images.to(DEVICE, non_blocking=True))
            loss = nn.functional.cross_entropy(outputs, labels.to(DEVICE)) * sampler.loss_weight()
            training.optimizer.zero_grad()
            loss.backward()
            training.optimizer.step()
            sampler.advance()  # from here on this step is done, and a checkpoint says so
            if stop := should_checkpoint(sampler.step):
                print(f"rank {dist.get_rank()} stops after step {sampler.step}\n", end="", flush=True)
            if stop or sampler.step % args.save_every == 0:
                save_checkpoint(training, args.checkpoint)
            if stop:
                return  # with exit code 0: the job goes on with other nodes
        training.scheduler.step()
        accuracy = validate(model, validation, args)
        better, training.best = accuracy > training.best, max(accuracy, training.best)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}/{args.epochs}: accuracy {accuracy:.4f} after step {sampler.step}", flush=True)
        sampler.set_epoch(epoch + 1)
        save_checkpoint(training, args.checkpoint)
        if better:
            save_checkpoint(training, args.checkpoint.with_stem("best"))


@torch.no_grad()
def validate(model: nn.Module, dataset: ImageFolder, args: argparse.Namespace) -> float:
    """Return the share of images whose label comes first; each rank looks at its part of them."""
    model.eval()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = Subset(dataset, range(rank, len(dataset), ranks))
    hits = torch.zeros((), device=DEVICE)
    for images, labels in DataLoader(mine, batch_size=max(1, args.batch_size // ranks), num_workers=args.workers):
        guesses: Tensor = model(images.to(DEVICE)).argmax(1)
        hits += (guesses == labels.to(DEVICE)).sum()
    dist.all_reduce(hits)
    return hits.item() / len(dataset)


@elastic.record
def main() -> None:
    """Join the others, and train."""
    parser = argparse.ArgumentParser(description="Train a ResNet on DATA/train, and validate it on DATA/val.")
    parser.add_argument("data", type=Path, help="a folder with train/CLASS/IMAGE and val/CLASS/IMAGE")
    parser.add_argument("--arch", choices=sorted(ARCHITECTURES), default="resnet50")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=256, help="of all workers together, however many they are")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--image-size", type=int, default=224, help="pixels")
    parser.add_argument("--workers", type=int, default=4, help="processes that each rank loads images with")
    parser.add_argument("--save-every", type=int, default=500, help="steps between two checkpoints")
    parser.add_argument(
        "--checkpoint", type=Path, default=Path("checkpoints/newest.pt"), help="on a disk that all share"
    )
    args = parser.parse_args()
    elastic.init_process_group()
    train(args)


if __name__ == "__main__":
    main()
