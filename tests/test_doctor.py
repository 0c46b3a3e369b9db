"""``elastic doctor`` over real servers: what it says, what it exits with, and that it leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from etcd_servers import Etcd, administer, asked, running as etcd_running
from hosts import hosts
from redis_servers import Daemon, authority, certificate, redis_server
from rig import PATIENCE, WORKERS, Rig, free_port

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces and mounts need root")
COMMAND = (sys.executable, "-m", "elastic_core", "doctor")


@dataclass
class Said:
    """The result of ``elastic doctor``."""

    exit_code: int
    findings: Mapping[str, Mapping[str, Any]]
    """By the check's name."""
    output: str

    def wrong(self) -> list[str]:
        """The checks that found something wrong, the first cause first."""
        return [name for name, finding in self.findings.items() if finding["state"] == "wrong"]


def doctor(*flags: str, before: Sequence[str] = (), **environ: str) -> Said:
    """Run it; ``before`` is what its command is started by."""
    ended = subprocess.run(
        [*before, *COMMAND, "--json", *flags],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, **environ},
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    said = json.loads(ended.stdout)
    assert said["exit_code"] == ended.returncode
    return Said(ended.returncode, {found["name"]: found for found in said["findings"]}, ended.stdout + ended.stderr)


# Redis ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A server that tests leave as they found it."""
    with redis_server(tmp_path_factory.mktemp("redis") / "server") as daemon:
        yield daemon


def over_redis(server: Daemon, credentials: str = "") -> list[str]:
    return ["--rdzv_backend=redis", f"--rdzv_endpoint=redis://{credentials}{server.endpoint}"]


def test_redis_is_tried_in_full_and_left_empty(server: Daemon) -> None:
    said = doctor(*over_redis(server), "--rdzv_id=job42")
    assert said.exit_code == 0, said.output
    assert said.findings["wake-up time"]["measured"]["count"] > 0
    assert said.findings["traces"]["state"] == "ok"
    with redis.Redis(port=server.port) as admin:
        assert admin.keys() == []


def test_a_running_job_does_not_notice(server: Daemon, rig: Rig, tmp_path: Path) -> None:
    job = [WORKERS / "barrier.py", "--until", tmp_path / "done"]
    flags = ["--nnodes=1:2", "--rdzv_backend=redis", f"--rdzv_endpoint={server.endpoint}", "--rdzv_id=job42"]
    agent = rig.run(*flags, *job)
    agent.wait_for_report("training", world_size=1)
    assert doctor(*over_redis(server), "--rdzv_id=job42").exit_code == 0
    (tmp_path / "done").touch()
    assert agent.exit_code() == 0
    assert len(agent.reports("training")) == 1, "one round, from its start to its end"
    with redis.Redis(port=server.port) as admin:
        assert not [key for key in admin.scan_iter() if b"doctor" in key]
        admin.flushall()


@pytest.mark.parametrize(
    ("line", "password", "check", "words", "advice"),
    [
        ("+@all", "gue55", "connect", "does not let us in: WRONGPASS", "password"),
        (
            "-@all +@read +@connection +info +eval +evalsha",
            "s3cret",
            "connect",
            "no permission to run HDEL",
            "access list",
        ),
    ],
    ids=["wrong password", "read only"],
)
def test_a_user_who_may_not_is_told_why(
    server: Daemon, line: str, password: str, check: str, words: str, advice: str
) -> None:
    with redis.Redis(port=server.port) as admin:
        admin.execute_command("ACL", "SETUSER", "user", "reset", "on", ">s3cret", "~*", *line.split())
    said = doctor(*over_redis(server, f"user:{password}@"))
    assert (said.exit_code, said.wrong()) == (69, [check])
    assert words in said.findings[check]["seen"]
    assert advice in said.findings[check]["advice"]
    assert password not in said.output
    assert f"user:{password}" not in said.output


def test_a_server_that_evicts_is_told(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis", "maxmemory-policy allkeys-lru") as server:
        said = doctor(*over_redis(server))
    assert (said.exit_code, said.wrong()) == (69, ["connect"])
    assert "maxmemory-policy allkeys-lru" in said.findings["connect"]["seen"]
    assert "noeviction" in said.findings["connect"]["advice"]


def test_a_certificate_of_another_authority_is_told(tmp_path: Path) -> None:
    ca, other = authority(tmp_path, "ca"), authority(tmp_path, "other")
    made = certificate(tmp_path, "server", ca)
    files = [f"tls-cert-file {made}", f"tls-key-file {made.with_suffix('.key')}", f"tls-ca-cert-file {ca}"]
    with redis_server(tmp_path / "redis", "port 0", "tls-port {port}", "tls-auth-clients no", *files) as server:
        flags = ["--rdzv_backend=redis", f"--rdzv_endpoint=rediss://{server.endpoint}"]
        said = doctor(*flags, f"--rdzv_conf=cacert={other}")
        assert (said.exit_code, said.wrong()) == (69, ["connect"])
        assert "is not to be trusted" in said.findings["connect"]["seen"]
        assert doctor(*flags, f"--rdzv_conf=cacert={ca}").exit_code == 0


def test_ctrl_c_ends_it_and_nothing_is_left(tmp_path: Path) -> None:
    """While it connects to a server that hangs; nothing was written there."""
    with redis_server(tmp_path / "redis") as server:
        server.freeze()
        command = [*COMMAND, *over_redis(server)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert process.stdout is not None
        with process.stdout as lines:
            assert any("resolver" in line or "address" in line for line in lines)
            os.killpg(process.pid, signal.SIGINT)
            assert "connect" not in lines.read()
        assert process.wait(PATIENCE) == 130


# etcd ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    """A server of this test's own."""
    with etcd_running(tmp_path / "etcd") as server:
        yield server


@pytest.mark.parametrize("backend", ["etcd", "etcd-v2"])
def test_etcd_is_tried_in_full_and_left_empty(etcd: Etcd, backend: str) -> None:
    said = doctor(f"--rdzv_backend={backend}", f"--rdzv_endpoint={etcd.endpoint}")
    assert said.exit_code == 0, said.output
    everything = {"key": "AA==", "range_end": "AA=="}
    assert "kvs" not in asked(etcd, "/v3/kv/range", everything)
    assert "leases" not in asked(etcd, "/v3/lease/leases", {})
    assert b"doctor" not in etcd._page("v2/keys?recursive=true")


def test_a_wrong_password_of_etcd_is_told(etcd: Etcd, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("wrong-password")
    everything = {"key": b64encode(b"\0").decode(), "range_end": b64encode(b"\0").decode(), "permType": "READWRITE"}
    administer(etcd, "/v3/auth/user/add", {"name": "root", "password": "s3cret"})
    administer(etcd, "/v3/auth/role/add", {"name": "root"})
    administer(etcd, "/v3/auth/role/grant", {"name": "root", "perm": everything})
    administer(etcd, "/v3/auth/user/grant", {"user": "root", "role": "root"})
    administer(etcd, "/v3/auth/enable", {})
    endpoint = ["--rdzv_backend=etcd", f"--rdzv_endpoint={etcd.endpoint}"]
    said = doctor(*endpoint, f"--rdzv_conf=user=root,password_file={tmp_path / 'password'}")
    assert (said.exit_code, said.wrong()) == (69, ["connect"])
    assert "does not let the user 'root' in" in said.findings["connect"]["seen"]
    assert "wrong-password" not in said.output
    assert doctor(*endpoint, ELASTIC_ETCD_USER="root", ELASTIC_ETCD_PASSWORD="s3cret").exit_code == 0


# c10d, and nodes that are numbered by hand ---------------------------------------------------------------------------


def test_the_host_of_a_c10d_store_tries_one_of_its_own() -> None:
    said = doctor("--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{free_port()}")
    assert said.exit_code == 0, said.output
    assert "this doctor does until it ends" in said.findings["connect"]["seen"]
    assert said.findings["wake-up time"]["state"] == "ok"


def test_a_port_that_something_else_has_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        said = doctor("--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{other.getsockname()[1]}")
    assert (said.exit_code, said.wrong()) == (69, ["connect"])
    assert "another port" in said.findings["connect"]["advice"]


def test_other_nodes_are_told_that_nobody_hosts_yet() -> None:
    said = doctor("--rdzv_backend=static", "--node_rank=1", f"--master_port={free_port()}")
    assert said.exit_code == 0, said.output
    assert said.findings["connect"]["state"] == "warning"
    assert "no node hosts the store" in said.findings["connect"]["seen"]


def test_the_store_of_a_running_c10d_job_is_tried_and_left_as_it_was(rig: Rig, tmp_path: Path) -> None:
    rendezvous = ["--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{free_port()}"]
    agent = rig.run("--nnodes=1:2", *rendezvous, WORKERS / "barrier.py", "--until", tmp_path / "done")
    agent.wait_for_report("training", world_size=1)
    said = doctor(*rendezvous)
    assert said.exit_code == 0, said.output
    assert "an agent hosts the store" in said.findings["connect"]["seen"]
    assert said.findings["traces"]["seen"].startswith("none: all that was tried is deleted")
    (tmp_path / "done").touch()
    assert agent.exit_code() == 0
    assert len(agent.reports("training")) == 1


# Directories ---------------------------------------------------------------------------------------------------------


def test_a_directory_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    said = doctor("--rdzv_backend=file", f"--rdzv_endpoint={tmp_path}")
    assert said.exit_code == 0, said.output
    assert list(tmp_path.iterdir()) == []


@needs_root
@pytest.mark.parametrize(
    ("options", "words"), [("ro,size=1m", "Read-only file system"), ("size=4k", "No space left on device")]
)
def test_a_directory_that_takes_nothing_is_told(tmp_path: Path, options: str, words: str) -> None:
    mount = f'mount -t tmpfs -o {options} tmpfs {tmp_path} && exec "$@"'
    before = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    said = doctor("--rdzv_backend=file", f"--rdzv_endpoint={tmp_path}", before=before)
    assert said.exit_code in (69, 76), said.output
    assert words in said.findings[said.wrong()[0]]["seen"]


# Hosts and addresses -------------------------------------------------------------------------------------------------


@needs_root
@pytest.mark.parametrize("backend", ["redis", "etcd", "etcd-v2", "c10d"])
def test_a_route_that_swallows_everything_is_told(backend: str) -> None:
    with hosts(1) as [host]:
        nobody = "10.77.0.99"
        subprocess.run(
            ["ip", "-n", host.name, "neigh", "add", nobody, "lladdr", "02:00:00:00:00:99", "dev", "eth0"], check=True
        )
        said = doctor(f"--rdzv_backend={backend}", f"--rdzv_endpoint={nobody}:7000", before=host.command())
    assert (said.exit_code, said.wrong()) == (69, ["connect"])
    assert nobody in said.findings["connect"]["seen"]
    assert said.findings["address"]["seen"].startswith(f"other nodes find this one at {host.ipv4} ")


@needs_root
def test_an_address_that_leads_nowhere_is_told(server: Daemon) -> None:
    with hosts(1) as [host]:
        flags = ["--rdzv_backend=file", "--rdzv_endpoint=/dev/shm/elastic-doctor"]
        said = doctor(*flags, "--local_addr=10.77.0.99", before=host.command())
    assert (said.exit_code, said.wrong()) == (69, ["address"])
    assert "MASTER_ADDR=10.77.0.99; no node gets here that way" in said.findings["address"]["seen"]
    assert f"--local_addr={host.ipv4}" in said.findings["address"]["advice"]


def test_an_advertised_name_that_means_loopback_is_wrong(server: Daemon) -> None:
    said = doctor(*over_redis(server), "--local_addr=localhost")
    assert (said.exit_code, said.wrong()) == (69, ["address"])
    assert "would look for this one on themselves" in said.findings["address"]["seen"]


def test_a_name_that_nobody_knows_is_the_first_cause() -> None:
    said = doctor("--rdzv_backend=redis", "--rdzv_endpoint=no-such-host.invalid:6379")
    assert (said.exit_code, said.wrong()) == (69, ["endpoint"])
    assert said.findings["store"]["state"] == "skipped"


# What people see -----------------------------------------------------------------------------------------------------


def test_a_person_reads_a_line_for_each_check_and_the_verdict(tmp_path: Path) -> None:
    ended = subprocess.run(
        [*COMMAND, "--rdzv-backend=file", f"--rdzv-endpoint={tmp_path}"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0
    lines = ended.stdout.splitlines()
    assert lines[0].startswith(f"Can nodes meet over file at {tmp_path}? Tried from ")
    assert [line for line in lines if line.startswith(("The ", "This "))] == ["This host", "The store"]
    assert any(line.split()[:2] == ["ok", "roster"] for line in lines)
    assert "can meet over file" in lines[-1]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["--rdzv_backend=redsi", "--rdzv_endpoint=x"],
            "no rendezvous backend 'redsi'. Did you mean 'redis'?",
        ),
        (["--rdzv_backend=redis"], "--rdzv_backend 'redis' needs an endpoint."),
        (["--rdzv_backend=redis", "--rdzv_endpoint=x", "--rdzv_conf=foo=1"], "there is no key 'foo'"),
        (["--rdzv_endpiont=x"], "Did you mean '--rdzv_endpoint'?"),
    ],
)
def test_a_flag_that_is_wrong_is_refused_as_elastic_run_refuses_it(flags: list[str], words: str) -> None:
    ended = subprocess.run([*COMMAND, *flags], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("elastic: error: ")
    assert words in ended.stderr
    assert ended.stdout == ""
