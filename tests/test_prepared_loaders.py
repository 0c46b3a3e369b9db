"""Accelerate and Fabric with the elastic sampler: what they would shard once more is refused; what our pages say works.

Lightning's Trainer is in ``tests/frameworks``.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from rig import WARM, WORKERS, Rig

TRAIN = WORKERS / "prepared.py"
TWO = ["--standalone", "--nproc_per_node=2"]
SAMPLES, STEPS = 128, 16
HINTS = {"accelerate": r"Leave the loader out of accelerator\.prepare", "fabric": "use_distributed_sampler=False"}


@pytest.mark.everyday("state-accelerate-batches", "by hand-accelerate-samples", "state-fabric-samples")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("form", ["batches", "samples"])
@pytest.mark.parametrize("framework", ["accelerate", "fabric"])
@pytest.mark.parametrize("loop", [[], ["--by_hand"]], ids=["state", "by hand"])
def test_a_loader_that_the_framework_prepares_is_refused_before_its_first_batch(
    rig: Rig, loop: list[str], framework: str, form: str
) -> None:
    job = [TRAIN, f"--framework={framework}", f"--form={form}", "--prepare", *loop]
    agent = rig.run(*TWO, "--max_restarts=0", *job, env=WARM)
    assert agent.exit_code() == 1, agent.output
    agent.wait_for(HINTS[framework])
    assert not agent.reports("step")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("framework", ["accelerate", "fabric"])
def test_as_our_pages_have_it_each_sample_is_used_once_though_a_worker_is_killed(
    rig: Rig, tmp_path: Path, framework: str
) -> None:
    hold, at = tmp_path / "hold", STEPS + 5
    job = [TRAIN, f"--framework={framework}", f"--at={at}", "--hold", hold]
    agent = rig.run(*TWO, "--max_restarts=1", *job, env=WARM)
    agent.wait_for_report("holding", count=2, step=at)
    agent.kill_worker(1)
    hold.touch()
    assert agent.exit_code() == 0, agent.output
    assert [(r["step"], r["epoch"]) for r in agent.reports("began", rank=0)] == [(0, 0), (at - 1, 1)]
    assert {r["step"] for r in agent.reports("done")} == {2 * STEPS}
    steps = {(r.rank, r["step"]): (r["epoch"], r["samples"]) for r in agent.reports("step")}
    for epoch in range(2):
        used = Counter(sample for of, samples in steps.values() if of == epoch for sample in samples)
        assert used == Counter(range(SAMPLES))
