"""A store that accepts what it is sent and answers nothing, since its process is stopped, and goes on later."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from etcd_servers import running
from redis_servers import redis_server
from rig import WORKERS, Agent, Rig, descendants, free_port, name_of
from training import SOON, train_again, train_for

from elastic_core.exit_codes import ExitCode

pytestmark = pytest.mark.timeout(300)
FENCE_AFTER = 20.0
STOPPED_FOR = 5.0
"""Seconds for which agents do without the store: three times what loses a node."""


@dataclass
class Store:
    """A store whose process can be stopped."""

    endpoint: str
    pid: int = 0

    def stop(self) -> None:
        """Stop it; it takes connections and answers nothing from then on."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)


@contextmanager
def server(backend: str, folder: Path) -> Iterator[Store]:
    with ExitStack() as stack:
        if backend == "redis":
            redis = stack.enter_context(redis_server(folder))
            assert redis.process is not None
            store = Store(redis.endpoint, redis.process.pid)
        elif backend == "etcd":
            etcd = stack.enter_context(running(folder))
            store = Store(etcd.endpoint, etcd.pid)
        else:
            store = Store(f"127.0.0.1:{free_port()}")
        try:
            yield store
        finally:
            if backend != "c10d":
                store.go_on()  # else it does not end


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """The file that ends the job."""
    return tmp_path / "done"


def pair(rig: Rig, backend: str, store: Store, done: Path, *flags: str, conf: str = SOON) -> list[Agent]:
    """Two nodes that train."""
    rendezvous = [f"--rdzv_backend={backend}", f"--rdzv_endpoint={store.endpoint}", f"--rdzv_conf={conf}"]
    command = ["--nnodes=2", "--max_restarts=3", "--rdzv_id=job", *rendezvous]
    command += [str(WORKERS / "barrier.py"), "--tell=0.2", f"--until={done}", *flags]
    agents = [rig.run(*command) for _ in range(2)]
    train_again(agents, 0)
    if backend == "c10d":
        [store.pid] = {pid for agent in agents for pid in descendants(agent.pid) if name_of(pid) == "elastic-store"}
    return agents


@pytest.mark.everyday("redis")
@pytest.mark.parametrize("backend", ["redis", pytest.param("etcd", marks=pytest.mark.variant), "c10d"])
def test_no_worker_is_restarted_when_the_store_is_stopped_for_a_while(
    rig: Rig, tmp_path: Path, done: Path, backend: str
) -> None:
    with server(backend, tmp_path / "server") as store:
        agents = pair(rig, backend, store, done)
        store.stop()
        train_for(rig, agents, STOPPED_FOR)
        store.go_on()
        train_for(rig, agents, STOPPED_FOR)  # long enough for a lost node to be found
        agents[1].kill_worker(max(agents[1].workers()))
        train_again(agents, 1)
        done.touch()
        for agent in agents:
            assert agent.exit_code() == ExitCode.SUCCESS, agent.output


@pytest.mark.everyday("etcd")
@pytest.mark.parametrize("backend", [pytest.param("redis", marks=pytest.mark.variant), "etcd", "c10d"])
def test_a_store_that_stays_stopped_is_told_of_before_the_fence_and_the_job_goes_on_after_it(
    rig: Rig, tmp_path: Path, done: Path, backend: str
) -> None:
    told = r"the store does not answer; workers go on, and we keep trying: .*{} .*See "
    fenced = "no contact with the store for too long: the workers are stopped"
    with server(backend, tmp_path / "server") as store:
        # Workers that only block when they lose a peer: each node has to stop its own.
        agents = pair(rig, backend, store, done, "--deaf", conf=f"{SOON},fence_after={FENCE_AFTER:g}")
        store.stop()
        for agent in agents:
            agent.wait_for(fenced)
            news = [line for line in agent.lines if re.search(told.format(re.escape(store.endpoint)), line)]
            assert len(news) == 1, agent.output
            assert agent.lines.index(news[0]) < next(i for i, line in enumerate(agent.lines) if fenced in line)
        store.go_on()
        for agent in agents:
            agent.wait_for("the store answers again")
            agent.wait_for_report("training", world_size=2, count=2)
        train_for(rig, agents, 0.0)
        done.touch()
        for agent in agents:
            assert agent.exit_code() == ExitCode.SUCCESS, agent.output


@pytest.mark.parametrize("backend", ["redis", pytest.param("etcd", marks=pytest.mark.variant)])
def test_agents_that_begin_while_the_store_is_stopped_wait_for_it(rig: Rig, tmp_path: Path, backend: str) -> None:
    with server(backend, tmp_path / "server") as store:
        store.stop()
        flags = ["--nnodes=2", "--rdzv_id=job", f"--rdzv_backend={backend}", f"--rdzv_endpoint={store.endpoint}"]
        agents = [rig.run(*flags, "--no_python", "true") for _ in range(2)]
        for agent in agents:
            agent.wait_for(f"the store at {store.endpoint} does not answer; waiting for it for up to 60 s")
        store.go_on()
        for agent in agents:
            assert agent.exit_code() == ExitCode.SUCCESS, agent.output
