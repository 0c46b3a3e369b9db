"""Jobs whose store holds what cannot be: each reader reports it, nothing of it is run, and healthy workers go on."""

from __future__ import annotations

import json
import pickle
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest
import redis
from backends import opened as opened_etcd
from etcd_servers import Etcd, administer, running
from redis_servers import Daemon, opened as opened_redis, redis_server
from rig import WORKERS, Agent, Rig

from elastic_core.exit_codes import ExitCode
from elastic_core.protocol.codec import decode_entry
from elastic_core.protocol.settings import PROTOCOL
from elastic_core.rendezvous.backend import MAX_VALUE_BYTES, ORIGIN, Cursor, Link, RendezvousBackend
from elastic_rdzv_etcd.backend import Keys
from elastic_rdzv_etcd.options import DEFAULT_PREFIX
from elastic_rdzv_redis.backend import keys_of

Connect = Callable[[str], RendezvousBackend]
"""A connection to the store, for a job id."""
Scribble = Callable[[str], None]
"""Writes what is none over a row and, where the store has bells, on them, for a job id."""


class Trap:
    """A process that unpickles this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return open, (str(self.path), "w")


@contextmanager
def server(backend: str, folder: Path) -> Iterator[tuple[list[str], Connect, Scribble]]:
    """A server; the flags with which nodes meet there, and two ways to write there past them."""
    if backend == "redis":
        with redis_server(folder) as found, redis.Redis(port=found.port) as admin:
            flags = ["--rdzv_backend=redis", f"--rdzv_endpoint={found.endpoint}"]
            yield flags, partial(opened_redis, found.endpoint), partial(scribble_in_redis, admin)
    else:
        with running(folder) as etcd:
            flags = ["--rdzv_backend=etcd", f"--rdzv_endpoint={etcd.endpoint}"]
            yield flags, partial(opened_etcd, etcd.endpoint, DEFAULT_PREFIX), partial(scribble_in_etcd, etcd)


def job_of_two(found: Daemon, done: Path) -> list[object]:
    """The command line of a job of two nodes that train until a file is there."""
    flags = ["--rdzv_backend=redis", f"--rdzv_endpoint={found.endpoint}", "--rdzv_id=job", "--nnodes=2"]
    return [*flags, WORKERS / "barrier.py", "--tell=0.2", f"--until={done}"]


def training_pair(rig: Rig, found: Daemon, done: Path) -> tuple[list[Agent], list[dict[int, int]]]:
    """The two agents of such a job, and the workers of each, once they train."""
    agents = [rig.run(*job_of_two(found, done)) for _ in range(2)]
    for agent in agents:
        agent.wait_for_report("step", world_size=2)
    return agents, [agent.workers() for agent in agents]


def scribble_in_redis(admin: redis.Redis, run_id: str) -> None:
    _, roster, *bells = keys_of("elastic", run_id)
    admin.hset(roster, "n:worse", "garbage")
    for bell in bells:
        admin.xadd(bell, {"now": "garbage", "what": "z"})


def scribble_in_etcd(etcd: Etcd, run_id: str) -> None:
    row = Keys(DEFAULT_PREFIX, run_id).row("worse")
    administer(etcd, "/v3/kv/put", {"key": b64encode(row).decode(), "value": b64encode(b"garbage").decode()})


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[Path]:
    """It exists only if a process has unpickled the planted value."""
    path = tmp_path / "unpickled"
    yield path
    assert not path.exists(), "what was planted has been run"


@pytest.mark.parametrize("backend", ["redis", "etcd"])
def test_a_node_that_comes_to_what_cannot_be_says_so_and_starts_nothing(
    rig: Rig, tmp_path: Path, trap: Path, backend: str
) -> None:
    planted = {
        "An entry in the store is not JSON": pickle.dumps(Trap(trap)),
        "is not JSON": bytes(range(256)) * 16,
        "protocol version": json.dumps({"v": PROTOCOL + 1}).encode(),
    }
    with server(backend, tmp_path / "server") as (flags, connect, _):
        agents = []
        for number, data in enumerate(planted.values()):
            with closing(connect(f"job-{number}")) as store:
                assert store.append(ORIGIN, Link(1, "planted"), data)
            agents.append(rig.run(*flags, f"--rdzv_id=job-{number}", "--nnodes=1", WORKERS / "sleeper.py"))
        for agent, words in zip(agents, planted, strict=True):
            assert agent.exit_code() == ExitCode.REFUSED, agent.output
            assert words in agent.output
            assert "another --rdzv_id" in agent.output, "what to do about it"
            assert not agent.reports("started")


@pytest.mark.parametrize("backend", ["redis", "etcd"])
def test_workers_train_on_recover_and_finish_whatever_is_planted(
    rig: Rig, tmp_path: Path, trap: Path, backend: str
) -> None:
    def told() -> int:
        return sum(agent.output.count("row in the store is ignored") for agent in agents)

    with server(backend, tmp_path / "server") as (flags, connect, scribble):
        job = [WORKERS / "barrier.py", "--tell=0.2", f"--until={tmp_path / 'done'}"]
        agents = [rig.run(*flags, "--rdzv_id=job", "--nnodes=2", "--max_restarts=1", *job) for _ in range(2)]
        for agent in agents:
            agent.wait_for_report("step", world_size=2)
        workers = [agent.workers() for agent in agents]
        with closing(connect("job")) as store:
            scribble("job")
            store.enter("evil", pickle.dumps(Trap(trap)))
            assert rig.wait_until(lambda: told() == 2)
            assert [agent.workers() for agent in agents] == workers
            agents[1].kill_worker(*workers[1])
            for agent in agents:
                agent.wait_for_report("training", world_size=2, restart_count=1)
            workers = [agent.workers() for agent in agents]
            newest = decode_entry(store.read(store.wait(Cursor(), roster=False, timeout=0).head) or b"")
            assert store.append(newest.link, Link(newest.index + 1, "planted"), pickle.dumps(Trap(trap)))
        for agent in agents:
            agent.wait_for("the store is lost: An entry in the store is not JSON.* another --rdzv_id")
            agent.wait_for_report("step", count=len(agent.reports("step")) + 1)
        assert [agent.workers() for agent in agents] == workers
        (tmp_path / "done").touch()
        assert [agent.exit_code() for agent in agents] == [0, 0]


def test_100_mb_in_redis_are_refused_unread(rig: Rig, tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis") as found:
        with redis.Redis(port=found.port) as admin:
            record = b"1 planted\n" + b"[" * (400 * MAX_VALUE_BYTES)
            admin.hset(keys_of("elastic", "job")[0], mapping={"1": record, "head": 1})
        flags = ["--rdzv_backend=redis", f"--rdzv_endpoint={found.endpoint}", "--rdzv_id=job", "--nnodes=1"]
        agent = rig.run(*flags, WORKERS / "sleeper.py")
        assert agent.exit_code() == ExitCode.REFUSED, agent.output
        assert f"has {len(record)} bytes; at most {MAX_VALUE_BYTES} are allowed" in agent.output
        assert "another --rdzv_id" in agent.output


@pytest.mark.everyday("100 MB")
@pytest.mark.parametrize(
    ("record", "words"),
    [
        (b"1 planted\n" + b"[" * (400 * MAX_VALUE_BYTES), r"Entry \d+ .* bytes; at most \d+ are allowed"),
        (b"1 planted\n" + json.dumps({"v": PROTOCOL + 1}).encode(), "protocol version"),
    ],
    ids=["100 MB", "another version"],
)
def test_workers_train_on_and_finish_whatever_comes_next_in_the_ledger(
    rig: Rig, tmp_path: Path, record: bytes, words: str
) -> None:
    with redis_server(tmp_path / "redis") as found:
        agents, workers = training_pair(rig, found, tmp_path / "done")
        with closing(opened_redis(found.endpoint)) as store, redis.Redis(port=found.port) as admin:
            newest = store.wait(Cursor(), roster=False, timeout=0).head
            admin.hset(keys_of("elastic", "job")[0], mapping={str(newest + 1): record, "head": newest + 1})
        for agent in agents:
            agent.wait_for(f"the store is lost: .*{words}.* another --rdzv_id")
            agent.wait_for_report("step", count=len(agent.reports("step")) + 1)
        assert [agent.workers() for agent in agents] == workers
        (tmp_path / "done").touch()
        assert [agent.exit_code() for agent in agents] == [0, 0]


@pytest.mark.everyday("-5", "a word")
@pytest.mark.parametrize("head", [b"-5", b"1" + 30 * b"0", b"5000", b"garbage"], ids=["-5", "10^30", "5000", "a word"])
def test_a_planted_head_comes_to_a_verdict(rig: Rig, tmp_path: Path, head: bytes) -> None:
    with redis_server(tmp_path / "redis") as found:
        agents, workers = training_pair(rig, found, tmp_path / "done")
        with redis.Redis(port=found.port) as admin:
            admin.hset(keys_of("elastic", "job")[0], "head", head)
        for agent in agents:
            agent.wait_for(r"the store is lost: .* holds .* of job 'job'\. .* another --rdzv_id")
            agent.wait_for_report("step", count=len(agent.reports("step")) + 1)
        assert [agent.workers() for agent in agents] == workers
        late = rig.run(*job_of_two(found, tmp_path / "done"))
        assert late.exit_code() == ExitCode.REFUSED, late.output
        (tmp_path / "done").touch()
        assert [agent.exit_code() for agent in agents] == [0, 0]
