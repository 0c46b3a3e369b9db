"""Nodes on hosts of their own: addresses that others can reach, wherever rank 0 is, and networks that are cut."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hosts import Host, hosts
from redis_servers import Daemon, running
from stage import WORKERS, Agent, Stage

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


@pytest.fixture
def three() -> Iterator[list[Host]]:
    with hosts(3) as found:
        yield found


def run(stage: Stage, host: Host, *arguments: object) -> Agent:
    """``elastic run`` on that host."""
    return stage.start(host.command(sys.executable, "-m", "elastic_core", "run", *map(str, arguments)))


@pytest.mark.parametrize("family", [pytest.param("ipv4", marks=pytest.mark.variant), "ipv6"])
def test_workers_on_three_hosts_meet_where_rank_0_is(
    stage: Stage, three: list[Host], tmp_path: Path, family: str
) -> None:
    endpoint = three[0].ipv4 if family == "ipv4" else f"[{three[0].ipv6}]"
    job = [WORKERS / "barrier.py", "--until", tmp_path / "done"]
    flags = ["--nnodes=3", "--rdzv_backend=c10d", f"--rdzv_endpoint={endpoint}", *job]
    agents = [run(stage, host, *flags) for host in three]
    for agent in agents:
        agent.wait_for_report("training", world_size=3)
    (tmp_path / "done").touch()
    assert [agent.exit_code() for agent in agents] == [0, 0, 0]


def test_when_rank_0s_host_is_lost_the_others_meet_elsewhere(stage: Stage, three: list[Host], tmp_path: Path) -> None:
    job = [WORKERS / "barrier.py", "--until", tmp_path / "done"]
    flags = ["--nnodes=2:3", "--rdzv_backend=file", f"--rdzv_endpoint={tmp_path}", *job]
    first = run(stage, three[0], *flags)
    first.wait_for("joining job")
    others = [run(stage, host, *flags) for host in three[1:]]
    for agent in (first, *others):
        agent.wait_for_report("training", world_size=3)
    first.kill_node()
    for agent in others:
        agent.wait_for_report("training", world_size=2)
    (tmp_path / "done").touch()
    assert [agent.exit_code() for agent in others] == [0, 0]


def test_a_host_whose_cable_is_pulled_is_left_out(stage: Stage, three: list[Host], tmp_path: Path) -> None:
    job = [WORKERS / "barrier.py", "--until", tmp_path / "done"]
    flags = ["--nnodes=2:3", "--rdzv_backend=c10d", f"--rdzv_endpoint={three[0].ipv4}", *job]
    flags.insert(0, "--rdzv_conf=read_timeout=5")
    agents = [run(stage, host, *flags) for host in three]
    for agent in agents:
        agent.wait_for_report("training", world_size=3)
    three[2].cut_off()
    for agent in agents[:2]:
        agent.wait_for_report("training", world_size=2)
    (tmp_path / "done").touch()
    assert [agent.exit_code() for agent in agents[:2]] == [0, 0]
    agents[2].kill_node()


def test_a_host_that_its_peers_cannot_reach_is_left_out(stage: Stage, three: list[Host], tmp_path: Path) -> None:
    """It reaches the store, and beats; only its peers are out of its reach (rule L5)."""
    for peer in three[:2]:
        three[2].shut_out(peer)
    job = [WORKERS / "barrier.py", "--until", tmp_path / "done", "--patience=3"]
    flags = ["--nnodes=2:3", "--max_restarts=1", "--rdzv_backend=file", f"--rdzv_endpoint={tmp_path}"]
    agents = [run(stage, host, "--rdzv_conf=last_call_timeout=30", *flags, *job) for host in three]
    for agent in agents[:2]:
        agent.wait_for("2 worker.s. on 2 node.s. .*cannot (be )?reach")
        agent.wait_for_report("training", world_size=2)
    (tmp_path / "done").touch()
    assert [agent.exit_code() for agent in agents] == [0, 0, 0]


def one_round_at_a_time(agents: list[Agent]) -> bool:
    """Whether no round took a step before the last step of the one before it, on any host; all have one clock."""
    rounds: dict[str, list[float]] = {}
    for agent in agents:
        for report in (*agent.reports("training"), *agent.reports("step")):
            rounds.setdefault(report["store"], []).append(report["at"])
    spans = sorted((min(at), max(at)) for at in rounds.values())
    return all(ended < began for (_, ended), (began, _) in pairwise(spans))


@pytest.mark.parametrize(
    ("member", "cut", "heal"),
    [
        pytest.param(2, lambda host, store: host.cut_off(), lambda host, store: host.plug_in(), id="off all"),
        pytest.param(
            0,
            lambda host, store: store.shut_out(host),
            lambda host, store: store.let_in(host),
            id="off what the store answers",
        ),
        pytest.param(
            1,
            lambda host, store: host.shut_out(store),
            lambda host, store: host.let_in(store),
            id="off the store",
        ),
    ],
)
def test_a_host_that_is_cut_off_is_left_out_stops_when_it_learns_that_and_comes_back(
    stage: Stage, tmp_path: Path, member: int, cut: Callable[[Host, Host], None], heal: Callable[[Host, Host], None]
) -> None:
    """The first host has rank 0 and the chair; nobody trains beside the round that goes on."""
    with hosts(4) as (*three, place):
        server = Daemon(
            tmp_path / "redis",
            ["port {port}", 'save ""', "protected-mode no"],
            address=place.ipv4,
            within=place.command(),
        )
        with running(server):
            job = [WORKERS / "barrier.py", "--tell=0.1", "--until", tmp_path / "done"]
            flags = ["--nnodes=2:3", "--rdzv_backend=redis", f"--rdzv_endpoint={server.endpoint}"]
            conf = "--rdzv_conf=beat_interval=0.5,lost_after=3,read_timeout=3,connect_timeout=1,last_call_timeout=30"
            agents = [run(stage, three[0], *flags, conf, *job)]
            agents[0].wait_for("joining job")
            agents += [run(stage, host, *flags, conf, *job) for host in three[1:]]
            for agent in agents:
                agent.wait_for_report("training", world_size=3)
            lone = agents[member]
            others = [agent for agent in agents if agent is not lone]
            stale = lone.workers()
            cut(three[member], place)
            for agent in others:
                agent.wait_for_report("training", world_size=2)
            heal(three[member], place)
            for agent in agents:
                agent.wait_for_report("training", world_size=3, count=2)
            assert set(lone.workers().values()).isdisjoint(stale.values())
            (tmp_path / "done").touch()
            assert [agent.exit_code() for agent in agents] == [0, 0, 0]
            assert one_round_at_a_time(agents)
