"""Processes that workers start and that outlive them: loggers' services, uploads, and trackers of shared memory."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from rig import COLD, WARM, Rig

SHARES = """\
import os, signal
from multiprocessing.shared_memory import SharedMemory

segment = SharedMemory(create=True, size=8, name=os.environ["SEGMENTS"] + os.environ["RANK"])
print("READY", os.environ["RANK"], os.environ["ELASTIC_ROUND"], flush=True)
if os.environ["ELASTIC_ROUND"] != "4":
    signal.pause()
segment.unlink()
"""
LOGS = """\
import os, subprocess, sys, time

service = '''
import os, signal, sys, time
def save(*_):
    open(sys.argv[1], "w").write("the last records")
    os._exit(0)
signal.signal(signal.SIGTERM, save)
print("SERVES", flush=True)
while True:
    time.sleep(0.01)
'''
first = os.environ["ELASTIC_ROUND"] == "1"
if first:
    command = [sys.executable, "-c", service, sys.argv[1]]
    helper = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    helper.stdout.readline()
    raise ValueError("boom")
"""
UPLOADS = """\
import subprocess, sys
subprocess.Popen(["sh", "-c", sys.argv[1]])
"""


@pytest.mark.parametrize("start", [WARM, COLD], ids=["warm", "fresh"])
def test_shared_memory_of_a_killed_worker_is_gone_in_its_next_life(rig: Rig, start: dict[str, str]) -> None:
    Path(rig.folder, "train.py").write_text(SHARES)
    env = {**start, "SEGMENTS": f"elastic_{rig.mark}_"}
    agent = rig.run("--nproc_per_node=2", "--max_restarts=3", "train.py", env=env)
    for number in (1, 2, 3):
        for rank in (0, 1):
            agent.wait_for(f"READY {rank} {number}")
        os.kill(agent.workers()[number % 2], signal.SIGKILL)
    assert agent.exit_code() == 0
    assert "FileExistsError" not in agent.output


@pytest.mark.parametrize("start", [WARM, COLD], ids=["warm", "fresh"])
def test_a_service_saves_after_a_failure(rig: Rig, start: dict[str, str]) -> None:
    Path(rig.folder, "train.py").write_text(LOGS)
    agent = rig.run("--max_restarts=1", "train.py", "records", env=start)
    assert agent.exit_code() == 0
    assert Path(rig.folder, "records").read_text() == "the last records"


@pytest.mark.parametrize("start", [WARM, COLD], ids=["warm", "fresh"])
def test_an_upload_ends_after_the_script(rig: Rig, start: dict[str, str]) -> None:
    Path(rig.folder, "train.py").write_text(UPLOADS)
    agent = rig.run("train.py", "sleep 0.5; echo sent > state", env=start)
    assert agent.exit_code() == 0
    assert Path(rig.folder, "state").read_text() == "sent\n"
    assert "SIGKILL" not in agent.output


def test_a_process_that_is_killed_after_a_success_is_named(rig: Rig) -> None:
    Path(rig.folder, "train.py").write_text(UPLOADS)
    agent = rig.run("--shutdown_timeout=0.5", "train.py", "trap '' TERM; while :; do sleep 1000; done", env=WARM)
    assert agent.exit_code() == 0
    agent.wait_for(r"sent SIGKILL to \d+ \((sh|sleep)\), \d+ \((sh|sleep)\), which the workers had started")
