"""Uneven shares over real ranks on gloo: the updates are one process's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elastic_torch import ElasticDistributedSampler
from elastic_torch.data.audit_command import audit, lines, read

WORKER = Path(__file__).parent / "workers" / "equivalence.py"
LENGTH, BATCH, EPOCHS = 61, 12, 2


def one_process() -> tuple[list[float], list[float]]:
    """Return the result of training without a process group: losses of all steps, and weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    x, y = torch.randn(LENGTH, 4).double(), torch.randn(LENGTH, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for epoch in range(EPOCHS):
        sampler = ElasticDistributedSampler(range(LENGTH), 1, 0, seed=5, global_batch_size=BATCH)
        sampler.set_epoch(epoch)
        for batch in sampler.batches():
            loss = nn.functional.mse_loss(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, [number for weight in model.state_dict().values() for number in weight.ravel().tolist()]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "rounds",
    [
        ["1:99"],
        pytest.param(["2:99"], marks=pytest.mark.variant),
        pytest.param(["3:99"], marks=pytest.mark.variant),
        ["1:3", "3:4", "2:99"],
    ],
    ids="-".join,
)
def test_each_loss_and_the_weights_are_those_of_one_process(rounds: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(WORKER), str(tmp_path), *rounds], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    losses, weights = one_process()
    assert told["losses"] == pytest.approx(losses, rel=1e-9)
    assert told["weights"] == pytest.approx(weights, rel=1e-9, abs=1e-12)
    report = audit([read(Path(log))[0] for log in told["logs"]], finished=True)
    assert report.findings == ()
    assert lines(report)[-1] == "Proved: 0 skipped, 0 repeated, in 2 epochs."
