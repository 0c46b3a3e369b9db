"""Scripts as the frameworks' own documentation has them survive a kill, whether their workers start fresh or warm.

They need packages that nothing else here does: ``make tox ARGS="-e frameworks"`` installs them and runs these tests.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
from rig import WARM, Rig, over

HERE = Path(__file__).parent
SAVE_EVERY = 3
KILL_AFTER = 5
"""The step after which rank 1 is killed: between two checkpoints, so that none is torn and some steps are lost."""
STEPS = 8
MANY = 500
"""Modules: fewer than transformers, datasets and scikit-learn import for a Trainer."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script, what it is given, and the module that a user would preload for it."""

    name: str
    arguments: tuple[str, ...]
    framework: str


HF_TRAINER = Script(
    "hf_trainer.py",
    (
        "--use_cpu",
        "--per_device_train_batch_size=4",
        f"--max_steps={STEPS}",
        f"--save_steps={SAVE_EVERY}",
        "--report_to=none",
        "--disable_tqdm=true",
    ),
    "transformers",
)
LIGHTNING = Script("lightning_ddp.py", (f"--max_steps={STEPS}", f"--save_steps={SAVE_EVERY}"), "lightning")
ACCELERATE = Script("accelerate_loop.py", ("--num_epochs=2", f"--checkpointing_steps={SAVE_EVERY}"), "accelerate")


@pytest.mark.parametrize("warm", [False, True], ids=["fresh", "warm"])
@pytest.mark.parametrize("script", [HF_TRAINER, LIGHTNING, ACCELERATE], ids=lambda script: script.framework)
def test_a_killed_worker_costs_the_steps_since_the_checkpoint(
    rig: Rig, tmp_path: Path, script: Script, warm: bool
) -> None:
    start = ["--warm_start", f"--preload=torch,{script.framework},watch"] if warm else ["--no_warm_start"]
    flags = ["--standalone", "--nproc_per_node=2", "--max_restarts=1", *start]
    arguments = [f"--output_dir={tmp_path / 'output'}", *script.arguments]
    environment = {"PYTHONPATH": str(HERE), "WAIT_AFTER_STEP": str(KILL_AFTER), "HF_HUB_OFFLINE": "1"}
    agent = rig.run(*flags, HERE / "scripts" / script.name, *arguments, env=environment)

    (waiting,) = agent.wait_for_report("waiting", rank=1)
    os.kill(waiting["pid"], signal.SIGKILL)
    assert agent.exit_code() == 0, agent.output

    for rank in (0, 1):
        began = [(r["life"], r["step"], r["forked"]) for r in agent.reports("began", rank=rank)]
        assert began == [(0, 0, warm), (1, SAVE_EVERY, warm)], agent.output
        done = [r["step"] for r in agent.reports("step", rank=rank, life=1)]
        assert done == list(range(SAVE_EVERY + 1, STEPS + 1))
        assert [r["life"] for r in agent.reports("finished", rank=rank)] == [1]
    assert math.isfinite(json.loads((tmp_path / "output" / "train_results.json").read_text())["train_loss"])


def test_after_a_kill_a_trainer_finds_its_imports_done_without_a_flag(rig: Rig, tmp_path: Path) -> None:
    flags = ["--standalone", "--nproc_per_node=2", "--max_restarts=1", "-v"]
    arguments = [f"--output_dir={tmp_path / 'output'}", *HF_TRAINER.arguments]
    environment = {"PYTHONPATH": str(HERE), "WAIT_AFTER_STEP": str(KILL_AFTER), "HF_HUB_OFFLINE": "1"}
    environment |= {"PET_WARM_START": "1"}
    agent = rig.run(*flags, HERE / "scripts" / HF_TRAINER.name, *arguments, env=environment)

    (waiting,) = agent.wait_for_report("waiting", rank=1)
    learned = agent.wait_for(r"more module\(s\) that workers have imported")
    found = re.search(r"and (\d+) more module", learned)
    assert found is not None
    assert int(found[1]) > MANY, learned
    os.kill(waiting["pid"], signal.SIGKILL)
    assert agent.exit_code() == 0, agent.output
    assert "its workers started warm" in agent.output
    for rank in (0, 1):
        assert [r["life"] for r in agent.reports("finished", rank=rank)] == [1]


HANG_WINDOW = 5  # seconds
WAITS = next(
    number
    for number, line in enumerate((HERE / "watch.py").read_text().splitlines(), 1)
    if "threading.Event().wait()" in line
)


@pytest.mark.parametrize("script", [HF_TRAINER, LIGHTNING, ACCELERATE], ids=lambda script: script.framework)
def test_the_rank_and_its_line_are_named_and_with_hang_timeout_the_job_goes_on(
    rig: Rig, tmp_path: Path, script: Script
) -> None:
    flags = [
        "--nnodes=2",
        "--nproc_per_node=1",
        "--max_restarts=3",  # torch 2.13 may also deadlock where the last reference to a gloo group goes
        f"--hang_timeout={HANG_WINDOW}",
        *over("file", tmp_path),
    ]
    arguments = [f"--output_dir={tmp_path / 'output'}", *script.arguments]
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    more = {"PYTHONPATH": path, "WAIT_AFTER_STEP": str(KILL_AFTER), "HF_HUB_OFFLINE": "1", "HANG": "1"}
    agents = [rig.run(*flags, HERE / "scripts" / script.name, *arguments, env={**WARM, **more}) for _ in range(2)]
    for agent in agents:
        agent.wait_for(rf"round 1: no progress for {HANG_WINDOW} s")
        agent.wait_for(rf"rank 1 is in wait \(threading.py:\d+\).*, called at watch.py:{WAITS}")
        assert agent.exit_code() == 0, agent.output
        others = [line for line in agent.lines if re.search(r"rank 0 is in", line)]
        assert others, agent.output
        assert re.search(r"\(torch/|called at \w+\.py:\d+", others[0])
