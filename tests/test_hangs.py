"""A job that hangs is noticed, and every node says which rank the others wait for, and where it is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rig import COLD, WARM, WORKERS, Agent, Rig

HANG, WINDOW = WORKERS / "hang.py", 3
LINES = {text: number for number, text in enumerate(HANG.read_text().splitlines(), 1)}
"""The number of each line of the script, by its text."""


def start(rig: Rig, rendezvous: list[str], *arguments: object, flags: list[str] | None = None) -> list[Agent]:
    """Start a job of two nodes with two ranks each, which looks for hangs of three seconds."""
    more = flags or [f"--hang_window={WINDOW}"]
    command = ["--nnodes=2", "--nproc_per_node=2", *more, *rendezvous, HANG, *arguments]
    return [rig.run(*command, env=WARM), rig.run(*command, env=WARM)]


def line(text: str) -> int:
    return next(number for found, number in LINES.items() if text in found)


WAITS = rf"are in all_reduce \(torch/distributed/\S+\), called at hang.py:{line('dist.all_reduce')}"
ALL_REDUCE = f"ranks 0, 2-3 {WAITS}"
PLACES = {
    "dataloader": rf"rank 1 is in __next__ \(torch/utils/data/dataloader.py:\d+\).*, called at hang.py:"
    f"{line('for sample in')}",
    "lock": rf"rank 1 is in lock_twice \(hang.py:{line('        lock.acquire()')}\)",
    "skip": rf"rank 1 is in recv \(torch/distributed/\S+\), called at hang.py:{line('dist.recv(')}",
}


@pytest.mark.parametrize("how", PLACES)
def test_the_rank_that_the_others_wait_for_is_named_on_every_node(
    rig: Rig, file_rendezvous: list[str], how: str
) -> None:
    agents = start(rig, file_rendezvous, f"--how={how}")
    for agent in agents:
        agent.wait_for(rf"round 1: no progress for {WINDOW} s:$")
        agent.wait_for(PLACES[how])
        agent.wait_for(ALL_REDUCE)
    assert "worker_failed" not in "".join(agent.output for agent in agents)


def test_a_rank_that_holds_the_interpreters_lock_is_named_if_steps_are_known(
    rig: Rig, file_rendezvous: list[str]
) -> None:
    agents = start(rig, file_rendezvous, "--how=native", "--steps")
    for agent in agents:
        agent.wait_for(rf"round 1: no progress for {WINDOW} s, since step \d+:$")
        agent.wait_for(rf"rank 1 is in match \(re\S*:\d+\), called at hang.py:{line('re.match')}")


def test_a_stopped_rank_is_named_with_its_state(rig: Rig, file_rendezvous: list[str]) -> None:
    agents = start(rig, file_rendezvous, "--how=stop")
    rig.wait_until(lambda: any(agent.reports("ready") for agent in agents))
    [home] = [agent for agent in agents if 1 in agent.workers()]
    os.kill(home.workers()[1], signal.SIGSTOP)
    for agent in agents:
        agent.wait_for(r"rank 1: no Python stack: stopped by a signal \(SIGSTOP\)")
    os.kill(home.workers()[1], signal.SIGCONT)


def test_with_hang_timeout_the_rank_is_ended_and_the_job_goes_on(rig: Rig, file_rendezvous: list[str]) -> None:
    flags = [f"--hang_timeout={WINDOW}", "--max_restarts=1"]
    agents = start(rig, file_rendezvous, "--how=lock", flags=flags)
    for agent in agents:
        assert agent.exit_code() == 0, agent.output
        assert len(agent.reports("done")) == 2
    [home] = [agent for agent in agents if "worker_failed" in agent.output or "rank 1 (pid" in agent.output]
    home.wait_for(rf"rank 1 \(pid \d+\) Hang: no progress for {WINDOW} s; {PLACES['lock']}")


def test_the_flight_recorder_names_the_collective_and_the_rank_that_has_not_come_to_it(
    rig: Rig, file_rendezvous: list[str], tmp_path: Path
) -> None:
    """Both nodes share the folder of the logs, so each has the dumps of all ranks."""
    flags = [f"--hang_timeout={WINDOW}", "--max_restarts=0", f"--log_dir={tmp_path / 'logs'}"]
    agents = start(rig, file_rendezvous, "--how=lock", "--elastic", flags=flags)
    for agent in agents:
        assert agent.exit_code() == 1
        agent.wait_for(
            r"gloo:all_reduce number 4 of group 0:default_pg: ranks 0, 2, 3 wait in it, rank 1 has not come to it "
            r"\(but to gloo:all_reduce number 3\)"
        )
        agent.wait_for("round 1: why it hangs:")
        agent.wait_for(rf"what    Hang: no progress for {WINDOW} s; {PLACES['lock']}")
    dumps = sorted(path.name for path in (tmp_path / "logs").rglob("flight_recorder_*"))
    assert dumps == [f"flight_recorder_{rank}" for rank in range(4)]
    assert all("flight recorder dumps: " in agent.output for agent in agents)


def test_a_hang_that_ends_the_job_is_its_root_cause(rig: Rig, file_rendezvous: list[str]) -> None:
    agents = start(rig, file_rendezvous, "--how=lock", flags=[f"--hang_timeout={WINDOW}", "--max_restarts=0"])
    for agent in agents:
        assert agent.exit_code() == 1
        agent.wait_for(rf"what    Hang: no progress for {WINDOW} s; {PLACES['lock']}")
        agent.wait_for(ALL_REDUCE)


HEALTHY = {
    "slow steps": ["--how=slow", "--steps"],
    "a long first step": ["--how=slow", "--at=0"],
    "rank 0 evaluates while the others wait in a barrier": ["--how=barrier", "--rank=0"],
}


@pytest.mark.parametrize("case", HEALTHY)
def test_a_job_of_which_one_rank_computes_is_no_hang(
    rig: Rig, file_rendezvous: list[str], tmp_path: Path, case: str
) -> None:
    until = tmp_path / "until"
    flags = [f"--hang_window={WINDOW}", "--verbose"]
    agents = start(rig, file_rendezvous, *HEALTHY[case], f"--until={until}", flags=flags)
    for agent in agents:
        agent.wait_for(r"round 1: where the ranks are")
    until.touch()
    for agent in agents:
        assert agent.exit_code() == 0
        assert "no progress" not in agent.output


def ranks(found: str) -> list[str]:
    """The ranks whose whole stacks ``elastic stacks --full`` has printed."""
    return re.findall(r"^rank (\d)$", found, re.MULTILINE)


def test_elastic_stacks_says_where_the_ranks_are_and_ends_none(
    rig: Rig, file_rendezvous: list[str], tmp_path: Path
) -> None:
    until = tmp_path / "until"
    agents = start(rig, file_rendezvous, "--how=alone", "--rank=-1", f"--until={until}", flags=["--hang_window=2"])
    for agent in agents:
        agent.wait_for("round 1: 4 worker")
    command = [sys.executable, "-m", "elastic_core", "stacks", "--full", *file_rendezvous]
    found = ""
    while "compute" not in found or ranks(found) != ["0", "1", "2", "3"]:  # not all may have come there, or answered
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found = done.stdout
    assert found.startswith("round 1: where the ranks are")
    until.touch()
    for agent in agents:
        assert agent.exit_code() == 0, agent.output
        assert "no progress" not in agent.output


def test_a_worker_that_prints_past_its_agent_and_waits_is_not_ended(rig: Rig) -> None:
    script = Path(rig.folder, "prints.py")
    script.write_text(
        "import threading\n"
        "for step in range(8):\n"
        "    print('still here', flush=True)\n"
        "    threading.Event().wait(0.5)\n"
    )
    agent = rig.run("--standalone", "--hang_timeout=2", "--max_restarts=0", script)
    assert agent.exit_code() == 0, agent.output
    assert "no progress" not in agent.output


ONE_WAITS = """\
import os, time
if os.environ["RANK"] == "1":
    time.sleep(8)  # for the others, in one call
else:
    for episode in range(24):
        time.sleep(0.33)
        print("episode", episode, flush=True)
"""
ONE_COMPUTES = """\
import hashlib, os, time
import elastic_core

for step in range(4):
    elastic_core.report(step=step)
if os.environ["RANK"] == "0":
    end = time.monotonic() + 12
    while time.monotonic() < end: hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 500_000)
    open("done", "w").close()
while not os.path.exists("done"):
    time.sleep(0.1)
"""
TWO_PLACES = """\
import os, time
if os.environ["RANK"] == "1":
    time.sleep(1000)
while not os.path.exists("go"):
    time.sleep(0.02)
"""


@pytest.mark.parametrize("program", [ONE_WAITS, ONE_COMPUTES], ids=["prints while another waits", "native calls"])
def test_a_rank_that_may_be_working_is_not_ended(rig: Rig, program: str) -> None:
    Path(rig.folder, "train.py").write_text(program)
    flags = ["--standalone", "--nproc_per_node=2", "--hang_timeout=2", "--max_restarts=0"]
    agent = rig.run(*flags, "train.py", env=WARM)
    assert agent.exit_code() == 0, agent.output
    assert "Hang" not in agent.output


@pytest.mark.parametrize("start_workers", [WARM, COLD], ids=["warm", "fresh"])
def test_no_rank_is_blamed_where_none_stands_out(rig: Rig, start_workers: dict[str, str]) -> None:
    Path(rig.folder, "train.py").write_text(TWO_PLACES)
    agent = rig.run("--nproc_per_node=2", "--hang_window=2", "train.py", env=start_workers)
    agent.wait_for("round 1: no progress for 2 s:")
    agent.wait_for("it cannot be told which rank the others wait for:")
    agent.wait_for(r"rank 0 is in <module> \(train.py:5\)")
    agent.wait_for(r"rank 1 is in <module> \(train.py:3\)")


def test_elastic_stacks_of_a_job_that_is_not_there_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "elastic_core", "stacks", "nothing", "--rdzv_backend=file"]
    done = subprocess.run(
        [*command, f"--rdzv_endpoint={tmp_path / 'store'}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "There is no job 'nothing'" in done.stderr
