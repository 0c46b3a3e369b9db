"""What is said at the start of a round and at the end of a job; the texts are exact, since people read them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from scenes import halted, incident, live, members, offer, settings, then

from elastic_core.agent.outcome import left, report, root_cause, round_started
from elastic_core.events import Event
from elastic_core.exit_codes import ExitCode
from elastic_core.incidents import Incident, IncidentKind
from elastic_core.rendezvous.ledger import Closed, Counters, HaltReason, Ledger, Round

CRASH = Incident(
    kind=IncidentKind.WORKER_FAILED,
    round=2,
    node_id="n1",
    host="gpu-7",
    after=12.34,
    rank=5,
    local_rank=1,
    pid=4711,
    exit_code=1,
    message="ValueError: boom",
    detail="Traceback (most recent call last):\n  ...\nValueError: boom\n\n",
    log="/logs/round_2/rank_5/stderr.log",
)
TITLE = "Root cause (the first failure across all nodes)"


# The root cause ------------------------------------------------------------------------------------------------------


def test_a_crash_is_told_with_who_what_where_and_its_last_lines() -> None:
    assert root_cause(CRASH) == [
        TITLE,
        "  who     rank 5 (host gpu-7, local rank 1, pid 4711), round 2, 12.3 s after its start",
        "  what    exited with code 1",
        "  error   ValueError: boom",
        "  log     /logs/round_2/rank_5/stderr.log on gpu-7",
        "  last lines of its stderr, or the traceback that it recorded:",
        "    | Traceback (most recent call last):",
        "    |   ...",
        "    | ValueError: boom",
    ]


@pytest.mark.parametrize(
    ("told", "lines"),
    [
        (
            replace(CRASH, exit_code=-9, message="", detail="", log=""),
            [
                "  who     rank 5 (host gpu-7, local rank 1, pid 4711), round 2, 12.3 s after its start",
                "  what    was killed by SIGKILL (somebody's kill -9, or the kernel's out-of-memory killer: see dmesg)",
            ],
        ),
        (  # it never ran: the message is the cause, and is not said twice
            replace(CRASH, kind=IncidentKind.START_FAILED, pid=None, exit_code=None, message="no x", detail="", log=""),
            ["  who     rank 5 (host gpu-7, local rank 1), round 2, 12.3 s after its start", "  what    no x"],
        ),
        (
            Incident(kind=IncidentKind.NODE_LOST, round=3, node_id="n1", host="gpu-7", after=0.04),
            ["  who     node n1 (host gpu-7), round 3, 0.0 s after its start", "  what    node lost"],
        ),
        (  # rank 0 and local rank 0 are ranks
            replace(CRASH, rank=0, local_rank=0, message="", detail="", log="/l"),
            [
                "  who     rank 0 (host gpu-7, local rank 0, pid 4711), round 2, 12.3 s after its start",
                "  what    exited with code 1",
                "  log     /l on gpu-7",
            ],
        ),
    ],
    ids=["killed", "never started", "node lost", "rank 0"],
)
def test_what_is_not_known_of_a_failure_is_left_out(told: Incident, lines: list[str]) -> None:
    assert root_cause(told) == [TITLE, *lines]


def test_of_a_long_traceback_the_last_thirty_lines_are_shown() -> None:
    detail = "".join(f"line {number}\n" for number in range(100))
    assert root_cause(replace(CRASH, detail=detail))[6:] == [f"    | line {number}" for number in range(70, 100)]


# The closing message -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("closed", "text"),
    [
        (Closed(success=True, why="all have finished", exit_code=0), "the job is done: all have finished"),
        (Closed(success=False, why="it was stopped", exit_code=1), "the job has failed: it was stopped"),
        (
            Closed(success=False, why="1 of 2 nodes came", exit_code=ExitCode.TOO_FEW_NODES),
            "the job has failed: 1 of 2 nodes came\n"
            "\n"
            "Start the missing nodes with the same command, or lower the minimum of --nnodes=MIN:MAX.",
        ),
        (
            Closed(success=False, why="no restart is left", exit_code=1, incident=incident("a")),
            "the job has failed: no restart is left\n"
            "\n"
            f"{TITLE}\n"
            "  who     rank 0 (host host-a), round 1, 5.0 s after its start\n"
            "  what    exited with code 1",
        ),
    ],
    ids=["success", "failure", "too few nodes", "with a root cause"],
)
def test_the_closing_message_says_why_and_what_can_be_done(closed: Closed, text: str) -> None:
    assert report(closed) == text


def test_a_job_that_shrank_below_its_minimum_shows_both_the_root_cause_and_the_remedy() -> None:
    lost = incident("a", kind=IncidentKind.NODE_LOST)
    closed = Closed(success=False, why="1 of 2", exit_code=ExitCode.TOO_FEW_NODES, incident=lost)
    text = report(closed)
    assert TITLE in text
    assert text.endswith("lower the minimum of --nnodes=MIN:MAX.")


# A round's start -----------------------------------------------------------------------------------------------------


def started(before: Ledger, node_id: str = "a", *, restarts: int = 0, **fields: Any) -> Event:
    """What ``node_id`` says of round 2, which follows ``before`` at the cost of so many restarts in all."""
    body = Round(number=2, offer=offer("a"), **fields)
    ledger = then(before, body, at=30.0, counters=Counters(restarts=restarts))
    assert ledger.round is not None
    return round_started(before, ledger, ledger.round, node_id)


def test_a_round_is_announced_with_its_size_and_its_reason() -> None:
    event = started(live("ab"), members=members("abc"), why="c came")
    assert event.message == "round 2: 6 worker(s) on 3 node(s) (c came)"
    assert event.name == "round_started"
    assert event.fields == {"round": 2, "nodes": 3, "world_size": 6, "restarts": 0, "why": "c came"}


def test_a_round_that_spends_a_restart_says_which_of_how_many() -> None:
    before = halted("ab", HaltReason.FAILURE, settings(max_restarts=3), counters=Counters(restarts=1))
    event = started(before, same_as=1, restarts=2, charged=True, why="rank 0 exited with code 1")
    assert event.message == "round 2: 4 worker(s) on 2 node(s), restart 2 of 3 (rank 0 exited with code 1)"
    assert event.fields["restarts"] == 2


def test_a_round_that_gives_a_restart_back_says_so() -> None:
    before = halted("ab", HaltReason.FAILURE, counters=Counters(restarts=2))
    event = started(before, members=members("a"), restarts=1, why="b was lost")
    assert event.message == "round 2: 2 worker(s) on 1 node(s), restart 2 is given back (b was lost)"


def test_a_node_without_a_place_in_the_round_is_told_so() -> None:
    messages = {node: started(live("ab"), node, same_as=1, why="again").message for node in "bc"}
    assert messages == {
        "b": "round 2: 4 worker(s) on 2 node(s) (again)",
        "c": "round 2: 4 worker(s) on 2 node(s) (again); this node is not in it and waits",
    }


def test_a_node_that_goes_without_a_verdict_tells_what_failed_here() -> None:
    assert left("the store is gone", None) == "this node is out: the store is gone"
    told = left("the store is gone", incident("a")).splitlines()
    assert told[:3] == ["this node is out: the store is gone", "", "Root cause (as far as this node knows)"]
