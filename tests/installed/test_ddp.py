"""elastic-core and elastic-rdzv-redis, as wheels, and torch."""

from __future__ import annotations

import textwrap
from importlib.metadata import distributions
from pathlib import Path

from rig import WARM, Rig

TRAIN = r"""
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(dist.get_rank()))
    losses = []
    for _ in range(100):
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 10
    os.write(1, f"trained by {dist.get_world_size()}\n".encode())  # whole, beside the other worker's
    dist.destroy_process_group()
"""


def test_a_model_is_trained_by_two_nodes(rig: Rig, meeting: list[str], tmp_path: Path) -> None:
    assert {each.name for each in distributions() if each.name.startswith("elastic")} == {
        "elastic-core",
        "elastic-rdzv-redis",
    }
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRAIN))
    agents = [rig.run(*meeting, "--nproc_per_node=2", script, env=WARM) for _ in range(2)]
    assert [agent.exit_code() for agent in agents] == [0, 0], agents[0].output
    assert [agent.lines.count("trained by 4") for agent in agents] == [2, 2]
