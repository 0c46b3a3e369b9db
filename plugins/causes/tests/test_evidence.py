"""The facts about the end of a worker, beyond its own report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_causes.evidence import wrong_address
from elastic_causes.plugin import CauseFinder
from elastic_core.causes import EndedWorker
from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.incidents import IncidentKind
from elastic_core.monitors import Assignment
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


def ended(where: Assignment, stderr: str) -> EndedWorker:
    """Return a worker that has exited with 1 after a second."""
    config = RunConfig(program=Program(ProgramKind.EXECUTABLE, "sh"), rdzv_id="job")
    return EndedWorker(assignment=where, config=config, exit_code=1, stderr=stderr, seconds=1.0)


FIRST = replace(place(), local_rank=0)
FAILED, PORT_TAKEN = IncidentKind.WORKER_FAILED, IncidentKind.PORT_TAKEN


@pytest.mark.parametrize(
    ("where", "said", "kind"),
    [
        (FIRST, "failed to listen on any address. port: 29500, code: -98, name: EADDRINUSE", PORT_TAKEN),
        (FIRST, "OSError: EADDRINUSE: my dashboard has port 6006", FAILED),
        (FIRST, "OSError: EADDRINUSE: my dashboard has port 295000", FAILED),
        (FIRST, "RuntimeError: port: 29500, the address is already in use", PORT_TAKEN),
        (FIRST, "RuntimeError: port: 8080, the address is already in use", FAILED),  # its own affair
        (FIRST, "RuntimeError: 29500 is no good batch size", FAILED),
        (place(), "port: 29500, name: EADDRINUSE", FAILED),  # only rank 0 opens the workers' store
    ],
)
def test_rank_0_that_found_its_port_taken_is_not_to_blame(where: Assignment, said: str, kind: IncidentKind) -> None:
    cause = CauseFinder().elastic_find_cause(ended(where, f"{said}\n"))
    assert cause is not None
    assert cause.kind == kind


def test_the_file_of_the_record_decorator_explains_a_failure_better_than_stderr(tmp_path: Path) -> None:
    error = {"message": {"message": "KeyError: 'lr'", "extraInfo": {"py_callstack": "the\ntraceback\n"}}}
    file = tmp_path / "error.json"
    file.write_text(json.dumps(error))
    cause = CauseFinder().elastic_find_cause(replace(ended(FIRST, "ValueError: not this\n"), error_file=str(file)))
    assert cause is not None
    assert (cause.message, cause.detail) == ("KeyError: 'lr'", "the\ntraceback\n")


@pytest.mark.parametrize("by", [None, "exit"], ids=["torch's decorator alone", "an exit that it survived"])
def test_a_program_that_a_signal_has_ended_may_have_survived_what_is_recorded(tmp_path: Path, by: str | None) -> None:
    file = tmp_path / "error.json"
    member = {} if by is None else {"elastic": {"by": by, "code": 1, "text": "", "exceptions": [], "paths": []}}
    file.write_text(json.dumps({"message": {"message": "KeyError: 'lr'", "extraInfo": {}}, **member}))
    worker = replace(ended(FIRST, "step 9\n"), exit_code=-9, sent=9, error_file=str(file))
    cause = CauseFinder().elastic_find_cause(worker)
    assert cause is not None
    assert cause.message == ""


@pytest.mark.parametrize(
    ("records", "by", "found"),
    [
        (True, "exception", True),
        (True, "exit", True),
        (True, "thread", False),
        (True, None, False),
        (False, None, True),
    ],
)
def test_a_running_worker_is_ending_if_its_record_or_else_its_stderr_says_so(
    tmp_path: Path, records: bool, by: str | None, found: bool
) -> None:
    file = tmp_path / "error.json"
    if by is not None:
        member = {"by": by, "code": 1, "text": "", "exceptions": [], "paths": []}
        file.write_text(json.dumps({"message": {"message": "x"}, "elastic": member}))
    worker = replace(ended(FIRST, "ValueError: boom\n"), exit_code=None, records=records, error_file=str(file))
    assert (CauseFinder().elastic_find_cause(worker) is not None) is found
