"""Each rank goes on with what is its own: its loader's position, so that each sample is used once, and the like."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from rig import WARM, WORKERS, Agent, Rig

TRAIN = WORKERS / "rank_state.py"
TWO = ["--standalone", "--nproc_per_node=2"]
SAMPLES, BATCH = 480, 12
QUICK = {**WARM, "PET_PRELOAD": "torch,torch._dynamo,elastic_torch.disk,elastic_torch.state.train_state"}


def used(*agents: Agent) -> list[Counter[int]]:
    """Return how often each sample was used, by epoch: of a step that was taken twice, the second time counts."""
    steps = {(r.rank, r["step"]): (r["epoch"], r["samples"]) for agent in agents for r in agent.reports("step")}
    return [Counter(sample for of, samples in steps.values() if of == epoch for sample in samples) for epoch in (0, 1)]


ONCE = [Counter(range(SAMPLES))] * 2


@pytest.mark.everyday("per_rank", "sampler", "stream")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("loader", "workers"),
    [("per_rank", 0), ("per_rank", 2), ("extra", 0), ("sampler", 0), ("iterable", 0), ("stream", 0), ("plain", 0)],
)
def test_each_sample_is_used_once_though_workers_are_killed(
    rig: Rig, tmp_path: Path, loader: str, workers: int
) -> None:
    hold, at = tmp_path / "hold", [7, 20, 26]
    job = [TRAIN, f"--loader={loader}", f"--loaders={workers}", "--hold", hold, "--at", *at]
    agent = rig.run(*TWO, "--max_restarts=3", *job, env=QUICK)
    for step in at:
        agent.wait_for_report("holding", count=2, step=step)
        agent.kill_worker(step % 2)
        Path(f"{hold}-{step}").touch()
    assert agent.exit_code() == 0, agent.output
    assert [r["step"] for r in agent.reports("began", rank=0)] == [0, *at]
    assert used(agent) == ONCE
    assert [r["own"] for r in agent.reports("began", rank=1)] == [100 + step for step in (0, *at)]


@pytest.mark.everyday("stream", "per_rank")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("loader", ["per_rank", "extra", "sampler", "iterable", "stream", "plain"])
def test_an_epoch_that_cannot_go_on_with_more_ranks_is_refused_before_samples_are_lost(
    rig: Rig, tmp_path: Path, file_rendezvous: list[str], loader: str
) -> None:
    hold = tmp_path / "hold"
    job = ["--nnodes=1:2", "--max_restarts=0", *file_rendezvous, TRAIN, f"--loader={loader}", "--hold", hold, "--at", 6]
    first = rig.run(*job, env=QUICK)
    first.wait_for_report("holding", step=6)
    second = rig.run(*job, env=QUICK)
    first.wait_for("are to stop together")
    Path(f"{hold}-6").touch()
    assert first.exit_code() == 1
    assert second.exit_code() == 1
    (stop,) = {r["step"] for r in first.reports("stopped")}
    first.wait_for(rf"Epoch 0 is to go on with 2 rank\(s\) after {stop} batches of 1.*samples would be skipped or")
    assert "ElasticDistributedSampler" in first.output, "what to do"
    assert not second.reports("step")
    assert max(r["step"] for r in first.reports("step")) == stop


@pytest.mark.variant
@pytest.mark.timeout(300)
def test_with_other_ranks_the_next_epoch_begins_and_a_hook_makes_new_states_of_all_old_ones(
    rig: Rig, tmp_path: Path
) -> None:
    job = [TRAIN, "--disk", tmp_path / "disk"]
    agent = rig.run("--standalone", "--nproc_per_node=2", *job, env=QUICK)
    assert agent.exit_code() == 0, agent.output
    again = rig.run("--standalone", "--nproc_per_node=3", *job, env=QUICK)
    assert again.exit_code() == 0, again.output
    assert [(r["tier"], r["step"], r["own"]) for r in again.reports("began")] == [("disk", 40, 3000 + 180)] * 3


@pytest.mark.timeout(300)
@pytest.mark.parametrize("lost", [0, 1])
def test_the_own_state_of_a_lost_rank_goes_to_the_newcomer(
    rig: Rig, tmp_path: Path, file_rendezvous: list[str], lost: int
) -> None:
    hold = tmp_path / "hold"
    job = ["--nnodes=2", *file_rendezvous, TRAIN, "--hold", hold, "--at", 7]
    nodes = [rig.run(*job, env=QUICK) for _ in range(2)]
    for node in nodes:
        node.wait_for_report("holding", step=7)
    nodes.sort(key=lambda node: node.reports("began")[0].rank)
    gone = nodes.pop(lost)
    gone.kill_node()
    nodes.append(rig.run(*job, env=QUICK))
    for node in nodes:
        node.wait_for_report("holding", step=7, count=1 + (node is nodes[0]))
    Path(f"{hold}-7").touch()
    for node in nodes:
        assert node.exit_code() == 0, node.output
    assert sorted((r.rank, r["step"], r["own"]) for node in nodes for r in node.reports("began")[-1:]) == [
        (0, 7, 7),
        (1, 7, 107),
    ]
    assert used(gone, *nodes) == ONCE


def test_state_that_is_declared_the_same_and_differs_is_refused_by_name(rig: Rig) -> None:
    agent = rig.run(*TWO, TRAIN, "--differ", env=QUICK)
    assert agent.exit_code() == 1
    agent.wait_for(r"The ranks differ in what is declared to be the same on all of them: extra\['mine'\]\['value'\]\. ")
    assert "per_rank=" in agent.output, "what to do"
    assert {r["step"] for r in agent.reports("step")} == {1}


def test_state_that_comes_to_differ_later_is_reported_in_time_and_costs_no_restart(rig: Rig, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    job = [TRAIN, "--differ_after=5", "--hold", hold, "--at", 13]
    agent = rig.run(*TWO, "--max_restarts=1", *job, env=QUICK)
    agent.wait_for_report("holding", count=2, step=13)
    told = r"The ranks differ in what is declared to be the same on all of them: extra\['mine'\]\['value'\]\. "
    agent.wait_for(told)
    agent.kill_worker(1)
    Path(f"{hold}-13").touch()
    assert agent.exit_code() == 0, agent.output
    assert [r["step"] for r in agent.reports("began", rank=0)] == [0, 13]
    assert {r["step"] for r in agent.reports("done")} == {40}
    assert len(re.findall(told, agent.output)) == 2, "once in each life, by one rank"
