"""The mind of a node whose handler keeps no ledger, as tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
from views import incident, members, offer

from elastic_core.exit_codes import ExitCode
from elastic_core.handlers.state_machine import (
    Absent,
    AskHandler,
    AwaitOthers,
    Close,
    Counted,
    HandlerEffect,
    HandlerEvent,
    HandlerState,
    HandlerWork,
    Judge,
    Judged,
    Met,
    OthersFinished,
    step,
)
from elastic_core.incidents import Action, IncidentKind, Verdict
from elastic_core.protocol.entries import Closed, HaltReason, Round
from elastic_core.protocol.node_events import Exit, Grace, Leaving, Start, Stop, WorkerFailed, WorkersDone, WorkersGone

ROUND = Round(number=1, offer=offer("a"), members=members("ab"))
FAILURE = incident("a")
AGAIN = Judged(Verdict(Action.RESTART, "one more"))
NEVER = Judged(Verdict(Action.GIVE_UP, "enough", requeue=True))
FOR_A_WHILE = Judged(Verdict(Action.EXCLUDE_HOST, "a bad host", exclude_for=60.0))
ELSEWHERE = Judged(Verdict(Action.EXCLUDE_HOST, "a bad host"))
TERM = Leaving.signalled(15, "SIGTERM")
MEETING = HandlerState()
WHY = "rank 0 exited with code 1"


def after(state: HandlerState, *events: HandlerEvent) -> tuple[HandlerState, list[HandlerEffect]]:
    """The state after these events, and all that is to be done."""
    done: list[HandlerEffect] = []
    for event in events:
        state, effects = step(state, event)
        done += effects
    return state, done


RUNNING, _ = after(MEETING, Met(ROUND, 0))


def test_a_round_starts_workers_with_the_count_of_the_nodes_that_has_spent_most() -> None:
    state, effects = after(MEETING, Met(ROUND, 3))
    assert effects == [Start(ROUND, 3)]
    assert (state.work, state.round, state.restarts) == (HandlerWork.RUNNING, ROUND, 0)


@pytest.mark.parametrize(
    ("events", "effects", "work", "restarts"),
    [
        pytest.param([Counted(0)], [], HandlerWork.RUNNING, 0, id="nobody waits"),
        pytest.param(
            [Counted(2)], [Stop(Grace.PLANNED, "2 node(s) wait to join")], HandlerWork.STOPPING, 0, id="somebody waits"
        ),
        pytest.param(
            [Counted(2), WorkersGone()],
            [Stop(Grace.PLANNED, "2 node(s) wait to join"), AskHandler()],
            HandlerWork.MEETING,
            0,
            id="who comes costs no restart",
        ),
        pytest.param(
            [WorkerFailed(FAILURE), WorkersGone()],
            [Stop(Grace.BROKEN, WHY), Judge(FAILURE, 0)],
            HandlerWork.STOPPING,
            0,
            id="no round before the verdict",
        ),
        pytest.param(
            [WorkerFailed(FAILURE), AGAIN],
            [Stop(Grace.BROKEN, WHY), Judge(FAILURE, 0)],
            HandlerWork.STOPPING,
            0,
            id="no round before the last process is gone",
        ),
        *(
            pytest.param(
                [WorkerFailed(FAILURE), *order],
                [Stop(Grace.BROKEN, WHY), Judge(FAILURE, 0), AskHandler()],
                HandlerWork.MEETING,
                1,
                id=f"a failure costs one restart, {name} first",
            )
            for name, order in (("verdict", [AGAIN, WorkersGone()]), ("end", [WorkersGone(), AGAIN]))
        ),
        pytest.param(
            [WorkerFailed(FAILURE), NEVER, WorkersGone()],
            [
                Stop(Grace.BROKEN, WHY),
                Judge(FAILURE, 0),
                Close(
                    Closed(
                        success=False,
                        why="enough",
                        exit_code=ExitCode.REQUEUE,
                        incident=FAILURE,
                        requeue=True,
                    )
                ),
            ],
            HandlerWork.OVER,
            0,
            id="given up",
        ),
        pytest.param(
            [WorkerFailed(FAILURE), ELSEWHERE, WorkersGone()],
            [Stop(Grace.BROKEN, WHY), Judge(FAILURE, 0), Exit(ExitCode.WITHDRAWN, "a bad host")],
            HandlerWork.OVER,
            0,
            id="without this host",
        ),
        pytest.param(
            [WorkerFailed(FAILURE), FOR_A_WHILE, WorkersGone()],
            [Stop(Grace.BROKEN, WHY), Judge(FAILURE, 0), AskHandler()],
            HandlerWork.MEETING,
            1,
            id="for a while: without a ledger it is restarted",
        ),
        pytest.param([WorkersDone()], [AwaitOthers()], HandlerWork.FINISHING, 0, id="done here"),
        pytest.param(
            [WorkersDone(), Counted(1)], [AwaitOthers()], HandlerWork.FINISHING, 0, id="who has finished starts no more"
        ),
        pytest.param(
            [WorkersDone(), OthersFinished()],
            [
                AwaitOthers(),
                Close(
                    Closed(success=True, why="every worker of the last round exited with 0", exit_code=ExitCode.SUCCESS)
                ),
            ],
            HandlerWork.OVER,
            0,
            id="done everywhere",
        ),
        pytest.param(
            [WorkersDone(), OthersFinished((1, 2))],
            [
                AwaitOthers(),
                Close(
                    Closed(
                        success=True,
                        why="every worker here exited with 0; of node 1, 2 nothing was heard in time",
                        exit_code=ExitCode.SUCCESS,
                    )
                ),
            ],
            HandlerWork.OVER,
            0,
            id="others were not heard of",
        ),
        pytest.param(
            [TERM, WorkersGone()],
            [Stop(Grace.PLANNED, "received SIGTERM"), Exit(143, "received SIGTERM")],
            HandlerWork.OVER,
            0,
            id="leaving",
        ),
        pytest.param(
            [Counted(1), TERM, WorkersGone()],
            [Stop(Grace.PLANNED, "1 node(s) wait to join"), Exit(143, "received SIGTERM")],
            HandlerWork.OVER,
            0,
            id="leaving while stopping",
        ),
        pytest.param(
            [WorkerFailed(FAILURE), WorkersGone(), TERM],
            [Stop(Grace.BROKEN, WHY), Judge(FAILURE, 0), Exit(143, "received SIGTERM")],
            HandlerWork.OVER,
            0,
            id="leaving while policies think",
        ),
        pytest.param(
            [WorkersDone(), TERM],
            [AwaitOthers(), Exit(143, "received SIGTERM")],
            HandlerWork.OVER,
            0,
            id="leaving while others finish",
        ),
        pytest.param(
            [WorkersDone(), OthersFinished(), TERM, WorkerFailed(FAILURE)],
            [
                AwaitOthers(),
                Close(
                    Closed(success=True, why="every worker of the last round exited with 0", exit_code=ExitCode.SUCCESS)
                ),
            ],
            HandlerWork.OVER,
            0,
            id="after the end nothing follows",
        ),
    ],
)
def test_what_follows_in_a_running_round(
    events: list[HandlerEvent], effects: list[HandlerEffect], work: HandlerWork, restarts: int
) -> None:
    state, done = after(RUNNING, *events)
    assert done == effects
    assert (state.work, state.restarts) == (work, restarts)


def test_a_node_that_waits_for_a_round_leaves_at_once() -> None:
    state, effects = after(MEETING, TERM, Met(ROUND, 0))
    assert effects == [Exit(143, "received SIGTERM")]
    assert state.work is HandlerWork.OVER


def test_the_next_round_forgets_the_failure_and_says_why_it_came() -> None:
    state, _ = after(RUNNING, WorkerFailed(FAILURE), AGAIN, WorkersGone())
    assert state.why == WHY
    state, effects = after(state, Met(replace(ROUND, number=2), 1), Counted(1), WorkersGone())
    assert effects == [
        Start(replace(ROUND, number=2), 1),
        Stop(Grace.PLANNED, "1 node(s) wait to join"),
        AskHandler(),
    ], "an old verdict judges nothing new"
    assert state.restarts == 1


@pytest.mark.parametrize("order", [[WorkersGone()], [AGAIN]], ids=["no verdict", "processes left"])
def test_the_next_failure_waits_for_a_verdict_and_an_end_of_its_own(order: list[HandlerEvent]) -> None:
    state, _ = after(RUNNING, WorkerFailed(FAILURE), AGAIN, WorkersGone(), Met(replace(ROUND, number=2), 1))
    state, effects = after(state, WorkerFailed(FAILURE), *order)
    assert effects == [Stop(Grace.BROKEN, WHY), Judge(FAILURE, 1)]
    assert state.work is HandlerWork.STOPPING


@pytest.mark.parametrize(
    ("event", "reason"),
    [(Counted(1), HaltReason.RESIZE), (WorkerFailed(FAILURE), HaltReason.FAILURE), (TERM, HaltReason.NODE_LEFT)],
)
def test_it_is_known_in_a_word_why_the_round_ended(event: HandlerEvent, reason: HaltReason) -> None:
    assert after(RUNNING, event)[0].reason is reason


def test_a_port_that_is_always_taken_ends_in_the_budget() -> None:
    taken = incident("a", kind=IncidentKind.PORT_TAKEN)
    _, effects = after(RUNNING, WorkerFailed(taken))
    assert effects[1] == Judge(replace(taken, kind=IncidentKind.WORKER_FAILED), 0)
    other = incident("a", kind=IncidentKind.START_FAILED)
    assert after(RUNNING, WorkerFailed(other))[1][1] == Judge(other, 0), "what else failed is judged as it is"


PEER = replace(incident("a"), message="RuntimeError: Connection closed by peer", follows_peer=True)
EARLY = replace(incident("a", kind=IncidentKind.EXITED_EARLY), exit_code=0)


def closed_after(*events: HandlerEvent) -> Closed:
    _, effects = after(RUNNING, *events)
    [found] = [effect.closed for effect in effects if isinstance(effect, Close)]
    return found


def test_a_failure_that_is_found_during_the_stop_and_explains_the_first_is_the_cause() -> None:
    closed = closed_after(WorkerFailed(PEER), WorkerFailed(FAILURE), NEVER, WorkersGone())
    assert (closed.incident, closed.exit_code) == (FAILURE, ExitCode.REQUEUE)
    closed = closed_after(WorkerFailed(FAILURE), WorkerFailed(PEER), NEVER, WorkersGone())
    assert closed.incident == FAILURE


def test_a_rank_that_exited_early_explains_a_peers_loss_and_another_try_would_not_help() -> None:
    closed = closed_after(WorkerFailed(PEER), WorkerFailed(EARLY), NEVER, WorkersGone())
    assert (closed.incident, closed.exit_code, closed.requeue) == (EARLY, ExitCode.JOB_FAILED, False)


@pytest.mark.parametrize(("alike", "why"), [(1, "enough"), (2, "enough; 2 ranks of this node failed alike")])
def test_ranks_that_failed_alike_are_counted(alike: int, why: str) -> None:
    assert closed_after(WorkerFailed(FAILURE), NEVER, WorkersGone(alike)).why == why


def test_where_the_other_ranks_were_is_kept_with_the_failure_and_with_the_reason_of_the_next_round() -> None:
    where = "rank 1 is in load (train.py:6)"
    state, effects = after(RUNNING, WorkerFailed(FAILURE), Absent(where), AGAIN)
    assert state.incident is not None
    assert (state.incident.others, state.why) == (where, f"{WHY}; {where}")
    assert effects == [Stop(Grace.BROKEN, WHY), Judge(FAILURE, 0)]
    assert after(RUNNING, WorkerFailed(FAILURE), Absent(""))[0].why == WHY, "no rank is known to be elsewhere"
    assert after(RUNNING, Absent(where))[0] == RUNNING, "it comes too late"
