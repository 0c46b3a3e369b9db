"""Servers that a job cannot get to: what its agent says, and what it ends with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from etcd_servers import running
from hosts import hosts
from redis_servers import authority, certificate, redis_server
from rig import WORKERS, Rig

from elastic_core.exit_codes import ExitCode


@contextmanager
def encrypted(backend: str, folder: Path) -> Iterator[str]:
    """A server that speaks TLS, with a certificate by ``ca.crt``, beside which is a stranger's; yields its endpoint."""
    ca = authority(folder, "ca")
    authority(folder, "other")
    made = certificate(folder, "server", ca)
    key = made.with_suffix(".key")
    if backend == "redis":
        files = [f"tls-cert-file {made}", f"tls-key-file {key}", f"tls-ca-cert-file {ca}", "tls-auth-clients no"]
        with redis_server(folder / "server", "port 0", "tls-port {port}", *files) as redis:
            yield f"rediss://{redis.endpoint}"
    else:
        with running(folder / "server", flags=[f"--cert-file={made}", f"--key-file={key}"], tls=True) as etcd:
            yield f"https://{etcd.endpoint}"


@pytest.mark.parametrize("backend", ["redis", "etcd"])
def test_a_certificate_of_a_stranger_is_named_with_the_option_that_trusts_it(
    rig: Rig, tmp_path: Path, backend: str
) -> None:
    with encrypted(backend, tmp_path) as endpoint:
        flags = ["--nnodes=1:2", f"--rdzv_backend={backend}", f"--rdzv_endpoint={endpoint}"]
        ours, other = (f"--rdzv_conf=cacert={tmp_path / name}" for name in ("ca.crt", "other.crt"))
        agent = rig.run(*flags, other, WORKERS / "sleeper.py")
        assert agent.exit_code() == ExitCode.UNREACHABLE, agent.output
        assert "is not to be trusted: " in agent.output
        assert "--rdzv_conf cacert=FILE" in agent.output
        trusting = rig.run(*flags, ours, "--no_python", "true")
        assert trusting.exit_code() == 0, trusting.output


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.parametrize("backend", ["redis", "etcd"])
def test_an_address_without_a_host_is_named_with_what_to_check(rig: Rig, backend: str) -> None:
    with hosts(1) as (host,):
        flags = ["--nnodes=2", f"--rdzv_backend={backend}", "--rdzv_endpoint=10.77.0.99:7777"]
        flags += ["--rdzv_conf=join_timeout=2", "--no_python", "true"]
        agent = rig.start(host.command(sys.executable, "-m", "elastic_core", "run", *flags))
        assert agent.exit_code() == ExitCode.UNREACHABLE, agent.output
        assert "10.77.0.99:7777: no answer" in agent.output
        assert "the network" in agent.output, "what to check"


@pytest.mark.parametrize("backend", ["c10d", "static"])
def test_without_torch_the_backends_that_need_it_say_so(rig: Rig, tmp_path: Path, backend: str) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    flags = ["--nnodes=2", f"--rdzv_backend={backend}", "--rdzv_endpoint=localhost:29533", "--node_rank=0"]
    agent = rig.run(*flags, "--no_python", "true", env={"PYTHONPATH": str(tmp_path)})
    assert agent.exit_code() == ExitCode.USAGE, agent.output
    assert f"The {backend} backend needs torch, which cannot be imported: ModuleNotFoundError" in agent.output
    assert "Install torch for this Python" in agent.output
    assert "Traceback" not in agent.output
