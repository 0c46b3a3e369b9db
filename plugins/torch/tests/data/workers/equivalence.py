"""Train a small regression with DDP on gloo, with a number of ranks that changes, and print what it came to as JSON.

``equivalence.py WORLD_SIZE:STEPS...``: so many ranks train so many steps, then the next ones go on from their state.
The ranks are forked from here, which has imported torch once and has no threads.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from elastic_torch import ElasticDistributedSampler

LENGTH, BATCH, EPOCHS = 61, 12, 2  # the tail is one sample, so two of three ranks have none


def train(state: dict[str, Any], steps: int, audit: str) -> list[float]:
    """Some steps as one rank of the group; the loss of each, over all samples in it. Changes ``state``."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    data = TensorDataset(torch.randn(LENGTH, 4).double(), torch.randn(LENGTH, 1).double())
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sampler = ElasticDistributedSampler(data, seed=5, global_batch_size=BATCH, audit_log=audit)
    if state:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        sampler.load_state_dict(state["sampler"])
    loader = DataLoader(data, batch_sampler=sampler.batches())
    losses: list[float] = []
    for epoch in range(sampler.epoch, EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in islice(loader, steps - len(losses)):
            loss = nn.functional.mse_loss(parallel(x), y) * sampler.loss_weight()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sampler.advance()
            mean = loss.detach()
            dist.all_reduce(mean)
            losses.append(mean.item() / dist.get_world_size())
        if len(losses) == steps:
            break
    state.update(model=model.state_dict(), optimizer=optimizer.state_dict(), sampler=sampler.state_dict())
    return losses


def rank_of(rank: int, world_size: int, round: int, steps: int, room: Path) -> None:
    """One rank's life; rank 0 leaves the state and the losses in ``room``."""
    os.environ["ELASTIC_ROUND"] = str(round)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{room}/meet{round}", rank=rank, world_size=world_size)
    saved = room / "state.pt"
    state: dict[str, Any] = torch.load(saved) if round else {}
    losses = train(state, steps, str(room / "audit_{rank}.jsonl"))
    dist.barrier()
    if rank == 0:
        torch.save(state, saved)
        with (room / "losses.jsonl").open("a") as file:
            file.write(json.dumps(losses) + "\n")
    dist.destroy_process_group()


def main() -> int:
    """Play the rounds one after the other."""
    room = Path(tempfile.mkdtemp(dir=sys.argv[1]))
    for number, words in enumerate(sys.argv[2:]):
        world_size, steps = map(int, words.split(":"))
        children = []
        for rank in range(world_size):
            if (pid := os.fork()) == 0:
                code = 1
                try:
                    rank_of(rank, world_size, number, steps, room)
                    code = 0
                except BaseException:
                    import traceback

                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(code)
            children.append(pid)
        if any(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children):
            return 1
    losses = [loss for line in (room / "losses.jsonl").read_text().splitlines() for loss in json.loads(line)]
    weights = torch.cat([weight.ravel() for weight in torch.load(room / "state.pt")["model"].values()])
    logs = sorted(map(str, room.glob("audit_*.jsonl")))
    print(json.dumps({"losses": losses, "weights": weights.tolist(), "logs": logs}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
