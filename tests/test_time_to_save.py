"""A node that is preempted says whether its script had time to save."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from rig import WORKERS, Rig

SAVER = """
import os, signal, sys
from pathlib import Path
from elastic_core import report

def save(signum, frame):
    for path in sys.argv[1:]:
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text("weights")
    print("saved checkpoint at step 7" if not sys.argv[1:] else "", flush=True)
    sys.exit(0)

report(step=7)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
signal.pause()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "saver.py"
    path.write_text(SAVER)
    return path


def test_a_script_that_prints_that_it_saved(rig: Rig, script: Path) -> None:
    pattern = "--checkpoint_pattern=saved checkpoint at step (?P<step>[0-9]+)"
    agent = rig.run("--standalone", pattern, script)
    agent.wait_for("ready")
    agent.signal(signal.SIGTERM)
    assert agent.exit_code() == 143
    agent.wait_for("had 30.0 s to save, and ended after .* a checkpoint of step 7 was saved .* no step is lost")


def test_a_script_whose_files_show_that_it_saved(rig: Rig, script: Path, tmp_path: Path) -> None:
    path = tmp_path / "checkpoints" / "step_6.pt"
    agent = rig.run("--standalone", f"--checkpoint_path={path.parent}", "--shutdown_timeout=20", script, path)
    agent.wait_for("ready")
    agent.signal(signal.SIGTERM)
    assert agent.exit_code() == 143
    agent.wait_for("had 20.0 s to save, and ended after .* a checkpoint of step 6 was saved .* 1 step.s. are lost")


def test_a_script_that_saved_nothing_in_time(rig: Rig, script: Path, tmp_path: Path) -> None:
    path = tmp_path / "checkpoints" / "step_6.pt"
    path.parent.mkdir()
    path.write_text("weights")
    agent = rig.run("--standalone", f"--checkpoint_path={path.parent}", "--event_log_handler=console", script)
    agent.wait_for("ready")
    agent.signal(signal.SIGTERM)
    assert agent.exit_code() == 143
    [event] = [json.loads(line) for line in agent.lines if '"time_to_save"' in line]
    assert event["fields"]["lost_steps"] == 1
    agent.wait_for("they saved none then")


def test_a_script_of_which_nothing_is_known_is_not_blamed(rig: Rig) -> None:
    agent = rig.run("--standalone", WORKERS / "sleeper.py")
    agent.wait_for_report("started")
    agent.signal(signal.SIGTERM)
    assert agent.exit_code() == 143
    assert "to save" not in agent.output


QUICK_STEPS = """
import signal
from elastic_core.worker.graceful_stop import should_checkpoint

for step in range(1, 301):  # each is over before the next report is due
    should_checkpoint(step)
print("saved checkpoint at step 300", flush=True)
print("ready", flush=True)
signal.pause()
"""


def test_steps_that_a_quick_script_could_have_taken_without_a_report_are_not_lost(rig: Rig, tmp_path: Path) -> None:
    path = tmp_path / "quick.py"
    path.write_text(QUICK_STEPS)
    agent = rig.run("--standalone", "--checkpoint_pattern=saved checkpoint at step (?P<step>[0-9]+)", path)
    agent.wait_for("ready")
    agent.signal(signal.SIGTERM)
    assert agent.exit_code() == 143
    agent.wait_for(
        "the newest of step 300 was .* old at the end; no step is lost|a checkpoint of step 300 .*no step is"
    )
