"""Trains a perceptron with Lightning's Trainer under DDP, and resumes with ``ckpt_path="last"`` as its manual shows."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from watch import began, finished, step_ended


class Classifier(L.LightningModule):
    """Says of a point in the plane whether it is above the diagonal."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """The loss of one batch: points of shape (batch, 2), labels of shape (batch,)."""
        points, labels = batch
        loss = functional.cross_entropy(self.layers(points), labels)
        self.log("train_loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, as in most examples."""
        return torch.optim.Adam(self.parameters(), lr=0.02)


class Watch(L.Callback):
    """Tells where the training is."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Called when a checkpoint has been loaded."""
        began(trainer.global_step)

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        """Called once a step, before the checkpoint."""
        step_ended(trainer.global_step)


def main() -> None:
    """Train, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--max_steps", type=int, required=True)
    parser.add_argument("--save_steps", type=int, required=True)
    args = parser.parse_args()

    L.seed_everything(7)
    points = torch.randn(128, 2)
    labels = (points[:, 1] > points[:, 0]).long()
    loader = DataLoader(TensorDataset(points, labels), batch_size=8, shuffle=True)

    checkpoint = ModelCheckpoint(dirpath=args.output_dir, every_n_train_steps=args.save_steps, save_last=True)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=args.max_steps,
        callbacks=[checkpoint, Watch()],
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), loader, ckpt_path="last")
    if trainer.is_global_zero:
        loss = trainer.callback_metrics["train_loss"].item()
        (args.output_dir / "train_results.json").write_text(json.dumps({"train_loss": loss}))


if __name__ == "__main__":
    main()
    finished()
