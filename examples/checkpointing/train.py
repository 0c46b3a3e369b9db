"""A training that is saved by whichever library the run names; nothing in here knows which."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import elastic_core as elastic


def main() -> None:
    """Train, on all ranks."""
    elastic.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(640, 16)
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    sampler: DistributedSampler[TensorDataset] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    state = elastic.TrainState(model=model, optimizer=optimizer, sampler=sampler)
    if state.restore() and dist.get_rank() == 0:
        print(f"{type(state).__module__} goes on after step {state.step}", flush=True)
    for _ in state.epochs(2):
        for x, y in state.batches(loader):
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if dist.get_rank() == 0:
        print(f"trained for {state.step} steps", flush=True)


if __name__ == "__main__":
    main()
