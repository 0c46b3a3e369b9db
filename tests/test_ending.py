"""However an agent ends, nothing of it is left: no process, however well it hides, and no file."""

from __future__ import annotations

import os
import signal

import pytest
from stage import WORKERS, Agent, Stage, descendants, still_there


def everything(agent: Agent) -> list[int]:
    """The agent's descendants, with those whose environment no longer carries the mark."""
    helpers = [report["pid"] for report in agent.reports("helper")]
    children = [report["child"] for report in agent.reports("started") if "child" in report.fields]
    return sorted({*descendants(agent.pid), *helpers, *children})


CASES = [
    pytest.param(["--no_python", WORKERS / "shell.sh"], "started", id="shell_with_children"),
    pytest.param([WORKERS / "forker.py"], "helper", id="double_forked"),
    pytest.param([WORKERS / "stubborn.py"], "started", id="deaf_to_sigterm"),
    pytest.param([WORKERS / "sleeper.py"], "started", id="plain"),
]


@pytest.mark.parametrize(("program", "sign"), CASES)
def test_killing_the_agent_kills_all_that_it_started_within_two_seconds(
    stage: Stage, program: list[object], sign: str
) -> None:
    agent = stage.run("--standalone", "--nproc_per_node=2", *program)
    agent.wait_for_report("started", count=2)
    agent.wait_for_report(sign, count=2)
    pids = everything(agent)
    agent.signal(signal.SIGKILL)
    assert still_there(pids, within=2.0) == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
@pytest.mark.parametrize(("program", "sign"), [CASES[0], CASES[1]])
def test_a_signal_ends_the_agent_and_all_that_it_started(
    stage: Stage, program: list[object], sign: str, signum: int
) -> None:
    agent = stage.run("--standalone", "--nproc_per_node=2", "--shutdown_timeout=1", *program)
    agent.wait_for_report("started", count=2)
    agent.wait_for_report(sign, count=2)
    pids = everything(agent)
    agent.signal(signum)
    assert agent.exit_code() == 128 + signum
    assert still_there(pids, within=0.0) == []


def test_control_c_reaches_a_worker_that_cleans_up(stage: Stage) -> None:
    agent = stage.run("--standalone", "--nproc_per_node=2", WORKERS / "sleeper.py")
    agent.wait_for_report("started", count=2)
    os.killpg(agent.pid, signal.SIGINT)  # as the terminal does
    assert agent.exit_code() == 128 + signal.SIGINT
    assert "Traceback" not in agent.output


def test_a_second_signal_does_not_wait_for_stubborn_workers(stage: Stage) -> None:
    agent = stage.run("--standalone", "--shutdown_timeout=3600", WORKERS / "stubborn.py")
    agent.wait_for_report("started")
    agent.signal(signal.SIGINT)
    agent.wait_for("SIGINT")
    agent.signal(signal.SIGINT)
    assert agent.exit_code() == 128 + signal.SIGINT


def test_the_other_nodes_outlive_a_killed_agent(stage: Stage, file_rendezvous: list[str]) -> None:
    command = ["--nnodes=1:2", *file_rendezvous, WORKERS / "sleeper.py"]
    first = stage.run(*command)
    first.wait_for_report("started", world_size=1)
    second = stage.run(*command)
    second.wait_for_report("started", world_size=2)
    second.signal(signal.SIGKILL)
    first.wait_for_report("started", count=2, world_size=1)
