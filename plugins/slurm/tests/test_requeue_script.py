"""The script of deploy/slurm that queues its job again, over stand-ins for Slurm's programs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "deploy" / "slurm" / "requeue.sbatch"
UNTIL_GONE = 'while kill -0 "$1" 2>/dev/null; do sleep 0.01; done'

SRUN_ENDS_FIRST = (
    'kill -USR1 "$PPID"; read -r _ < notice; exit 151',
    f"set -- $(cat step); echo > notice; {UNTIL_GONE}",
)
SCANCEL_ENDS_FIRST = (
    f'kill -USR1 "$PPID"; read -r pid < notice; set -- "$pid"; {UNTIL_GONE}; exit 151',
    "echo $$ > notice",
)
NO_SIGNAL = ("exit 79", "exit 1")
FAILED = ("exit 1", "exit 1")


@pytest.mark.parametrize(
    ("srun", "scancel", "code", "again"),
    [
        pytest.param(*SRUN_ENDS_FIRST, 151, True, id="the step ends while the trap runs"),
        pytest.param(*SCANCEL_ENDS_FIRST, 151, True, id="the step ends after the trap"),
        pytest.param(*NO_SIGNAL, 79, True, id="no signal"),
        pytest.param(*FAILED, 1, False, id="the program failed"),
    ],
)
def test_the_exit_code_of_the_step_decides(tmp_path: Path, srun: str, scancel: str, code: int, again: bool) -> None:
    bodies = {"srun": f"echo $$ > step; {srun}", "scancel": scancel, "scontrol": "echo $* > requeued; exit 1"}
    for name, body in bodies.items():
        program = tmp_path / name
        program.write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
        program.chmod(0o755)
    os.mkfifo(tmp_path / "notice")
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    done = subprocess.run(["bash", SCRIPT, "train.py"], cwd=tmp_path, env=environ, timeout=60, check=False)
    assert done.returncode == code
    requeued = tmp_path / "requeued"
    assert requeued.exists() == again
    assert not again or requeued.read_text(encoding="utf-8") == "requeue 7\n"
