"""A job of hundreds of nodes over c10d, with the open files that a user's shell allows."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
AGENTS = 300
"""More than the 252 whose connections fit into 1,024 open files."""

JOB = f"""
from benchmarks.meetings import C10D, FORM, LEAVE, RESTART, play

if __name__ == "__main__":
    for event, sample in play(C10D, {AGENTS}, 180.0):
        print(event, sample.seconds)
        if event == LEAVE:
            break
"""


def usual_limit() -> None:
    """The soft limit of a login shell (``ulimit -Sn 1024``); the hard one stays."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))


@pytest.mark.variant
@pytest.mark.timeout(600)
def test_three_hundred_agents_meet_over_c10d_under_a_limit_of_1024_open_files(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    path = os.pathsep.join([str(ROOT), str(ROOT / "core/tests/session")])
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": path},
        preexec_fn=usual_limit,
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    events = [line.rpartition(" ") for line in done.stdout.splitlines()]
    assert len(events) == 5, done.stdout + done.stderr[-4000:]
    assert all(seconds != "None" for _, _, seconds in events), done.stdout
