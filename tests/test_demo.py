"""The first example of the README."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from rig import EXAMPLES, WARM, Rig

TRAIN = EXAMPLES / "digits" / "train.py"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "backend", ["c10d", *(pytest.param(name, marks=pytest.mark.variant) for name in ("etcd", "file", "redis"))]
)
def test_the_demo_trains_through_kills_and_a_return(rig: Rig, backend: str) -> None:
    command = [sys.executable, str(EXAMPLES / "digits" / "demo.py"), f"--rdzv_backend={backend}"]
    env = {**WARM, "PET_MAX_RESTARTS": "3", "PET_PRELOAD": "torch._dynamo"}  # which else each worker imports
    demo = rig.start(command, env=env)
    assert demo.exit_code(240) == 0, demo.output
    table = demo.output[demo.output.index("what happened") :]
    assert [line.split()[-1] for line in table.splitlines() if "->" in line]
    if backend in ("etcd", "redis"):
        assert re.search(r"the leader killed +4 -> 4 +never stopped", table)
    assert "4 -> 2" in table
    assert "2 -> 4" in table
    assert "Proved: 0 skipped, 0 repeated, in 80 epochs." in table
    assert "test accuracy 9" in table


@pytest.mark.variant
def test_the_script_runs_unchanged_under_torchrun(rig: Rig, tmp_path: Path) -> None:
    checkpoints = f"--checkpoints={tmp_path / 'checkpoints'}"
    for epochs in (1, 2):
        # Restarts, since gloo's threads abort a worker that has finished now and then (pytorch/pytorch 179291).
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max_restarts=2"]
        run = rig.start([*launcher, "--nproc_per_node=2", str(TRAIN), f"--epochs={epochs}", checkpoints])
        assert run.exit_code() == 0, run.output
        assert run.wait_for(f"^2 workers train from epoch {epochs}, "), "it goes on from its checkpoint"
