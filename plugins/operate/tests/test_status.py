"""The lines of ``elastic status``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elastic_core.events import describe_duration
from elastic_core.incidents import Failure
from elastic_operate.job_view import JobStatus, NodeStatus, SavedStatus, WorkerStatus
from elastic_operate.status import describe

RUNNING = JobStatus(
    job="job42",
    run="c48a123563c5",
    state="running",
    why="rank 9 on node1 was killed by SIGKILL",
    round=3,
    world_size=16,
    age_s=3726.4,
    restarts=2,
    max_restarts=3,
    failures=(
        Failure(round=1, rank=9, host="node1", exception="ValueError", exit_code=1, step=812, seconds_ago=3000.0),
        Failure(round=2, rank=3, host="node0", exception="", exit_code=-9, step=None, seconds_ago=12.5),
    ),
    host_losses={"h": 2},
    nodes=(
        NodeStatus(
            node_id="a",
            host="node0",
            ranks=(0, 7),
            phase="running",
            leads=True,
            leaving=False,
            workers=(
                *(WorkerStatus(rank, 100 + rank, 812 - rank // 4, 2.0 + rank / 10) for rank in range(6)),
                WorkerStatus(6, 106, 811, 300.0),
                WorkerStatus(7),
            ),
            snapshot=SavedStatus(810, 4.0),
            checkpoint=SavedStatus(None, 600.0),
            store_s=0.03,
        ),
        NodeStatus(node_id="b", host="node1", ranks=(8, 8), phase="running", leads=False, leaving=True),
        NodeStatus(
            node_id="d",
            host="node3",
            ranks=(9, 9),
            phase="running",
            leads=False,
            leaving=False,
            notes={"no progress": "for 5 min: elastic stacks says where its ranks are"},
        ),
        NodeStatus(node_id="c", host="node2", ranks=None, phase="waiting", leads=False, leaving=False),
    ),
    store_s=0.0012,
)


def test_a_running_job() -> None:
    assert "\n".join(describe(RUNNING)) == (
        "job 'job42' is running\n"
        "  run       c48a123563c5, for 62 min\n"
        "  round     3: 16 worker(s) on 3 node(s), after: rank 9 on node1 was killed by SIGKILL\n"
        "  restarts  2 of 3 spent:\n"
        "            round 1: ValueError, rank 9 on node1 at step 812, 50 min ago\n"
        "            round 2: was killed by SIGKILL, rank 3 on node0, 12.5 s ago\n"
        "  lost      2 node(s), on 1 host(s)\n"
        "  snapshot  of step 810, 4.0 s ago, in memory\n"
        "  saved     10 min ago, the newest checkpoint\n"
        "  node      node0, ranks 0 to 7: running (decides)\n"
        "            ranks 0 to 5 at step 811 to 812, last progress 2.5 s ago; pid 100, 101, 102, 103, 104, 105\n"
        "            rank 6 at step 811, last progress 5 min ago; pid 106\n"
        "            rank 7; pid none yet\n"
        "  node      node1, rank 8: running (leaves)\n"
        "  node      node3, rank 9: running\n"
        "            no progress for 5 min: elastic stacks says where its ranks are\n"
        "  node      node2: waiting\n"
        "  store     answers in 1 ms here, and in 30 ms on node0, which waits longest"
    )


@pytest.mark.parametrize(("seconds", "text"), [(0.04, "0.0 s"), (119.9, "119.9 s"), (125, "2 min"), (7300, "2.0 h")])
def test_a_duration(seconds: float, text: str) -> None:
    assert describe_duration(seconds) == text


def test_nodes_that_wait_and_spares_have_a_line_each() -> None:
    why = "6 of 7 nodes train: --nnodes=4,6,8 has no size 7"
    lines = list(describe(replace(RUNNING, waiting=1, why_waiting=why, spares=2)))
    assert f"  waiting   1 node(s): {why}" in lines
    assert "  spares    1 of --spares=2" in lines


@pytest.mark.parametrize(
    ("changed", "first"),
    [
        ({"state": "restarting"}, "job 'job42' is restarting: rank 9 on node1 was killed by SIGKILL"),
        ({"state": "failed", "why": "no restart is left"}, "job 'job42' is failed: no restart is left"),
        ({"round": 1, "why": "the first round"}, "job 'job42' is running"),
    ],
)
def test_the_first_line_has_the_reason_of_a_job_that_does_not_run(changed: dict[str, Any], first: str) -> None:
    seen = list(describe(replace(RUNNING, **changed)))
    assert seen[0] == first
    assert "after" not in seen[2]


def test_a_job_on_one_node_has_no_slowest_one_and_without_a_store_no_line_about_it() -> None:
    alone = replace(RUNNING, nodes=RUNNING.nodes[:1])
    assert list(describe(alone))[-1] == "  store     answers in 1 ms"
    assert not any("store" in line for line in describe(alone, has_store=False))
