"""Launchers of others, below `elastic exec`: a worker of each is killed, and the job goes on."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from rig import WARM, WORKERS, Rig

HERE = Path(sys.executable).parent
TORCHTITAN = """#!/usr/bin/bash
set -ex
NGPU=${NGPU:-"2"}
export LOG_RANK=${LOG_RANK:-0}
TRAIN_FILE=${TRAIN_FILE:-"summing"}
PYTHONPATH=%s:$PYTHONPATH \\
torchrun --nproc_per_node=${NGPU} --rdzv_backend c10d --rdzv_endpoint="localhost:0" --max_restarts=1 \\
--local-ranks-filter ${LOG_RANK} --role rank --tee 3 \\
-m ${TRAIN_FILE} torch "$@"
"""
"""As torchtitan's ``run_train.sh`` starts it, with another module."""


ACCELERATE = (
    f"{HERE}/accelerate launch --multi_gpu --num_processes=2 --num_machines=1 --mixed_precision=no --dynamo_backend=no "
    f"--main_process_port=0 --max_restarts=1 {WORKERS}/summing.py accelerate"
)
FABRIC = f"{HERE}/fabric run --accelerator=cpu --devices=2 {WORKERS}/summing.py fabric"


@pytest.mark.everyday("accelerate")
@pytest.mark.parametrize(
    ("command", "said"),
    [
        pytest.param(ACCELERATE, "torch.distributed.run → elastic run, called by accelerate launch", id="accelerate"),
        pytest.param(FABRIC, "torch.distributed.run → elastic run, called by fabric run", id="fabric"),
        pytest.param("bash run_train.sh", "torchrun → elastic run, started by bash", id="torchtitan"),
    ],
)
def test_a_launcher_of_others_recovers_a_killed_worker(rig: Rig, tmp_path: Path, command: str, said: str) -> None:
    (tmp_path / "run_train.sh").write_text(TORCHTITAN % WORKERS)
    environment = {**WARM, "PET_MAX_RESTARTS": "1", "ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1"}
    agent = rig.start([sys.executable, "-m", "elastic_core", "exec", *command.split()], env=environment)
    agent.wait_for("round 1: ")
    agent.wait_for('"met".*"life": 0, "total": 2.0, "ours": true')
    os.kill(agent.workers()[1], signal.SIGKILL)
    assert agent.exit_code() == 0
    assert '"finished", "rank": 0' in agent.output
    assert f"elastic: {said}" in agent.lines
    assert "has no effect" not in agent.output, "a launcher adds flags of its own, which is no mistake of the user"
