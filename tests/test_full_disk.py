"""A disk that is full when workers are restarted costs no restart and no step, and is saved to when it has room."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from full_disk import fill
from stage import WARM, WORKERS, Stage

TRAIN = WORKERS / "train_state.py"
QUICK = {**WARM, "PET_PRELOAD": "torch,torch._dynamo,elastic_torch.disk,elastic_torch.state"}


@pytest.mark.timeout(300)
def test_a_job_whose_last_checkpoint_cannot_be_saved_fails_and_names_it(stage: Stage, tmp_path: Path) -> None:
    small, hold = tmp_path / "small", tmp_path / "hold"
    small.mkdir()
    job = [TRAIN, "--epochs=1", "--disk", small / "disk", "--interval=3", "--at", 5, "--hold", hold]
    command = [sys.executable, "-m", "elastic_core", "run", "--standalone", "--nproc_per_node=2", "--max_restarts=0"]
    mount = f'mount -t tmpfs -o size=1m small {small} && exec "$@"'
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    environment = {**QUICK, "ELASTIC_RESCUE_DIR": str(tmp_path / "spare")}
    agent = stage.start([*namespace, *command, *map(str, job)], env=environment)
    agent.wait_for_report("holding", count=2)
    fill(Path(f"/proc/{agent.pid}/root{small}") / "filler")
    Path(f"{hold}-5").touch()
    assert agent.exit_code() == 1, agent.output
    agent.wait_for(
        rf"what .*CheckpointSaveError: The checkpoint of step 8 was not saved in {small}/disk|error .*step 8"
    )
    agent.wait_for(rf"the snapshot of step 8 is in {tmp_path}/spare/")


@pytest.mark.timeout(300)
def test_a_crash_while_the_disk_is_full_is_recovered_from_in_memory_and_later_steps_are_saved(
    stage: Stage, tmp_path: Path
) -> None:
    small, hold = tmp_path / "small", tmp_path / "hold"
    small.mkdir()
    job = [TRAIN, "--epochs=2", "--disk", small / "disk", "--at", 5, 9, "--hold", hold]
    command = [sys.executable, "-m", "elastic_core", "run", "--standalone", "--nproc_per_node=2", "--max_restarts=1"]
    mount = f'mount -t tmpfs -o size=1m small {small} && exec "$@"'
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    agent = stage.start([*namespace, *command, *map(str, job)], env=QUICK)
    agent.wait_for_report("holding", count=2)
    inside = Path(f"/proc/{agent.pid}/root{small}")
    fill(inside / "filler")
    agent.kill_worker(1)
    Path(f"{hold}-5").touch()
    agent.wait_for_report("holding", count=2, step=9)
    agent.wait_for(r"Nothing can be saved in .*No space left on device.* Each save tries again")
    agent.wait_for(r"The checkpoint of step 6 was not saved in .*No space left on device")
    assert [(r["tier"], r["step"]) for r in agent.reports("began", round="2")] == [("memory", 5)] * 2
    (inside / "filler").unlink()
    Path(f"{hold}-9").touch()
    agent.wait_for("can be used again: checkpoints are saved from here on")
    agent.wait_for_report("step", step=16)
    assert agent.exit_code() == 0, agent.output
    assert "was not saved" not in agent.output.split("can be used again")[1]
