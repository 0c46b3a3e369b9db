"""Scripts that are told the port of ``--master_port`` by hand, and meet there: ``init_method="tcp://HOST:PORT"``."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping

import pytest
from rig import COLD, WARM, WORKERS, Agent, Rig, free_port

WARM_OR_NOT = pytest.mark.parametrize("env", [WARM, COLD], ids=["warm", "fresh"])


def meets(agents: list[Agent], restart_count: int, port: int) -> dict[int, int]:
    """The pids of both workers, by rank, that have met after so many restarts."""
    count = 2 // len(agents)
    reports = [
        report
        for agent in agents
        for report in agent.wait_for_report("met", count=count, total=2, restart_count=restart_count)
    ]
    assert {report["port"] for report in reports} == {port}, "MASTER_PORT is --master_port, as under torchrun"
    return {report.rank: report["pid"] for report in reports}


@pytest.mark.everyday("fresh")
@WARM_OR_NOT
def test_one_node_meets_at_its_master_port_in_every_round(rig: Rig, env: Mapping[str, str]) -> None:
    port = free_port()
    agent = rig.run(
        *(f"--master_port={port}", "--nproc_per_node=2", "--max_restarts=2"),
        *(WORKERS / "tcp_init.py", "--restarts=2", f"--dist_url=tcp://localhost:{port}"),
        env=env,
    )
    for life, rank in enumerate((1, 0)):
        os.kill(meets([agent], life, port)[rank], signal.SIGKILL)
    meets([agent], 2, port)
    assert agent.exit_code() == 0, agent.output
    assert "no effect" not in agent.output


@pytest.mark.everyday("warm")
@WARM_OR_NOT
def test_two_nodes_meet_at_their_master_port_in_every_round(rig: Rig, env: Mapping[str, str]) -> None:
    port = free_port()
    where = ["--nnodes=2", "--master_addr=127.0.0.1", f"--master_port={port}", "--max_restarts=1"]
    agents = [
        rig.run(
            *(*where, f"--node_rank={number}"),
            *(WORKERS / "tcp_init.py", f"--dist_url=tcp://localhost:{port}"),
            env=env,
        )
        for number in range(2)
    ]
    os.kill(meets(agents, 0, port)[1], signal.SIGKILL)
    meets(agents, 1, port)
    for agent in agents:
        assert agent.exit_code() == 0, agent.output


def test_a_master_port_that_somebody_has_is_named(rig: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        agent = rig.run(f"--master_port={taken.getsockname()[1]}", WORKERS / "sleeper.py", env=COLD)
        assert agent.exit_code() != 0
        assert f"Port {taken.getsockname()[1]} could not be held" in agent.output


OWN_PORT = """\
import datetime
import os

import torch.distributed as dist

dist.init_process_group(
    "gloo",
    init_method="tcp://127.0.0.1:PORT",
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
    timeout=datetime.timedelta(seconds=1),
)
"""


def test_a_store_on_a_port_of_the_scripts_own_is_no_lost_peer(rig: Rig) -> None:
    """If the launcher has a store, torch makes all ranks clients of any, so nothing listens there."""
    port = free_port()
    (rig.folder / "train.py").write_text(OWN_PORT.replace("PORT", str(port)))
    agent = rig.run("--standalone", "--nproc_per_node=2", "train.py", env=WARM)
    assert agent.exit_code() == 1
    assert "follows from the loss of a peer" not in agent.output
    assert "hint    This port is not the launcher's: use env://" in agent.output
    assert f"127.0.0.1:{port} is not the launcher's store, which is at 127.0.0.1:" in agent.output
