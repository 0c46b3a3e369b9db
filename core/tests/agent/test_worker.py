"""The facts about the end of a worker, beyond its own report."""

from __future__ import annotations

import pytest

from elastic_core.agent.worker import wrong_address
from elastic_core.assignment import Assignment
from elastic_core.protocol.entries import Place

STORE = """\
  File "torch/distributed/rendezvous.py", line 190, in _create_c10d_store
    return TCPStore(
torch.distributed.DistNetworkError: The client socket has timed out after 4000ms while trying to connect to ({}, {}).
"""
OWN_STORE = STORE.replace("_create_c10d_store", "StatelessProcessGroup")
GLOO = (
    "RuntimeError: Gloo connectFullMesh failed with [pair.cc:144] timed out connecting: SO_ERROR: Connection refused, "
    "remote=[{}]:14215"
)


def place(*, agent_store: bool = True, nodes: int = 2, address: str = "10.0.0.1") -> Assignment:
    """Return the assignment of a rank; MASTER_PORT is 29500."""
    return Assignment(
        run_id="job",
        run_uid="run",
        round=1,
        restart_count=0,
        max_restarts=3,
        role="default",
        place=Place(
            group_rank=0,
            group_world_size=nodes,
            first_rank=0,
            local_world_size=2,
            world_size=4,
            first_role_rank=0,
            role_world_size=4,
        ),
        local_rank=1,
        master_addr=address,
        master_port=29500,
        use_agent_store=agent_store,
        error_file="error.json",
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (STORE.format("10.0.0.1", 29999), "10.0.0.1:29999 is not the launcher's store, which is at 10.0.0.1:29500"),
        (STORE.format("localhost", 23456), "localhost:23456 is not the launcher's store, which is at 10.0.0.1:29500"),
        (STORE.format("::1", 23456), "::1:23456 is not the launcher's store, which is at 10.0.0.1:29500"),
        pytest.param(STORE.format("10.0.0.1", 29500), "", id="the launcher's store does not answer"),
        pytest.param(STORE.format("node1", 29500), "", id="its host under another name"),
        pytest.param(OWN_STORE.format("10.0.0.1", 29999), "", id="a store that a rank of a library listens for"),
        (GLOO.format("127.0.1.1"), "127.0.1.1 is the worker's own host, not a peer's"),
        (GLOO.format("::1"), "::1 is the worker's own host, not a peer's"),
        (GLOO.format("::ffff:127.0.0.1"), "::ffff:127.0.0.1 is the worker's own host, not a peer's"),
        pytest.param(GLOO.format("10.0.0.2"), "", id="a peer"),
        pytest.param("RuntimeError: Connection closed by peer [127.0.0.1]:8064", "", id="a peer that was reached"),
        pytest.param("ValueError: boom", "", id="nothing of addresses"),
    ],
)
def test_an_address_at_which_no_peer_can_be_is_told(text: str, told: str) -> None:
    assert wrong_address(text, place()) == told


@pytest.mark.parametrize(
    ("text", "where"),
    [
        pytest.param(STORE.format("10.0.0.1", 29999), place(agent_store=False), id="rank 0 may listen there"),
        pytest.param(GLOO.format("127.0.0.1"), place(nodes=1), id="all ranks are on one host"),
        pytest.param(GLOO.format("127.0.0.1"), place(address="127.0.0.1"), id="all nodes are on one host"),
    ],
)
def test_where_a_peer_can_be_at_the_address_nothing_is_told(text: str, where: Assignment) -> None:
    assert wrong_address(text, where) == ""
