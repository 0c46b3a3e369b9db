"""`elastic exec COMMAND`: whatever the command starts gets Elastic where it asks for torchrun."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from rig import Agent, Rig

WORKER = """
import json, os, subprocess, sys

def report(event, **fields):
    line = json.dumps({"event": event, "rank": int(os.environ["RANK"]), "pid": os.getpid(), **fields})
    os.write(1, (line + chr(10)).encode())

seen = {"ours": "ELASTIC_RUN_UID" in os.environ}
seen |= {"variable": os.environ.get("ELASTIC_EXEC"), "kept": os.environ.get("KEPT")}
report("started", arguments=sys.argv[1:], **seen)
match sys.argv[1:]:
    case [*_, "wait"]:
        while not os.path.exists("go"):
            import time; time.sleep(0.05)
    case [*_, "fail"]:
        sys.exit(3)
    case [*_, "nest"]:
        subprocess.run(["torchrun", "--standalone", "worker.py", "inner"], check=True)
report("finished")
"""
CALLER = """
import os, sys
from torch.distributed import run as launcher
from torch.distributed.launcher import LaunchConfig, elastic_launch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

def add(number):
    return number + int(os.environ["RANK"]), "ELASTIC_RUN_UID" in os.environ, os.environ.get("ELASTIC_EXEC")

def main():
    os.environ["KEPT"] = "yes"
    config = LaunchConfig(1, 1, 2, run_id="sums", rdzv_backend="c10d", rdzv_endpoint="localhost:0")
    print(elastic_launch(config, add)(40), flush=True)
    launcher.main(["--nproc_per_node=2", "--master_port=29400", "worker.py", "-m", "a b"])
    print("it has returned", "ELASTIC_EXEC" in os.environ, flush=True)
    args = launcher.get_args_parser().parse_args(["worker.py", "fail"])
    args.nproc_per_node = 1
    try:
        launcher.run(args)
    except ChildFailedError as exc:
        rank, failure = exc.get_first_failure()
        print("rank", rank, "has failed with", failure.exitcode, flush=True)
        raise

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of the rig's agents, with a worker there and a program that calls torch's launcher."""
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "caller.py").write_text(CALLER)
    return tmp_path


def execute(rig: Rig, *command: str) -> Agent:
    """Start ``elastic exec`` with a command, in an environment that is not activated."""
    return rig.start([sys.executable, "-m", "elastic_core", "exec", *command])


def announced(agent: Agent) -> list[str]:
    """Return the messages of `elastic exec`."""
    return [line for line in agent.lines if line.startswith("elastic: ") and "warning" not in line]


def test_a_torchrun_below_the_command_is_ours_and_one_below_a_worker_is_torchs(rig: Rig, folder: Path) -> None:
    agent = execute(
        rig, "sh", "-c", "PYTHONPATH=. torchrun --standalone --node_rank=0 worker.py x nest; echo exit code $?"
    )
    assert agent.exit_code() == 0
    assert announced(agent) == ["elastic: torchrun → elastic run, started by sh"]
    [outer, inner] = agent.reports("started")
    assert outer["ours"]
    assert outer["variable"] is None
    assert inner["arguments"] == ["inner"]
    assert len([line for line in agent.lines if "joining job" in line]) == 1, "by the outer one"
    assert len([line for line in agent.lines if "--node_rank has no effect" in line]) == 1
    assert "exit code 0" in agent.lines


def test_abbreviations_are_torchs_and_exit_codes_are_ours(rig: Rig, folder: Path) -> None:
    agent = execute(
        rig, sys.executable, "-m", "torch.distributed.run", "--standalone", "--redir=0", "worker.py", "fail"
    )
    assert agent.exit_code() == 1
    assert announced(agent) == ["elastic: torchrun → elastic run"]
    assert [report["ours"] for report in agent.reports("started")] == [True]
    assert "rank 0" in agent.output
    assert "Traceback" not in agent.output


def test_a_program_that_calls_torchs_launcher_gets_what_torchs_gives(rig: Rig, folder: Path) -> None:
    agent = execute(rig, sys.executable, "caller.py")
    assert agent.exit_code() == 1, "as elastic run does"
    assert announced(agent) == [
        "elastic: torch.distributed.launcher.api → elastic run, called by caller.py",
        *["elastic: torch.distributed.run → elastic run, called by caller.py"] * 2,
    ]
    assert "{0: (40, True, None), 1: (41, True, None)}" in agent.lines
    assert "timeout" not in agent.output
    first, second, third = agent.reports("started")
    assert [first["kept"], second["kept"], third["arguments"]] == ["yes", "yes", ["fail"]]
    assert first["arguments"] == ["-m", "a b"]
    assert {report["variable"] for report in (first, second, third)} == {None}
    assert "it has returned True" in agent.lines, "the next call is ours as well"
    assert "rank 0 has failed with 3" in agent.lines
    assert "Traceback" not in agent.output


def test_the_old_launcher_gives_scripts_their_local_rank(rig: Rig, folder: Path) -> None:
    agent = execute(rig, sys.executable, "-m", "torch.distributed.launch", "--nproc_per_node=2", "worker.py", "x")
    assert agent.exit_code() == 0
    assert announced(agent) == ["elastic: torch.distributed.run → elastic run, called by torch.distributed.launch"]
    given = sorted(report["arguments"] for report in agent.reports("started"))
    assert given == [["--local-rank=0", "x"], ["--local-rank=1", "x"]]


def test_a_flag_that_elastic_does_not_take_is_passed_on_to_torch(rig: Rig, folder: Path) -> None:
    agent = execute(rig, "torchrun", "--standalone", "--rdzv_conf=unknown=1", "worker.py")
    assert agent.exit_code() == 0
    [said] = announced(agent)
    assert said.startswith("elastic: torchrun stays torch's own: ")
    assert "unknown" in said
    assert [report["ours"] for report in agent.reports("started")] == [False]
    assert agent.reports("started")[0]["variable"] is None


def test_ctrl_c_reaches_a_program_that_runs_torchs_launcher_as_a_debugger_does(rig: Rig, folder: Path) -> None:
    (folder / "waits.py").write_text(
        "import runpy, sys\n"
        "sys.argv[1:] = ['worker.py', 'wait']\n"
        "runpy.run_module('torch.distributed.run', run_name='__main__', alter_sys=True)\n"
    )
    agent = execute(rig, sys.executable, "waits.py")
    agent.wait_for_report("started")
    os.killpg(agent.pid, signal.SIGINT)
    assert agent.exit_code() == -signal.SIGINT, "as Python ends after KeyboardInterrupt"
    assert not agent.reports("finished")


def test_a_torchrun_outlives_the_command_and_a_caller_takes_its_workers_along(rig: Rig, folder: Path) -> None:
    command = execute(rig, "sh", "-c", "torchrun worker.py wait; exit")
    command.wait_for_report("started")
    (folder / "waits.py").write_text("from torch.distributed.run import main\nmain(['worker.py', 'wait'])\n")
    caller = execute(rig, sys.executable, "waits.py")
    caller.wait_for_report("started")
    for agent in (command, caller):
        agent.signal(signal.SIGKILL)
    caller.listen_to_the_end()
    assert not caller.reports("finished")
    (folder / "go").touch()
    command.wait_for("the job is done")
    command.listen_to_the_end()
    assert command.reports("finished")


def test_a_worker_that_is_killed_is_replaced(rig: Rig, folder: Path) -> None:
    agent = execute(rig, "torchrun", "--max_restarts=1", "worker.py", "wait")
    [first] = agent.wait_for_report("started")
    os.kill(first["pid"], signal.SIGKILL)
    agent.wait_for_report("started", count=2)
    (folder / "go").touch()
    assert agent.exit_code() == 0
