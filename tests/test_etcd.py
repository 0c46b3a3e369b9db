"""Whole jobs over a real etcd: nodes and members of the cluster are lost, and training goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from etcd_servers import Etcd, Three, administer, refusing_port, running
from rig import WORKERS, Agent, Rig, command_line, descendants


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    """A server of this test's own."""
    with running(tmp_path / "etcd") as server:
        yield server


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Three]:
    """A cluster of three."""
    cluster = Three(tmp_path / "etcd")
    try:
        yield cluster.start()
    finally:
        cluster.stop()


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """The file that ends the job."""
    return tmp_path / "done"


@pytest.fixture
def job(done: Path) -> list[object]:
    """A script whose ranks need each other in every step, until ``done`` is there."""
    return [WORKERS / "barrier.py", "--tell=0.2", "--until", done]


def over(endpoint: str, backend: str = "etcd") -> list[str]:
    """The flags with which nodes meet there, and do not wait in case a job was running."""
    return [f"--rdzv_backend={backend}", f"--rdzv_endpoint={endpoint}", "--rdzv_id=job", "--rdzv_conf=durable=true"]


def trains(agent: Agent, world_size: int, *, count: int = 1, **fields: object) -> None:
    agent.wait_for_report("training", count=count, world_size=world_size, **fields)


def two_nodes(rig: Rig, *arguments: object) -> list[Agent]:
    """Two agents with a worker each, that train together."""
    agents = [rig.run("--nnodes=2", "--max_restarts=3", *arguments) for _ in range(2)]
    for agent in agents:
        trains(agent, 2)
    return agents


def both_finish(done: Path, *agents: Agent) -> None:
    done.touch()
    for agent in agents:
        assert agent.exit_code() == 0, agent.output


@pytest.mark.everyday("etcd")
@pytest.mark.parametrize("backend", ["etcd", "etcd-v2"])
def test_nodes_come_fail_vanish_and_return(rig: Rig, etcd: Etcd, job: list[object], done: Path, backend: str) -> None:
    command = ["--nnodes=1:2", "--max_restarts=1", *over(etcd.endpoint, backend), *job]
    first = rig.run(*command)
    trains(first, 1)
    second = rig.run(*command)
    trains(first, 2)
    trains(second, 2)
    second.kill_worker(1)
    for agent in (first, second):
        trains(agent, 2, restart_count=1)
    second.vanish()
    trains(first, 1, count=2)
    third = rig.run(*command)
    trains(third, 2)
    both_finish(done, first, third)


@pytest.mark.parametrize("backend", ["etcd", "etcd-v2"])
def test_the_leader_of_three_members_is_killed_and_workers_never_stop(
    rig: Rig, three: Three, job: list[object], done: Path, backend: str
) -> None:
    agents = two_nodes(rig, *over(three.endpoint, backend), *job)
    workers = [agent.workers() for agent in agents]
    three.leader().stop()
    three.leader()
    for agent in agents:
        agent.wait_for_report("step", count=len(agent.reports("step")) + 1)
    assert [agent.workers() for agent in agents] == workers
    agents[1].kill_worker(max(agents[1].workers()))
    for agent in agents:
        trains(agent, 2, restart_count=1)
        assert len(agent.reports("training")) == 2, "once before the kill, and once after it"
    both_finish(done, *agents)


def test_a_standalone_run_brings_its_own_etcd_and_leaves_nothing(rig: Rig, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {"TMPDIR": str(temporary)}
    agent = rig.run("--standalone", "--rdzv_backend=etcd", WORKERS / "sleeper.py", env=environment)
    agent.wait_for_report("started")
    assert any("sidecar_main" in command_line(pid) for pid in descendants(agent.pid))
    agent.kill_worker(0)
    assert agent.exit_code() == 1
    assert list(temporary.glob("elastic-etcd-*")) == []
    killed = rig.run("--standalone", "--rdzv_backend=etcd", WORKERS / "sleeper.py", env=environment)
    killed.wait_for_report("started")
    killed.signal(signal.SIGKILL)
    killed.exit_code()
    left = rig.close()
    assert not left
    assert list(temporary.glob("elastic-etcd-*")) == []


def test_a_wrong_password_ends_the_run_at_once_and_is_never_shown(rig: Rig, etcd: Etcd, tmp_path: Path) -> None:
    for user in ("root", "trainer"):
        administer(etcd, "/v3/auth/user/add", {"name": user, "password": "the right one"})
    administer(etcd, "/v3/auth/role/add", {"name": "root"})
    administer(etcd, "/v3/auth/user/grant", {"user": "root", "role": "root"})
    administer(etcd, "/v3/auth/enable", {})
    (tmp_path / "password").write_text("a wrong one\n")
    conf = f"--rdzv_conf=user=trainer,password_file={tmp_path / 'password'}"
    agent = rig.run("--rdzv_backend=etcd", f"--rdzv_endpoint={etcd.endpoint}", conf, WORKERS / "sleeper.py")
    assert agent.exit_code() == 69
    assert "does not let the user 'trainer' in" in agent.output
    assert "a wrong one" not in agent.output
    secret = f"--rdzv_endpoint=http://trainer:hunter2@{etcd.endpoint}"
    refused = rig.run("--rdzv_backend=etcd", secret, WORKERS / "sleeper.py")
    assert refused.exit_code() == 2
    assert "hunter2" not in refused.output


def test_an_unreachable_etcd_has_an_exit_code_of_its_own(rig: Rig) -> None:
    with refusing_port() as port:
        flags = ["--rdzv_backend=etcd", f"--rdzv_endpoint=127.0.0.1:{port}", "--rdzv_conf=join_timeout=2"]
        agent = rig.run(*flags, WORKERS / "sleeper.py")
        assert agent.exit_code() == 69
    assert "Connection refused" in agent.output
