"""A host's id and name, as all its processes know them."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from elastic_core.host.identity import host_id, host_name


def test_all_processes_of_a_host_call_it_the_same() -> None:
    command = "from elastic_core.host.identity import host_id, host_name; print(host_id(), host_name())"
    other = subprocess.run([sys.executable, "-c", command], stdout=subprocess.PIPE, text=True, check=True)
    assert other.stdout.split() == [host_id(), host_name()]


def test_a_host_id_is_16_hex_digits() -> None:
    assert len(host_id()) == 16
    int(host_id(), 16)


def test_a_name_that_the_host_is_given_is_for_messages_only(monkeypatch: pytest.MonkeyPatch) -> None:
    own = host_id()
    monkeypatch.setenv("ELASTIC_HOST_NAME", "train-0-x7k2p")
    assert host_name() == "train-0-x7k2p"
    assert host_id() == own, "agents that share slots have one id"
    monkeypatch.setenv("ELASTIC_HOST_NAME", "")
    assert host_name() == socket.gethostname()
