"""A disk that is full when workers are restarted costs no restart and no step, and is saved to when it has room.

And what a killed agent has left makes room where the disk of temporary files is full.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from full_disk import fill
from rig import WARM, WORKERS, Rig

from elastic_core.exit_codes import ExitCode
from elastic_core.host.identity import boot_id, network_id

TRAIN = WORKERS / "train_state.py"
QUICK = {**WARM, "PET_PRELOAD": "torch,torch._dynamo,elastic_torch.disk,elastic_torch.state.train_state"}

LEFT = f"""
umask 077
mount -t tmpfs -o size=1m small $TMPDIR
mkdir $TMPDIR/elastic_left
printf '{boot_id()} {network_id()}\\nelastic/free' > $TMPDIR/elastic_left/.elastic-mark
cat /dev/zero > $TMPDIR/elastic_left/filler
exec "$@"
"""
"""The files of a killed agent: as much as the disk holds."""
WHERE = "import os; print('logs in', os.environ['TORCHELASTIC_ERROR_FILE'])"
LAUNCH = """
import os
from elastic_torchrun.launch import LaunchConfig, elastic_launch
launched = elastic_launch(LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=1, rdzv_backend="local"), os.getenv)
print("logs in", launched("TORCHELASTIC_ERROR_FILE")[0])
"""


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            ["-m", "elastic_core", "run", "--standalone", "--no_python", sys.executable, "-c", WHERE], id="a script"
        ),
        pytest.param(["-c", LAUNCH], id="a function"),
    ],
)
def test_files_of_a_killed_agent_on_a_full_disk_are_removed_and_the_next_one_has_the_room(
    tmp_path: Path, command: list[str]
) -> None:
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", LEFT, "sh"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ran = subprocess.run(
        [*namespace, sys.executable, *command], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "No space left on device" in ran.stderr, "the disk was full"
    assert f"logs in {tmp_path}/elastic_" in ran.stdout


def test_without_a_directory_for_temporary_files_it_says_what_to_mount() -> None:
    """As in a container with a read-only root."""
    mount = 'for d in /tmp /var/tmp; do mount --bind $d $d && mount -o remount,ro,bind $d; done; cd /proc && exec "$@"'
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    environment = {name: value for name, value in os.environ.items() if name not in ("TMPDIR", "TEMP", "TMP")}
    command = [sys.executable, "-m", "elastic_core", "run", "--standalone", "--no_plugin=health", "--no_python", "true"]
    ran = subprocess.run([*namespace, *command], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == ExitCode.WITHDRAWN, "another node may have one"
    assert "elastic: error: The agent needs a directory for temporary files: No usable temporary" in ran.stderr
    assert ran.stderr.endswith("or name another directory with --log_dir or TMPDIR.\n")
    assert "defect" not in ran.stderr


@pytest.mark.timeout(300)
def test_a_job_whose_last_checkpoint_cannot_be_saved_fails_and_names_it(rig: Rig, tmp_path: Path) -> None:
    small, hold = tmp_path / "small", tmp_path / "hold"
    small.mkdir()
    job = [TRAIN, "--epochs=1", "--disk", small / "disk", "--interval=3", "--at", 5, "--hold", hold]
    command = [sys.executable, "-m", "elastic_core", "run", "--standalone", "--nproc_per_node=2", "--max_restarts=0"]
    mount = f'mount -t tmpfs -o size=1m small {small} && exec "$@"'
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    environment = {**QUICK, "ELASTIC_RESCUE_DIR": str(tmp_path / "spare")}
    agent = rig.start([*namespace, *command, *map(str, job)], env=environment)
    agent.wait_for_report("holding", count=2)
    fill(Path(f"/proc/{agent.pid}/root{small}") / "filler")
    Path(f"{hold}-5").touch()
    assert agent.exit_code() == ExitCode.REQUEUE, agent.output
    agent.wait_for(
        rf"what .*CheckpointSaveError: The checkpoint of step 8 was not saved in {small}/disk|error .*step 8"
    )
    agent.wait_for(rf"the snapshot of step 8 is in {tmp_path}/spare/")


@pytest.mark.timeout(300)
def test_a_crash_while_the_disk_is_full_is_recovered_from_in_memory_and_later_steps_are_saved(
    rig: Rig, tmp_path: Path
) -> None:
    small, hold = tmp_path / "small", tmp_path / "hold"
    small.mkdir()
    job = [TRAIN, "--epochs=2", "--disk", small / "disk", "--at", 5, 9, "--hold", hold]
    command = [sys.executable, "-m", "elastic_core", "run", "--standalone", "--nproc_per_node=2", "--max_restarts=1"]
    mount = f'mount -t tmpfs -o size=1m small {small} && exec "$@"'
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    agent = rig.start([*namespace, *command, *map(str, job)], env=QUICK)
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
