"""A log directory whose disk is full ends the logs, and neither the workers nor the job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")

SCRIPT = """
import os, sys
for _ in range(200):
    print("x" * 1000, flush=True)
print("e" * 100_000, file=sys.stderr, flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise ValueError("boom")
"""


@needs_root
@pytest.mark.parametrize("options", ["-r3", "-t3", "-r1", "-r2", ""])
def test_a_full_log_dir_costs_the_logs_and_no_restart(tmp_path: Path, options: str) -> None:
    script, logs = tmp_path / "train.py", tmp_path / "logs"
    script.write_text(SCRIPT)
    logs.mkdir()
    run = [sys.executable, "-m", "elastic_core", "run", "--standalone", "--rdzv_backend=local", "--no_warm_start"]
    run += ["--max_restarts=1", f"--log_dir={logs}", *filter(None, [options]), str(script)]
    mount = f'mount -t tmpfs -o size=64k tmpfs {logs} && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, "sh", *run], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "is not complete: No space left on device; the worker goes on" in done.stderr
    assert "round 2: 1 worker(s) on 1 node(s), restart 1 of 1\n" in done.stderr
    assert "all local workers of round 2 exited with 0" in done.stderr


@needs_root
def test_a_log_dir_without_room_for_a_single_directory_is_done_without(tmp_path: Path) -> None:
    script, logs = tmp_path / "train.py", tmp_path / "logs"
    script.write_text("print('trained')")
    logs.mkdir()
    run = [sys.executable, "-m", "elastic_core", "run", "--standalone", "--rdzv_backend=local", "--no_warm_start"]
    run += [f"--log_dir={logs}", "-t3", str(script)]
    mount = f'mount -t tmpfs -o nr_inodes=2 tmpfs {logs} && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, "sh", *run], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "cannot be written: No space left on device; the worker runs without it" in done.stderr
    assert "[rank0]:trained" in done.stdout
