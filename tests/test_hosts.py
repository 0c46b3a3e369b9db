"""Nodes on hosts of their own: addresses that others can reach, wherever rank 0 is, and networks that are cut."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hosts import Host, hosts
from live_rounds import live_spans, lives, two_alive
from redis_servers import Daemon, running
from rig import WARM, WORKERS, Agent, Rig, still_there

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


@pytest.fixture
def three() -> Iterator[list[Host]]:
    with hosts(3) as found:
        yield found


def run(rig: Rig, host: Host, *arguments: object) -> Agent:
    """``elastic run`` on that host."""
    return rig.start(host.command(sys.executable, "-m", "elastic_core", "run", *map(str, arguments)))


@pytest.mark.variant
@pytest.mark.parametrize("family", [pytest.param("ipv4", marks=pytest.mark.variant), "ipv6"])
def test_workers_on_three_hosts_meet_where_rank_0_is(rig: Rig, three: list[Host], tmp_path: Path, family: str) -> None:
    endpoint = three[0].ipv4 if family == "ipv4" else f"[{three[0].ipv6}]"
    job = [WORKERS / "barrier.py", "--until", tmp_path / "done"]
    flags = ["--nnodes=3", "--rdzv_backend=c10d", f"--rdzv_endpoint={endpoint}", *job]
    agents = [run(rig, host, *flags) for host in three]
    for agent in agents:
        agent.wait_for_report("training", world_size=3)
    (tmp_path / "done").touch()
    assert [agent.exit_code() for agent in agents] == [0, 0, 0]


def test_when_rank_0s_host_is_lost_the_others_meet_elsewhere(rig: Rig, three: list[Host], tmp_path: Path) -> None:
    job = [WORKERS / "barrier.py", "--until", tmp_path / "done"]
    flags = ["--nnodes=2:3", "--rdzv_backend=file", f"--rdzv_endpoint={tmp_path}", *job]
    first = run(rig, three[0], *flags)
    first.wait_for("joining job")
    others = [run(rig, host, *flags) for host in three[1:]]
    for agent in (first, *others):
        agent.wait_for_report("training", world_size=3)
    first.kill_node()
    for agent in others:
        agent.wait_for_report("training", world_size=2)
    (tmp_path / "done").touch()
    assert [agent.exit_code() for agent in others] == [0, 0]


def test_a_host_whose_cable_is_pulled_is_left_out(rig: Rig, three: list[Host], tmp_path: Path) -> None:
    job = [WORKERS / "barrier.py", "--until", tmp_path / "done"]
    flags = ["--nnodes=2:3", "--rdzv_backend=c10d", f"--rdzv_endpoint={three[0].ipv4}", *job]
    flags.insert(0, "--rdzv_conf=read_timeout=5")
    agents = [run(rig, host, *flags) for host in three]
    for agent in agents:
        agent.wait_for_report("training", world_size=3)
    three[2].cut_off()
    for agent in agents[:2]:
        agent.wait_for_report("training", world_size=2)
    (tmp_path / "done").touch()
    assert [agent.exit_code() for agent in agents[:2]] == [0, 0]
    agents[2].kill_node()


def test_a_host_that_its_peers_cannot_reach_is_left_out(rig: Rig, three: list[Host], tmp_path: Path) -> None:
    """It reaches the store, and heartbeats; only its peers are out of its reach (rule L5)."""
    for peer in three[:2]:
        three[2].shut_out(peer)
    job = [WORKERS / "barrier.py", "--until", tmp_path / "done", "--patience=3"]
    flags = ["--nnodes=2:3", "--max_restarts=1", "--rdzv_backend=file", f"--rdzv_endpoint={tmp_path}"]
    agents = [run(rig, host, "--rdzv_conf=last_call_timeout=30", *flags, *job) for host in three]
    for agent in agents[:2]:
        agent.wait_for("2 worker.s. on 2 node.s. .*cannot (be )?reach")
        agent.wait_for_report("training", world_size=2)
    (tmp_path / "done").touch()
    assert [agent.exit_code() for agent in agents] == [0, 0, 0]


BRISK = "--rdzv_conf=beat_interval=0.5,lost_after=3,read_timeout=3,connect_timeout=1,last_call_timeout=30"


@contextmanager
def three_and_a_store(folder: Path) -> Iterator[tuple[list[Host], Host, list[str]]]:
    """Three hosts, the one where their store is, and the flags to meet there."""
    with hosts(4) as (*three, place):
        settings = ["port {port}", 'save ""', "protected-mode no"]
        server = Daemon(folder / "redis", settings, address=place.ipv4, within=place.command())
        with running(server):
            yield three, place, ["--rdzv_backend=redis", f"--rdzv_endpoint={server.endpoint}"]


def training(folder: Path, *flags: object) -> list[object]:
    """The job that all run, whose workers write down in ``folder`` that they are alive."""
    (folder / "lives").mkdir(exist_ok=True)
    return [WORKERS / "barrier.py", "--tell=0.1", "--until", folder / "done", "--lives", folder / "lives", *flags]


def one_after_the_other(folder: Path, least: int) -> bool:
    """Return True if so many rounds at least have been alive, and never two at once."""
    found = lives(folder / "lives")
    assert not (both := two_alive(found)), f"rounds that were alive at once: {both} of {live_spans(found)}"
    return len(live_spans(found)) >= least


@pytest.mark.everyday("off all")
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
    rig: Rig, tmp_path: Path, member: int, cut: Callable[[Host, Host], None], heal: Callable[[Host, Host], None]
) -> None:
    """The first host has rank 0 and the leader. Each could train alone, and none of the workers ends by itself."""
    with three_and_a_store(tmp_path) as (three, place, store):
        job = ["--nnodes=1:3", BRISK, *store, *training(tmp_path, "--deaf")]
        agents = [run(rig, three[0], *job)]
        agents[0].wait_for("joining job")
        agents += [run(rig, host, *job) for host in three[1:]]
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
        assert one_after_the_other(tmp_path, least=3)


@pytest.mark.variant
def test_a_spare_host_waits_until_those_that_train_out_of_the_stores_sight_have_stopped(
    rig: Rig, tmp_path: Path
) -> None:
    """The members are cut off the store, not each other: only the fence keeps the third from training beside them."""
    with three_and_a_store(tmp_path) as (three, place, store):
        job = ["--nnodes=1:2", f"{BRISK},fence_after=15", *store, *training(tmp_path, "--deaf")]
        members = [run(rig, host, *job) for host in three[:2]]
        for agent in members:
            agent.wait_for_report("training", world_size=2)
        spare = run(rig, three[2], *job)
        spare.wait_for("the job has all 2 node.s. that it takes")
        for host in three[:2]:
            host.shut_out(place)
        for agent in members:
            agent.wait_for("the store does not answer")
            agent.wait_for_report("step", count=len(agent.reports("step")) + 3)
        spare.wait_for_report("training", world_size=1)
        for agent in members:
            agent.wait_for("no contact with the store for too long: the workers are stopped")
        for host in three[:2]:
            host.let_in(place)
        spare.wait_for_report("training", world_size=2)
        (tmp_path / "done").touch()
        assert [agent.exit_code() for agent in (*members, spare)] == [0, 0, 0]
        assert one_after_the_other(tmp_path, least=3)


@pytest.mark.parametrize("member", [2, pytest.param(0, marks=pytest.mark.variant)])
def test_a_host_that_its_peers_lose_sight_of_is_left_out_until_it_is_needed(
    rig: Rig, tmp_path: Path, member: int
) -> None:
    """All see the store at all times. The host stays out while the others are enough, also when it is healed (L5)."""
    with three_and_a_store(tmp_path) as (three, _, store):
        job = ["--nnodes=2:3", "--max_restarts=1", BRISK, *store, *training(tmp_path, "--stall=3", "--patience=6")]
        agents = [run(rig, three[0], *job)]
        agents[0].wait_for("joining job")
        agents += [run(rig, host, *job) for host in three[1:]]
        for agent in agents:
            agent.wait_for_report("training", world_size=3)
        lone, (first, second) = agents[member], [agent for agent in agents if agent is not agents[member]]
        for host in three:
            if host is not three[member]:
                three[member].shut_out(host)
        for agent in (first, second):
            agent.wait_for("2 worker.s. on 2 node.s. .*cannot (be )?reach")
            agent.wait_for_report("training", world_size=2)
        lone.wait_for("this host was .*not reached by others: waiting")
        assert not lone.workers()
        for host in three:
            if host is not three[member]:
                three[member].let_in(host)
        first.wait_for_report("step", world_size=2, count=len(first.reports("step", world_size=2)) + 10)
        assert not lone.workers()
        second.kill_node()
        for agent in (first, lone):
            agent.wait_for_report("training", world_size=2, count=1 if agent is lone else 2)
        (tmp_path / "done").touch()
        assert [agent.exit_code() for agent in (first, lone)] == [0, 0]
        assert one_after_the_other(tmp_path, least=3)


@pytest.mark.parametrize("case", ["no default route", "a name of loopback"])
def test_workers_meet_by_the_addresses_of_their_agents(rig: Rig, tmp_path: Path, case: str) -> None:
    """Over gloo, which would look up the name of the host: on Debian that is 127.0.1.1, or it does not resolve."""
    with hosts(2, default_route=case != "no default route") as two:
        text = f"127.0.0.1 localhost\n{'127.0.1.1 ' + os.uname().nodename if case != 'no default route' else ''}\n"
        (tmp_path / "hosts").write_text(text)
        mount = f'mount --bind {tmp_path / "hosts"} /etc/hosts && exec "$@"'
        program = [sys.executable, "-m", "elastic_core", "run", "--nnodes=2", "--rdzv_backend=file"]
        job = [f"--rdzv_endpoint={tmp_path}", WORKERS / "allreduce.py", "--until", tmp_path / "done"]
        env = {**WARM, "PET_PRELOAD": "torch"}
        agents = [
            rig.start(["unshare", "--mount", "sh", "-c", mount, "sh", *host.command(*program, *map(str, job))], env=env)
            for host in two
        ]
        for agent in agents:
            agent.wait_for_report("training", world_size=2)
        (tmp_path / "done").touch()
        assert [agent.exit_code() for agent in agents] == [0, 0]
        assert not any("starts fresh" in agent.output for agent in agents)


def test_hosts_that_both_call_themselves_127_0_0_1_do_not_train_past_each_other(rig: Rig, tmp_path: Path) -> None:
    with hosts(2) as two:
        flags = ["--nnodes=2", "--local_addr=127.0.0.1", "--rdzv_conf=join_timeout=5", "--rdzv_backend=file"]
        job = [f"--rdzv_endpoint={tmp_path}", WORKERS / "barrier.py", "--until", tmp_path / "done"]
        agents = [run(rig, host, *flags, *job) for host in two]
        for agent in agents:
            assert agent.exit_code() == 75, agent.output
            assert not agent.workers()
            agent.wait_for(r"no other host reaches .*, .* at 127.0.0.1: start it with --local_addr=ADDRESS")


@pytest.mark.parametrize("cut", ["its link is down", "only the store is away"])
def test_two_workers_of_rank_0_do_not_run_beside_each_other_for_minutes(rig: Rig, tmp_path: Path, cut: str) -> None:
    """The workers use no collective, as while rank 0 saves, so that nothing else shows that they are cut off."""
    script = tmp_path / "alone.py"
    script.write_text(
        "import os, time\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)\n"
    )
    with script.open("a") as file:
        file.write(f"while not os.path.exists({str(tmp_path / 'done')!r}): time.sleep(0.1)\n")
    with three_and_a_store(tmp_path) as (hosts_, place, meet):
        conf = "--rdzv_conf=beat_interval=0.5,lost_after=1"
        flags = ["--nnodes=1:2", "--no_warm_start", conf, *meet, script]
        first = run(rig, hosts_[0], *flags)
        first.wait_for("rank 0 of 1")
        second = run(rig, hosts_[1], *flags)
        first.wait_for("rank 0 of 2")
        second.wait_for("rank 1 of 2")
        worker = first.workers()[0]
        if cut == "its link is down":
            hosts_[0].cut_off()
            second.wait_for("rank 0 of 1")
            first.wait_for("the workers are stopped")
            assert still_there([worker], within=30.0) == []
            hosts_[0].plug_in()
        else:
            place.cut_off()
            first.wait_for("does not answer")
            assert still_there([worker], within=10.0) == [worker], "an outage of the store alone ends no worker"
            place.plug_in()
        (tmp_path / "done").touch()
        assert second.exit_code() == 0
