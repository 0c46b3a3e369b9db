"""Trains with Lightning's Trainer and elastic-torch's sampler, whose state is in Lightning's checkpoints."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset
from watch import _report, began, finished, step_ended

from elastic_torch import ElasticDistributedSampler

DATA = TensorDataset(torch.arange(128.0)[:, None])


class Line(L.LightningModule):
    """A line, and which samples it has seen."""

    def __init__(self, sampler: ElasticDistributedSampler) -> None:
        super().__init__()
        self.line, self.sampler = torch.nn.Linear(1, 1), sampler

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """The loss of one batch, of shape (batch, 1)."""
        _report("samples", epoch=self.current_epoch, step=self.sampler.step, samples=batch[0].flatten().int().tolist())
        loss: torch.Tensor = self.line(batch[0]).square().mean()
        return loss * self.sampler.loss_weight()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Gradient descent."""
        return torch.optim.SGD(self.parameters(), lr=1e-6)


class Position(L.Callback):
    """Commits the sampler's steps, and keeps its position in Lightning's checkpoints."""

    def __init__(self, sampler: ElasticDistributedSampler) -> None:
        self.sampler = sampler

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Called when a checkpoint has been loaded."""
        began(trainer.global_step)

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        """Called after each step, before the checkpoint."""
        self.sampler.advance()
        step_ended(trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        """The position."""
        return self.sampler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on there."""
        self.sampler.load_state_dict(state_dict)


def main() -> None:
    """Train, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--save_steps", type=int, default=3)
    parser.add_argument("--use_distributed_sampler", action="store_true")
    parser.add_argument("--form", choices=["batches", "samples"], default="batches")
    args = parser.parse_args()

    sampler = ElasticDistributedSampler(DATA, global_batch_size=8)
    how: dict[str, Any] = {"batch_sampler": sampler.batches()}
    if args.form == "samples":
        how = {"sampler": sampler, "batch_size": sampler.batch_size}
    checkpoint = ModelCheckpoint(dirpath=args.output_dir, every_n_train_steps=args.save_steps, save_last=True)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=3,
        callbacks=[Position(sampler), checkpoint],
        logger=False,
        enable_progress_bar=False,
        use_distributed_sampler=args.use_distributed_sampler,
    )
    trainer.fit(Line(sampler), DataLoader(DATA, **how), ckpt_path="last")
    _report("trained", step=trainer.global_step)


if __name__ == "__main__":
    main()
    finished()
