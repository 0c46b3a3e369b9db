"""A checkpoint that was torn by the crash itself does not cost all restarts: whole jobs, over two nodes."""

from __future__ import annotations

import re

import pytest
from rig import COLD, WARM, Agent, Rig, over

from elastic_core.exit_codes import ExitCode

TRAIN = """
import json, os, pathlib, signal, sys, time

KEPT = pathlib.Path(sys.argv[1])
RANK, LIFE = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def load():
    names = sorted(KEPT.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
    return json.load(open(names[-1] / "trainer_state.json"))["step"] if names else 0  # the newest, as most programs do


def save(step, text):
    folder = KEPT / f"checkpoint-{step}"
    folder.mkdir(exist_ok=True)
    (folder / "new").write_text(text)
    (folder / "new").rename(folder / "trainer_state.json")  # the other rank may look at this moment


first = load()
for step in range(first + 1, 16):
    if RANK == 0 and step % 5 == 0:
        if step == 15 and LIFE == 0:
            save(step, '{"step": 1')
            os.kill(os.getpid(), signal.SIGKILL)  # in the middle of its work
        save(step, json.dumps({"step": step}))
(KEPT / f"done-{RANK}").touch()
"""
"""It saves a checkpoint every 5 steps, and is killed once while it writes that of step 15."""


def run(rig: Rig, *flags: str, warm: bool = False) -> list[Agent]:
    train, kept = rig.folder / "train.py", rig.folder / "kept"
    train.write_text(TRAIN)
    kept.mkdir()
    given = [*over("file", rig.folder), "--nnodes=2", "--max_restarts=9", *flags, train, kept]
    return [rig.run(*given, env=WARM if warm else COLD) for _ in range(2)]


@pytest.mark.parametrize("warm", [False, True], ids=["fresh", "warm"])
def test_it_is_set_aside_by_one_node_and_the_job_goes_on_from_the_one_before(rig: Rig, warm: bool) -> None:
    kept = rig.folder / "kept"
    agents = run(rig, f"--checkpoint_path={kept}", "--set_aside_torn_checkpoints", warm=warm)
    assert [agent.exit_code() for agent in agents] == [0, 0], agents[0].output
    assert (kept / "torn-checkpoint-15" / "trainer_state.json").read_text() == '{"step": 1'
    assert (kept / "checkpoint-10").is_dir()
    assert {path.name for path in kept.glob("done-*")} == {"done-0", "done-1"}
    told = [
        line for agent in agents for line in agent.lines if f"it was set aside as {kept}/torn-checkpoint-15" in line
    ]
    assert len([line for line in told if "the job is restarted: " in line]) == 1


def test_without_the_flag_the_job_ends_after_two_lives_and_every_node_names_the_checkpoint(rig: Rig) -> None:
    kept = rig.folder / "kept"
    agents = run(rig, f"--checkpoint_path={kept}")
    assert [agent.exit_code() for agent in agents] == [ExitCode.JOB_FAILED] * 2
    for agent in agents:
        agent.wait_for(rf"the job has failed: 2 lives in a row failed to load {re.escape(str(kept))}/checkpoint-15 ")
    assert (kept / "checkpoint-15").is_dir()


def test_without_a_checkpoint_path_it_is_only_told(rig: Rig) -> None:
    agents = run(rig)
    assert [agent.exit_code() for agent in agents] == [ExitCode.JOB_FAILED] * 2
    kept = rig.folder / "kept"
    told = "".join(agent.output for agent in agents)
    assert f"the job is restarted: 2 lives in a row failed to load {kept}/checkpoint-15 " in told
    assert "(no_progress=5)" in told
    assert (kept / "checkpoint-15").is_dir()


READS = """
import json, sys

json.load(open(sys.argv[2]))
"""
"""It reads a file, which the test has torn."""


def run_reader(rig: Rig, torn: str) -> Agent:
    train, kept = rig.folder / "train.py", rig.folder / "kept"
    train.write_text(READS)
    for folder in (kept, rig.folder / "checkpoint-data"):
        folder.mkdir()
    (rig.folder / torn).write_text('{"step": 1')
    flags = [f"--checkpoint_path={kept}", "--set_aside_torn_checkpoints", "--max_restarts=9"]
    return rig.run("--standalone", *flags, train, kept, rig.folder / torn, env=COLD)


@pytest.mark.parametrize("torn", ["data.json", "checkpoint-data/checkpoint-5.json", "kept-checkpoint-5.json"])
def test_a_file_outside_the_checkpoint_path_is_never_moved(rig: Rig, torn: str) -> None:
    agent = run_reader(rig, torn)
    assert agent.exit_code() == ExitCode.JOB_FAILED
    assert (rig.folder / torn).read_text() == '{"step": 1'
    assert "set aside" not in agent.output


def test_a_file_below_the_checkpoint_path_is_a_checkpoint_whatever_its_name(rig: Rig) -> None:
    agent = run_reader(rig, "kept/latest.json")
    assert agent.exit_code() == ExitCode.JOB_FAILED, "the file is gone then, which no restart mends"
    assert f"it was set aside as {rig.folder}/kept/torn-latest.json" in agent.output
    assert (rig.folder / "kept" / "torn-latest.json").read_text() == '{"step": 1'
