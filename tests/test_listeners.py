"""The listening sockets of a job: at the addresses that it tells others of, and nowhere else."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hosts import hosts
from listeners import listening_addresses
from rig import WARM, WORKERS, Agent, Rig


def listens_at(rig: Rig, agent: Agent) -> set[str]:
    """All addresses at which it and what it started listen."""
    agent.wait_for_report("started")
    found = listening_addresses(rig.processes())
    return set().union(*found.values())


@pytest.mark.parametrize("flags", [["--standalone"], ["--nnodes=1"]], ids=["standalone", "one node"])
def test_one_node_listens_at_loopback(rig: Rig, flags: list[str]) -> None:
    agent = rig.run(*flags, "--nproc_per_node=2", WORKERS / "sleeper.py", env=WARM)
    assert listens_at(rig, agent) == {"127.0.0.1"}, "the store of its workers, forked with torch"


def test_nodes_that_meet_at_loopback_listen_there(rig: Rig, rendezvous: list[str]) -> None:
    agent = rig.run(*rendezvous, "--nnodes=1:2", "--local_addr=127.0.0.1", WORKERS / "sleeper.py", env=WARM)
    assert listens_at(rig, agent) == {"127.0.0.1"}


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.parametrize("family", ["ipv4", pytest.param("ipv6", marks=pytest.mark.variant)])
def test_a_node_of_several_listens_at_the_address_that_it_tells_the_others(rig: Rig, family: str) -> None:
    with hosts(1) as (host,):
        endpoint = host.ipv4 if family == "ipv4" else f"[{host.ipv6}]"
        flags = ["--nnodes=1:2", "--rdzv_backend=c10d", f"--rdzv_endpoint={endpoint}:29400"]
        command = [sys.executable, "-m", "elastic_core", "run", *flags, str(WORKERS / "sleeper.py")]
        agent = rig.start(host.command(*command), env=WARM)
        assert listens_at(rig, agent) == {getattr(host, family)}
        said = "The job has no token, and its store listens at"
        assert agent.output.count(said) == 1, agent.output
        assert "ELASTIC_JOB_TOKEN" in agent.output


def test_a_node_that_is_reached_by_way_of_another_address_listens_everywhere(rig: Rig, tmp_path: Path) -> None:
    flags = ["--nnodes=1:2", "--rdzv_backend=file", f"--rdzv_endpoint={tmp_path}", "--local_addr=192.0.2.77"]
    agent = rig.run(*flags, WORKERS / "sleeper.py", env=WARM)
    agent.wait_for("192.0.2.77 is not an address of this host")
    assert listens_at(rig, agent) <= {"::", "0.0.0.0"}
