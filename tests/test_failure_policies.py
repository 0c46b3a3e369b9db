"""The policies of elastic-policies, whole jobs: a bug ends the job, a preemption costs nothing, a budget limits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rig import WORKERS, Agent, Rig

from elastic_core.exit_codes import ExitCode

DEFAULT_RESTARTS = {"PET_MAX_RESTARTS": ""}  # as a user has it; the rig sets 0
PREEMPTED = """
import os, signal, sys

if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < 3:
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()
"""

SAVES_AND_FAILS = """
import os

restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print(f"saved /ckpt/checkpoint-{1 if 'SAME_CHECKPOINT' in os.environ else restarts}", flush=True)
if restarts < 4:
    raise ValueError("boom")
"""


def starts(agent: Agent, rank: int = 1) -> list[int]:
    """The restart counts with which a rank was started."""
    return [report["restart_count"] for report in agent.reports("started") if report.rank == rank]


@pytest.mark.parametrize(
    ("given", "rounds"),
    [
        ([], 3),
        (["--max_restarts=9"], 5),
        (["--failure_policy=budget=9/1h"], 5),
        (["--failure_policy=no_progress=4"], 4),
    ],
)
def test_a_deterministic_bug_ends_the_job_after_a_few_equal_failures(rig: Rig, given: list[str], rounds: int) -> None:
    flags = ["--standalone", "--nproc_per_node=2", *given]
    agent = rig.run(*flags, WORKERS / "crasher.py", "--ranks=1,0,1,0,1,0", env=DEFAULT_RESTARTS)
    assert agent.exit_code() == ExitCode.JOB_FAILED
    assert starts(agent) == [*range(rounds)]
    why = rf"the same ValueError at crasher.py:\d+ in <module> in {rounds} rounds in a row, and no step or checkpoint"
    agent.wait_for(rf"the job is not restarted: {why} \(no_progress={rounds}\)")


def test_newer_checkpoints_are_progress_where_no_steps_are_known(rig: Rig, tmp_path: Path) -> None:
    train = tmp_path / "train.py"
    train.write_text(SAVES_AND_FAILS)
    flags = ["--standalone", "--max_restarts=9", r"--checkpoint_pattern=saved (?P<path>\S+)"]
    flags += ["--failure_policy=no_progress=3"]
    agent = rig.run(*flags, train)
    assert agent.exit_code() == 0, agent.output
    again = rig.run(*flags, train, env={"SAME_CHECKPOINT": "1"})
    assert again.exit_code() == ExitCode.JOB_FAILED
    assert "restart 3 of" in again.output, "the round that saved it does not count"
    why = (
        "the same ValueError at train.py:7 in <module> in 3 rounds in a row, and no step or checkpoint (no_progress=3)"
    )
    assert f"the job is not restarted: {why}" in again.output


def test_each_restart_is_explained_in_the_ledger_and_every_job_that_was_preempted_too_often(
    rig: Rig, tmp_path: Path
) -> None:
    train = tmp_path / "train.py"
    train.write_text(PREEMPTED)
    flags = ["--standalone", "--event_log_handler=console", "--failure_policy=preemptions=2/1h,budget=0/1h"]
    agent = rig.run(*flags, train, env=DEFAULT_RESTARTS)
    assert agent.exit_code() == ExitCode.REQUEUE, agent.output
    assert "workers were preempted 3 times within 1h (preemptions=2/1h)" in agent.output
    events = [json.loads(line) for line in agent.lines if line.startswith('{"time"')]
    verdicts = [event["fields"]["verdict"] for event in events if event["name"] == "round_started"]
    assert verdicts == ["", *(f"preemptions: preemption {n} of preemptions=2/1h" for n in (1, 2))]


KILLED = """
import os, signal

if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < 3:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_quarantine_says_that_it_has_no_effect_where_no_other_node_is(rig: Rig, tmp_path: Path) -> None:
    train = tmp_path / "train.py"
    train.write_text(KILLED)
    agent = rig.run("--standalone", "--max_restarts=9", train)
    assert agent.exit_code() == 0, agent.output
    agent.wait_for(
        r"the job is restarted; (\S+) would be left out, but no other node is there: \1 failed first 3 times"
    )


def test_the_policy_can_be_turned_off(rig: Rig) -> None:
    flags = ["--standalone", "--nproc_per_node=2", "--max_restarts=9", "--failure_policy=no_progress=off"]
    agent = rig.run(*flags, WORKERS / "crasher.py", "--ranks=1,1,1,1,1,1")
    assert agent.exit_code() == 0
    assert starts(agent) == [0, 1, 2, 3, 4, 5, 6]


def test_preemptions_do_not_use_the_budget(rig: Rig, tmp_path: Path) -> None:
    train = tmp_path / "train.py"
    train.write_text(PREEMPTED)
    agent = rig.run("--standalone", "--failure_policy=budget=1/1h", train, env=DEFAULT_RESTARTS)
    assert agent.exit_code() == 0, agent.output


def test_a_budget_stands_in_the_place_of_max_restarts(rig: Rig) -> None:
    flags = ["--standalone", "--nproc_per_node=2", "--failure_policy=budget=4/1h,no_progress=off"]
    agent = rig.run(*flags, WORKERS / "crasher.py", "--ranks=0,1,0,1,0,1", env=DEFAULT_RESTARTS)
    assert agent.exit_code() == ExitCode.JOB_FAILED
    assert starts(agent) == [0, 1, 2, 3, 4]
    assert "all restarts of budget=4/1h are spent: 4 within 1h" in agent.output


def test_a_back_off_is_announced_with_each_verdict_and_the_log_can_be_replayed(rig: Rig, tmp_path: Path) -> None:
    flags = ["--standalone", "--nproc_per_node=2", "--event_log_handler=console"]
    policy = "--failure_policy=backoff=0.2s..1s,no_progress=off"
    agent = rig.run(*flags, policy, WORKERS / "crasher.py", "--ranks=0,1,0", env=DEFAULT_RESTARTS)
    assert agent.exit_code() == 0
    events = [json.loads(line) for line in agent.lines if line.startswith('{"time"')]
    verdicts = [event["fields"] for event in events if event["name"] == "verdict"]
    assert [(one["rank"], one["action"], one["delay_s"]) for one in verdicts] == [
        (0, "restart", 0.0),
        (1, "restart", 0.2),
        (0, "restart", 0.4),
    ]
    assert [one["exception"] for one in verdicts] == 3 * ["ValueError"]
    log = tmp_path / "events.jsonl"
    log.write_text(agent.output)
    command = [sys.executable, "-m", "elastic_core", "policy", "replay", str(log), "--failure_policy=budget=2/1h"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "3 failure(s), 2 with another verdict"


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("budgt=1/1h", "there is no policy 'budgt'. Did you mean 'budget'?"),
        ("budget=1", "is not of the form N/DURATION"),
    ],
)
def test_a_policy_that_does_not_exist_ends_the_run_before_it_begins(rig: Rig, policy: str, says: str) -> None:
    agent = rig.run("--standalone", f"--failure_policy={policy}", WORKERS / "crasher.py", "--ranks=0")
    assert agent.exit_code() == ExitCode.USAGE
    assert says in agent.output
    assert not agent.reports("started")


def test_nodes_with_another_policy_are_refused(rig: Rig, rendezvous: list[str]) -> None:
    flags = [*rendezvous, "--nnodes=1:2", "--nproc_per_node=1"]
    first = rig.run(*flags, "--failure_policy=budget=4/1h", WORKERS / "sleeper.py")
    first.wait_for(r"round 1: ")
    other = rig.run(*flags, "--failure_policy=budget=5/1h", WORKERS / "sleeper.py")
    assert other.exit_code() != 0
    assert "flags: --failure_policy=budget=5/1h here, --failure_policy=budget=4/1h there" in other.output
    first.kill_node()
