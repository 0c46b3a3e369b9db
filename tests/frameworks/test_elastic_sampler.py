"""Lightning's Trainer with elastic-torch's sampler, as ``plugins/torch/README.md`` has it."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from rig import Rig

HERE = Path(__file__).parent
SCRIPT = HERE / "scripts" / "lightning_elastic.py"
FLAGS = ["--standalone", "--nproc_per_node=2", "--max_restarts=1", "--no_warm_start"]
SAMPLES, STEPS, EPOCHS, KILL_AFTER, SAVE_EVERY = 128, 16, 3, 14, 3


@pytest.mark.parametrize("form", ["batches", "samples"])
def test_after_a_kill_every_epoch_has_all_its_steps(rig: Rig, tmp_path: Path, form: str) -> None:
    environment = {"PYTHONPATH": str(HERE), "WAIT_AFTER_STEP": str(KILL_AFTER)}
    agent = rig.run(*FLAGS, SCRIPT, f"--output_dir={tmp_path}", f"--form={form}", env=environment)
    (waiting,) = agent.wait_for_report("waiting", rank=1)
    os.kill(waiting["pid"], signal.SIGKILL)
    assert agent.exit_code() == 0, agent.output
    last = KILL_AFTER // SAVE_EVERY * SAVE_EVERY
    assert [r["step"] for r in agent.reports("began", rank=0)] == [0, last]
    assert {r["step"] for r in agent.reports("trained")} == {EPOCHS * STEPS}
    steps = {(r.rank, r["step"]): (r["epoch"], r["samples"]) for r in agent.reports("samples")}
    for epoch in range(EPOCHS):
        used = Counter(sample for of, samples in steps.values() if of == epoch for sample in samples)
        assert used == Counter(range(SAMPLES))


@pytest.mark.parametrize("form", ["batches", "samples"])
def test_lightnings_own_distributed_sampler_is_refused_before_the_first_batch(
    rig: Rig, tmp_path: Path, form: str
) -> None:
    environment = {"PYTHONPATH": str(HERE), "WAIT_AFTER_STEP": "0"}
    job = [SCRIPT, f"--output_dir={tmp_path}", f"--form={form}", "--use_distributed_sampler"]
    agent = rig.run(*FLAGS[:2], "--max_restarts=0", "--no_warm_start", *job, env=environment)
    assert agent.exit_code() == 1, agent.output
    agent.wait_for("use_distributed_sampler=False")
    assert not agent.reports("samples")
