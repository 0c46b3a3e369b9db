"""Which jobs are restarted until they succeed, and which ones end after a few tries: whole jobs, with real processes.

The healthy ones fail often and progress each time, as far as they show it; the hopeless ones fail at one point for
ever. All are given far more restarts than they need.
"""

from __future__ import annotations

import re

import pytest
from rig import Agent, Rig, over

from elastic_core.exit_codes import ExitCode

MANY = "--max_restarts=1000"
DEFAULT_RESTARTS = {"PET_MAX_RESTARTS": ""}  # as a user has it; the rig sets 0
COMMON = """
import os, pathlib, signal, sys, time

RANK, LIFE = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
KEPT = pathlib.Path(sys.argv[1])  # what the job has saved, or its ranks tell each other


def wait(name):  # as in a collective: until the other rank is there, or for ever
    while not (KEPT / name).exists():
        time.sleep(0.01)


def step(number):  # on stderr, as loggers do: agents read that
    print(f"step: {number} loss: 0.5", file=sys.stderr)
    time.sleep(0.01)

"""

EPOCHS = """
from tqdm import tqdm

saved = KEPT / "epoch"
epoch = int(saved.read_text()) if saved.exists() else 0
while epoch < 7:
    for batch in tqdm(range(20), mininterval=0.02):
        time.sleep(0.02)
    epoch += 1
    saved.write_text(str(epoch))  # the job's own checkpoint, which only the job knows
    if epoch < 7:
        raise RuntimeError(f"the data service gave half a record (hiccup {epoch})")
"""
"""An epoch in each life, with a bar that begins at 0."""

BAD_HOUR = """
if LIFE == 6:
    sys.exit(0)
if RANK != (LIFE + 1) % 2:
    signal.pause()
for number in range(100, (190, 150, 170, 120, 160, 180)[LIFE] + 1, 10):
    step(number)
    if LIFE == 0 and number == 100:
        print(f"saved {KEPT}/checkpoint-100", flush=True)
if LIFE % 3 == 0:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")
if LIFE % 3 == 1:
    raise ValueError(f"record {LIFE} is broken")
os.kill(os.getpid(), signal.SIGSEGV)
"""
"""It saves a checkpoint, and then fails in three ways on both ranks before it comes to the next."""

FAR_RANK = """
first = 100 * LIFE
if RANK == 0:  # alone prints, as in every framework
    for number in range(first, first + 101, 10):
        step(number)
    time.sleep(0.3)  # its agent has read that
    (KEPT / f"trained-{LIFE}").touch()
    if LIFE < 6:
        signal.pause()
wait(f"trained-{LIFE}")
if RANK == 1 and LIFE < 6:
    raise RuntimeError(f"data service hiccup after step {first + 100}")
"""
"""Rank 0 prints the steps, and rank 1, on another node, fails; each life makes 100 new steps."""

UNEVEN = """
for number in range(1, 30):
    step(number)
(KEPT / f"{RANK}-{LIFE}").touch()
wait(f"{1 - RANK}-{LIFE}")
time.sleep(0.2)
if RANK == LIFE % 2:  # whose turn it is to lose the other first, is a race
    raise RuntimeError(f"[gloo/transport/tcp/pair.cc:{LIFE}] Connection closed by peer [10.0.0.{RANK}]:4242")
time.sleep(0.2)
raise RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation")
"""
"""Rank 1 has fewer batches, so that each life ends with a lost connection at step 29."""

ALL_FAIL = """
(KEPT / f"{RANK}-{LIFE}").touch()
for rank in range(int(os.environ["WORLD_SIZE"])):
    wait(f"{rank}-{LIFE}")
time.sleep(0.05 * ((RANK + LIFE) % 4))  # another one is the first each time
{}["tokenizer"]
"""
"""All ranks fail alike at the same moment, before any step."""

SILENT = """
if RANK == LIFE % 2:
    os._exit(1)
signal.pause()
"""
"""A rank exits with 1 and says nothing, now this one, now that."""


def run(rig: Rig, script: str, *flags: str, nodes: int = 1, default: bool = False) -> list[Agent]:
    """Start the agents of a job, which share a host."""
    train, kept = rig.folder / "train.py", rig.folder / "kept"
    train.write_text(COMMON + script)
    kept.mkdir()
    place = ["--standalone"] if nodes == 1 else [*over("file", rig.folder), f"--nnodes={nodes}"]
    env = DEFAULT_RESTARTS if default else {}
    given = [*place, *([] if default else [MANY]), *flags, train, kept]
    return [rig.run(*given, env=env) for _ in range(nodes)]


def lives(agents: list[Agent]) -> int:
    """Return how often the workers were started."""
    rounds = [int(number) for line in agents[0].lines for number in re.findall(r"\bround (\d+): ", line)]
    return max(rounds)


def check_ends(agents: list[Agent], count: int, why: str) -> None:
    """The job ends after so many lives, for this reason, and with a code for which no scheduler repeats it."""
    assert [agent.exit_code() for agent in agents] == [ExitCode.JOB_FAILED] * len(agents), agents[0].output
    assert any(why in agent.output for agent in agents), agents[0].output
    assert lives(agents) == count


def check_succeeds(agents: list[Agent], count: int) -> None:
    assert [agent.exit_code() for agent in agents] == [0] * len(agents), agents[0].output
    assert lives(agents) == count


# Healthy --------------------------------------------------------------------------------------------------------------


def test_a_job_that_trains_an_epoch_in_each_life_goes_on_though_its_bar_begins_at_0(rig: Rig) -> None:
    """It fails with the same exception at the same place each time, and its checkpoints are its own."""
    check_succeeds(run(rig, EPOCHS), 7)


def test_one_bad_hour_in_a_week_ends_nothing(rig: Rig) -> None:
    pattern = r"--checkpoint_pattern=saved (?P<path>\S+)"
    check_succeeds(run(rig, BAD_HOUR, "--nproc_per_node=2", pattern), 7)


def test_steps_count_though_the_rank_that_fails_is_not_on_the_node_that_prints_them(rig: Rig) -> None:
    agents = run(rig, FAR_RANK, "--failure_policy=budget=2/50steps", nodes=2)
    check_succeeds(agents, 7)
    told = [line for agent in agents for line in agent.lines if "restart 1 of budget=2/50steps" in line]
    assert len(told) >= 6, "each new 50 steps give a restart back"


# Hopeless -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("default", "count", "why"),
    [
        (False, 5, "a peer was lost in 5 rounds in a row on 2 hosts, each at step 29 (no_progress=5)"),
        (True, 4, "all restarts of --max_restarts=3 are spent"),
    ],
    ids=["a limit was given", "no limit was given"],
)
def test_uneven_batches_end_the_job_and_no_scheduler_repeats_it(rig: Rig, default: bool, count: int, why: str) -> None:
    check_ends(run(rig, UNEVEN, nodes=2, default=default), count, why)


@pytest.mark.parametrize(("default", "count"), [(False, 5), (True, 3)], ids=["a limit was given", "no limit was given"])
def test_an_exception_of_all_ranks_ends_the_job_whichever_was_the_first(rig: Rig, default: bool, count: int) -> None:
    agents = run(rig, ALL_FAIL, "--nproc_per_node=2", nodes=2, default=default)
    check_ends(agents, count, "the same KeyError at train.py:22 in <module> in ")


def test_exits_without_a_word_end_the_job(rig: Rig) -> None:
    agents = run(rig, SILENT, "--nproc_per_node=2")
    why = "a worker exited with code 1 at train.py:19 in <module> in 5 rounds in a row, and no step or checkpoint"
    check_ends(agents, 5, f"{why} (no_progress=5)")
