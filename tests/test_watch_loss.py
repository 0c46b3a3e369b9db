"""``examples/monitor`` as a run sees it: flags with help and variables, a note, a rank that fails, a gate."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rig import Rig

from elastic_core.exit_codes import ExitCode

SOURCE = Path(__file__).parents[1] / "examples" / "monitor"
ENTRY_POINTS = """
[elastic.autoload]
watch-loss = elastic_watch_loss:WatchLoss
[elastic.flags]
watch-loss = elastic_watch_loss
"""
PRINTS = """
import os, time
rank, step = int(os.environ["RANK"]), 0
while not os.path.exists(FOLDER + "/stop"):
    loss = 99.5 if rank == 1 and os.path.exists(FOLDER + "/diverge") else 2.25
    print(f"step {step}: loss={loss}", flush=True)
    step += 1
    time.sleep(0.05)
"""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that finds the distribution, which is not installed where the tests are."""
    folder = tmp_path / "installed"
    information = folder / "elastic_watch_loss-0.1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: elastic-watch-loss\nVersion: 0.1.0\n")
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    (folder / "elastic_watch_loss").symlink_to(SOURCE / "src" / "elastic_watch_loss")
    return {"PYTHONPATH": str(folder)}


def elastic(*arguments: object, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "elastic_core", *map(str, arguments)]
    return subprocess.run(command, env=os.environ | env, capture_output=True, text=True, check=False)


def test_the_files_announce_what_the_test_installs() -> None:
    told = (SOURCE / "pyproject.toml").read_text()
    assert 'watch-loss = "elastic_watch_loss:WatchLoss"' in told
    assert 'watch-loss = "elastic_watch_loss"' in told
    assert len((SOURCE / "src" / "elastic_watch_loss" / "__init__.py").read_text().splitlines()) <= 85


def test_the_help_has_the_flag_and_a_wrong_value_is_refused(installed: dict[str, str]) -> None:
    assert "--watch_loss MAX" in elastic("run", "--help", env=installed).stdout
    refused = elastic("run", "--watch_loss=much", "train.py", env=installed)
    assert refused.returncode == 2
    assert "--watch_loss 'much' is not a number." in refused.stderr
    unknown = elastic("run", "--watch_loss=3", "train.py", env={})
    assert unknown.returncode == 2
    assert "--watch_loss" in unknown.stderr


ONE_NODE = pytest.mark.parametrize(
    "over",
    [["--standalone"], ["--nnodes=1", "--rdzv_backend=torch-c10d", "--rdzv_endpoint=localhost:0"]],
    ids=["alone", "over a foreign handler"],
)


@ONE_NODE
def test_the_loss_is_shown_and_a_rank_above_the_limit_fails(
    rig: Rig, tmp_path: Path, installed: dict[str, str], over: list[str]
) -> None:
    script, seen = tmp_path / "train.py", installed | {"PET_WATCH_LOSS": "10", "XDG_RUNTIME_DIR": str(tmp_path)}
    script.write_text(PRINTS.replace("FOLDER", repr(str(tmp_path))))
    agent = rig.run(*over, "--nproc_per_node=2", "--max_restarts=0", "--rdzv_id=losses", script, env=seen)
    rig.wait_until(lambda: "loss 2.25" in elastic("status", "losses", env=seen).stdout)
    (tmp_path / "diverge").touch()
    assert agent.exit_code() == 1
    assert "rank 1 " in agent.output
    assert "LossTooHigh: the loss 99.5 is above --watch_loss=10" in agent.output
    assert "rank 1 printed: step " in agent.output


@ONE_NODE
def test_a_host_with_the_file_is_kept_out_and_joins_without_it(
    rig: Rig, tmp_path: Path, installed: dict[str, str], over: list[str]
) -> None:
    file = tmp_path / "broken"
    file.touch()
    flags = [*over, f"--keep_out={file}", "--no_python", "true"]
    refused = rig.run(*flags, env=installed)
    assert refused.exit_code() == ExitCode.UNHEALTHY, refused.output
    assert f"elastic: error: {file} keeps this host out of the job." in refused.output
    assert "Remove the file." in refused.output
    file.unlink()
    joined = rig.run(*flags, env=installed)
    assert joined.exit_code() == 0, joined.output
