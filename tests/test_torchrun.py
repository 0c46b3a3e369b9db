"""Plain torchrun with our rendezvous: real agents of torch's, and no ``elastic run`` anywhere."""

from __future__ import annotations

import secrets
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from redis_servers import Daemon, opened, redis_server
from rig import WORKERS, Agent, Rig, variable

from elastic_core.exit_codes import ExitCode
from elastic_core.rendezvous.guard import SEAL_PREFIX
from elastic_core.rendezvous.job_token import TOKEN_VARIABLE

pytestmark = pytest.mark.timeout(300)  # every agent and every worker imports torch


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Daemon]:
    with redis_server(tmp_path / "redis") as daemon:
        yield daemon


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """The file that ends the job."""
    return tmp_path / "done"


@pytest.fixture
def torchrun(rig: Rig, server: Daemon, done: Path) -> Callable[..., Agent]:
    """``torchrun(*flags)`` starts a node of one or two."""

    def start(*flags: str) -> Agent:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc_per_node=1"]
        where = ["--rdzv_backend=redis", f"--rdzv_endpoint={server.endpoint}", "--rdzv_id=job", *flags]
        return rig.start([*launcher, *where, str(WORKERS / "allreduce.py"), "--until", str(done)])

    return start


def trains(agent: Agent, world_size: int, *, count: int = 1) -> None:
    agent.wait_for_report("training", count=count, world_size=world_size)


def both_finish(done: Path, *agents: Agent) -> None:
    done.touch()
    for agent in agents:
        assert agent.exit_code() == 0, agent.output


def test_a_node_joins_a_running_job_of_torchruns_and_both_finish(torchrun: Callable[..., Agent], done: Path) -> None:
    first = torchrun()
    trains(first, 1)
    second = torchrun()
    for agent in (first, second):
        trains(agent, 2)
    both_finish(done, first, second)


def test_a_killed_worker_of_torchruns_restarts_all(torchrun: Callable[..., Agent], done: Path) -> None:
    agents = [torchrun("--max_restarts=3", "--rdzv_conf=last_call_timeout=20") for _ in range(2)]
    for agent in agents:
        trains(agent, 2)
    next(agent for agent in agents if 1 in agent.workers()).kill_worker(1)
    for agent in agents:
        trains(agent, 2, count=2)
    both_finish(done, *agents)


@pytest.mark.parametrize(
    "lost", [pytest.param(0, id="rank 0"), pytest.param(1, id="rank 1", marks=pytest.mark.variant)]
)
def test_the_others_go_on_when_a_node_of_torchruns_is_lost(
    torchrun: Callable[..., Agent], done: Path, lost: int
) -> None:
    agents = [torchrun("--max_restarts=3", "--rdzv_conf=last_call_timeout=20") for _ in range(2)]
    for agent in agents:
        trains(agent, 2)
    [victim] = [agent for agent in agents if agent.reports("training")[0].rank == lost]
    [left] = [agent for agent in agents if agent is not victim]
    victim.kill_node()
    trains(left, 1)
    both_finish(done, left)


@pytest.mark.variant
def test_the_others_go_on_when_an_agent_of_torchruns_gets_sigterm(torchrun: Callable[..., Agent], done: Path) -> None:
    agents = [torchrun("--max_restarts=3", "--rdzv_conf=last_call_timeout=20") for _ in range(2)]
    for agent in agents:
        trains(agent, 2)
    agents[1].signal(signal.SIGTERM)
    assert agents[1].exit_code() != 0
    trains(agents[0], 1)
    both_finish(done, agents[0])


@pytest.mark.variant
def test_an_agent_of_torchruns_that_gives_up_closes_the_job(torchrun: Callable[..., Agent]) -> None:
    agents = [torchrun("--max_restarts=0", "--rdzv_conf=last_call_timeout=20") for _ in range(2)]
    for agent in agents:
        trains(agent, 2)
    next(agent for agent in agents if 1 in agent.workers()).kill_worker(1)
    assert [agent.exit_code() for agent in agents] == [1, 1]


@pytest.mark.variant
def test_elastic_run_does_not_join_a_job_of_torchruns(
    rig: Rig, torchrun: Callable[..., Agent], server: Daemon, done: Path
) -> None:
    first = torchrun()
    trains(first, 1)
    flags = ["--rdzv_backend=redis", f"--rdzv_endpoint={server.endpoint}", "--rdzv_id=job"]
    other = rig.run("--nnodes=1:2", *flags, WORKERS / "allreduce.py")
    assert other.exit_code() == ExitCode.REFUSED
    assert "failure_policies" in other.output
    both_finish(done, first)


def test_another_script_under_the_same_id_is_refused(
    rig: Rig, torchrun: Callable[..., Agent], server: Daemon, done: Path
) -> None:
    """It joined, and the workers of both restarted side by side."""
    first = torchrun()
    trains(first, 1)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc_per_node=1"]
    where = ["--rdzv_backend=redis", f"--rdzv_endpoint={server.endpoint}", "--rdzv_id=job"]
    other = rig.start([*launcher, *where, str(WORKERS / "sleeper.py")])
    assert other.exit_code() != 0
    assert "is to run 'sleeper.py', but the job with this id, which" in other.output
    assert "runs 'allreduce.py'" in other.output
    both_finish(done, first)


@pytest.mark.variant
def test_a_job_token_seals_what_torchruns_agents_write_and_their_workers_do_not_see_it(
    rig: Rig, server: Daemon, done: Path
) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--nproc_per_node=1"]
    where = ["--rdzv_backend=redis", f"--rdzv_endpoint={server.endpoint}", "--rdzv_id=job"]
    command = [*launcher, *where, str(WORKERS / "allreduce.py"), "--until", str(done)]
    agent = rig.start(command, env={TOKEN_VARIABLE: secrets.token_hex(32)})
    agent.wait_for_report("training", world_size=1)
    with closing(opened(server.endpoint)) as store:
        assert (store.read(1) or b"").startswith(SEAL_PREFIX)
    assert {variable(pid, TOKEN_VARIABLE) for pid in agent.workers().values()} == {None}
    done.touch()
    assert agent.exit_code() == 0, agent.output
