"""The same training, made elastic: it goes on at the step where it was, with as many workers as there are."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import elastic_core as elastic
from elastic_torch import ElasticDistributedSampler


def main(epochs: int) -> None:
    """Train, on all ranks."""
    elastic.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(640, 16)
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    sampler = ElasticDistributedSampler(dataset, global_batch_size=64)
    loader = DataLoader(dataset, batch_sampler=sampler.batches())
    state = elastic.TrainState(model=model, optimizer=optimizer, sampler=sampler)
    if state.restore() and dist.get_rank() == 0:
        print(f"goes on after step {state.step}", flush=True)
    for _ in state.epochs(epochs):
        for x, y in state.batches(loader):
            loss = nn.functional.mse_loss(model(x), y) * sampler.loss_weight()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if state.step % 50 == 0 and dist.get_rank() == 0:
                print(f"step {state.step}: loss {loss.item():.4f}", flush=True)
    if dist.get_rank() == 0:
        print(f"trained for {state.step} steps", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    main(parser.parse_args().epochs)
