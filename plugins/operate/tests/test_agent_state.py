"""The state of an agent in words: a table."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from views import halted, incident, info, live, seen, start, then

from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.exit_codes import ExitCode
from elastic_core.gates import AgentState
from elastic_core.incidents import Incident
from elastic_core.monitors import WorkerView
from elastic_core.progress import Progress
from elastic_core.protocol.entries import Closed, HaltReason, Plan, StopAt
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.node import NodeState
from elastic_core.protocol.node_events import Leaving, Work
from elastic_core.protocol.roster import NodeRow, Phase
from elastic_operate import agent_state
from elastic_operate.agent_state import SHOWN_NODES

PLANNED = then(live("ab"), Plan(round=1, reason=HaltReason.RESIZE, why="c joins", deadline=60.0), at=15.0)
STOPS = then(PLANNED, StopAt(round=1, step=7), at=16.0)
CLOSED = then(live("ab"), Closed(success=True, why="all is done", exit_code=ExitCode.SUCCESS), at=20.0)


def state(ledger: Ledger, name: str = "a", round: int = 0, **facts: Any) -> NodeState:
    return NodeState(row=NodeRow(info=info(name), round=round), ledger=ledger, **facts)


def describe(node: NodeState, **facts: Any) -> str:
    """Return the state at second 30 of a node that has not changed since second 25."""
    config = RunConfig(
        program=Program(ProgramKind.EXECUTABLE, "x"), rdzv_id="j", rdzv_backend="file", rdzv_endpoint="/r"
    )
    usual = {"waits_for": "", "nodes": {}, "contact_at": 29.5, "failing": (), "incident": None, "workers": ()}
    usual |= {"started_at": 0.0, "progress": {}, "checkpoint": None}
    return agent_state.describe(config, AgentState(now=30.0, node=node, since=25.0, **{**usual, **facts}))


def worker(rank: int, pid: int | None = None, exit_code: int | None = None, **facts: Any) -> WorkerView:
    return WorkerView(rank, rank, pid, exit_code, is_over=False, **facts)


def lines(text: str, label: str) -> list[str]:
    """Return the lines under a label."""
    return [line[13:] for line in text.splitlines() if line[2:12].rstrip() == label]


def test_all_of_it_is_said() -> None:
    failed: Incident = incident("b", number=1)
    text = describe(
        state(live("ab"), work=Work.RUNNING, round=1),
        workers=(worker(0, pid=11, initialized=True), worker(1, pid=12, exit_code=-9, ended_at=29.0)),
        started_at=11.0,
        checkpoint=(4, 3.0),
        progress={0: (Progress(step=5, loss=0.25), 2.0)},
        failing={"writer": "", "heartbeat": ""},
        nodes={"b": seen("b", Phase.RUNNING, changed=28.5), "c": seen("c", changed=28.5, leaving=True)},
        incident=replace(failed, message="ValueError: boom"),
    )
    assert text.splitlines() == [
        f"[elastic] the state of host-a (node a, pid {os.getpid()}); it goes on",
        "  job        'j' over file at /r",
        "  run        run1, known here for 30.0 s",
        "  decides    this node, term 1",
        "  entry      2 is the newest, ROUND, read 20.0 s ago",
        "  round      1, live for 20.0 s ()",
        "  restarts   0 of 3 spent",
        "  waits for  nothing: the workers run, for 5.0 s",
        "  node       host-b, running round 1, last sign of life 1.5 s ago",
        "  node       host-c, waiting, leaving, last sign of life 1.5 s ago",
        "  rank 0     pid 11, started 19.0 s ago, in its process group, step 5, loss 0.25, last progress 2.0 s ago",
        "  rank 1     pid 12, was killed by SIGKILL 1.0 s ago",
        "  checkpoint of step 4, saved 3.0 s ago",
        "  store      last contact 0.5 s ago; failing: heartbeat, writer",
        "  failure    the newest: round 1, rank 0 on host-b: exited with code 1: ValueError: boom",
    ]


@pytest.mark.parametrize(
    ("node", "waits_for", "said"),
    [
        pytest.param(state(start()), "", "the next round to begin", id="no round yet"),
        pytest.param(state(start()), "1 more node", "1 more node", id="the leader knows for whom"),
        pytest.param(state(live("ab")), "", "the workers of the round to be started", id="about to start"),
        pytest.param(state(live("ab"), "c"), "", "a place in the job, whose round runs without this node", id="spare"),
        pytest.param(state(live("ab"), work=Work.RUNNING, round=1), "", "nothing: the workers run", id="all is well"),
        pytest.param(
            state(PLANNED, work=Work.RUNNING, round=1), "", "the workers of round 1 to stop together", id="planned"
        ),
        pytest.param(
            state(STOPS, work=Work.RUNNING, round=1), "", "the workers of round 1 to stop together at step 7", id="stop"
        ),
        pytest.param(
            state(halted("ab", HaltReason.FAILURE), work=Work.STOPPING, round=1),
            "",
            "the processes of round 1 to end",
            id="stopping",
        ),
        pytest.param(
            state(live("ab"), work=Work.DONE, round=1),
            "",
            "the other nodes: all workers here have exited with 0",
            id="done",
        ),
        pytest.param(state(halted("ab", HaltReason.FAILURE), round=1), "", "the next round to begin", id="halted"),
        pytest.param(state(CLOSED, round=1), "", "its own end: the job is closed", id="closed"),
    ],
)
def test_the_reason_of_a_wait_is_shown_with_its_time(node: NodeState, waits_for: str, said: str) -> None:
    text = describe(node, waits_for=waits_for)
    assert lines(text, "waits for") == [f"{said}, for 5.0 s"]


@pytest.mark.parametrize(
    ("ledger", "said"),
    [
        (start(), "none yet"),
        (live("ab"), "1, live for 20.0 s ()"),
        (halted("ab", HaltReason.FAILURE), "1, halted 10.0 s ago: it was"),
        (CLOSED, "none any more: the job is closed: all is done"),
    ],
)
def test_where_the_round_stands(ledger: Ledger, said: str) -> None:
    assert lines(describe(state(ledger)), "round") == [said]


def test_a_node_that_leaves_and_its_leader() -> None:
    text = describe(state(live("ab"), "b", leaving=Leaving("received SIGTERM", 143)))
    assert lines(text, "decides") == ["node a, term 1"]
    assert lines(text, "leaves") == ["received SIGTERM"]


def test_of_many_nodes_some_are_listed() -> None:
    many = {str(number): seen("b") for number in range(SHOWN_NODES + 3)}
    request = seen("r")
    many["r"] = replace(request, row=replace(request.row, drain=("host",)))
    assert len(lines(describe(state(live("ab")), nodes={"b": seen("b"), "r": many["r"]}), "node")) == 1
    assert len(lines(describe(state(live("ab")), nodes=many), "node")) == SHOWN_NODES


def test_foreign_text_is_shown_and_not_obeyed() -> None:
    blamed = replace(incident("b"), message="\x1b[2Jgone\nelastic: all is well")
    text = describe(state(live("ab")), incident=blamed)
    assert lines(text, "failure") == [
        r"the newest: round 1, rank 0 on host-b: exited with code 1: \x1b[2Jgone\nelastic: all is well"
    ]


def test_a_worker_that_is_not_there_yet_is_being_started() -> None:
    text = describe(state(live("ab")), workers=(worker(3),), started_at=28.0)
    assert lines(text, "rank 3") == ["being started, for 2.0 s"]


def test_an_agent_that_joins_says_so() -> None:
    config = RunConfig(program=Program(ProgramKind.EXECUTABLE, "x"))
    said = agent_state.describe_joining(config, 0.0).splitlines()
    assert said[0] == f"[elastic] the state of the agent with pid {os.getpid()}; it goes on"
    assert said[2].startswith("  waits for  the store, to join the job, for ")
