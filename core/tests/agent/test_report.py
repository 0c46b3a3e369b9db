"""The messages at the start of a round and at the end of a job; the texts are exact, since people read them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from views import entry, halted, incident, info, live, members, offer, settings, start, then

from elastic_core.agent.report import (
    Ending,
    describe_verdict,
    leave,
    ledger_events,
    no_place,
    root_cause,
    round_started,
    starter,
)
from elastic_core.events import Event, Level
from elastic_core.exit_codes import ExitCode
from elastic_core.gates import RunSummary
from elastic_core.incidents import PEER_LOST, Explanation, Failure, Incident, IncidentKind, describe_early_exit
from elastic_core.protocol.entries import (
    Closed,
    Counters,
    Exclusion,
    Halt,
    HaltReason,
    HostLosses,
    Leader,
    Open,
    Round,
)
from elastic_core.protocol.ledger import Ledger, advance
from elastic_core.warden.messages import StarterDied, warden_death

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
    exception="ValueError",
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
        "  its traceback:",
        "    | Traceback (most recent call last):",
        "    |   ...",
        "    | ValueError: boom",
    ]


def test_frames_of_bars_do_not_stand_in_the_place_of_a_traceback() -> None:
    bars = " 81%|████ | 32/40 [00:01<00:00]\r 82%|████▎ | 33/40 [00:01<00:00]\n 83%|████▎ | 34/40 [00:01<00:00]\n"
    said = replace(CRASH, detail=bars + "\rdone\rTraceback (most recent call last):\r\n  ...\nValueError: boom")
    assert root_cause(said)[-3:] == [
        "    | Traceback (most recent call last):",
        "    |   ...",
        "    | ValueError: boom",
    ]
    (line,) = root_cause(replace(CRASH, detail=" 82%|████▎ | 33/40 [00:01<00:00]\n"))[6:]
    assert line == "    |  82%|████▎ | 33/40 [00:01<00:00]", "there is nothing else"


def test_failures_of_earlier_rounds_have_a_line_each() -> None:
    def past(number: int, **more: Any) -> Failure:
        one = Failure(round=number, rank=3, host="gpu-4", exception="", exit_code=None, step=None)
        return replace(one, **more)

    failures = (
        past(1, exception="KeyError", place="train.py:8 in load"),
        past(2, exit_code=-9),
        past(3, exception="RuntimeError", digest=PEER_LOST),
        past(4, rank=None),
        past(5, exception="ValueError"),
    )
    closed = Closed(success=False, why="no more restarts", exit_code=1, incident=replace(CRASH, round=5))
    run = RunSummary(
        job="j",
        run="r",
        node="n",
        rounds=5,
        restarts=4,
        max_restarts=4,
        nodes_lost=0,
        seconds=9.0,
        interrupted_seconds=1.0,
        failures=failures,
    )
    assert describe_verdict(closed, summary=run).splitlines()[-4:] == [
        "  before  round 1: rank 3 on gpu-4: KeyError, at train.py:8 in load",
        "  before  round 2: rank 3 on gpu-4: was killed by SIGKILL",
        "  before  round 3: rank 3 on gpu-4: the loss of a peer",
        "  before  round 4: gpu-4: a start that failed",
    ]


@pytest.mark.parametrize(
    ("told", "lines"),
    [
        (
            replace(CRASH, exit_code=-9, message="", exception="", detail="", log=""),
            [
                "  who     rank 5 (host gpu-7, local rank 1, pid 4711), round 2, 12.3 s after its start",
                "  what    was killed by SIGKILL (kill -9 by a user, or the kernel's out-of-memory killer: see dmesg)",
            ],
        ),
        (  # it never ran: the message is the cause, and is not said twice
            replace(
                CRASH,
                kind=IncidentKind.START_FAILED,
                pid=None,
                exit_code=None,
                message="no x",
                exception="",
                detail="",
                log="",
            ),
            ["  who     rank 5 (host gpu-7, local rank 1), round 2, 12.3 s after its start", "  what    no x"],
        ),
        (
            Incident(kind=IncidentKind.NODE_LOST, round=3, node_id="n1", host="gpu-7", after=0.04),
            [
                "  who     node gpu-7, round 3",
                "  what    node lost",
                "  hint    Look there for what ended the agent or the host: its kernel's log, the scheduler's, the "
                "network.",
            ],
        ),
        (  # rank 0 and local rank 0 are ranks
            replace(CRASH, rank=0, local_rank=0, message="", exception="", detail="", log="/l"),
            [
                "  who     rank 0 (host gpu-7, local rank 0, pid 4711), round 2, 12.3 s after its start",
                "  what    exited with code 1",
                "  hint    It wrote nothing to stderr: look for sys.exit(1) or os._exit(1) in the program.",
                "  log     /l on gpu-7",
            ],
        ),
    ],
    ids=["killed", "never started", "node lost", "rank 0"],
)
def test_unknown_facts_of_a_failure_are_left_out(told: Incident, lines: list[str]) -> None:
    assert root_cause(told) == [TITLE, *lines]


def test_a_failed_job_takes_fifteen_lines_however_long_its_traceback_is() -> None:
    detail = "".join(f"line {number}\n" for number in range(100))
    crash = replace(CRASH, detail=detail, where="train.py:41 in step: loss = model(batch)", step=812)
    lines = describe_verdict(Closed(success=False, why="it was stopped", exit_code=1, incident=crash)).splitlines()
    assert len(lines) == 15
    assert lines[3].endswith("12.3 s after its start, at step 812")
    assert lines[6] == "  where   train.py:41 in step: loss = model(batch)"
    assert lines[9:] == [f"    | line {number}" for number in range(94, 100)]


def test_a_known_failure_comes_with_a_hint() -> None:
    assert root_cause(replace(CRASH, explanation=Explanation(advice="Enlarge /dev/shm.")))[3:6] == [
        "  error   ValueError: boom",
        "  hint    Enlarge /dev/shm.",
        "  log     /logs/round_2/rank_5/stderr.log on gpu-7",
    ]


def test_a_rank_that_exited_early_is_told_with_the_peer_that_failed_of_it() -> None:
    peer = replace(CRASH, rank=0, host="gpu-1", message="RuntimeError: Connection closed by peer")
    early = replace(CRASH, kind=IncidentKind.EXITED_EARLY, exit_code=0, message=describe_early_exit(peer), detail="")
    assert root_cause(early)[2:5] == [
        "  what    exited with code 0 before the other ranks",
        "  error   it had finished when rank 0 on gpu-1 lost a connection (RuntimeError: Connection closed by peer)",
        "  hint    All ranks must take the same number of steps: compare the number of batches by rank.",
    ]


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
            "  what    exited with code 1\n"
            "  hint    It wrote nothing to stderr: look for sys.exit(1) or os._exit(1) in the program.",
        ),
    ],
    ids=["success", "failure", "too few nodes", "with a root cause"],
)
def test_the_closing_message_says_why_and_what_can_be_done(closed: Closed, text: str) -> None:
    assert describe_verdict(closed) == text


def test_a_job_that_shrank_below_its_minimum_shows_both_the_root_cause_and_the_remedy() -> None:
    lost = incident("a", kind=IncidentKind.NODE_LOST)
    closed = Closed(success=False, why="1 of 2", exit_code=ExitCode.TOO_FEW_NODES, incident=lost)
    text = describe_verdict(closed)
    assert TITLE in text
    assert text.endswith("lower the minimum of --nnodes=MIN:MAX.")


# A round's start -----------------------------------------------------------------------------------------------------


def started(before: Ledger, node_id: str = "a", *, restarts: int = 0, **fields: Any) -> Event:
    """Return the messages of ``node_id`` about round 2, after ``before`` and so many restarts in all."""
    body = Round(number=2, offer=offer("a"), **fields)
    ledger = then(before, body, at=30.0, counters=Counters(restarts=restarts))
    assert ledger.round is not None
    return round_started(before, ledger, ledger.round, node_id)


def test_a_round_is_announced_with_its_size_and_its_reason() -> None:
    event = started(live("ab"), members=members("abc"), why="c came")
    assert event.message == "round 2: 6 worker(s) on 3 node(s) (c came)"
    assert event.name == "round_started"
    assert event.fields == {
        "round": 2,
        "nodes": 3,
        "world_size": 6,
        "restarts": 0,
        "why": "c came",
        "verdict": "",
        "cause": "store",
        "member": True,
    }


def test_a_round_that_spends_a_restart_says_which_of_how_many() -> None:
    before = halted("ab", HaltReason.FAILURE, settings(max_restarts=3), counters=Counters(restarts=1))
    event = started(before, same_as=1, restarts=2, charged=True, why="rank 0 exited with code 1")
    assert event.message == "round 2: 4 worker(s) on 2 node(s), restart 2 of 3 (rank 0 exited with code 1)"
    assert event.fields["restarts"] == 2


@pytest.mark.parametrize(
    ("own", "more", "told"),
    [
        pytest.param({"exit_code": 1}, "", True, id="its own failure"),
        pytest.param({"exit_code": 3}, "", False, id="another failure is the cause"),
        pytest.param({"exit_code": 1, "follows_peer": True}, "", False, id="which follows from a peer's"),
        pytest.param({"exit_code": 1}, "; rank 1 is in load", False, id="more is known of it"),
        pytest.param(None, "", False, id="a node without a failure"),
    ],
)
def test_a_node_that_has_published_a_failure_does_not_repeat_it(
    own: dict[str, Any] | None, more: str, told: bool
) -> None:
    facts: dict[str, Any] = {"kind": IncidentKind.WORKER_FAILED, "round": 1, "node_id": "a", "host": "a", "rank": 0}
    failed = Incident(**facts, exit_code=1)
    why = f"rank 0 on a {failed.describe()}{more}"
    before = halted("ab", HaltReason.FAILURE, settings(max_restarts=3), blame=failed)
    ledger = then(before, Round(number=2, offer=offer("a"), same_as=1, charged=True, why=why), at=30.0)
    assert ledger.round is not None
    event = round_started(before, ledger, ledger.round, "a", None if own is None else Incident(**facts, **own))
    assert (f"({why})" not in event.message) is told


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
    said: list[Event] = []
    assert leave(said.append, ExitCode.WITHDRAWN, "it is fenced", None) == Ending(ExitCode.WITHDRAWN, "it is fenced")
    leave(said.append, ExitCode.STORE_LOST, "the store is gone", incident("a"))
    leave(said.append, ExitCode.SUCCESS, "no place", None)
    assert [(event.name, event.level) for event in said] == [
        ("left", Level.WARNING),
        ("left", Level.ERROR),
        ("left", Level.INFO),
    ]
    assert said[0].message == "this node is out: it is fenced"
    lines = said[1].message.splitlines()
    assert lines[:3] == ["this node is out: the store is gone", "", "Root cause (as far as this node knows)"]


@pytest.mark.parametrize(
    ("before", "charged", "cause"),
    [
        pytest.param(start(), False, None, id="the first round"),
        pytest.param(live("ab"), True, "failure", id="the same members again, for a restart"),
        pytest.param(live("ab"), False, "store", id="the same members again, for nothing"),
        pytest.param(halted("ab", HaltReason.FAILURE, blame=incident("a")), True, "failure", id="a worker failed"),
        pytest.param(
            halted("ab", HaltReason.FAILURE, blame=incident("a", kind=IncidentKind.PORT_TAKEN)),
            False,
            "store",
            id="a port was taken, and somebody joins",
        ),
        pytest.param(
            halted("ab", HaltReason.GIVING_UP, blame=incident("a")), False, "node_lost", id="a node was behind it"
        ),
        *(
            pytest.param(halted("ab", reason), False, reason.value, id=reason.value)
            for reason in (HaltReason.NODE_LOST, HaltReason.NODE_LEFT, HaltReason.UNSEEN, HaltReason.RESIZE)
        ),
    ],
)
def test_a_round_says_in_a_word_what_led_to_it(before: Ledger, charged: bool, cause: str | None) -> None:
    event = started(before, members=members("ab"), charged=charged)
    assert event.fields["cause"] == cause


def test_every_entry_is_told_of_even_if_several_are_read_at_once() -> None:
    before = live("ab")
    halt = entry(before, Halt(round=1, reason=HaltReason.RESIZE, why="c joins"), at=20.0)
    after = advance(before, halt, 20.0)
    leader = entry(after, Leader(why="a left"), at=20.5)
    after = advance(after, leader, 20.5)
    sealed = entry(after, Round(number=2, offer=offer("a"), members=members("abc"), why="c joins"), at=21.0)
    told = list(ledger_events(before, [halt, leader, sealed], 22.0, "a"))
    assert [(event.name, event.message) for event in told] == [
        ("round_halted", "round 1 ends for a resize: c joins"),
        ("round_started", "round 2: 6 worker(s) on 3 node(s) (c joins)"),
    ]
    assert (told[0].fields["reason"], told[1].fields["cause"]) == ("resize", "resize")


def test_entries_after_the_end_of_a_run_belong_to_another_run() -> None:
    before = live("ab")
    closed = entry(before, Closed(success=True, why="done", exit_code=0), at=20.0)
    opened = entry(advance(before, closed, 20.0), Open(scheduler_uid=None, settings=settings()), at=21.0)
    assert list(ledger_events(before, [closed, opened], 22.0, "a")) == []


@pytest.mark.parametrize(
    ("returncode", "how"), [(2, "exited with code 2"), (-9, "was killed by SIGKILL"), (-77, "was killed by signal 77")]
)
def test_the_end_of_a_process_reads_as_a_sentence(returncode: int, how: str) -> None:
    assert starter(StarterDied(how)).message == f"the process that forks workers {how}; another one is being started"
    assert warden_death(returncode).reason == f"it {how}"


# A node that is not taken --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counters", "most", "said"),
    [
        (Counters(), 3, None),
        (Counters(losses={"id-host-c": HostLosses(2, 0.0)}), 3, None),
        (
            Counters(),
            2,
            "the job has all 2 node(s) that it takes: this node is a spare of the job that host-a opened, starts no "
            "worker until one of them leaves, and ends when the job does. "
            "(Another job needs an --rdzv_id of its own.)",
        ),
        (
            Counters(losses={"id-host-c": HostLosses(3, 0.0)}),
            3,
            "this host was lost 3 times: waiting as long as nodes of other hosts are enough",
        ),
        (
            Counters(excluded=(Exclusion("id-host-c"),)),
            3,
            "this host was excluded by a failure policy, or not reached by others: "
            "waiting as long as nodes of other hosts are enough",
        ),
    ],
)
def test_a_newcomer_is_told_why_it_is_not_taken(counters: Counters, most: int, said: str | None) -> None:
    ledger = live("ab", settings(max_nodes=most))
    ledger = replace(ledger, head=replace(ledger.head, counters=counters))
    told = no_place(ledger, info("c"))
    assert (None if told is None else told.message) == said


def test_a_job_that_has_no_round_takes_whom_it_can() -> None:
    assert no_place(start(settings(max_nodes=1)), info("c")) is None


@pytest.mark.parametrize(
    ("sizes", "spares", "said"),
    [
        ((2, 4), 0, "2 of 3 nodes train: --nnodes=2,4 has no size 3; this node waits as a spare"),
        (
            (2,),
            1,
            "the job has all 2 node(s) that it takes: this node waits as a spare, to take the place of a lost one",
        ),
        ((2, 3), 1, None),
    ],
)
def test_a_spare_is_told_what_it_waits_for(sizes: tuple[int, ...], spares: int, said: str | None) -> None:
    plain = settings(sizes[0], sizes[-1])
    agreement = replace(plain.agreement, sizes=sizes if sizes == (2, 4) else (), spares=spares)
    told = no_place(live("ab", replace(plain, agreement=agreement)), info("c"))
    assert (None if told is None else (told.message, told.level)) == (None if said is None else (said, Level.INFO))


def test_a_root_cause_that_follows_from_the_loss_of_a_peer_says_so() -> None:
    """No cause of it is known, as over a rendezvous handler of others or where a node was lost."""
    lines = root_cause(
        replace(CRASH, message="RuntimeError: Connection closed by peer [10.0.0.2]:4711", follows_peer=True)
    )
    assert lines[2] == "  what    exited with code 1, which follows from the loss of a peer"
