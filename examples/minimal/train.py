"""A DDP training as it is written everywhere: it runs, and begins anew after each failure."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main(epochs: int) -> None:
    """Train, on all ranks."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(640, 16)
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    sampler: DistributedSampler[TensorDataset] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    step = 0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0 and dist.get_rank() == 0:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)
            step += 1
    if dist.get_rank() == 0:
        print(f"trained for {step} steps", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    main(parser.parse_args().epochs)
    dist.destroy_process_group()
