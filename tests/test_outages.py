"""A store that is away for longer than any node may be silent, and comes back with its data, or with nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from etcd_servers import running
from redis_servers import redis_server
from rig import WORKERS, Rig
from training import SOON, train_again, train_for


@dataclass(frozen=True)
class Store:
    """A server, and what an operator does to it."""

    endpoint: str
    stop: Callable[[], object]
    forget: Callable[[], object]
    start: Callable[[], object]


@contextmanager
def server(backend: str, folder: Path) -> Iterator[Store]:
    if backend == "redis":
        with redis_server(folder, durable=True) as redis:
            yield Store(redis.endpoint, redis.stop, redis.forget, redis.start)
    else:
        with running(folder) as etcd:
            yield Store(etcd.endpoint, etcd.stop, etcd.forget, lambda: etcd.start().serving())


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("backend", "data"),
    [
        ("redis", "lost"),
        ("etcd", "kept"),
        pytest.param("redis", "kept", marks=pytest.mark.variant),
        pytest.param("etcd", "lost", marks=pytest.mark.variant),
    ],
)
def test_training_goes_on_without_a_store_and_crashes_recover_during_that_and_after_it(
    rig: Rig, tmp_path: Path, backend: str, data: str, outage: float
) -> None:
    done = tmp_path / "done"
    with server(backend, tmp_path / "server") as store:

        def comes_back() -> None:
            if data == "lost":
                store.forget()
            store.start()

        rendezvous = [f"--rdzv_backend={backend}", f"--rdzv_endpoint={store.endpoint}", f"--rdzv_conf={SOON}"]
        command = ["--nnodes=1:2", "--max_restarts=2", "--rdzv_id=job", *rendezvous]
        command += [str(WORKERS / "barrier.py"), "--tell=0.2", f"--until={done}"]
        agents = [rig.run(*command) for _ in range(2)]
        train_again(agents, 0)

        store.stop()
        for agent in agents:
            agent.wait_for("the store does not answer; workers go on")
        train_for(rig, agents, outage)
        comes_back()
        for agent in agents:
            agent.wait_for("the store answers again")
        train_for(rig, agents, 0.0)
        agents[1].kill_worker(max(agents[1].workers()))
        train_again(agents, 1)

        store.stop()
        train_for(rig, agents, outage / 2)
        failures = [len([line for line in agent.lines if "exited with code" in line]) for agent in agents]
        agents[1].kill_worker(max(agents[1].workers()))
        agents[1].wait_for("was killed by SIGKILL", count=2)
        agents[0].wait_for("exited with code", count=failures[0] + 1)
        comes_back()
        train_again(agents, 2)
        done.touch()
        for agent in agents:
            assert agent.exit_code() == 0, agent.output
