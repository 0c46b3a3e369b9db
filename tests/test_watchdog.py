"""Workers that hang are ended as torch's agent ends them: by their own timers, or when they wait in the kernel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rig import Rig

TIMER = """
import os, signal
from torch.distributed.elastic import timer
timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
with timer.expires(after=60, scope="quick"):
    pass
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    with timer.expires(after=0.2, scope="one step"):
        signal.pause()
"""
IN_THE_KERNEL = """
import ctypes, os
libc = ctypes.CDLL(None)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and libc.vfork() == 0:
    libc.pause()  # its parent waits in the kernel for it
"""


def script(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(text)
    return path


def test_a_worker_whose_timer_expires_is_killed_and_restarted(rig: Rig, tmp_path: Path) -> None:
    flags = ["--standalone", "--nproc_per_node=2", "--max_restarts=1"]
    agent = rig.run(*flags, script(tmp_path, TIMER), env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1"})
    assert agent.exit_code() == 0
    (expired,) = [line for line in agent.lines if "has expired" in line]
    assert "the timer 'one step' of process" in expired
    assert expired.endswith("it is sent SIGKILL")
    assert any(
        "rank 1 " in line and "was sent SIGKILL because its timer 'one step' expired" in line for line in agent.lines
    )
    assert any(line.endswith("restart 1 of 1") for line in agent.lines)


def test_a_worker_that_waits_in_the_kernel_is_replaced(rig: Rig, tmp_path: Path) -> None:
    agent = rig.run(
        *("--standalone", "--max_restarts=1", script(tmp_path, IN_THE_KERNEL)),
        env={"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "1"},
    )
    assert agent.exit_code() == 0
    assert any("has waited in the kernel, in " in line for line in agent.lines)
    assert any(line.endswith("restart 1 of 1") for line in agent.lines)


def test_a_limit_that_is_no_number_is_refused(rig: Rig, tmp_path: Path) -> None:
    agent = rig.run(*("--standalone", script(tmp_path, "")), env={"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "soon"})
    assert agent.exit_code() == 2
    assert any(
        "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT=soon is no number of seconds" in line for line in agent.lines
    )
    assert not any("joining job" in line for line in agent.lines), "other nodes would stop their workers for it"


@pytest.mark.parametrize(("level", "warns"), [("WARNING", True), ("CRITICAL", False), ("1000", False)])
def test_loglevel_hides_what_matters_less_and_never_the_summary(
    rig: Rig, tmp_path: Path, level: str, warns: bool
) -> None:
    failing = script(tmp_path, "raise SystemExit(3)")
    agent = rig.run("--standalone", "--max_restarts=0", failing, env={"LOGLEVEL": level})
    assert agent.exit_code() == 1
    agent.wait_for("the job has failed")
    agent.wait_for("what    exited with code 3")
    assert any(re.search(r"\(pid \d+\) exited with code 3", line) for line in agent.lines) is warns
    assert not any("round 1: 1 worker(s)" in line for line in agent.lines)
