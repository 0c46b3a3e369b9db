"""The expectations of torch's tests of its agent with several nodes, in our words, for ours.

They are ``local_elastic_agent_test.py`` and ``api_test.py`` below torch's ``test/distributed/elastic/agent/server``.
``scripts/agents.py`` is one node of each job. It is asked of our agent over our backends, and of torch's agent over the
handlers with which our backends serve plain torchrun; ``python agents.py torch`` over ``c10d`` asks torch itself.

What those tests ask of one node is in ``test_torch_callers.py``, ``test_python_signatures.py`` (an address and a port
of the workers' store) and ``tests/test_watchdog.py``. Of several nodes, ``tests/test_nodes.py`` has agents that are
killed, with and without a replacement, and nodes that join; ``tests/test_signals.py`` has an agent that gets SIGTERM;
``tests/test_surface.py`` has prefixes of lines; ``tests/test_torchrun.py`` has an agent of torch's that gives up. Not
asked is what only torch's package can see: states of a worker group, metrics, a barrier that is made to fail.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from etcd_servers import running
from redis_servers import redis_server
from rig import Rig, free_port

pytestmark = pytest.mark.timeout(600)  # every agent imports torch, or has a fork server that does
PROGRAM = Path(__file__).parent / "scripts" / "agents.py"
NODES = 3
Job = list[list[Any]]
"""The result of a job on each of its nodes: state, whether it failed, results of workers by rank, failures."""


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of an etcd server."""
    with running(tmp_path_factory.mktemp("etcd") / "etcd") as server:
        yield server.endpoint


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a Redis server."""
    with redis_server(tmp_path_factory.mktemp("redis") / "redis") as server:
        yield server.endpoint


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., dict[str, Job]]]:
    """``jobs(side, places)`` runs all nodes to their end."""
    rigs = []

    def run(side: str, places: Mapping[str, tuple[str, str]]) -> dict[str, Job]:
        folder = tmp_path_factory.mktemp(side)
        rigs.append(Rig(folder))
        command = [sys.executable, str(PROGRAM), side]
        agents = [
            rigs[-1].start([*command, str(number), json.dumps(places), f"{number}.json", str(folder)])
            for number in range(NODES)
        ]
        for agent in agents:
            assert agent.exit_code(300) == 0, agent.output
        nodes = [json.loads((folder / f"{number}.json").read_text()) for number in range(NODES)]
        return {job: [node[job] for node in nodes if job in node] for job in places}

    yield run
    left = [process for rig in rigs for process in rig.close()]
    assert not left, "processes that outlived their agents: " + "; ".join(left)


@pytest.fixture(scope="module")
def ours(jobs: Callable[..., dict[str, Job]], etcd: str) -> dict[str, Job]:
    """Return the jobs of our agents."""
    c10d = {job: ("c10d", f"127.0.0.1:{free_port()}") for job in ("killed", "failed", "rpc")}
    return jobs("elastic", {"sum": ("etcd", etcd), "late": ("etcd-v2", etcd), **c10d})


@pytest.fixture(scope="module")
def torchs(jobs: Callable[..., dict[str, Job]], etcd: str, redis: str) -> dict[str, Job]:
    """Return the jobs of torch's agents over our handlers."""
    return jobs("torch", {"sum": ("redis", redis), "late": ("elastic-etcd", etcd)})


@pytest.fixture(params=["ours", "torchs"])
def either(request: pytest.FixtureRequest) -> dict[str, Job]:
    """Return the jobs that both kinds of agents have run."""
    found: dict[str, Job] = request.getfixturevalue(request.param)
    return found


def returned(job: Job) -> dict[str, Any]:
    """Return the results of workers, by rank, where the job went well on all nodes."""
    assert [node[:2] for node in job] == [["SUCCEEDED", False]] * len(job)
    assert [node[3] for node in job] == [{}] * len(job)
    values = {rank: value for node in job for rank, value in node[2].items()}
    assert len(values) == sum(len(node[2]) for node in job), "each rank is on one node"
    return values


def numbers(workers: list[dict[str, Any]], name: str) -> list[int]:
    """A variable of all workers, as numbers in order."""
    return sorted(int(worker[name]) for worker in workers)


def test_ranks_of_unequal_nodes_add_up_and_each_node_gets_back_what_its_own_workers_returned(
    either: dict[str, Job],
) -> None:
    workers = returned(either["sum"])
    assert sorted(workers) == list("012345")
    assert {worker["sum"] for worker in workers.values()} == {15}
    assert [len(node[2]) for node in either["sum"]] == [1, 2, 3]
    assert {rank: worker["RANK"] for rank, worker in workers.items()} == {rank: rank for rank in workers}
    for size, node in zip((1, 2, 3), either["sum"], strict=True):
        told = {(worker["GROUP_WORLD_SIZE"], worker["LOCAL_WORLD_SIZE"]) for worker in node[2].values()}
        assert told == {("3", str(size))}
        assert numbers(list(node[2].values()), "LOCAL_RANK") == list(range(size))
    for name, value in {"WORLD_SIZE": "6", "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_RUN_ID": "sum"}.items():
        assert {worker[name] for worker in workers.values()} == {value}


def test_ranks_are_consecutive_on_a_node_and_role_ranks_over_the_nodes_of_a_role(either: dict[str, Job]) -> None:
    workers = list(returned(either["sum"]).values())
    for role, size in (("master", 1), ("trainer", 5)):
        of_role = [worker for worker in workers if worker["ROLE_NAME"] == role]
        assert numbers(of_role, "ROLE_RANK") == list(range(size))
        assert {worker["ROLE_WORLD_SIZE"] for worker in of_role} == {str(size)}
    for node in either["sum"]:
        for name in ("RANK", "ROLE_RANK"):
            ranks = numbers(list(node[2].values()), name)
            assert ranks == list(range(ranks[0], ranks[0] + len(ranks)))


def test_a_node_whose_workers_return_early_succeeds_whatever_the_exit_barriers_limit(either: dict[str, Job]) -> None:
    assert returned(either["late"]) == {"0": 0, "1": 1}


def test_a_worker_that_is_killed_once_is_started_again_on_all_nodes(ours: dict[str, Job]) -> None:
    assert returned(ours["killed"]) == {"0": "1", "1": "1"}, "restarts are counted for the job"


def test_a_node_whose_workers_wait_fails_with_the_others_and_enters_no_exit_barrier(ours: dict[str, Job]) -> None:
    for state, is_failed, values, failures in ours["failed"]:
        assert (state, is_failed, values) == ("FAILED", True, {})
        assert set(failures) <= {"1", "3"}, "those that raised"
        assert set(failures.values()) == {"RuntimeError: sad"}
    assert ours["failed"][0] == ours["failed"][1], "the first failure of all nodes"


def test_nodes_of_different_roles_run_different_functions_that_call_each_other(ours: dict[str, Job]) -> None:
    asker, answerer = ours["rpc"]
    returned(ours["rpc"])
    assert [*asker[2].values(), *answerer[2].values()] == ["a word of answerer", None]
