"""The node's rules: what it does with what the ledger says and what its workers do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_repair import resumed
from views import entry, incident, info, live, members, offer, start, then, with_counters

from elastic_core.exit_codes import ExitCode
from elastic_core.incidents import IncidentKind
from elastic_core.protocol.entries import Body, Closed, Exclusion, Halt, HaltReason, Leader, Plan, Round, StopAt
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.node import NodeState, failed_round, is_newly_excluded, known_failure, row_of, step
from elastic_core.protocol.node_events import (
    Answered,
    Effect,
    EntriesRead,
    Exit,
    HistoryReplaced,
    Leaving,
    MakeOffer,
    NodeEvent,
    Notice,
    Notify,
    Offered,
    Probed,
    Progressed,
    RunReplaced,
    Start,
    Stop,
    StoreLost,
    Work,
    WorkerFailed,
    WorkersDone,
    WorkersGone,
)
from elastic_core.protocol.roster import NodeRow, Phase

SIGTERM = Leaving("received SIGTERM", 143)


class Node:
    """A node and its ledger, driven by hand."""

    def __init__(self, name: str = "a") -> None:
        self.state = NodeState(row=NodeRow(info=info(name), offer=offer(name)), ledger=start())
        self.ledger: Ledger = self.state.ledger

    def reads(self, *bodies: Body) -> tuple[Effect, ...]:
        entries = []
        for body in bodies:
            entries.append(entry(self.ledger, body, at=1.0))
            self.ledger = then(self.ledger, body, at=1.0)
        return self.hears(EntriesRead(tuple(entries), 1.0))

    def hears(self, *events: NodeEvent) -> tuple[Effect, ...]:
        effects: tuple[Effect, ...] = ()
        for event in events:
            self.state, effects = step(self.state, event)
        return effects


def sealed(number: int = 1, names: str = "ab", host: str | None = None) -> Round:
    return Round(number=number, offer=offer(host or names[0], number), members=members(names))


def halt(number: int = 1, reason: HaltReason = HaltReason.NODE_LOST) -> Halt:
    return Halt(round=number, reason=reason, why="b is lost")


def running(name: str = "a", names: str = "ab") -> Node:
    node = Node(name)
    node.reads(sealed(names=names))
    return node


def test_a_round_with_this_node_in_it_starts_workers_and_renews_the_offer_that_it_used() -> None:
    node = Node("a")
    effects = node.reads(sealed())
    assert node.ledger.round is not None
    assert effects == (Start(node.ledger.round, 0), MakeOffer())
    node.hears(Offered(offer("a", 9)))
    row = row_of(node.state)
    assert (row.phase, row.round, row.head, row.offer) == (Phase.RUNNING, 1, 2, offer("a", 9))


def test_only_rank_zero_uses_its_offer() -> None:
    assert [type(effect) for effect in Node("b").reads(sealed())] == [Start]


def test_a_round_without_this_node_is_only_seen() -> None:
    node = Node("c")
    assert node.reads(sealed()) == ()
    assert (row_of(node.state).phase, row_of(node.state).head) == (Phase.WAITING, 2)


def test_of_rounds_read_at_once_only_the_newest_is_started() -> None:
    """I5: no worker of round r starts after its node has seen a later one."""
    node = Node("a")
    effects = node.reads(sealed(1), halt(1), sealed(2))
    assert [effect.round.number for effect in effects if isinstance(effect, Start)] == [2]


def test_a_round_that_was_halted_before_it_was_read_is_not_started() -> None:
    node = Node("a")
    assert Start not in map(type, node.reads(sealed(1), halt(1)))
    assert row_of(node.state).phase is Phase.WAITING


def test_an_offer_that_a_round_used_is_renewed_even_by_who_never_started_that_round() -> None:
    node = Node("a")
    assert node.reads(sealed(1), halt(1)) == (MakeOffer(),)
    assert node.hears(Offered(offer("a", 9))) == ()
    assert Node("b").reads(sealed(1), halt(1)) == (), "the offer was not b's"


def test_an_offer_that_any_of_many_rounds_read_at_once_used_is_renewed() -> None:
    """I2: no round is given a store that served before, with what its workers left there."""
    node = Node("a")
    effects = node.reads(sealed(1), halt(1), sealed(2, names="bc"))
    assert (effects, row_of(node.state).offer) == ((MakeOffer(),), None)


def test_a_used_offer_is_not_shown_until_there_is_a_new_one() -> None:
    node = Node("a")
    node.reads(sealed(1))
    assert row_of(node.state).offer is None
    node.hears(Offered(offer("a", 2)))
    assert row_of(node.state).offer == offer("a", 2)


@pytest.mark.parametrize(("reason", "planned"), [(HaltReason.RESIZE, True), (HaltReason.NODE_LOST, False)])
def test_a_halt_stops_workers_and_the_stop_is_reported_only_when_all_are_gone(
    reason: HaltReason, planned: bool
) -> None:
    node = running()
    assert node.reads(halt(reason=reason)) == (Stop("b is lost", planned),)
    assert (row_of(node.state).phase, row_of(node.state).head) == (Phase.RUNNING, 3)
    assert node.hears(WorkersGone()) == ()
    assert row_of(node.state).phase is Phase.STOPPED


def test_the_next_round_starts_only_when_the_last_process_of_the_old_one_is_gone() -> None:
    """I9, also when one entry restarts the same members."""
    node = running()
    (stop,) = node.reads(Round(number=2, offer=offer("a", 2), same_as=1))
    assert isinstance(stop, Stop)
    (again, *_) = node.hears(WorkersGone())
    assert isinstance(again, Start)
    assert (again.round.number, again.round.members) == (2, members("ab"))


def test_a_failed_rank_stops_the_others_at_once_and_is_reported() -> None:
    node = running()
    failure = incident("a")
    (stop,) = node.hears(WorkerFailed(failure))
    assert isinstance(stop, Stop)
    assert not stop.planned
    assert row_of(node.state).incident == failure


def test_only_the_first_failure_of_a_round_is_reported() -> None:
    node = running()
    first = incident("a")
    assert node.hears(WorkerFailed(first), WorkerFailed(incident("a", after=9.0))) == ()
    assert row_of(node.state).incident == first


@pytest.mark.parametrize("reported_by", ["a", "b"])
def test_a_cause_that_is_known_while_workers_are_stopped_replaces_what_followed_from_it(reported_by: str) -> None:
    """The node itself has reported that a peer is gone, or the round was halted because another node has."""
    node, peer = (
        running(),
        replace(incident(reported_by), message="RuntimeError: Connection closed by peer", follows_peer=True),
    )
    if reported_by == "a":
        node.hears(WorkerFailed(peer))
    else:
        node.reads(replace(halt(), incident=peer))
    killed = replace(incident("a"), exit_code=-9)
    node.hears(WorkerFailed(killed))
    assert row_of(node.state).incident == killed
    node.hears(WorkerFailed(replace(incident("a"), exit_code=-11)))
    assert row_of(node.state).incident == killed


def test_a_rank_that_exited_early_stands_until_a_failure_explains_more() -> None:
    node, peer = running(), replace(incident("b"), message="RuntimeError: Connection closed by peer", follows_peer=True)
    node.reads(replace(halt(), incident=peer))
    early = replace(incident("a", kind=IncidentKind.EXITED_EARLY), exit_code=0)
    node.hears(WorkerFailed(early))
    assert known_failure(node.state) == row_of(node.state).incident == early
    killed = replace(incident("a"), exit_code=-9)
    node.hears(WorkerFailed(peer), WorkerFailed(killed), WorkerFailed(early))
    assert known_failure(node.state) == row_of(node.state).incident == killed


def test_how_many_workers_failed_alike_is_known_of_a_stopped_round_and_of_no_other() -> None:
    node = running()
    node.hears(WorkerFailed(incident("a")))
    assert row_of(node.state).alike == 0
    node.hears(WorkersGone(2))
    assert row_of(node.state).alike == 2
    node.reads(Round(number=2, offer=offer("a", 2), same_as=1))
    assert row_of(node.state).alike == 0


def test_a_failure_in_a_round_that_is_being_stopped_is_no_incident() -> None:
    node = running()
    node.reads(halt())
    node.hears(WorkerFailed(incident("a")))
    assert row_of(node.state).incident is None


def test_an_incident_is_forgotten_with_the_next_round() -> None:
    node = running()
    node.hears(WorkerFailed(incident("a")), WorkersGone())
    node.reads(Round(number=2, offer=offer("a", 2), same_as=1))
    assert (row_of(node.state).incident, row_of(node.state).round) == (None, 2)


def test_a_finished_node_stays_until_the_job_is_closed() -> None:
    node = running()
    assert node.hears(WorkersDone()) == ()
    assert row_of(node.state).phase is Phase.FINISHED
    assert node.reads(Closed(success=True, why="done", exit_code=0)) == (Exit(0, "done"),)


def test_a_finished_node_restarts_when_another_fails_later() -> None:
    node = running()
    node.hears(WorkersDone())
    assert node.reads(halt(), sealed(2)) == (Stop("what they left behind"),)
    assert row_of(node.state).phase is Phase.FINISHED
    (again, *_) = node.hears(WorkersGone())
    assert isinstance(again, Start)


def test_a_finished_node_that_is_dropped_waits_for_another_round() -> None:
    node = running("b")
    node.hears(WorkersDone())
    assert node.reads(halt(), sealed(2, names="a")) == (Stop("what they left behind"),)
    node.hears(WorkersGone())
    assert row_of(node.state).phase is Phase.WAITING


def test_a_finished_node_that_was_dropped_from_a_round_that_is_halted_waits_for_another_round() -> None:
    """It was cut off through all of that, and reads it at once."""
    node = running("b")
    node.hears(WorkersDone())
    assert node.reads(halt(), sealed(2, names="ac"), halt(2)) == (Stop("what they left behind"),)
    node.hears(WorkersGone())
    assert row_of(node.state).phase is Phase.WAITING


def test_a_dropped_node_that_lives_waits_for_another_round() -> None:
    node = running("b")
    node.reads(halt(), sealed(2, names="a"))
    node.hears(WorkersGone())
    assert row_of(node.state).phase is Phase.WAITING


def test_a_node_dropped_while_running_stops_before_anything_else() -> None:
    """FAULTS 6: it slept through HALT and ROUND, and reads both at once."""
    node = running("b")
    (stop,) = node.reads(halt(), sealed(2, names="a"))
    assert isinstance(stop, Stop)


def test_leaving_is_announced_at_once_and_ends_when_the_workers_are_gone() -> None:
    node = running()
    assert node.hears(SIGTERM) == (Stop("received SIGTERM", planned=True),)
    assert (row_of(node.state).leaving, row_of(node.state).phase) == (True, Phase.RUNNING)
    assert node.hears(WorkersGone()) == (Exit(143, "received SIGTERM"),)
    assert row_of(node.state).phase is Phase.STOPPED


def test_a_leaving_node_without_workers_ends_at_once_and_starts_none() -> None:
    node = Node("a")
    assert node.hears(SIGTERM) == (Exit(143, "received SIGTERM"),)
    assert node.reads(sealed()) == (Exit(143, "received SIGTERM"),)


def test_finished_stands_when_told_to_leave() -> None:
    node = running()
    node.hears(WorkersDone())
    assert node.hears(SIGTERM) == (Exit(143, "received SIGTERM"),)
    assert row_of(node.state).phase is Phase.FINISHED


def test_closed_stops_what_runs_and_then_exits_with_the_verdicts_code() -> None:
    node = running()
    (stop,) = node.reads(Closed(success=False, why="no restart is left", exit_code=1))
    assert isinstance(stop, Stop)
    assert node.hears(WorkersGone()) == (Exit(1, "no restart is left"),)


def test_nothing_after_closed_is_listened_to() -> None:
    """I12: what follows is another run's."""
    node = Node("a")
    closed = Closed(success=True, why="done", exit_code=0)
    done = entry(node.ledger, closed, at=1.0)
    later = replace(entry(then(node.ledger, closed, at=1.0), Leader(why="?"), at=2.0), run="run2")
    assert node.hears(EntriesRead((done, later), 2.0)) == (Exit(0, "done"),)


def test_a_fenced_node_says_that_it_stopped_and_does_not_start_the_same_round_again() -> None:
    node = running()
    assert node.hears(WorkersGone()) == ()
    assert row_of(node.state).phase is Phase.STOPPED


class TestLostEmbeddedStore:
    def test_healthy_workers_may_finish(self) -> None:
        node = running()
        assert node.hears(StoreLost()) == ()
        (end,) = node.hears(WorkersDone())
        assert isinstance(end, Exit)
        assert end.code == ExitCode.SUCCESS

    def test_workers_that_fail_cannot_be_restarted(self) -> None:
        node = running()
        (stop,) = node.hears(StoreLost(), WorkerFailed(incident("a")))
        assert isinstance(stop, Stop)
        (end,) = node.hears(WorkersGone())
        assert isinstance(end, Exit)
        assert end.code == ExitCode.STORE_LOST

    def test_a_node_without_workers_ends(self) -> None:
        (end,) = Node("a").hears(StoreLost())
        assert isinstance(end, Exit)
        assert end.code == ExitCode.STORE_LOST


def test_progress_counts_for_its_own_round_only() -> None:
    node = running()
    node.hears(Progressed(7))
    assert not row_of(node.state).progressed
    node.hears(Progressed(1))
    assert row_of(node.state).progressed
    assert node.state.work is Work.RUNNING


# A store that lost history (S3) --------------------------------------------------------------------------------------


def test_a_resumed_run_leaves_the_workers_of_its_round_alone() -> None:
    for by_reading in (True, False):
        node = running()
        after = resumed(node.ledger, on=node.ledger.head.link)
        event: NodeEvent = EntriesRead((after.head,), 2.0) if by_reading else HistoryReplaced(after)
        assert node.hears(event) == (MakeOffer(),), "what the store lost may have used the last one"
        assert (node.state.work, node.state.row.round, node.state.row.phase) == (Work.RUNNING, 1, Phase.RUNNING)
        row = row_of(node.state)
        assert (row.head, row.epoch) == (after.head.index, 1)


def elsewhere(names: str) -> Ledger:
    """The same run, as it went on without this node: another round of the same number."""
    return then(start(), Round(number=1, offer=offer("b", 5), members=members(names)), at=1.0)


def test_a_round_that_is_not_in_the_new_history_is_stopped_and_the_right_one_started() -> None:
    node = running()
    (stop,) = node.hears(HistoryReplaced(elsewhere("ba")))
    assert isinstance(stop, Stop)
    assert (node.state.work, row_of(node.state).phase, row_of(node.state).round) == (Work.STOPPING, Phase.RUNNING, 0)
    current = node.state.ledger.round
    assert current is not None
    assert node.hears(WorkersGone()) == (Start(current, 0), MakeOffer()), "only when no process is left (I9)"
    assert (node.state.row.phase, node.state.row.round) == (Phase.RUNNING, 1)


def test_a_round_that_was_stopped_here_is_not_started_again_when_the_store_goes_back_to_it() -> None:
    node = running()
    first = node.ledger
    node.reads(halt())
    node.hears(WorkersGone())
    node.reads(sealed(2, "a"))
    node.hears(HistoryReplaced(resumed(first, on=first.head.link)))
    assert node.state.work is Work.STOPPING
    assert node.hears(WorkersGone()) == (MakeOffer(),)
    assert (node.state.row.phase, node.state.row.round) == (Phase.STOPPED, 1), "which proves that the round is over"


def test_an_offer_that_the_new_history_may_have_used_is_renewed() -> None:
    node = Node()
    mine = node.state.row.offer
    assert mine is not None
    used = then(start(), Round(number=1, offer=mine, members=members("ab")), at=1.0)
    assert node.hears(HistoryReplaced(then(used, halt(), at=2.0))) == (MakeOffer(),)
    assert row_of(node.state).offer is None


def test_an_offer_that_a_lost_round_may_have_used_which_this_node_never_read_of_is_renewed() -> None:
    node = running()
    before = node.ledger
    node.reads(halt())
    node.hears(WorkersGone())
    assert node.hears(HistoryReplaced(then(before, halt(reason=HaltReason.FAILURE), at=2.0))) == (MakeOffer(),)
    assert row_of(node.state).offer is None
    assert (node.state.row.phase, node.state.row.round) == (Phase.STOPPED, 1)


def test_an_offer_that_a_round_of_the_new_history_has_taken_is_replaced() -> None:
    """The node had not read of it before the store lost it."""
    node, offered = running(), offer("a", 2)
    node.hears(Offered(offered))
    taken = then(node.state.ledger, Round(number=2, offer=offered, same_as=1), at=2.0)
    (stop,) = node.hears(HistoryReplaced(taken))
    assert isinstance(stop, Stop)
    assert node.state.row.offer is None
    start, make = node.hears(WorkersGone())
    assert isinstance(start, Start)
    assert make == MakeOffer()


def test_a_round_of_the_same_number_and_offer_but_with_other_members_is_another() -> None:
    """Its leader had not read of the lost one."""
    node = running()
    before, current = node.state, node.state.ledger.round
    assert current is not None
    node.hears(HistoryReplaced(then(start(), replace(current, members=members("bc")), at=1.0)))
    assert node.state.work is Work.STOPPING
    assert failed_round(before, node.state) is None
    node.hears(WorkersGone())
    assert row_of(node.state).phase is Phase.WAITING


def test_a_node_that_the_new_history_left_out_waits_as_a_newcomer() -> None:
    node = running()
    node.hears(HistoryReplaced(elsewhere("b")), WorkersGone())
    row = row_of(node.state)
    assert (row.phase, row.round, row.incident) == (Phase.WAITING, 0, None)


def test_workers_that_finished_in_a_lost_round_do_not_count_in_another_of_the_same_number() -> None:
    node = running()
    node.hears(WorkersDone())
    assert row_of(node.state).phase is Phase.FINISHED
    node.hears(HistoryReplaced(elsewhere("ba")))
    assert row_of(node.state).phase is not Phase.FINISHED


def test_a_node_whose_run_is_gone_stops_its_workers_and_begins_again() -> None:
    node = running()
    assert node.hears(RunReplaced("run x has begun there")) == (Stop("run x has begun there"),)
    assert node.hears(WorkersGone()) == (Exit(ExitCode.STORE_LOST, "run x has begun there", rejoin=True),)


def test_a_node_whose_run_is_gone_but_whose_work_is_done_has_done_its_part() -> None:
    node = running()
    (end,) = node.hears(WorkersDone(), RunReplaced("run x has begun there"))
    assert isinstance(end, Exit)
    assert (end.code, end.rejoin) == (ExitCode.SUCCESS, False)


# Probes (L5) ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "probes"),
    [
        (WorkerFailed(incident("a")), True),
        (SIGTERM, False),
        (RunReplaced("x"), False),
        (HistoryReplaced(elsewhere("ba")), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_peers_are_probed_when_a_round_fails(event: NodeEvent, probes: bool) -> None:
    node = running()
    before = node.state
    node.hears(event)
    assert node.state.work is Work.STOPPING
    assert failed_round(before, node.state) == (before.ledger.round if probes else None)
    again = node.state
    node.hears(WorkersGone())
    assert failed_round(again, node.state) is None, "once"


@pytest.mark.parametrize(
    ("reason", "probes"),
    [
        (HaltReason.FAILURE, True),
        (HaltReason.GIVING_UP, True),
        (HaltReason.RESIZE, False),
        (HaltReason.NODE_LOST, False),
        (HaltReason.NODE_LEFT, False),
        (HaltReason.UNSEEN, False),
    ],
)
def test_peers_are_probed_when_others_say_that_it_failed(reason: HaltReason, probes: bool) -> None:
    node = running()
    before = node.state
    node.reads(halt(reason=reason))
    assert (failed_round(before, node.state) is not None) is probes


def test_the_only_member_has_no_peers() -> None:
    node = running(names="a")
    before = node.state
    node.hears(WorkerFailed(incident("a")))
    assert failed_round(before, node.state) is None


def test_the_row_tells_whom_this_node_did_not_reach() -> None:
    node = running()
    node.hears(Probed(1, ("b",)))
    assert (row_of(node.state).probed, row_of(node.state).unreachable) == (1, ("b",))
    node.hears(Probed(1, ()))
    assert row_of(node.state).unreachable == ("b",), "an answer that comes late changes nothing"
    node.hears(Probed(2, ()))
    assert (row_of(node.state).probed, row_of(node.state).unreachable) == (2, ())


def test_that_all_peers_were_reached_is_not_told_once_the_next_round_is_live() -> None:
    node = running()
    node.reads(Round(number=2, offer=offer("b", 2), same_as=1))
    node.hears(WorkersGone())
    before = row_of(node.state)
    node.hears(Probed(1, ()))
    assert row_of(node.state) == before
    node.hears(Probed(1, ("b",)))
    assert row_of(node.state).unreachable == ("b",)
    node.reads(Round(number=3, offer=offer("b", 3), same_as=2))
    node.hears(WorkersGone(), Probed(2, ()))
    assert row_of(node.state).unreachable == (), "somebody was not, and now is"


class TestGracefulStops:
    """The reaction of a node to a PLAN; its row reports it."""

    PLAN = Plan(round=1, reason=HaltReason.RESIZE, why="c joins", deadline=60.0)

    def planned(self) -> Node:
        node = running()
        node.hears(Progressed(1, takes_notices=True))
        node.reads(self.PLAN)
        return node

    def answered(self) -> Node:
        node = self.planned()
        assert node.state.sent_notice is not None
        node.hears(Answered(node.state.sent_notice, (7, 8)))
        return node

    def test_workers_that_report_steps_are_known_to_take_notices(self) -> None:
        node = running()
        node.hears(Progressed(1, takes_notices=True))
        assert (row_of(node.state).takes_notices, row_of(node.state).progressed) == (True, True)

    def test_a_plan_is_passed_on_and_answered_once(self) -> None:
        node = running()
        node.hears(Progressed(1, takes_notices=True))
        (effect,) = node.reads(self.PLAN)
        assert effect == Notify(Notice(0, 3, 60.0))
        assert row_of(node.state).answered == 0
        node.hears(Answered(Notice(0, 3, 60.0), (7, 8)))
        assert (row_of(node.state).answered, row_of(node.state).steps) == (3, (7, 8))
        assert node.reads(Leader(why="a leaves")) == ()

    @pytest.mark.parametrize("leaving", [False, True])
    def test_so_is_the_step_and_the_answer_stays(self, leaving: bool) -> None:
        node = self.answered()
        effects = node.reads(StopAt(round=1, step=9, leaving=leaving))
        assert effects == (Notify(Notice(0, 3, 60.0, 9, leaving=leaving)),)
        assert row_of(node.state).steps == (7, 8)

    def test_workers_that_have_reported_nothing_are_not_told(self) -> None:
        assert running().reads(self.PLAN) == ()

    def test_workers_that_stop_as_told_are_stopped_and_not_finished(self) -> None:
        node = self.answered()
        node.reads(StopAt(round=1, step=9))
        assert node.hears(WorkersDone(stepped_down=True)) == (Stop("what they left behind"),)
        assert node.hears(WorkersGone()) == ()
        row = row_of(node.state)
        assert (row.phase, row.stepped_down) == (Phase.STOPPED, True)
        assert type(node.reads(halt(reason=HaltReason.RESIZE), sealed(2))[0]) is Start
        assert (row_of(node.state).stepped_down, row_of(node.state).answered) == (False, 0)

    def test_workers_that_wait_for_a_step_are_let_go_before_they_are_stopped(self) -> None:
        effects = self.answered().reads(halt(reason=HaltReason.FAILURE))
        assert effects == (Notify(None), Stop("b is lost"))

    def test_they_are_let_go_when_there_will_be_no_further_entry(self) -> None:
        assert self.answered().hears(StoreLost()) == (Notify(None),)

    def test_but_a_step_that_they_know_stays(self) -> None:
        node = self.answered()
        node.reads(StopAt(round=1, step=9))
        assert node.hears(StoreLost()) == ()

    def test_a_plan_that_a_resumed_run_has_is_passed_on_again(self) -> None:
        node = self.answered()
        effects = node.hears(HistoryReplaced(resumed(node.ledger)))
        (notify,) = [effect for effect in effects if isinstance(effect, Notify)]
        assert notify.notice is not None
        assert (notify.notice.epoch, notify.notice.step) == (1, None)
        assert row_of(node.state).steps == ()

    def test_a_planned_halt_gives_workers_the_time_to_save(self) -> None:
        planned = Halt(round=1, reason=HaltReason.NODE_LEFT, why="b leaves", planned=True)
        assert running().reads(planned) == (Stop("b leaves", planned=True),)

    def test_an_announced_leaving_lets_workers_go_on(self) -> None:
        node = running()
        assert node.hears(Leaving("received SIGTERM", 143, 30.0)) == ()
        assert (row_of(node.state).leaving, row_of(node.state).grace) == (True, 30.0)
        assert node.hears(SIGTERM) == (Stop("received SIGTERM", planned=True),)
        assert row_of(node.state).grace == 0.0

    @pytest.mark.parametrize("grace", [0.5, 30.0])
    def test_a_node_that_leaves_as_planned_stays_until_all_others_have_stopped(self, grace: float) -> None:
        node = self.answered()
        node.hears(Leaving("received SIGTERM", 143, grace))
        node.reads(StopAt(round=1, step=9))
        node.hears(WorkersDone(stepped_down=True))
        assert node.hears(WorkersGone()) == (), "they may need the store that is here"
        assert node.reads(halt(reason=HaltReason.RESIZE)) == (Exit(143, "received SIGTERM"),)

    def test_its_peers_are_not_probed_for_that(self) -> None:
        node = self.answered()
        after, _ = step(node.state, WorkersDone(stepped_down=True))
        assert failed_round(node.state, after) is None


def excluding(ledger: Ledger, host: str = "a", until: int | None = None) -> Ledger:
    return with_counters(ledger, excluded=(Exclusion(f"id-host-{host}", until),))


CLOSED = then(live("bc"), Closed(success=True, why="done", exit_code=0), at=50.0)


@pytest.mark.parametrize(
    ("before", "after", "excluded"),
    [
        pytest.param(live("bc"), excluding(live("bc")), True, id="just now"),
        pytest.param(live("bc"), excluding(live("bc"), until=90), True, id="for a while"),
        pytest.param(live("bc"), excluding(live("bc"), until=40), False, id="not any more"),
        pytest.param(excluding(live("bc")), excluding(live("bc")), False, id="before"),
        pytest.param(live("bc"), excluding(live("bc"), "b"), False, id="another host"),
        pytest.param(live("bc"), excluding(live("ab")), False, id="needed all the same"),
        pytest.param(live("bc"), excluding(CLOSED), False, id="at the end"),
    ],
)
def test_a_host_is_newly_excluded(before: Ledger, after: Ledger, excluded: bool) -> None:
    known, state = (NodeState(row=NodeRow(info=info("a")), ledger=ledger) for ledger in (before, after))
    assert is_newly_excluded(known, state, 50.0) is excluded
    leaving = replace(state, leaving=Leaving("received SIGTERM", 143))
    assert not is_newly_excluded(known, leaving, 50.0), "it leaves already"
