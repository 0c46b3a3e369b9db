from __future__ import annotations

import os
import resource
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from elastic_core.errors import RendezvousConnectionError
from elastic_core.host import addresses
from elastic_doctor import host
from elastic_doctor.findings import Finding, State

HERE = "192.0.2.7"
"""This host's address in these tests; no host has it."""


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """A resolver with a few names, which nothing outside of the test can change."""
    known = {"node1": ["127.0.1.1"], "store.example": ["192.0.2.9"], "localhost": ["127.0.0.1"]}

    def look_up(name: str) -> list[str]:
        try:
            socket.inet_pton(socket.AF_INET6 if ":" in name else socket.AF_INET, name)
        except OSError:
            if name not in known:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known") from None
            return known[name]
        return [name]

    def targets(name: str) -> list[str]:
        try:
            return look_up(name)
        except OSError as exc:
            raise RendezvousConnectionError(f"{name!r} cannot be looked up.", hint="Check it.") from exc

    monkeypatch.setattr(host, "look_up", look_up)
    monkeypatch.setattr(addresses, "_look_up", targets)
    monkeypatch.setattr(addresses, "_source", lambda target: target if target.startswith("127.") else HERE)
    monkeypatch.setattr(host, "host_name", lambda: "node1")
    return known


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_unreachable", lambda address: None)


def address(endpoint: str, local_addr: str | None = None, *, form: str = "HOST[:PORT]") -> Finding:
    return host.check_address(endpoint, form, local_addr, single_node=False)


@pytest.mark.usefixtures("reached")
@pytest.mark.parametrize(
    ("endpoint", "local_addr", "state", "words"),
    [
        ("store.example:1", None, State.OK, "find this one at 192.0.2.7 (MASTER_ADDR)"),
        ("node1:1", None, State.OK, "find this one at 192.0.2.7"),
        ("127.0.0.1:1", None, State.WARNING, "127.0.0.1: only agents on this host"),
        ("localhost:1", None, State.WARNING, "only agents on this host"),
        ("store.example:1", "127.0.0.1", State.WRONG, "MASTER_ADDR=127.0.0.1, loopback"),
        ("store.example:1", "node1", State.WRONG, "MASTER_ADDR=node1, which is 127.0.1.1 here, loopback"),
        ("store.example:1", "nosuch", State.WRONG, "--local_addr=nosuch cannot be looked up"),
        ("nosuch:1", None, State.WRONG, "'nosuch' cannot be looked up"),
    ],
)
def test_the_address_is_that_which_other_nodes_are_told(
    endpoint: str, local_addr: str | None, state: State, words: str
) -> None:
    finding = address(endpoint, local_addr)
    assert finding.state is state
    assert words in finding.seen
    assert (finding.advice is None) == (state is State.OK)


def test_the_advice_names_the_address_that_would_be_found() -> None:
    assert "--local_addr=192.0.2.7" in str(address("store.example:1", "node1").advice)


def test_without_a_network_others_cannot_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_source", lambda target: None)
    monkeypatch.setattr(addresses, "interfaces", dict)
    assert address("store.example:1").state is State.WRONG
    assert address("/shared/rdzv", form="DIRECTORY").state is State.WARNING


def test_one_node_needs_no_address() -> None:
    assert host.check_address("", "", None, single_node=True).state is State.OK


def test_an_address_that_leads_elsewhere_is_told() -> None:
    """Loopback leads here; a port of it that another process has does not, and no host has 192.0.2.7."""
    assert host._unreachable("127.0.0.1") is None


def test_an_address_that_is_refused_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_unreachable", lambda address: "Connection refused")
    finding = address("store.example:1")
    assert finding.state is State.WRONG
    assert "no node gets here that way: Connection refused" in finding.seen


@pytest.mark.parametrize(
    ("there", "environ", "state"),
    [
        (["127.0.1.1"], {}, State.WARNING),
        (None, {}, State.WARNING),
        (["127.0.1.1"], {"GLOO_SOCKET_IFNAME": "eth0"}, State.OK),
        ([HERE], {}, State.OK),
    ],
)
def test_the_host_name_that_gloo_would_publish_is_checked(
    names: dict[str, list[str]], there: list[str] | None, environ: dict[str, str], state: State
) -> None:
    names.pop("node1")
    if there is not None:
        names["node1"] = there
    finding = host.check_host_name(HERE, environ)
    assert finding.state is state
    if state is State.WARNING:
        assert "GLOO_SOCKET_IFNAME=INTERFACE" in str(finding.advice)


def test_among_agents_of_one_host_its_name_does_not_matter() -> None:
    assert host.check_host_name("127.0.0.1", {}).state is State.OK


@pytest.mark.parametrize(
    ("endpoint", "state", "words"),
    [
        ("store.example:6379", State.OK, "store.example is 192.0.2.9"),
        ("redis://user:pw@192.0.2.9:1", State.OK, "192.0.2.9"),
        ("redis://user:p,w@192.0.2.9:1", State.OK, "192.0.2.9"),
        ("nosuch:1,nosuch:2", State.WRONG, "'nosuch' cannot be looked up: Name or service not known"),
        ("nosuch:2,store.example:1", State.WARNING, "'nosuch' cannot be looked up: Name or service not known; store"),
        ("unix:///run/redis.sock", State.OK, "names no host"),
    ],
)
def test_every_host_of_the_endpoint_is_looked_up(endpoint: str, state: State, words: str) -> None:
    finding = host.check_endpoint(endpoint)
    assert finding.state is state
    assert words in finding.seen


def test_the_interface_of_an_address_is_found() -> None:
    assert host.interface_of("127.0.0.1") == "lo"
    assert host.interface_of(HERE) is None


@pytest.mark.parametrize(("soft", "state"), [(256, State.WARNING), (4096, State.OK), (-1, State.OK)])
def test_too_few_open_files_are_told(soft: int, state: State) -> None:
    def limits(which: int) -> tuple[int, int]:
        assert which == resource.RLIMIT_NOFILE
        return soft, resource.RLIM_INFINITY

    assert host.check_open_files(limits).state is state


def test_small_shared_memory_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def sizes(path: str) -> os.statvfs_result:
        fields: Sequence[int] = (4096, 4096, 16384, 16384, 16384, 0, 0, 0, 0, 255)
        return os.statvfs_result(fields)

    assert host.check_shared_memory(str(tmp_path / "none")).state is State.WARNING
    monkeypatch.setattr(os, "statvfs", sizes)
    finding = host.check_shared_memory()
    assert (finding.state, finding.seen) == (State.WARNING, "/dev/shm has 64 MiB, 64 MiB of it free")
    assert "--shm-size" in str(finding.advice)
