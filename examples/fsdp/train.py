"""Train a small transformer, sharded over all workers by FSDP2, on sentences that are made up as it goes.

What makes it survive are the four lines with ``state``. Parameters, gradients and what the optimizer keeps lie in parts
on the workers; each worker keeps its own part after every step, and another node has a replica of it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset

import elastic_core as elastic
from elastic_torch import Disk, ElasticDistributedSampler

WORDS = [["the", "a", "every"], ["cat", "dog", "bird", "child"], ["sees", "hears", "likes"], ["red", "old", "small"]]
GRAMMAR = [WORDS[0], WORDS[3], WORDS[1], WORDS[2], WORDS[0], WORDS[1]]
CHARACTERS = sorted({" ", ".", *"".join(word for words in WORDS for word in words)})
LENGTH = 48


class Sentences(Dataset[Tensor]):
    """Sentences of a small grammar, each the same on all ranks: tokens of shape (LENGTH + 1,)."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        generator = torch.Generator().manual_seed(index)
        text = ""
        while len(text) <= LENGTH:
            words = [some[int(torch.randint(len(some), (), generator=generator))] for some in GRAMMAR]
            text += " ".join(words) + ". "
        return torch.tensor([CHARACTERS.index(character) for character in text[: LENGTH + 1]])


class Block(nn.Module):
    """Attention to what came before, and two linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.linear = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Of shape (N, length, width), the same."""
        y = self.norms[0](x)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        x = x + self.attention(y, y, y, attn_mask=mask, is_causal=True, need_weights=False)[0]
        result: Tensor = x + self.linear(self.norms[1](x))
        return result


class Transformer(nn.Module):
    """Predicts characters: tokens (N, length + 1) to the mean loss over every one that has others before it."""

    def __init__(self, width: int = 32, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(len(CHARACTERS), width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.head = nn.Linear(width, len(CHARACTERS))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the loss of a batch."""
        x = self.tokens(tokens[:, :-1]) + self.places.weight[: tokens.shape[1] - 1]
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), tokens[:, 1:].flatten())


def sharded(model: Transformer, device: str) -> Transformer:
    """Return the model, laid out over all workers: block by block, and what is left as one."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


@elastic.record
def main() -> None:
    """Train, from wherever it was."""
    parser = argparse.ArgumentParser(description="Train a small transformer with FSDP2.")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--sentences", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=32, help="of all workers together, however many they are")
    parser.add_argument("--checkpoints", type=Path, help="a directory that outlives the job")
    args = parser.parse_args()

    elastic.init_process_group()  # nccl and a GPU of its own where there are any
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = sharded(Transformer().to(device), device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sampler = ElasticDistributedSampler(Sentences(args.sentences), global_batch_size=args.batch_size)
    loader = DataLoader(Sentences(args.sentences), batch_sampler=sampler.batches())

    disk = Disk(args.checkpoints) if args.checkpoints else None
    state = elastic.TrainState(model=model, optimizer=optimizer, sampler=sampler, disk=disk, replicate_every=10)
    restored = state.restore()
    if restored is not None:
        print(f"rank {os.environ['RANK']} goes on at step {state.step}, from {restored.tier.value}", flush=True)
    for epoch in state.epochs(args.epochs):
        for tokens in state.batches(loader):
            loss = model(tokens.to(device))
            (loss * state.loss_weight()).backward()
            optimizer.step()
            optimizer.zero_grad()
            if dist.get_rank() == 0:
                print(f"step {state.step + 1}, epoch {epoch}: loss {loss.item():.3f}", flush=True)
    if not state.stopping:  # else the job goes on with more or fewer nodes
        print(f"rank {os.environ['RANK']} is done after {state.step} steps", flush=True)


if __name__ == "__main__":
    main()
