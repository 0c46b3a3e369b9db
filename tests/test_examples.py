"""The examples that users copy from run, are killed, and lose nothing."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from stage import EXAMPLES, WARM, WORKERS, Stage

TWO = ["--standalone", "--nproc_per_node=2", "--preload=torch._dynamo"]
"""torch imports that when an optimizer is made: two seconds of each life of each worker, else."""
HURT = [WORKERS / "hurt.py", "8"]
"""Has rank 1 killed in its eighth step."""


def test_the_minimal_script_trains_without_knowing_of_anything(stage: Stage) -> None:
    agent = stage.run(*TWO, EXAMPLES / "minimal" / "train.py", "--epochs=2", env=WARM)
    assert agent.exit_code() == 0, agent.output
    assert "trained for 20 steps" in agent.lines


def test_made_elastic_it_goes_on_where_it_was_killed(stage: Stage) -> None:
    script = EXAMPLES / "minimal" / "train_elastic.py"
    agent = stage.run(*TWO, "--max_restarts=1", *HURT, script, "--epochs=2", env=WARM)
    assert agent.exit_code() == 0, agent.output
    assert [line for line in agent.lines if "goes on" in line] == ["goes on after step 7"], agent.output
    assert "trained for 20 steps" in agent.lines


def test_the_minimal_readme_shows_what_makes_it_elastic() -> None:
    folder = EXAMPLES / "minimal"
    plain, elastic = ((folder / name).read_text().splitlines() for name in ("train.py", "train_elastic.py"))
    changed = list(difflib.unified_diff(plain, elastic, lineterm="", n=0))[2:]
    shown = re.findall(r"^```diff\n(.*?)^```$", (folder / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (diff,) = (block.splitlines() for block in shown)
    assert [line for line in diff if line[:1] in ("+", "-")] == [line for line in changed if line[:1] in ("+", "-")]
    assert all(line[1:] in elastic for line in diff if line[:1] == " ")


def test_another_library_takes_elastic_torchs_place(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "elastic_torch.py").write_text("raise ImportError('this job does without')")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    env = {**WARM, "TORCH_SAVE_FILE": str(tmp_path / "train.pt"), "PYTHONPATH": path}
    script = EXAMPLES / "checkpointing" / "train.py"
    agent = stage.run(*TWO, "--max_restarts=1", "--plugin=torch-save", *HURT, script, env=env)
    assert agent.exit_code() == 0, agent.output
    # Rank 0 may have saved the step in which rank 1 was killed: its gradients were there.
    assert agent.wait_for(r"^the TrainState of elastic_torch_save goes on after step [78]$")
    assert "trained for 20 steps" in agent.lines
