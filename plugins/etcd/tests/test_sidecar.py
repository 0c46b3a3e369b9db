"""An etcd of an agent's own: there when it is wanted, and gone afterwards, however the agent ends."""

from __future__ import annotations

import os
import select
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from backends import parameters

from elastic_core.errors import RendezvousConnectionError, UsageError
from elastic_core.rendezvous.backend import ORIGIN, Link
from elastic_rdzv_etcd import plugin
from elastic_rdzv_etcd.sidecar import Sidecar, find_binary

PATIENCE = 60.0
FIRST = Link(1, "first")


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def etcd_of(sidecar: int) -> int:
    """The process that a sidecar watches over."""
    children = Path(f"/proc/{sidecar}/task/{sidecar}/children").read_text().split()
    assert len(children) == 1
    return int(children[0])


def await_end(pidfd: int) -> None:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    assert poller.poll(PATIENCE * 1000), "the process outlives its agent"
    os.close(pidfd)


def test_a_standalone_run_brings_an_etcd_and_takes_it_away(temporary_folder: Path) -> None:
    backend = plugin.elastic_make_rendezvous(parameters(""))
    assert backend.embedded
    assert backend.hosting
    assert not backend.may_forget
    [folder] = temporary_folder.iterdir()
    assert backend.append(ORIGIN, FIRST, b"data")
    other = backend.connect()
    assert other.embedded
    other.close()
    assert backend.read(1) == b"data", "closing another connection ends nothing"
    assert backend._sidecar is not None
    etcd = os.pidfd_open(etcd_of(backend._sidecar.process.pid))
    backend.close()
    backend.close()
    await_end(etcd)
    assert not folder.exists()


def test_users_and_settings_of_another_etcd_do_not_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTIC_ETCD_USER", "somebody")
    for name in ("ETCD", "REDIS"):
        monkeypatch.setenv(f"ELASTIC_{name}_PASSWORD", "something")
    monkeypatch.setenv("ETCD_LISTEN_CLIENT_URLS", "http://127.0.0.1:1")
    backend = plugin.elastic_make_rendezvous(parameters(""))
    assert backend.append(ORIGIN, FIRST, b"data")
    assert backend._sidecar is not None
    sidecar = backend._sidecar.process.pid
    for pid in (sidecar, etcd_of(sidecar)):
        assert b"something" not in Path(f"/proc/{pid}/environ").read_bytes()
    backend.close()


SCRIPT = """
import sys
sys.path += sys.argv[1:]
from backends import parameters
from elastic_rdzv_etcd import plugin
backend = plugin.elastic_make_rendezvous(parameters(""))
print(backend._sidecar.process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("victim", ["agent", "sidecar"])
def test_etcd_dies_with_whoever_is_killed(temporary_folder: Path, victim: str) -> None:
    harness = Path(__file__).parent / "harness"
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(harness)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as agent:
        assert agent.stdout is not None
        sidecar = int(agent.stdout.readline())
        watched = [os.pidfd_open(etcd_of(sidecar)), os.pidfd_open(sidecar)]
        os.kill(agent.pid if victim == "agent" else sidecar, 9)
        for pidfd in watched:
            await_end(pidfd)
        agent.kill()
    if victim == "agent":
        assert list(temporary_folder.iterdir()) == []


def test_an_etcd_that_does_not_start_is_told_of(tmp_path: Path, temporary_folder: Path) -> None:
    broken = tmp_path / "etcd"
    broken.write_text("#!/bin/sh\necho no disk left >&2\nexit 3\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(RendezvousConnectionError, match=r"did not start: it ended with 3: no disk left"):
        plugin.elastic_make_rendezvous(parameters("", etcd_binary=str(broken)))
    assert list(temporary_folder.iterdir()) == []


def test_the_binary_is_named_or_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "my-etcd"
    there.write_text("#!/bin/sh\n")
    there.chmod(0o755)
    assert find_binary({"etcd_binary": str(there)}, {}) == str(there)
    assert find_binary({}, {"ELASTIC_ETCD_BINARY": str(there)}) == str(there)
    assert find_binary({}, {"TORCHELASTIC_ETCD_BINARY_PATH": str(there)}) == str(there)
    assert Path(find_binary({}, {})).name == "etcd"
    with pytest.raises(UsageError, match="etcd_binary='/no/such/etcd' is no program"):
        find_binary({"etcd_binary": "/no/such/etcd"}, {})
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match="there is none on PATH") as refusal:
        find_binary({}, {})
    assert "apt-get install etcd-server" in str(refusal.value)


def test_a_binary_is_refused_where_none_is_started() -> None:
    with pytest.raises(UsageError, match="means something with --standalone only"):
        plugin.elastic_make_rendezvous(parameters("127.0.0.1:1", etcd_binary="etcd"))


def test_a_sidecar_leaves_no_descriptor_of_its_agents_open() -> None:
    inherited, ours = os.pipe()
    os.set_inheritable(ours, True)
    sidecar = Sidecar.start(find_binary({}))
    os.close(ours)
    assert os.read(inherited, 1) == b""
    os.close(inherited)
    sidecar.close()
