"""However an agent ends, nothing of it is left: no process, however well it hides, and no file."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rig import END_MAX_SECONDS, PATIENCE, WORKERS, Agent, Rig, descendants, name_of, over, still_there


def everything(agent: Agent) -> list[int]:
    """The agent's descendants, with those whose environment no longer carries the mark."""
    helpers = [report["pid"] for report in agent.reports("helper")]
    children = [report["child"] for report in agent.reports("started") if "child" in report.fields]
    return sorted({*descendants(agent.pid), *helpers, *children})


def below(agent: Agent, name: str) -> int:
    """The process of an agent's that has this name."""
    [pid] = [pid for pid in descendants(agent.pid) if name_of(pid) == name]
    return pid


CASES = [
    pytest.param(["--no_python", WORKERS / "shell.sh"], "started", id="shell_with_children"),
    pytest.param([WORKERS / "forker.py"], "helper", id="double_forked"),
    pytest.param([WORKERS / "stubborn.py"], "started", id="deaf_to_sigterm"),
    pytest.param([WORKERS / "sleeper.py"], "started", id="plain"),
]


@pytest.mark.parametrize(("program", "sign"), CASES)
def test_killing_the_agent_kills_all_that_it_started(rig: Rig, program: list[object], sign: str) -> None:
    agent = rig.run("--standalone", "--nproc_per_node=2", *program)
    agent.wait_for_report("started", count=2)
    agent.wait_for_report(sign, count=2)
    pids = everything(agent)
    agent.signal(signal.SIGKILL)
    assert still_there(pids, within=END_MAX_SECONDS) == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(("program", "sign"), [CASES[0], CASES[1]])
def test_a_signal_ends_the_agent_and_all_that_it_started(
    rig: Rig, program: list[object], sign: str, signum: int
) -> None:
    agent = rig.run("--standalone", "--nproc_per_node=2", "--shutdown_timeout=1", *program)
    agent.wait_for_report("started", count=2)
    agent.wait_for_report(sign, count=2)
    pids = everything(agent)
    agent.signal(signum)
    assert agent.exit_code() == 128 + signum
    assert still_there(pids, within=0.0) == []


def test_a_second_signal_does_not_wait_for_stubborn_workers(rig: Rig) -> None:
    agent = rig.run("--standalone", "--shutdown_timeout=3600", WORKERS / "stubborn.py")
    agent.wait_for_report("started")
    agent.signal(signal.SIGINT)
    agent.wait_for("SIGINT")
    agent.signal(signal.SIGINT)
    assert agent.exit_code() == 128 + signal.SIGINT


def test_timeout_which_signals_an_agent_twice_asks_it_once_to_leave(rig: Rig) -> None:
    """It signals its child, and then its process group."""
    job = ["--standalone", "--shutdown_timeout=2", WORKERS / "stubborn.py"]
    agent = rig.start(["timeout", "600", sys.executable, "-m", "elastic_core", "run", *map(str, job)])
    agent.wait_for_report("started")
    agent.process.send_signal(signal.SIGTERM)
    assert agent.exit_code() == 128 + signal.SIGTERM
    assert agent.output.count("received SIGTERM") == 2, "as it leaves, and as it is out"
    assert "again" not in agent.output


def test_the_other_nodes_outlive_a_killed_agent(rig: Rig, file_rendezvous: list[str]) -> None:
    command = ["--nnodes=1:2", *file_rendezvous, WORKERS / "sleeper.py"]
    first = rig.run(*command)
    first.wait_for_report("started", world_size=1)
    second = rig.run(*command)
    second.wait_for_report("started", world_size=2)
    second.signal(signal.SIGKILL)
    first.wait_for_report("started", count=2, world_size=1)


@pytest.mark.parametrize("backend", ["local", "c10d"])
@pytest.mark.parametrize("stream", ["<&-", ">&-", "<&- >&-"])
def test_a_closed_standard_stream_is_nobody_elses(rig: Rig, tmp_path: Path, backend: str, stream: str) -> None:
    """The first file that the agent opens must not become its own, or its workers', standard stream."""
    flags = "" if backend == "local" else " ".join(over(backend, tmp_path))
    shown = tmp_path / "fds"
    worker = f"--no_python sh -c 'readlink /proc/self/fd/0 > {shown}'"
    agent = rig.start(["sh", "-c", f"{sys.executable} -m elastic_core run {flags} {worker} {stream}"])
    assert agent.exit_code() == 0, agent.output
    assert "socket" not in shown.read_text()


def test_a_stopped_warden_does_not_outlive_a_second_ctrl_c(rig: Rig) -> None:
    agent = rig.run("--standalone", WORKERS / "sleeper.py")
    agent.wait_for_report("started")
    warden = below(agent, "elastic-warden")
    os.kill(warden, signal.SIGSTOP)
    for said in ("received SIGINT: leaving", "received SIGINT again"):
        agent.process.send_signal(signal.SIGINT)
        agent.wait_for(said)
    assert agent.exit_code() == 130


def test_a_stopped_warden_is_noticed(rig: Rig) -> None:
    agent = rig.run("--standalone", WORKERS / "sleeper.py")
    agent.wait_for_report("started")
    warden = below(agent, "elastic-warden")
    os.kill(warden, signal.SIGSTOP)
    agent.wait_for(rf"the parent process of this node's workers \(pid {warden}\) has not run for 1\d s")
    os.kill(warden, signal.SIGCONT)
    agent.process.send_signal(signal.SIGINT)
    assert agent.exit_code() == 130


def test_a_frozen_store_does_not_keep_an_agent_from_ending(rig: Rig, tmp_path: Path) -> None:
    command = ["--nnodes=2", *over("c10d", tmp_path), WORKERS / "sleeper.py"]
    host = rig.run(*command)
    host.wait_for("joining job")
    guest = rig.run(*command)
    for agent in (host, guest):
        agent.wait_for_report("started")
    os.kill(below(host, "elastic-store"), signal.SIGSTOP)
    for agent in (guest, host):
        agent.process.send_signal(signal.SIGINT)
        assert agent.exit_code() == 130, agent.output
    assert "terminate called" not in guest.output


def test_a_node_that_comes_to_a_full_job_prints_that_it_waits(rig: Rig, file_rendezvous: list[str]) -> None:
    first = rig.run(*file_rendezvous, WORKERS / "sleeper.py")
    first.wait_for_report("started")
    second = rig.run(*file_rendezvous, WORKERS / "sleeper.py")
    second.wait_for("the job has all 1 node")
    first.process.send_signal(signal.SIGINT)
    second.wait_for_report("started")


def test_a_job_ends_though_nobody_reads_what_its_agent_says(rig: Rig, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 65536)
    os.set_blocking(writing, True)
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit(7)")
    command = [sys.executable, "-m", "elastic_core", "run", "--standalone", str(script)]
    done = subprocess.run(command, cwd=rig.folder, env=rig.environment(), stderr=writing, timeout=PATIENCE)
    os.close(writing)
    os.close(reading)
    assert done.returncode == 1
