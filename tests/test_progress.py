"""Progress of unchanged scripts: their output is read, in jobs of real agents over two nodes."""

from __future__ import annotations

import json
import re
import signal
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rig import Agent, Rig
from terminal import Terminal

EVENTS = "--event_log_handler=console"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The file of a script; it may wait for the file ``done`` beside it."""
    return tmp_path / "train.py"


HEAD = """
    import os, pathlib, sys, time
    RANK, DONE = int(os.environ["RANK"]), pathlib.Path(__file__).with_name("done")
    ROUND_2 = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
"""


def write(script: Path, *parts: str) -> Path:
    script.write_text("".join(map(textwrap.dedent, (HEAD, *parts))))
    return script


def events(agent: Agent, name: str) -> list[Mapping[str, Any]]:
    """The events of this name in an agent's log."""
    logged = [json.loads(text) for text in re.findall(r'\{"time": .*\}\}', agent.output)]
    return [event for event in logged if event["name"] == name]


TITAN = """
    for step in range(1, 21):
        print(f"[titan] 2026-05-18 16:04:46,338 - root - INFO - step: {step:2}  loss:  3.24405  grad_norm:  0.8319  "
              "memory:  9.46GiB(64.99%)", flush=True)
        time.sleep(0.01)
"""

AFTER_ALL = """
    DONE.with_name(f"printed_{RANK}").touch()
    if RANK != 3:
        time.sleep(1000)
    while len(list(DONE.parent.glob("printed_*"))) < 4:  # a rank that has not begun would be stopped without a line
        time.sleep(0.01)
    raise SystemExit(3)
"""


def test_a_script_that_prints_its_steps_fails_at_one(rig: Rig, file_rendezvous: list[str], script: Path) -> None:
    write(script, TITAN, AFTER_ALL)
    command = ["--nnodes=2", "--nproc_per_node=2", *file_rendezvous, script]
    agents = [rig.run(*command), rig.run(*command)]
    for agent in agents:
        assert agent.exit_code() == 1
        agent.wait_for(r'\[elastic\] .* rank \d is at .*, read from its output by the pattern "torchtitan"')
        agent.wait_for(r"who     rank 3 \(.*, at step 20$")
        assert agent.output.count("read from its output") == 1, "one line a node"


BARS = """
    for step in range(1, 61):
        if RANK == 0:
            sys.stderr.write(f"\\r {step}%|###    | {step}/100 [00:01<00:09,  8.00it/s]")
            sys.stderr.flush()
            time.sleep(0.01)
    if RANK == 0:
        sys.stderr.write("\\n")  # the bar is a line
        sys.stderr.flush()
    print("ready", flush=True)
    while not DONE.exists():
        time.sleep(0.01)
"""


def test_the_state_of_an_agent_shows_the_step_of_a_bar_and_its_age(
    rig: Rig, file_rendezvous: list[str], script: Path
) -> None:
    write(script, BARS)
    decisions = {"TMPDIR": str(script.parent)}
    agents = [rig.run("--nnodes=2", EVENTS, *file_rendezvous, script, env=decisions) for _ in range(2)]
    for agent in agents:
        agent.wait_for("ready")
    # The bar comes through its agent, and "ready" from the workers themselves.
    assert rig.wait_until(lambda: any("60/100" in agent.output for agent in agents))
    [teller] = [agent for agent in agents if "60/100" in agent.output]
    teller.signal(signal.SIGQUIT)
    teller.wait_for(r"^  rank 0     pid \d+, started \d+\.\d s ago, step 60, last progress \d+\.\d s ago$")
    script.with_name("done").touch()
    assert [agent.exit_code() for agent in agents] == [0, 0]
    [said] = events(teller, "progress_pattern")
    assert said["fields"]["pattern"].startswith("a tqdm bar")
    assert events(teller, "progress")


OWN = """
    step = 100 if ROUND_2 else 0
    sys.stdout.buffer.write(bytes(range(256)) * 100 + b"\\n" + b"x" * 3_000_000 + b"\\n")
    for step in range(step, step + 10):
        print("x" * 100_000, "at", step, "of 200")
    sys.stdout.flush()
    os.kill(os.getpid(), 9) if not ROUND_2 else None
    print("at 200 of 200")
"""


def test_an_own_pattern_is_read_between_garbage_and_from_a_single_workers_stdout(rig: Rig, script: Path) -> None:
    write(script, OWN)
    agent = rig.run("--standalone", "--max_restarts=1", EVENTS, r"--progress_pattern=at (?P<step>\d+) of", script)
    assert agent.exit_code() == 0
    [said] = events(agent, "progress_pattern")
    assert said["fields"]["pattern"] == "--progress_pattern"
    assert agent.output.count("x") >= 2 * 3_000_000 + 20 * 100_000, "all of it is shown"
    assert events(agent, "output_unread") == []


NAN = """
    for step in range(1, 1000):
        print(f"step {step} loss {'nan' if step > 4 and not ROUND_2 else 0.5}", flush=True)
        time.sleep(0.005)
"""


def test_a_nan_loss_ends_the_round_on_request(rig: Rig, file_rendezvous: list[str], script: Path) -> None:
    write(script, NAN)
    pattern = r"--progress_pattern=step (?P<step>\d+) loss (?P<loss>\S+)"
    options = ["--max_restarts=1", "--nan_stop=20", "--failure_policy=nan_loss=off"]
    command = ["--nnodes=2", *options, pattern, *file_rendezvous, script]
    agents = [rig.run(*command), rig.run(*command)]
    assert [agent.exit_code() for agent in agents] == [0, 0]
    for agent in agents:
        agent.wait_for(r"NanLoss: the loss is nan since step 5")


def test_a_nan_loss_ends_the_job_where_a_policy_says_so(rig: Rig, script: Path) -> None:
    write(script, NAN)
    pattern = r"--progress_pattern=step (?P<step>\d+) loss (?P<loss>\S+)"
    agent = rig.run("--standalone", "--max_restarts=3", "--nan_stop=20", pattern, script)
    assert agent.exit_code() == 1
    agent.wait_for("the job has failed: .*loss")
    assert "round 2" not in agent.output


def test_a_nan_loss_is_the_root_cause_of_a_job_that_it_ends(rig: Rig, script: Path) -> None:
    write(script, NAN)
    pattern = r"--progress_pattern=step (?P<step>\d+) loss (?P<loss>\S+)"
    agent = rig.run("--standalone", "--max_restarts=0", "--nan_stop=20", pattern, script)
    assert agent.exit_code() == 1
    agent.wait_for(r"what    NanLoss: the loss is nan since step 5$")


def test_without_nan_stop_a_nan_loss_is_the_scripts_own_business(rig: Rig, script: Path) -> None:
    write(script, NAN)
    agent = rig.run("--standalone", "--max_restarts=0", script)
    assert agent.exit_code() == 0


REPORTS = """
    import elastic_core as elastic
    for step in range(1, 4):
        elastic.report(step=step, loss=0.5, samples=32 * step, epoch=0.5)
        time.sleep(0.15)
    raise SystemExit(3)
"""


def test_reports_of_a_script(rig: Rig, script: Path) -> None:
    agent = rig.run("--standalone", "--max_restarts=0", EVENTS, write(script, REPORTS))
    assert agent.exit_code() == 1
    agent.wait_for(r"who     rank 0 \(.*, at step 3$")
    fields = events(agent, "progress")[0]["fields"]
    assert (fields["step"], fields["samples"], fields["loss"], fields["epoch"]) == (1, 32, 0.5, 0.5)


REAL_BAR = """
    from tqdm import tqdm
    for step in tqdm(range(1000), mininterval=0, miniters=1):
        time.sleep(0.002)
        if step == 400 and RANK == 1:
            raise ValueError("boom")
"""


def test_a_bar_of_tqdms_own(rig: Rig, file_rendezvous: list[str], script: Path) -> None:
    write(script, REAL_BAR)
    command = ["--nnodes=2", *file_rendezvous, script]
    agents = [rig.run(*command), rig.run(*command)]
    for agent in agents:
        assert agent.exit_code() == 1
        agent.wait_for(r"who     rank 1 \(.*, at step 400$")
        agent.wait_for(r"what    exited with code 1$")


TAKES_NOTICES = """
    from elastic_core.worker.graceful_stop import should_checkpoint
    for step in range(1, 6):
        should_checkpoint(step)
        time.sleep(0.15)
    raise SystemExit(3)
"""


def test_a_script_that_takes_notices_reports_its_steps_with_that(rig: Rig, script: Path) -> None:
    agent = rig.run("--standalone", "--max_restarts=0", EVENTS, write(script, TAKES_NOTICES))
    assert agent.exit_code() == 1
    agent.wait_for(r"who     rank 0 \(.*, at step 5$")
    assert events(agent, "progress")[0]["fields"]["step"] == 1
    assert events(agent, "progress_pattern") == [], "nothing was read"


CHECKPOINTS = """
    path = DONE.with_name("checkpoints") / "checkpoint-7" / "model.pt"
    path.parent.mkdir(parents=True)
    path.write_text("state")
    print("saved", flush=True)
    while not DONE.exists():
        time.sleep(0.01)
"""


def test_a_directory_of_checkpoints_is_looked_at_beside_the_job(rig: Rig, script: Path) -> None:
    place = script.with_name("checkpoints")
    arguments = "--standalone", f"--checkpoint_path={place}", write(script, CHECKPOINTS)
    agent = rig.run(*arguments, env={"TMPDIR": str(script.parent)})  # for its decisions, written with each dump
    agent.wait_for("saved")

    dumps = 0
    while "checkpoint of step 7, saved " not in agent.output:  # two looks, five seconds apart, have to find it
        dumps += 1
        assert dumps < 1000
        agent.signal(signal.SIGQUIT)
        agent.wait_for("the state of ", count=dumps)
        agent.wait_for("Thread MainThread", count=dumps)
    script.with_name("done").touch()
    assert agent.exit_code() == 0


@pytest.mark.parametrize(
    ("flag", "error"),
    [
        (r"--progress_pattern=(?P<step>(\d+)+)$", "repeats something that is repeated"),
        (r"--progress_pattern=(?P<stp>\d+)", "has the group 'stp'; known are step, loss, samples, epoch. An example: "),
        ("--checkpoint_pattern=[", "is not a regular expression"),
        ("--nan_stop=-1", "is less than 0"),
    ],
)
def test_flags_that_are_refused_before_anything_starts(rig: Rig, script: Path, flag: str, error: str) -> None:
    agent = rig.run("--standalone", flag, write(script, "print('started')"))
    assert agent.exit_code() == 2
    assert error in agent.output
    assert "started" not in agent.output


RICH = """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    with Progress(TextColumn("Epoch 0/1"), BarColumn(), MofNCompleteColumn(), auto_refresh=False) as bars:
        task = bars.add_task("train", total=50)
        for step in range(1, 31):
            bars.update(task, advance=1, refresh=True)
            time.sleep(0.1)
    raise SystemExit(3)
"""


AT_STEP_30 = r"who     rank \d \(.*, at step 30"


def test_a_bar_of_richs_own_under_a_pipe(rig: Rig, script: Path) -> None:
    agent = rig.run("--nproc_per_node=2", write(script, RICH), env={"TTY_COMPATIBLE": "1"})
    assert agent.exit_code() == 1
    agent.wait_for(AT_STEP_30)


def test_a_bar_of_richs_own_on_a_terminal(rig: Rig, script: Path) -> None:
    command = [sys.executable, "-m", "elastic_core", "run", "--nproc_per_node=1", str(write(script, RICH))]
    with Terminal(command, rig.folder, rig.environment(), (40, 120)) as terminal:
        terminal.wait_for(AT_STEP_30)
        assert terminal.exit_code() == 1


GENERIC = """
    for step in range(1, 21):
        print(f"iter {step}: loss 2.34{step}, time 120.34ms, mfu 23.40%", flush=True)
        time.sleep(0.1)
    raise SystemExit(3)
"""


def test_a_script_that_prints_a_step_and_its_loss(rig: Rig, script: Path) -> None:
    agent = rig.run("--standalone", "--nproc_per_node=2", write(script, GENERIC))
    assert agent.exit_code() == 1
    agent.wait_for(r'rank \d is at step \d+, loss 2.34\d+, read from its output by the pattern "a step and its loss')
    agent.wait_for(r"who     rank \d \(.*, at step 20$")


THREE_STEPS_A_ROUND = """
    begin = 3 * int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    for step in range(begin + 1, begin + 4):
        print(f"step: {step} loss: 1.0", flush=True)
        time.sleep(0.02)  # the second and third line are read with what comes next, which is the end
    raise SystemExit(3 if begin < 3 * 15 else 0)
"""


def test_a_job_that_comes_further_in_each_round_goes_on_however_short_they_are(rig: Rig, script: Path) -> None:
    options = ["--max_restarts=1000", "--failure_policy=no_progress=off"]
    agent = rig.run("--standalone", "--nproc_per_node=2", *options, write(script, THREE_STEPS_A_ROUND))
    assert agent.exit_code() == 0
    assert "without progress" not in agent.output
