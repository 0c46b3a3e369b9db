"""Whole jobs over a Redis server that is replaced by its replica, keeps a secret, or cannot be reached."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import redis
from redis_servers import Daemon, opened, redis_server, sentinel_set
from rig import WORKERS, Agent, Rig, command_line
from wardens import wait_until

from elastic_core.exit_codes import ExitCode
from elastic_core.rendezvous.backend import Cursor
from elastic_rdzv_redis.backend import keys_of

SOON = "beat_interval=0.5,lost_after=1.5,last_call_timeout=1"


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """The file that ends the job."""
    return tmp_path / "done"


@pytest.fixture
def pair(rig: Rig, done: Path) -> Callable[..., list[Agent]]:
    """``pair(endpoint, conf)`` starts two nodes of two workers each, and waits until all train."""

    def start(endpoint: str, conf: str = SOON, **env: str) -> list[Agent]:
        rendezvous = ["--rdzv_backend=redis", f"--rdzv_endpoint={endpoint}", f"--rdzv_conf={conf}", "--rdzv_id=job"]
        command = ["--nnodes=1:2", "--nproc_per_node=2", "--max_restarts=2", *rendezvous]
        agents = [rig.run(*command, WORKERS / "barrier.py", "--tell=0.2", "--until", done, env=env) for _ in range(2)]
        for agent in agents:
            agent.wait_for_report("training", count=2, world_size=4)
        return agents

    return start


def train_again(agents: list[Agent], restarts: int = 1) -> None:
    """Wait until all workers train after so many restarts."""
    for agent in agents:
        agent.wait_for_report("training", count=2, world_size=4, restart_count=restarts)


def all_finish(done: Path, agents: list[Agent]) -> None:
    done.touch()
    for agent in agents:
        assert agent.exit_code() == 0, agent.output


def pids(agents: list[Agent]) -> list[int]:
    """The workers."""
    return [pid for agent in agents for pid in agent.workers().values()]


def test_a_new_master_takes_over_unnoticed_by_workers_and_a_crash_right_after_recovers(
    pair: Callable[..., list[Agent]], done: Path, tmp_path: Path
) -> None:
    with sentinel_set(tmp_path / "redis") as (master, replica, sentinel):
        agents = pair(sentinel.endpoint, f"sentinel=mymaster,{SOON}")
        before = pids(agents)
        master.replicated()
        master.kill()
        sentinel.wait_for_log(r"\+switch-master")
        for agent in agents:
            agent.wait_for("the store answers again")
            agent.wait_for_report("step", count=len(agent.reports("step")) + 1)
        assert pids(agents) == before, "somebody was stopped:\n" + "\n".join(agent.output for agent in agents)
        agents[1].kill_worker(max(agents[1].workers()))
        train_again(agents)
        all_finish(done, agents)
        with redis.Redis(port=replica.port) as admin:
            assert admin.info("replication")["role"] == "master"


def head(server: Daemon) -> int:
    """The newest entry of the ledger."""
    with closing(opened(server.endpoint)) as store:
        return store.wait(Cursor(), roster=False, timeout=0).head


def test_a_new_master_that_lacks_the_last_writes_gets_them_back(
    rig: Rig, pair: Callable[..., list[Agent]], done: Path, tmp_path: Path
) -> None:
    """A restart was written to the old master alone, which is gone with it; another one after that recovers, too."""
    with sentinel_set(tmp_path / "redis") as (master, replica, sentinel):
        agents = pair(sentinel.endpoint, f"sentinel=mymaster,{SOON}")
        with redis.Redis(port=sentinel.port) as admin:  # which takes no replica that has been behind for ten times that
            admin.execute_command("SENTINEL", "SET", "mymaster", "down-after-milliseconds", "3000")
        master.replicated()
        with redis.Redis(port=master.port) as admin:
            admin.execute_command("ACL", "SETUSER", "default", "-psync", "-sync")
            admin.execute_command("CLIENT", "KILL", "TYPE", "replica")
        agents[0].kill_worker(max(agents[0].workers()))
        train_again(agents)
        before, written = pids(agents), head(master)
        master.kill()
        with redis.Redis(port=replica.port) as admin:
            assert int(admin.hget(keys_of("elastic", "job")[0], "head")) < written
        sentinel.wait_for_log(r"\+switch-master")
        for agent in agents:
            agent.wait_for("the store has lost its last .* entr|the store answers again")
            agent.wait_for_report("step", count=len(agent.reports("step")) + 1)
        assert rig.wait_until(lambda: head(replica) >= written)
        assert pids(agents) == before, "somebody was stopped:\n" + "\n".join(agent.output for agent in agents)
        agents[1].kill_worker(max(agents[1].workers()))
        train_again(agents, restarts=2)
        all_finish(done, agents)


def test_no_node_waits_for_the_fence_of_members_that_had_stopped_before_the_store_was_emptied(
    rig: Rig, done: Path, tmp_path: Path
) -> None:
    """One member has left in order, and the one that had read that is stopped: the others know it from the ledger."""
    with redis_server(tmp_path / "redis") as server:
        rendezvous = ["--rdzv_backend=redis", f"--rdzv_endpoint={server.endpoint}", "--rdzv_id=job"]
        conf = "--rdzv_conf=beat_interval=0.5,lost_after=8"
        command = ["--nnodes=2", *rendezvous, conf, WORKERS / "barrier.py", "--until", done]
        first, second = rig.run(*command), rig.run(*command)
        for agent in (first, second):
            agent.wait_for_report("training", world_size=2)
        first.signal(signal.SIGTERM)
        first.exit_code()
        second.wait_for("waiting for 1 more node")
        second.signal(signal.SIGSTOP)
        others = [rig.run(*command), rig.run(*command)]
        with closing(opened(server.endpoint)) as store, redis.Redis(port=server.port) as admin:
            # On a machine so slow that the second is taken for lost meanwhile, they train before the store is emptied.
            assert wait_until(lambda: len(store.roster()) == 4 or bool(others[0].reports("training")))
            admin.flushall()
        for agent in others:
            agent.wait_for("the run goes on")
            agent.wait_for_report("training", world_size=2)
        assert not any("may still be training" in agent.output for agent in others)
        second.signal(signal.SIGCONT)
        done.touch()
        assert [agent.exit_code() for agent in others] == [0, 0]


@pytest.mark.parametrize("given", ["in the environment", "in the endpoint", "in --rdzv_conf"])
def test_no_process_of_a_job_but_its_agents_knows_the_password(
    rig: Rig, pair: Callable[..., list[Agent]], done: Path, tmp_path: Path, given: str
) -> None:
    with redis_server(tmp_path / "redis", "requirepass s3cret") as server:
        if given == "in the endpoint":
            agents = pair(f"redis://:s3cret@{server.endpoint}", SOON)
        elif given == "in --rdzv_conf":
            agents = pair(server.endpoint, f"{SOON},password=s3cret")
        else:
            agents = pair(server.endpoint, SOON, ELASTIC_REDIS_PASSWORD="s3cret")
        others = set(rig.processes()) - {agent.pid for agent in agents}
        assert set(pids(agents)) < others, "workers and wardens"
        for pid in others:
            assert b"s3cret" not in Path(f"/proc/{pid}/environ").read_bytes(), command_line(pid)
        for pid in rig.processes():
            assert "s3cret" not in command_line(pid)
        all_finish(done, agents)
        assert not [agent.output for agent in agents if "s3cret" in agent.output]


@pytest.mark.parametrize("where", ["no route", "wrong password"])
def test_a_node_that_cannot_connect_prints_the_reason_and_ends(rig: Rig, tmp_path: Path, where: str) -> None:
    with redis_server(tmp_path / "redis", "requirepass s3cret") as server:
        endpoint = "redis://:wr0ng@" + (server.endpoint if where == "wrong password" else "127.0.0.1:9")
        soon = ["--rdzv_conf=join_timeout=2"] if where == "no route" else []
        flags = ["--nnodes=2", "--rdzv_backend=redis", *soon, "--no_python", "true"]
        agent = rig.run(*flags, env={"PET_RDZV_ENDPOINT": endpoint})
        assert agent.exit_code() == ExitCode.UNREACHABLE
    said = "does not let us in" if where == "wrong password" else "can be reached at 127.0.0.1:9: Connection refused"
    assert said in agent.output
    assert "wr0ng" not in agent.output


def test_a_url_that_cannot_be_is_refused_without_its_password(rig: Rig) -> None:
    for backend in ([], ["--rdzv_backend=c10d"], ["--rdzv_backend=redis"], ["--rdzv_backend=local"]):
        agent = rig.run("--nnodes=2", *backend, "--rdzv_endpoint=redis://:wr0ng@h:x/y", "--no_python", "true")
        assert agent.exit_code() == ExitCode.USAGE, agent.output
        assert "wr0ng" not in agent.output
