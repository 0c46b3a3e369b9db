"""A hang in scripts of Hugging Face, Lightning and Accelerate users: the rank and the line are named, on every node."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from stage import WARM, Stage, over
from tests.frameworks.test_frameworks import ACCELERATE, HERE, HF_TRAINER, KILL_AFTER, LIGHTNING, Script

WINDOW = 5
WAITS = next(
    number
    for number, line in enumerate((HERE / "watch.py").read_text().splitlines(), 1)
    if "threading.Event().wait()" in line
)


@pytest.mark.parametrize("script", [HF_TRAINER, LIGHTNING, ACCELERATE], ids=lambda script: script.framework)
def test_the_rank_and_its_line_are_named_and_with_hang_timeout_the_job_goes_on(
    stage: Stage, tmp_path: Path, script: Script
) -> None:
    flags = [
        "--nnodes=2",
        "--nproc_per_node=1",
        "--max_restarts=1",
        f"--hang_timeout={WINDOW}",
        *over("file", tmp_path),
    ]
    arguments = [f"--output_dir={tmp_path / 'output'}", *script.arguments]
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    more = {"PYTHONPATH": path, "WAIT_AFTER_STEP": str(KILL_AFTER), "HF_HUB_OFFLINE": "1", "HANG": "1"}
    agents = [stage.run(*flags, HERE / "scripts" / script.name, *arguments, env={**WARM, **more}) for _ in range(2)]
    for agent in agents:
        agent.wait_for(rf"round 1: no progress for {WINDOW} s")
        agent.wait_for(rf"rank 1 is in wait \(threading.py:\d+\).*, called at watch.py:{WAITS}")
        assert agent.exit_code() == 0, agent.output
        others = [line for line in agent.lines if re.search(r"rank 0 is in", line)]
        assert others, agent.output
        assert re.search(r"\(torch/|called at \w+\.py:\d+", others[0])
