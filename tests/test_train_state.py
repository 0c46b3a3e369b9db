"""Trainings that are hurt go on where they were: from memory that the agent keeps, from a peer, or from disk."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from memory_files import memory_files
from rig import PATIENCE, WARM, WORKERS, Agent, Rig, descendants

from elastic_core.protocol.codec import decode_row
from elastic_rdzv_file.backend import FileBackend

TRAIN = WORKERS / "train_state.py"
TWO = ["--standalone", "--nproc_per_node=2"]
TERM = 128 + signal.SIGTERM
QUICK = {**WARM, "PET_PRELOAD": "torch,torch._dynamo,elastic_torch.disk,elastic_torch.state.train_state"}
"""Imports that each of these workers would make for itself."""
MANY, FEW = 20, 3
"""The number of faults in a run: MANY times with the first seed and with those of a soak."""
EPOCHS, STEPS = 12, 16
"""Of the run that is hurt, and steps of an epoch."""
LONG = [TRAIN, f"--epochs={EPOCHS}", "--samples=128", "--global_batch=8"]


def digests(*agents: Agent) -> set[str]:
    """Of the weights that the ranks of these nodes have in the end."""
    return {report["digest"] for agent in agents for report in agent.reports("done")}


def steps(agent: Agent) -> int:
    return len(agent.reports("step", rank=0))


def barred(hold: Path, *at: int) -> list[object]:
    """Return the locks that hold the workers in these steps until :func:`released`."""
    return ["--at", *at, "--hold", hold]


def released(hold: Path, step: int) -> None:
    Path(f"{hold}-{step}").touch()


def appears(there: Callable[[], bool]) -> None:
    """Wait for a condition without an event."""
    deadline = time.monotonic() + PATIENCE
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def proved(*logs: Path) -> str:
    """Return the audit of a job that is over: nothing is wrong."""
    command = [sys.executable, "-m", "elastic_core", "audit-data", *map(str, logs), "--finished"]
    audit = subprocess.run(command, capture_output=True, text=True, check=False)
    assert audit.returncode == 0, audit.stdout + audit.stderr
    return audit.stdout


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The weights of a run that is left alone."""
    rig = Rig(tmp_path_factory.mktemp("alone"))
    agent = rig.run(*TWO, *LONG, env=QUICK)
    assert agent.exit_code() == 0, agent.output
    assert rig.close() == []
    assert len(digests(agent)) == 1
    return digests(agent)


@pytest.mark.timeout(400)
def test_a_run_that_is_killed_again_and_again_ends_with_the_weights_of_one_that_is_left_alone(
    rig: Rig, tmp_path: Path, seed: int, alone: set[str]
) -> None:
    dice = random.Random(seed)
    kills = FEW if seed in (1, 2) else MANY
    hold, log = tmp_path / "hold", tmp_path / "audit.jsonl"
    job = [*LONG, "--audit", log, "--disk", tmp_path / "disk", "--interval=40"]
    job += ["--pace=0.02", *barred(hold, EPOCHS * STEPS - 1)]
    agent = rig.run(*TWO, f"--max_restarts={kills}", *job, env=QUICK)
    for kill in range(kills):
        if kill % 2 == 0:  # that there is some progress, or else at any moment: while it starts, or restores
            more = steps(agent) + 1
            held = f'"step": {EPOCHS * STEPS - 1}, "world_size"'
            rig.wait_until(lambda more=more, held=held: steps(agent) >= more or held in agent.output)  # type: ignore[misc]
        time.sleep(dice.uniform(0.0, 0.4))
        appears(lambda: bool(agent.workers()) or agent.ended)
        workers = agent.workers()
        with contextlib.suppress(ProcessLookupError, IndexError):
            os.kill(workers[dice.choice(sorted(workers))], signal.SIGKILL)
    released(hold, EPOCHS * STEPS - 1)
    assert agent.exit_code() == 0, agent.output
    assert digests(agent) == alone, agent.output
    told = proved(log)
    assert told.endswith(f"Proved: 0 skipped, 0 repeated, in {EPOCHS} epochs.\n")
    for restored, before in lives(agent):
        assert restored >= before - 1, agent.output


def lives(agent: Agent) -> Iterator[tuple[int, int]]:
    """After which step each life of the workers began, and the last one that had been taken before.

    An agent that had to wait for a core shows all that one worker has written meanwhile before what another has.
    """
    last = 0
    for report in sorted((*agent.reports("began"), *agent.reports("step")), key=lambda report: report["at"]):
        if report.event == "began":
            yield report["step"], last
        else:
            last = max(last, report["step"])


def test_a_line_that_is_shown_late_is_no_lost_step(rig: Rig, tmp_path: Path) -> None:
    said = [(0, "began", 0), (1, "began", 0), (1, "step", 1), (0, "step", 1), (0, "began", 1), (1, "began", 1)]
    lines = [json.dumps({"event": e, "rank": rank, "at": at, "step": step}) for at, (rank, e, step) in enumerate(said)]
    last = [json.dumps({"event": "step", "rank": 0, "at": 10 + step, "step": step}) for step in (2, 3)]
    output = tmp_path / "output"
    output.write_text("\n".join([*lines[:-1], *last, lines[-1]]))
    agent = rig.start(["cat", str(output)])
    assert agent.exit_code() == 0
    assert list(lives(agent)) == [(0, 0), (0, 0), (1, 1), (1, 1)]


@pytest.mark.parametrize("disk", [False, pytest.param(True, marks=pytest.mark.variant)])
def test_a_rank_that_is_killed_in_its_first_commit_begins_once_more_with_its_own_numbers(
    rig: Rig, tmp_path: Path, alone: set[str], disk: bool
) -> None:
    hold, step, job = tmp_path / "hold", 0, [*LONG, "--late"]
    if disk:
        step, earlier = 4, tmp_path / "earlier"
        job += ["--disk", tmp_path / "disk"]
        Path(f"{earlier}-late").touch()
        before = rig.run(*TWO, *job, *barred(earlier, step + 1), env=QUICK)
        before.wait_for_report("holding", count=2)
        before.kill_node()
    agent = rig.run(*TWO, "--max_restarts=1", *job, *barred(hold, step + 1), env=QUICK)
    agent.wait_for_report("late", rank=1)
    agent.wait_for_report("holding", rank=0)  # which has kept the step
    agent.kill_worker(1)
    for name in (f"{step + 1}", "late"):
        Path(f"{hold}-{name}").touch()
    assert agent.exit_code() == 0, agent.output
    assert [(r["tier"], r["step"]) for r in agent.reports("began")] == [("disk" if disk else None, step)] * 4
    assert len(agent.reports("done")) == 2
    assert digests(agent) == alone


@pytest.mark.parametrize("epoch", [2, EPOCHS - 1], ids=["amid", "last"])
def test_code_after_an_epochs_last_batch_is_repeated_with_its_last_step(
    rig: Rig, tmp_path: Path, alone: set[str], epoch: int
) -> None:
    hold, log = tmp_path / "hold", tmp_path / "audit.jsonl"
    job = [*LONG, "--audit", log, f"--after={epoch}", "--hold", hold]
    agent = rig.run(*TWO, "--max_restarts=2", *job, env=QUICK)
    for kill in range(2):
        agent.wait_for_report("after", count=2 + 2 * kill)
        agent.kill_worker(kill)
    agent.wait_for_report("after", count=6)
    Path(f"{hold}-after").touch()
    assert agent.exit_code() == 0, agent.output
    assert [r["step"] for r in agent.reports("began", rank=0)] == [0, *[(epoch + 1) * STEPS - 1] * 2]
    assert len({(r.rank, r["loss"]) for r in agent.reports("after")}) == 2
    assert digests(agent) == alone
    assert proved(log).endswith(f"Proved: 0 skipped, 0 repeated, in {EPOCHS} epochs.\n")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("ranks", "kills"),
    [(3, 2), (4, 2), *(pytest.param(ranks, 10, marks=pytest.mark.variant) for ranks in (3, 4))],
)
def test_the_weights_of_three_and_more_ranks_are_those_of_a_run_that_is_left_alone(
    rig: Rig, tmp_path: Path, ranks: int, kills: int
) -> None:
    hold = tmp_path / "hold"
    job = ["--standalone", f"--nproc_per_node={ranks}", f"--max_restarts={kills}", TRAIN, "--deep", "--epochs=3"]
    job += ["--samples=160", "--global_batch=8", "--accumulate=2"]
    left_alone = rig.run(*job, env=QUICK)
    assert left_alone.exit_code() == 0, left_alone.output
    assert len(digests(left_alone)) == 1
    at = [2 + 2 * kill for kill in range(kills)]
    agent = rig.run(*job, *barred(hold, *at), env=QUICK)
    for life, step in enumerate(at):
        agent.wait_for_report("holding", count=ranks, step=step)
        agent.kill_worker(life % ranks)
        released(hold, step)
    assert agent.exit_code() == 0, agent.output
    assert [r["step"] for r in agent.reports("began", rank=0)] == [0, *at]
    assert digests(agent) == digests(left_alone)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param([TRAIN], id="script"),
        pytest.param(["--no_python", sys.executable, TRAIN], id="no_python", marks=pytest.mark.variant),
    ],
)
def test_the_state_of_the_last_step_is_the_next_rounds(rig: Rig, tmp_path: Path, how: list[object]) -> None:
    hold = tmp_path / "hold"
    agent = rig.run(*TWO, "--max_restarts=1", *how, "--epochs=1", *barred(hold, 5), env=QUICK)
    agent.wait_for_report("holding", count=2)
    agent.kill_worker(1)
    agent.wait_for_report("holding", count=4)
    released(hold, 5)
    assert agent.exit_code() == 0, agent.output
    assert [(r["tier"], r["step"]) for r in agent.reports("began", round="2")] == [("memory", 5)] * 2


@pytest.mark.timeout(300)
@pytest.mark.parametrize("lost", [pytest.param(0, marks=pytest.mark.variant), 1])
def test_an_empty_node_in_the_place_of_a_lost_one_gets_the_state_from_the_survivor(
    rig: Rig, tmp_path: Path, file_rendezvous: list[str], lost: int
) -> None:
    hold = tmp_path / "hold"

    def node(name: str) -> Agent:
        """One with a disk of its own."""
        command = ["--nnodes=2", "--nproc_per_node=2", "--max_restarts=1", *file_rendezvous]
        job = [TRAIN, "--epochs=2", *barred(hold, 5), "--disk", tmp_path / name]
        return rig.run(*command, *job, env=QUICK)

    nodes = [node("first"), node("second")]
    for each in nodes:
        each.wait_for_report("holding", count=2)
    nodes.pop(lost).kill_node()
    [survivor] = nodes
    newcomer = node("third")
    newcomer.wait_for_report("holding", count=2, step=5)
    survivor.wait_for_report("holding", count=4, step=5)
    newcomer.kill_worker(newcomer.reports("began")[0].rank)
    newcomer.wait_for_report("holding", count=4, step=5)
    survivor.wait_for_report("holding", count=6, step=5)
    released(hold, 5)
    for each in (survivor, newcomer):
        assert each.exit_code() == 0, each.output
    assert [(r["tier"], r["step"]) for r in newcomer.reports("began")] == [("peer", 5)] * 2 + [("memory", 5)] * 2
    assert [(r["tier"], r["step"]) for r in survivor.reports("began")[2:]] == [("memory", 5)] * 4
    numbers = {(r.rank, r["numbers"]) for each in (survivor, newcomer) for r in each.reports("began")[-4:]}
    assert len(numbers) == len({number for _, number in numbers}) == 4, "of each rank its own, also after the restart"
    assert len(digests(survivor, newcomer)) == 1
    assert checkpoints(tmp_path / "third")[-1] == 8, "the newcomer's own"


def checkpoints(folder: Path) -> list[int]:
    """The steps that are saved there, and complete."""
    return sorted(int(path.parent.name[-9:]) for path in folder.glob("run-*/manifest.json"))


@pytest.mark.variant
@pytest.mark.timeout(300)
def test_a_new_run_whose_nodes_share_no_disk_goes_on_from_what_one_of_them_has(
    rig: Rig, tmp_path: Path, file_rendezvous: list[str]
) -> None:
    hold = tmp_path / "hold"
    job = [TRAIN, "--epochs=4", "--disk", tmp_path / "first"]
    before = rig.run(*TWO, *job, *barred(hold, 7), env=QUICK)
    before.wait_for_report("holding", count=2)
    before.kill_node()
    released(hold, 7)
    nodes = [
        rig.run("--nnodes=2", *file_rendezvous, TRAIN, "--epochs=4", "--disk", tmp_path / name, env=QUICK)
        for name in ("first", "second")
    ]
    for node in nodes:
        assert node.exit_code() == 0, node.output
    assert [(r["tier"], r["step"]) for node in nodes for r in node.reports("began")] == [("disk", 6)] * 2
    assert len(digests(*nodes)) == 1


def test_a_checkpoint_that_is_being_written_when_a_script_just_ends_is_completed(rig: Rig, tmp_path: Path) -> None:
    agent = rig.run(*TWO, TRAIN, "--disk", tmp_path / "disk", "--end=4", env=QUICK)
    assert agent.exit_code() == 0, agent.output
    assert checkpoints(tmp_path / "disk") == [2, 4]


@pytest.mark.timeout(300)
def test_new_runs_go_on_from_disk_after_everything_was_killed_and_after_they_were_told_to_leave(
    rig: Rig, tmp_path: Path, alone: set[str]
) -> None:
    hold, disk, logs = tmp_path / "hold", tmp_path / "disk", [tmp_path / f"run-{number}.jsonl" for number in range(3)]

    def run(number: int, *more: object) -> Agent:
        """The same job once more, with a log of its own."""
        job = [*LONG, "--disk", disk, "--audit", logs[number], *more]
        return rig.run(*TWO, "--preemption_grace=60", *job, env=QUICK)

    killed = run(0, *barred(hold, 7))
    killed.wait_for_report("holding", count=2)
    killed.kill_node()
    assert checkpoints(disk) == [2, 4, 6]
    (data,) = disk.glob("run-*_step-000000006/__0_0.distcp")
    damaged = bytearray(data.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    data.write_bytes(damaged)

    told = run(1, "--interval=1000", *barred(hold, 9))
    told.wait_for_report("holding", count=2)
    told.signal(signal.SIGTERM)
    told.wait_for("are to stop together")
    released(hold, 9)
    assert told.exit_code() == TERM, told.output
    assert [(r["tier"], r["step"]) for r in told.reports("began")] == [("disk", 4)] * 2
    told.wait_for("step-000000006 is damaged: the checksum of __0_0.distcp is wrong.* Taken instead: that of step 4")
    (step,) = {report["step"] for report in told.reports("stopped")}
    assert checkpoints(disk)[-1] == step, "though it was not due"

    last = run(2, "--interval=1000")
    assert last.exit_code() == 0, last.output
    assert [(r["tier"], r["step"]) for r in last.reports("began")] == [("disk", step)] * 2
    assert checkpoints(disk)[-1] == EPOCHS * STEPS
    assert digests(last) == alone
    proved(*logs)


@pytest.mark.timeout(300)
def test_a_node_that_leaves_while_all_are_to_stop_for_a_newcomer_leaves_the_step_on_disk(
    rig: Rig, tmp_path: Path, file_rendezvous: list[str]
) -> None:
    hold, disk = tmp_path / "hold", tmp_path / "disk"
    job = [TRAIN, "--epochs=2", "--global_batch=8", "--disk", disk, "--interval=1000", *barred(hold, 5)]
    patient = ["--rdzv_conf=last_call_timeout=0,lost_after=50", "--max_restarts=0", "--preemption_grace=60"]
    command = ["--nnodes=2:3", *patient, *file_rendezvous, *job]
    leaves = rig.run(*command, env=QUICK)
    leaves.wait_for("waiting for")  # so it is the one that decides
    frozen = rig.run(*command, env=QUICK)
    for node in (leaves, frozen):
        node.wait_for_report("holding")
    frozen.signal(signal.SIGSTOP)  # it does not answer, so the step is not named yet
    newcomer = rig.run(*command, env=QUICK)
    leaves.wait_for("are to stop together.* joins")
    leaves.signal(signal.SIGTERM)
    store = FileBackend.open(tmp_path, "job")
    appears(lambda: any(b'"leaving":true' in row.value for row in store.roster()))
    frozen.signal(signal.SIGCONT)
    leaves.wait_for("stop at step")
    released(hold, 5)
    assert leaves.exit_code() == TERM, leaves.output
    for node in (frozen, newcomer):
        assert node.exit_code() == 0, node.output
    (step,) = {report["step"] for node in (leaves, frozen) for report in node.reports("stopped")}
    assert step in checkpoints(disk), "though it was not due"


@pytest.mark.timeout(300)
def test_a_training_on_one_four_two_and_three_nodes_takes_the_steps_of_one_process(
    rig: Rig, tmp_path: Path, file_rendezvous: list[str]
) -> None:
    hold, log = tmp_path / "hold", tmp_path / "audit.jsonl"
    job = [TRAIN, "--plain", "--epochs=4", "--samples=100", "--global_batch=6", "--accumulate=2", "--loaders=1"]
    one = rig.run("--standalone", *job, env=QUICK)
    assert one.exit_code() == 0, one.output
    command = ["--nnodes=1:4", "--max_restarts=0", "--preemption_grace=60", *file_rendezvous, *job]
    command += ["--audit", log, "--pace=0.06", *barred(hold, 5, 14, 23)]
    first = rig.run(*command, env=QUICK)
    first.wait_for_report("holding", step=5)
    nodes = [first, *(rig.run(*command, env=QUICK) for _ in range(3))]
    first.wait_for("are to stop together")
    store = FileBackend.open(tmp_path, "job")
    appears(lambda: sum(bool(decode_row(row.value).run) for row in store.roster()) == 4)  # some may only look yet
    released(hold, 5)
    leaving = nodes[1:3]
    for node in nodes:
        node.wait_for_report("holding", step=14, world_size=4)
    for node in leaving:
        node.signal(signal.SIGTERM)
        node.wait_for("received SIGTERM: leaving")
    released(hold, 14)
    for node in leaving:
        assert node.exit_code() == TERM, node.output
    first.wait_for_report("holding", step=23, world_size=2)
    nodes.append(rig.run(*command, env=QUICK))
    first.wait_for("are to stop together", count=3)
    released(hold, 23)
    for node in (nodes[0], nodes[3], nodes[4]):
        assert node.exit_code() == 0, node.output
    sizes = [1, 4, 2, 3]
    stops = [{r["step"] for node in nodes for r in node.reports("stopped", world_size=size)} for size in sizes[:3]]
    starts = [{r["step"] for node in nodes for r in node.reports("began", world_size=size)} for size in sizes]
    assert [len(steps) for steps in stops] == [1, 1, 1], "all ranks stop at the same step"
    assert starts == [{0}, *stops], "no step is lost"
    losses = {report["step"]: report["loss"] for report in one.reports("step")}
    taken = [(r["step"], r["loss"]) for node in nodes for r in node.reports("step", rank=0)]
    assert [step for step, _ in sorted(taken)] == sorted(losses), "each once"
    assert dict(taken) == pytest.approx(losses, rel=1e-7)
    assert "world size 1, 4" in proved(log)


@pytest.mark.parametrize("end", ["success", "failure", "all_but_the_agent_killed"])
def test_no_shared_memory_outlives_the_job(rig: Rig, tmp_path: Path, end: str) -> None:
    hold, mark = tmp_path / "hold", f"state-{uuid.uuid4().hex}"
    job = [TRAIN, "--epochs=1", *barred(hold, 5), "--mark", mark, "--global_batch=8", "--disk", tmp_path / "disk"]
    agent = rig.run(*TWO, *job, *(["--fail=6"] if end == "failure" else []), env=QUICK)
    agent.wait_for_report("holding", count=2)
    assert sorted(name for pid, name in memory_files(mark) if pid == agent.pid) == [
        *(f"/memfd:{mark}/{local_rank}/{slot}" for local_rank in (0, 1) for slot in (0, 1)),
        f"/memfd:{mark}/rescue",
    ]
    if end == "all_but_the_agent_killed":
        for pid in descendants(agent.pid):
            os.kill(pid, signal.SIGKILL)
    released(hold, 5)
    assert (agent.exit_code() == 0) == (end == "success")
    assert list(memory_files(mark)) == []


def test_the_step_and_the_epoch_are_part_of_the_root_cause(rig: Rig) -> None:
    agent = rig.run(*TWO, TRAIN, "--epochs=2", "--fail=10", env=QUICK)
    assert agent.exit_code() == 1
    assert "ValueError: no such layer (step 10, epoch 1)" in agent.output


@pytest.mark.variant
def test_it_works_under_torchrun_too(rig: Rig) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", *TWO, str(TRAIN), "--epochs=1"]
    agent = rig.start(command, env={"ELASTIC_ROUND": "0"})
    assert agent.exit_code() == 0, agent.output
    assert len(digests(agent)) == 1
