"""A store that starts after the agents, or restarts while they connect: they wait for it, and say so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from etcd_servers import refusing_port, running
from redis_servers import redis_server
from rig import Rig

from elastic_core.exit_codes import ExitCode

BACKENDS = ["redis", "etcd", pytest.param("etcd-v2", marks=pytest.mark.variant)]


def waits_and_runs(rig: Rig, backend: str, endpoint: str, start: Callable[[], object]) -> None:
    """Agents whose server is down wait for it, and run once it is there."""
    flags = ["--nnodes=2", "--rdzv_id=job", f"--rdzv_backend={backend}", f"--rdzv_endpoint={endpoint}"]
    agents = [rig.run(*flags, "--no_python", "true") for _ in range(2)]
    for agent in agents:
        agent.wait_for(rf"the store at {endpoint} does not answer; waiting for it for up to 60 s: .*Connection refused")
    start()
    for agent in agents:
        assert agent.exit_code() == ExitCode.SUCCESS, agent.output


@pytest.mark.parametrize("backend", BACKENDS)
def test_agents_wait_for_a_store_that_is_not_up_yet(rig: Rig, tmp_path: Path, backend: str) -> None:
    """They ended with exit code 69."""
    if backend == "redis":
        with redis_server(tmp_path / "server") as redis:
            redis.stop()
            waits_and_runs(rig, backend, redis.endpoint, redis.start)
    else:
        with running(tmp_path / "server") as etcd:
            etcd.stop()
            waits_and_runs(rig, backend, etcd.endpoint, lambda: etcd.start().serving())


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_endpoint_where_nobody_ever_listens_ends_the_run_with_its_error(rig: Rig, backend: str) -> None:
    with refusing_port() as port:
        endpoint = f"127.0.0.1:{port}"
        flags = ["--nnodes=2", f"--rdzv_backend={backend}", f"--rdzv_endpoint={endpoint}", "--rdzv_conf=join_timeout=2"]
        agent = rig.run(*flags, "--no_python", "true")
        assert agent.exit_code() == ExitCode.UNREACHABLE, agent.output
    assert "waiting for it for up to 2 s" in agent.output
    assert agent.wait_for(rf"^elastic: error: .*{endpoint}.*Connection refused")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_host_that_does_not_exist_ends_the_run_with_its_error(rig: Rig, backend: str) -> None:
    """A resolver says so at once, or does not know, and is asked again for as long as the node may take to join."""
    flags = ["--nnodes=2", f"--rdzv_backend={backend}", "--rdzv_endpoint=no.such.host.invalid:1"]
    agent = rig.run(*flags, "--rdzv_conf=join_timeout=2", "--no_python", "true")
    assert agent.exit_code() == ExitCode.UNREACHABLE, agent.output
    assert agent.wait_for(r"^elastic: error: .*no\.such\.host\.invalid")
