"""Trains a perceptron in a loop of its own with Accelerate, and resumes as its ``complete_nlp_example.py`` does."""

from __future__ import annotations

import argparse
import json
import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from watch import began, finished, step_ended


def main() -> None:
    """Train, from the newest checkpoint in the output directory if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--num_epochs", type=int, default=2)
    parser.add_argument("--checkpointing_steps", type=int, required=True)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(7)
    points = torch.randn(64, 2)
    labels = (points[:, 1] > points[:, 0]).long()
    model = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    train_dataloader = DataLoader(TensorDataset(points, labels), batch_size=8, shuffle=True)
    model, optimizer, train_dataloader = accelerator.prepare(model, optimizer, train_dataloader)

    overall_step = 0
    os.makedirs(args.output_dir, exist_ok=True)
    saved = [folder for folder in os.scandir(args.output_dir) if folder.is_dir()]
    if saved:
        newest = max(saved, key=lambda folder: folder.stat().st_ctime)
        accelerator.load_state(newest.path)
        overall_step = int(newest.name.removeprefix("step_"))
    starting_epoch, resume_step = divmod(overall_step, len(train_dataloader))
    began(overall_step)

    for epoch in range(starting_epoch, args.num_epochs):
        model.train()
        skipped = resume_step if epoch == starting_epoch else 0
        for batch, targets in accelerator.skip_first_batches(train_dataloader, skipped):
            loss = functional.cross_entropy(model(batch), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            overall_step += 1
            if overall_step % args.checkpointing_steps == 0:
                accelerator.save_state(os.path.join(args.output_dir, f"step_{overall_step}"))
            step_ended(overall_step)

    total_loss = accelerator.gather(loss.detach()).mean().item()
    if accelerator.is_main_process:
        with open(os.path.join(args.output_dir, "train_results.json"), "w") as file:
            json.dump({"train_loss": total_loss}, file)
    accelerator.end_training()


if __name__ == "__main__":
    main()
    finished()
