"""Edges of the node's rules: what comes early, late, twice, or of another round."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_node import SIGTERM, Node, elsewhere, halt, running, sealed
from test_repair import resumed
from views import incident, offer, start, then

from elastic_core.incidents import Incident
from elastic_core.protocol.entries import Closed, HaltReason, Leader, Plan, Round, StopAt
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.node import ROUNDS_REMEMBERED, failed_round, row_of
from elastic_core.protocol.node_events import (
    Answered,
    Asked,
    Checkpointed,
    EntriesRead,
    Exit,
    HistoryReplaced,
    Leaving,
    MakeOffer,
    NodeEvent,
    Notice,
    Offered,
    Probed,
    Progressed,
    Start,
    Stop,
    Work,
    WorkerFailed,
    WorkersDone,
    WorkersGone,
)
from elastic_core.protocol.roster import LastCheckpoint, Phase

PEER = replace(incident("a"), message="RuntimeError: Connection closed by peer", follows_peer=True)
KILLED = replace(incident("a"), exit_code=-9)
AGAIN = Round(number=2, offer=offer("a", 2), same_as=1)
PLAN = Plan(round=1, reason=HaltReason.RESIZE, why="c joins", deadline=60.0)


def stopping() -> Node:
    """A node that stops its workers because its round was halted."""
    node = running()
    node.hears(Progressed(1, takes_notices=True))
    node.reads(halt())
    return node


def answered() -> Node:
    """A node whose workers have answered a PLAN."""
    node = running()
    node.hears(Progressed(1, takes_notices=True))
    node.reads(PLAN)
    node.hears(Answered(Notice(0, 3, 60.0), (7, 8)))
    return node


# Workers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        WorkersDone(),
        WorkersDone(stepped_down=True),
        Progressed(1),
        Progressed(1, takes_notices=True),
        Asked(1, "load", "7"),
        Answered(Notice(0, 3, 60.0), (1, 1)),
    ],
    ids=lambda event: type(event).__name__,
)
def test_events_of_workers_that_are_being_stopped_do_not_change_the_row(event: NodeEvent) -> None:
    node = running()
    node.reads(halt())
    before = row_of(node.state)
    assert node.hears(event) == ()
    assert (row_of(node.state), node.state.work) == (before, Work.STOPPING)


def test_an_answer_that_comes_while_workers_are_stopped_is_none() -> None:
    node = running()
    node.hears(Progressed(1, takes_notices=True))
    node.reads(PLAN)
    node.hears(SIGTERM, Answered(Notice(0, 3, 60.0), (7, 8)))
    assert row_of(node.state).answered == 0


def test_an_answer_to_something_else_is_none() -> None:
    node = running()
    node.hears(Progressed(1, takes_notices=True))
    node.reads(PLAN)
    node.hears(Answered(Notice(0, 2, 60.0), (7, 8)))
    assert (row_of(node.state).answered, row_of(node.state).steps) == (0, ())


def test_an_answer_that_workers_take_back_is_none() -> None:
    node = answered()
    node.hears(Answered(Notice(0, 3, 60.0), ()))
    assert (row_of(node.state).answered, row_of(node.state).steps) == (0, ())


def test_workers_that_take_notices_do_so_whatever_they_report_next() -> None:
    node = running()
    node.hears(Progressed(1, takes_notices=True), Progressed(1))
    assert row_of(node.state).takes_notices


def test_steps_that_workers_of_an_older_round_have_reported_say_nothing_of_these() -> None:
    node = running()
    node.hears(Progressed(0, takes_notices=True))
    assert not row_of(node.state).takes_notices


def test_that_all_workers_have_exited_is_progress() -> None:
    node = running()
    node.hears(WorkersDone())
    assert row_of(node.state).progressed


def test_finished_stands_when_nothing_that_they_left_behind_is_there_any_more() -> None:
    node = running()
    assert node.hears(WorkersDone(), WorkersGone()) == ()
    assert (row_of(node.state).phase, row_of(node.state).round) == (Phase.FINISHED, 1)


def test_finished_stands_when_the_next_round_was_halted_before_it_was_started() -> None:
    node = running()
    node.hears(WorkersDone())
    node.reads(halt(), sealed(2))
    assert node.state.work is Work.STOPPING, "what they left behind has to go first"
    assert node.reads(halt(2)) == ()
    assert node.hears(WorkersGone()) == ()
    assert (row_of(node.state).phase, row_of(node.state).round) == (Phase.FINISHED, 1)


def test_a_finished_node_gets_no_plan() -> None:
    node = running()
    node.hears(Progressed(1, takes_notices=True), WorkersDone())
    assert node.reads(PLAN) == ()


def test_nothing_is_started_while_a_process_of_the_old_round_is_there_whatever_comes_meanwhile() -> None:
    """I9; the offer that the next round uses is renewed with its start."""
    node = running()
    node.hears(Offered(offer("a", 2)))
    node.reads(AGAIN)
    assert node.hears(Progressed(2)) == ()
    current = node.ledger.round
    assert current is not None
    assert node.hears(WorkersGone()) == (Start(current, 0), MakeOffer())
    assert node.hears(Progressed(2)) == (), "once"


def test_the_next_round_knows_nothing_of_the_workers_of_the_last() -> None:
    node = answered()
    node.reads(StopAt(round=1, step=9))
    node.reads(halt())
    node.hears(WorkersGone())
    node.reads(sealed(2))
    row = row_of(node.state)
    assert (row.round, row.progressed, row.takes_notices, row.answered, row.steps) == (2, False, False, 0, ())
    assert node.state.sent_notice is None


# Checkpoints ----------------------------------------------------------------------------------------------------------


def checkpoint_of(node: Node) -> LastCheckpoint | None:
    return row_of(node.state).checkpoint


def test_a_node_that_notices_no_checkpoints_says_nothing_of_them() -> None:
    assert checkpoint_of(running()) is None


def test_the_newest_checkpoint_of_the_round_is_in_the_row_by_the_age_of_the_run() -> None:
    node = running()  # whose entries were read at 1 s, when the run was 1 s old
    node.hears(Checkpointed(1, 11.0, saved=False))
    assert checkpoint_of(node) == LastCheckpoint(11.0)
    node.hears(Checkpointed(1, 71.04))
    assert checkpoint_of(node) == LastCheckpoint(71.0, saved=True)
    node.hears(Checkpointed(1, 81.0, saved=False))
    assert checkpoint_of(node) == LastCheckpoint(71.0, saved=True), "it is known already"
    node.hears(Checkpointed(1, 171.0))
    assert checkpoint_of(node) == LastCheckpoint(171.0, saved=True)
    node.hears(Checkpointed(1, 181.0, newer=True), Checkpointed(1, 191.0))
    assert checkpoint_of(node) == LastCheckpoint(191.0, saved=True, newer=True), "one of the round was newer"


def test_the_next_round_has_no_checkpoint_yet() -> None:
    node = running()
    node.hears(Checkpointed(1, 11.0, saved=False), Checkpointed(1, 71.0))
    node.reads(halt())
    node.hears(Checkpointed(1, 72.0))
    assert checkpoint_of(node) == LastCheckpoint(71.0, saved=True), "its workers are being stopped"
    node.hears(WorkersGone())
    node.reads(sealed(2))
    assert checkpoint_of(node) is None
    node.hears(Checkpointed(1, 80.0), Checkpointed(2, 90.0, saved=False))
    assert checkpoint_of(node) == LastCheckpoint(90.0)


# Failures ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "found", "reported"),
    [
        pytest.param(PEER, KILLED, KILLED, id="a cause, for what followed from it"),
        pytest.param(PEER, replace(PEER, after=1.0), PEER, id="another one that follows explains no more"),
        pytest.param(PEER, replace(KILLED, round=7), PEER, id="of another round"),
        pytest.param(KILLED, replace(KILLED, exit_code=-11), KILLED, id="a second cause"),
    ],
)
def test_a_better_explanation_replaces_the_reported_incident(
    known: Incident, found: Incident, reported: Incident
) -> None:
    node = running()
    node.hears(WorkerFailed(known), WorkerFailed(found))
    assert row_of(node.state).incident == reported


def test_a_failure_while_workers_are_stopped_for_something_else_is_none() -> None:
    node = running()
    node.hears(SIGTERM, WorkerFailed(KILLED))
    assert row_of(node.state).incident is None
    node = running()
    node.reads(AGAIN, replace(halt(2), incident=PEER))
    node.hears(WorkerFailed(KILLED))
    assert row_of(node.state).incident is None, "what the HALT names is of the round after this one"


# Probes --------------------------------------------------------------------------------------------------------------


def test_peers_are_probed_when_workers_are_stopped_for_a_failure_and_at_no_other_time() -> None:
    node = running()
    before = node.state
    node.hears(Progressed(1))
    assert failed_round(before, node.state) is None, "they run on"
    node.hears(WorkerFailed(PEER))
    assert failed_round(before, node.state) is None, "its peer may be about to end"
    node.hears(WorkerFailed(KILLED))
    before = node.state
    node.hears(WorkerFailed(replace(KILLED, exit_code=-11)))
    assert failed_round(before, node.state) is None, "they are being stopped already"


def test_a_finished_node_probes_no_other() -> None:
    node = running()
    node.hears(WorkersDone())
    before = node.state
    node.reads(halt(reason=HaltReason.FAILURE), sealed(2, names="b"))
    assert node.state.work is Work.STOPPING
    assert failed_round(before, node.state) is None
    node = running()
    node.hears(WorkersDone())
    before = node.state
    node.hears(EntriesRead((), 1.0))
    assert failed_round(before, node.state) is None


def test_the_end_of_the_job_is_no_failure_of_its_round() -> None:
    node = running()
    before = node.state
    node.reads(Closed(success=False, why="no restart is left", exit_code=1))
    assert node.state.work is Work.STOPPING
    assert failed_round(before, node.state) is None


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        pytest.param([], True, id="nothing has followed"),
        pytest.param([halt(reason=HaltReason.FAILURE)], True, id="the round is halted"),
        pytest.param([halt(reason=HaltReason.FAILURE), sealed(2), halt(2)], True, id="the next round is halted, too"),
        pytest.param([AGAIN], False, id="the next round is live"),
    ],
)
def test_that_all_peers_were_reached_is_told_unless_the_next_round_is_live(entries: list[Round], told: bool) -> None:
    node = running()
    node.hears(WorkerFailed(KILLED))
    node.reads(*entries)
    node.hears(Probed(1, ()))
    assert row_of(node.state).probed == (1 if told else 0)


# Leaving -------------------------------------------------------------------------------------------------------------


def test_only_who_is_in_more_of_a_hurry_changes_why_a_node_leaves() -> None:
    node = running()
    assert row_of(node.state).grace == 0.0
    for why, grace, left in (
        ("first", 30.0, "first"),
        ("same", 30.0, "first"),
        ("longer", 60.0, "first"),
        ("soon", 5.0, "soon"),
    ):
        node.hears(Leaving(why, 143, grace))
        assert node.state.leaving is not None
        assert node.state.leaving.why == left


def test_a_node_that_leaves_to_enter_again_leaves_for_good_when_it_is_told_to() -> None:
    node = running()
    node.hears(Leaving("its host was excluded", 143, rejoin=True))
    assert row_of(node.state).returns
    assert node.hears(SIGTERM, WorkersGone()) == (Exit(143, "received SIGTERM"),)
    assert not row_of(node.state).returns


@pytest.mark.parametrize("why", ["it was told to leave at once", "its workers have not stopped as planned"])
def test_a_node_that_leaves_stays_for_nobody_when(why: str) -> None:
    node = answered()
    node.hears(Leaving("received SIGTERM", 143, 30.0))
    node.reads(StopAt(round=1, step=9))
    if why.startswith("it was"):
        node.hears(WorkersDone(stepped_down=True), SIGTERM)
        assert node.hears(WorkersGone()) == (Exit(143, "received SIGTERM"),)
    else:
        assert node.hears(WorkersDone()) == (Exit(143, "received SIGTERM"),)


# Histories -----------------------------------------------------------------------------------------------------------


def test_entries_that_follow_a_resume_are_read_with_it() -> None:
    node = running()
    after = resumed(node.ledger, on=node.ledger.head.link)
    later = then(after, Leader(why="x"), at=60.0)
    assert node.hears(EntriesRead((after.head, later.head), 60.0)) == (MakeOffer(),)
    assert node.hears(Progressed(1)) == (), "one offer is enough"
    assert row_of(node.state).epoch == 1


def test_a_history_without_the_round_stops_its_workers() -> None:
    node = running()
    (stop,) = node.hears(HistoryReplaced(start()))
    assert isinstance(stop, Stop)
    assert (stop.planned, row_of(node.state).round) == (False, 0)


def test_a_count_of_failed_workers_is_forgotten_when_the_history_is_replaced_again() -> None:
    node = running()
    node.hears(HistoryReplaced(start()), WorkersGone(2), HistoryReplaced(start()))
    assert (row_of(node.state).phase, row_of(node.state).alike) == (Phase.WAITING, 0)


def test_workers_of_a_round_go_on_whose_entry_did_not_spell_out_its_members_and_now_does() -> None:
    node = running()
    node.reads(AGAIN)
    node.hears(WorkersGone(), HistoryReplaced(resumed(node.ledger)))
    assert (node.state.work, row_of(node.state).round) == (Work.RUNNING, 2)


def ended_elsewhere() -> Ledger:
    """Another history with this node in its round, which is halted there."""
    return then(elsewhere("ba"), halt(), at=2.0)


def test_a_node_has_no_part_in_a_round_of_another_history_that_it_never_started() -> None:
    node = stopping()
    node.hears(HistoryReplaced(ended_elsewhere()))
    assert (row_of(node.state).phase, row_of(node.state).round) == (Phase.RUNNING, 0), "its workers are still there"
    node.hears(WorkersGone())
    assert (row_of(node.state).phase, row_of(node.state).round) == (Phase.WAITING, 0)
    node = stopping()
    node.hears(WorkersGone(), HistoryReplaced(ended_elsewhere()))
    assert (row_of(node.state).phase, row_of(node.state).round) == (Phase.WAITING, 0)


def test_a_round_that_the_store_has_gone_back_to_is_stopped_here_only_while_it_is_live() -> None:
    node = running()
    first = node.ledger
    node.reads(halt(), sealed(2, "a"))
    node.hears(WorkersGone())
    old = then(first, halt(reason=HaltReason.FAILURE), at=2.0)
    node.hears(HistoryReplaced(resumed(old, on=old.head.link)), WorkersGone())
    assert (row_of(node.state).phase, row_of(node.state).round) == (Phase.WAITING, 0)


def test_an_offer_that_comes_while_another_round_is_awaited_serves_that_one() -> None:
    node = running()
    node.hears(HistoryReplaced(elsewhere("ba")), Offered(offer("a", 9)))
    assert [type(effect) for effect in node.hears(WorkersGone())] == [Start]
    assert row_of(node.state).offer == offer("a", 9)


def test_an_offer_before_the_first_round_is_shown() -> None:
    node = Node("a")
    assert node.hears(Offered(offer("a", 9))) == ()
    assert row_of(node.state).offer == offer("a", 9)


def test_the_rounds_that_a_node_remembers_have_an_end() -> None:
    node = Node("a")
    node.state = replace(node.state, started=tuple(f"older {i}" for i in range(ROUNDS_REMEMBERED)))
    node.reads(sealed())
    assert (len(node.state.started), node.state.started[0], node.state.started[-1]) == (
        ROUNDS_REMEMBERED,
        "older 1",
        "a1",
    )
