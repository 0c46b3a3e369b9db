"""Nodes come, fail, vanish and return, over every backend that serves several."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from rig import WORKERS, Agent, Rig, over


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """The file that ends the job."""
    return tmp_path / "done"


@pytest.fixture
def job(done: Path) -> list[object]:
    """A script whose ranks need each other in every step, until ``done`` is there."""
    return [WORKERS / "barrier.py", "--until", done]


def trains(agent: Agent, world_size: int, *, count: int = 1, **fields: object) -> None:
    """Wait until this agent's workers have taken a step with all ``world_size`` ranks."""
    agent.wait_for_report("training", count=count, world_size=world_size, **fields)


def both_finish(done: Path, *agents: Agent) -> None:
    done.touch()
    for agent in agents:
        assert agent.exit_code() == 0, agent.output


def test_a_second_node_joins_a_running_job(rig: Rig, rendezvous: list[str], job: list[object], done: Path) -> None:
    command = ["--nnodes=1:2", "--nproc_per_node=2", *rendezvous, *job]
    first = rig.run(*command)
    trains(first, 2, count=2)
    second = rig.run(*command)
    trains(first, 4, count=2)
    trains(second, 4, count=2)
    assert {r.rank for r in first.reports("training", world_size=4)} == {0, 1}, "survivors come first"
    both_finish(done, first, second)


def test_nodes_of_different_sizes_form_one_job(rig: Rig, rendezvous: list[str], job: list[object], done: Path) -> None:
    first = rig.run("--nnodes=2", "--nproc_per_node=1", *rendezvous, *job)
    second = rig.run("--nnodes=2", "--nproc_per_node=3", *rendezvous, *job)
    trains(first, 4, count=1)
    trains(second, 4, count=3)
    ranks = sorted(r.rank for agent in (first, second) for r in agent.reports("training"))
    assert ranks == [0, 1, 2, 3]
    both_finish(done, first, second)


@pytest.mark.everyday("c10d-peers_block", "file-peers_fail")
@pytest.mark.parametrize("deaf", [[], ["--deaf"]], ids=["peers_fail", "peers_block"])
def test_the_others_go_on_when_a_node_is_lost(
    rig: Rig, rendezvous: list[str], job: list[object], done: Path, deaf: list[str]
) -> None:
    command = ["--nnodes=1:2", "--nproc_per_node=2", "--max_restarts=0", *rendezvous, *job, *deaf]
    first = rig.run(*command)
    trains(first, 2, count=2)
    second = rig.run(*command)
    trains(second, 4, count=2)
    second.vanish()
    trains(first, 2, count=4)
    assert not first.reports("training", restart_count=1), "a lost node spends no restart"
    both_finish(done, first)


def test_the_job_outlives_the_node_that_decided(
    rig: Rig, file_rendezvous: list[str], job: list[object], done: Path
) -> None:
    command = ["--nnodes=1:2", "--max_restarts=0", *file_rendezvous, *job]
    leader = rig.run(*command)
    trains(leader, 1)
    second = rig.run(*command)
    trains(second, 2)
    leader.vanish()
    trains(second, 1)
    third = rig.run(*command)
    trains(third, 2)
    both_finish(done, second, third)


@pytest.mark.everyday("file")
def test_below_the_minimum_the_job_waits_and_says_for_whom(
    rig: Rig, rendezvous: list[str], job: list[object], done: Path
) -> None:
    command = ["--nnodes=2", *rendezvous, *job]
    first = rig.run(*command)
    first.wait_for("1 more node")
    second = rig.run(*command)
    trains(first, 2)
    second.vanish()
    first.wait_for("1 more node.* to replace")
    replacement = rig.run(*command)
    trains(first, 2, count=2)
    both_finish(done, first, replacement)


@pytest.mark.everyday("c10d")
def test_a_killed_worker_costs_one_restart_and_no_last_call(
    rig: Rig, rendezvous: list[str], job: list[object], done: Path
) -> None:
    command = ["--nnodes=1:3", "--nproc_per_node=2", "--max_restarts=1", *rendezvous]
    first = rig.run(*command, "--rdzv_conf=last_call_timeout=1", *job)
    trains(first, 2, count=2)
    second = rig.run(*command, "--rdzv_conf=last_call_timeout=1", *job)
    trains(second, 4, count=2)
    second.kill_worker(3)
    for agent in (first, second):
        trains(agent, 4, count=2, restart_count=1)
    both_finish(done, first, second)


@pytest.mark.everyday("file")
def test_a_node_may_leave_a_running_job(rig: Rig, rendezvous: list[str], job: list[object], done: Path) -> None:
    command = ["--nnodes=1:2", *rendezvous, *job]
    first = rig.run(*command)
    trains(first, 1)
    second = rig.run(*command)
    trains(second, 2)
    second.signal(signal.SIGTERM)
    assert second.exit_code() == 128 + signal.SIGTERM
    trains(first, 1, count=2)
    both_finish(done, first)


def test_an_agent_that_was_frozen_stops_its_workers_and_comes_back(
    rig: Rig, file_rendezvous: list[str], job: list[object], done: Path
) -> None:
    command = [
        "--nnodes=1:2",
        "--max_restarts=0",
        *file_rendezvous,
        "--rdzv_conf=beat_interval=0.5,lost_after=1.5",
        *job,
    ]
    first = rig.run(*command, "--deaf")
    trains(first, 1)
    second = rig.run(*command, "--deaf")
    trains(second, 2)
    stale = second.workers()[1]
    second.signal(signal.SIGSTOP)
    trains(first, 1, count=2)
    second.signal(signal.SIGCONT)
    trains(first, 2, count=2)
    assert second.workers()[1] != stale
    both_finish(done, first, second)


def test_every_node_prints_the_same_root_cause(rig: Rig, rendezvous: list[str]) -> None:
    command = ["--nnodes=2", "--nproc_per_node=2", *rendezvous, WORKERS / "crasher.py", "--ranks=3"]
    agents = [rig.run(*command) for _ in range(2)]
    assert [agent.exit_code() for agent in agents] == [1, 1]
    verdicts = [agent.output[agent.output.index("Root cause") :].splitlines()[:4] for agent in agents]
    assert verdicts[0] == verdicts[1]
    assert "rank 3" in "\n".join(verdicts[0])
    assert "ValueError: rank 3 does not like restart count 0" in "\n".join(verdicts[0])


def test_a_killed_rank_is_the_root_cause_whatever_its_peers_say(
    rig: Rig, file_rendezvous: list[str], done: Path, seed: int
) -> None:
    """Its peers, on its own node and on another, fail in the same millisecond: gloo tells them that it is gone."""
    command = ["--nnodes=2", "--nproc_per_node=2", *file_rendezvous, WORKERS / "allreduce.py", "--until", done]
    agents = [rig.run(*command) for _ in range(2)]
    for agent in agents:
        trains(agent, 4, count=2)
    next(agent for agent in agents if 3 in agent.workers()).kill_worker(3)
    assert [agent.exit_code() for agent in agents] == [1, 1]
    for agent in agents:
        verdict = agent.output[agent.output.index("Root cause") :].splitlines()
        assert "rank 3 (" in verdict[1], agent.output
        assert "was killed by SIGKILL" in verdict[2], agent.output


def test_restarts_are_counted_for_the_job_not_for_the_node(rig: Rig, rendezvous: list[str]) -> None:
    command = ["--nnodes=2", "--max_restarts=1", *rendezvous, WORKERS / "crasher.py", "--ranks=0,1"]
    agents = [rig.run(*command) for _ in range(2)]
    assert [agent.exit_code() for agent in agents] == [1, 1]
    assert "rank 1 does not like restart count 1" in agents[0].output


@pytest.mark.everyday("file")
def test_on_node_loss_fail_ends_the_job(rig: Rig, rendezvous: list[str], job: list[object]) -> None:
    command = ["--nnodes=1:2", "--max_restarts=3", "--on_node_loss=fail", *rendezvous, *job]
    first = rig.run(*command)
    trains(first, 1)
    second = rig.run(*command)
    trains(second, 2)
    second.kill_node()
    assert first.exit_code() == 1
    assert "--on_node_loss=fail" in first.output


def test_the_same_command_again_is_the_next_run(
    rig: Rig, file_rendezvous: list[str], job: list[object], done: Path
) -> None:
    for _ in range(2):
        agents = [rig.run("--nnodes=2", *file_rendezvous, *job) for _ in range(2)]
        for agent in agents:
            trains(agent, 2)
        both_finish(done, *agents)
        done.unlink()


@pytest.mark.everyday("file")
def test_other_settings_are_refused_naming_what_differs(
    rig: Rig, rendezvous: list[str], job: list[object], done: Path
) -> None:
    first = rig.run("--nnodes=1:2", "--max_restarts=1", *rendezvous, *job)
    trains(first, 1)
    second = rig.run("--nnodes=1:2", "--max_restarts=2", *rendezvous, *job)
    assert second.exit_code() == 76
    assert "max_restarts" in second.output
    both_finish(done, first)


def test_when_the_host_of_the_store_is_lost_healthy_workers_finish(rig: Rig, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    release = tmp_path / "release"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(WORKERS)!r})\n"
        "from pathlib import Path\n"
        "import time\n"
        "from report import report\n"
        "report('started')\n"
        f"while not Path({str(release)!r}).exists(): time.sleep(0.05)\n"
    )
    command = ["--nnodes=2", *over("c10d", tmp_path), script]
    host = rig.run(*command)
    host.wait_for("joining job")  # the first to be there hosts the store
    guest = rig.run(*command)
    host.wait_for_report("started")
    guest.wait_for_report("started")
    host.kill_node()
    guest.wait_for("store")
    release.touch()
    assert guest.exit_code() == 0


def test_a_relative_directory_is_not_taken_for_a_host(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "meeting").mkdir()
    run = f"cd {tmp_path} && exec {sys.executable} -m elastic_core run --nnodes=2 --rdzv_backend=file"
    agents = [
        rig.start(["sh", "-c", f"{run} --rdzv_endpoint=meeting --rdzv_id=job --no_python true"]) for _ in range(2)
    ]
    assert [agent.exit_code() for agent in agents] == [0, 0], agents[0].output
