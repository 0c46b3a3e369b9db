"""The counters of the ledger in the next round."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_leader_edges import NOW, RESTART, outcome, running, stopped, view
from views import halted, incident, info, live, offer, seen, then, watch, with_counters

from elastic_core.incidents import Failure, Incident, IncidentKind
from elastic_core.protocol.counters import (
    LOSSES_KEPT_SECONDS,
    as_record,
    judged_progress,
    next_counters,
    past_failures,
)
from elastic_core.protocol.entries import Counters, Exclusion, Halt, HaltReason, HostLosses, Round, SpentRestart
from elastic_core.protocol.failure_detector import NodeView
from elastic_core.protocol.leader import decide
from elastic_core.protocol.leader_entries import Append
from elastic_core.protocol.leader_view import LeaderView
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.limits import MAX_FAILURES, MAX_HOSTS
from elastic_core.protocol.roster import LastCheckpoint, Phase, Reached

AGE = 50_000.0


def after_losing_b(ledger: Ledger, here: str = "a") -> Counters:
    """The counters of the round without b; there are rows of b and of ``here``, and there was one of c."""
    nodes = [seen(name, Phase.STOPPED, head=3) for name in here]
    nodes += [replace(seen("c", head=3), listed=False)]
    known = LeaderView(
        ledger=ledger, watch=watch(*nodes, seen("b", Phase.RUNNING, head=2, changed=0.0), now=NOW), now=NOW
    )
    assert ledger.round is not None
    assert ledger.halt is not None
    counters, _ = next_counters(known, ledger.round, ledger.halt.incident)
    return counters


def grown_old(losses: dict[str, HostLosses], excluded: tuple[Exclusion, ...] = (), names: str = "ab") -> Ledger:
    """A run that is AGE seconds old at NOW."""
    ledger = with_counters(halted(names, HaltReason.NODE_LOST), losses=losses, excluded=excluded)
    return replace(ledger, head=replace(ledger.head, age=AGE - (NOW - ledger.head_at)))


@pytest.mark.parametrize(
    ("host", "age", "kept"),
    [
        ("a host without a row", AGE - LOSSES_KEPT_SECONDS + 1, True),
        ("a host without a row", AGE - LOSSES_KEPT_SECONDS, False),
        ("id-host-a", 0.0, True),
        ("id-host-c", 0.0, False),
    ],
    ids=["within the hour", "before", "and it has a row again", "and the store has lost its row"],
)
def test_the_losses_of_a_host_are_kept_for_an_hour_or_while_it_has_a_row(host: str, age: float, kept: bool) -> None:
    counters = after_losing_b(grown_old({host: HostLosses(2, age)}))
    assert (host in counters.losses) is kept
    assert counters.losses["id-host-b"] == HostLosses(1, AGE)


def test_a_host_is_bad_that_was_excluded_or_lost_three_times() -> None:
    losses = {f"lost {count} times": HostLosses(count, 0.0) for count in (2, 3, 4)}
    assert Counters(losses=losses, excluded=(Exclusion("x"),)).bad_hosts(AGE) == {"lost 3 times", "lost 4 times", "x"}


def test_another_loss_of_a_host_counts_and_is_the_newest() -> None:
    assert after_losing_b(grown_old({"id-host-b": HostLosses(2, AGE - 7)})).losses == {"id-host-b": HostLosses(3, AGE)}
    ledger = grown_old({})
    ledger = replace(ledger, head=replace(ledger.head, age=ledger.head.age + 0.26))
    assert after_losing_b(ledger).losses == {"id-host-b": HostLosses(1, AGE + 0.3)}


def test_of_too_many_those_with_most_losses_stay_and_then_the_newest() -> None:
    often = {f"often {i}": HostLosses(2, AGE - 3000) for i in range(100)}
    once = {f"once {i}": HostLosses(1, AGE - 1000 + i) for i in range(300)}
    losses = after_losing_b(grown_old({**once, **often})).losses
    newest = {f"once {i}" for i in range(300 - (MAX_HOSTS - 100 - 1), 300)}
    assert losses.keys() == often.keys() | newest | {"id-host-b"}


def test_of_too_many_excluded_hosts_those_stay_that_have_a_row_and_then_the_newest() -> None:
    excluded = (Exclusion("id-host-a"), *(Exclusion(f"gone {i}") for i in range(MAX_HOSTS - 1)))
    view_ledger = grown_old({}, excluded)
    nodes = [seen(name, Phase.STOPPED, head=3) for name in "ab"]
    known = LeaderView(ledger=view_ledger, watch=watch(*nodes, now=NOW), now=NOW)
    assert view_ledger.round is not None
    assert view_ledger.halt is not None
    counters, _ = next_counters(known, view_ledger.round, view_ledger.halt.incident, unreachable="b")
    names = {one.host_id for one in counters.excluded}
    assert names == {"id-host-a", "id-host-b", *(f"gone {i}" for i in range(1, MAX_HOSTS - 1))}


@pytest.mark.parametrize("others", [1, MAX_HOSTS - 2])
def test_excluded_hosts_stand_in_the_order_in_which_they_were_left_out(others: int) -> None:
    excluded = (Exclusion("id-host-a"), *(Exclusion(f"gone {i}") for i in range(others)))
    ledger = grown_old({}, excluded)
    known = LeaderView(
        ledger=ledger, watch=watch(*(seen(name, Phase.STOPPED, head=3) for name in "ab"), now=NOW), now=NOW
    )
    assert ledger.round is not None
    assert ledger.halt is not None
    counters, _ = next_counters(known, ledger.round, ledger.halt.incident, unreachable="b")
    assert counters.excluded == (*excluded, Exclusion("id-host-b"))


def test_a_round_that_follows_a_resize_spends_no_restart() -> None:
    ledger = halted("ab", HaltReason.RESIZE)
    known = LeaderView(
        ledger=ledger, watch=watch(*(seen(name, Phase.STOPPED, head=3) for name in "ab"), now=NOW), now=NOW
    )
    assert ledger.round is not None
    assert ledger.halt is not None
    counters, spends = next_counters(known, ledger.round, ledger.halt.incident)
    assert (counters.restarts, spends) == (0, False)


def test_nodes_of_one_host_count_each() -> None:
    ledger = grown_old({}, names="abc")
    lost = [
        replace(seen(name, Phase.RUNNING, head=2, changed=0.0), row=seen(name, Phase.RUNNING, head=2).row)
        for name in "bc"
    ]
    shared = [replace(one, row=replace(one.row, info=info(one.node_id, host="shared"))) for one in lost]
    known = LeaderView(ledger=ledger, watch=watch(seen("a", Phase.STOPPED, head=3), *shared, now=NOW), now=NOW)
    assert ledger.round is not None
    assert ledger.halt is not None
    counters, _ = next_counters(known, ledger.round, ledger.halt.incident)
    assert counters.losses == {"id-shared": HostLosses(2, AGE)}


class TestRoundsWithoutProgress:
    """Rule L4: the tenth in a row ends the job, and the first cause of the last one is its verdict."""

    early, late = incident("a", after=5.1), incident("b", after=5.2)

    @pytest.mark.parametrize("blame", [early, late])
    def test_the_first_cause_is_among_the_reports_and_what_the_halt_names(self, blame: Incident) -> None:
        other = self.late if blame is self.early else self.early
        ledger = with_counters(halted("ab", HaltReason.FAILURE, at=NOW - 9, blame=blame), barren=9)
        assert outcome(view(ledger, stopped("a"), stopped("b"), verdict=RESTART)).incident == blame
        known = view(ledger, stopped("a"), stopped("b", incident=other), verdict=RESTART)
        assert outcome(known).incident == self.early

    def test_the_last_one_need_not_have_been_halted(self) -> None:
        ledger = with_counters(live("ab"), barren=9)
        closed = outcome(view(ledger, running("a"), running("b", incident=self.late), verdict=RESTART))
        assert (closed.success, closed.incident) == (False, self.late)

    def test_a_member_that_made_progress_is_enough_if_it_was_in_this_round(self) -> None:
        for number, barren in ((1, 0), (0, 5)):
            ledger = with_counters(halted("ab", HaltReason.NODE_LEFT), barren=4)
            decision = decide(view(ledger, stopped("a", number=number, progressed=True), stopped("b")))
            assert isinstance(decision, Append)
            assert decision.counters.barren == barren


@pytest.mark.parametrize(
    ("charged", "b", "restarts"),
    [
        pytest.param(True, running("b", head=2, changed=0.0), 0, id="it never saw the round"),
        pytest.param(False, running("b", head=2, changed=0.0), 1, id="which had spent no restart"),
        pytest.param(
            True, running("b", head=3, changed=0.0), 1, id="it saw the round, and started none of its workers"
        ),
    ],
)
def test_a_restart_is_given_back_if_a_lost_member(charged: bool, b: NodeView, restarts: int) -> None:
    again = Round(number=2, offer=offer("a", 2), same_as=1, charged=charged)
    ledger = with_counters(then(live("ab"), again, at=20.0), restarts=1)
    ledger = then(ledger, Halt(round=2, reason=HaltReason.NODE_LOST, why="b"), at=21.0)
    decision = decide(view(ledger, stopped("a", number=2, head=4, offer=offer("a", 3)), b))
    assert isinstance(decision, Append)
    assert decision.counters.restarts == restarts


def test_the_newest_failures_that_spent_a_restart_are_remembered() -> None:
    ledger = live("ab", at=10.0)
    for step in range(MAX_FAILURES + 2):
        blame = replace(incident("a"), message="ValueError: boom", exception="ValueError", step=step)
        assert ledger.round is not None
        counters, spends = next_counters(view(ledger, running("a"), running("b")), ledger.round, blame)
        assert spends
        ledger = with_counters(ledger, failures=counters.failures)
    remembered = past_failures(ledger, NOW + 5.0)
    assert [one.step for one in remembered] == list(range(2, MAX_FAILURES + 2))
    assert remembered[-1] == Failure(
        round=1,
        rank=0,
        host="host-a",
        exception="ValueError",
        exit_code=1,
        step=MAX_FAILURES + 1,
        seconds_ago=5.0,
        digest=blame.digest,
        after=5.0,
    )


@pytest.mark.parametrize(
    ("b", "number", "new"),
    [
        (LastCheckpoint(9.0, saved=True, newer=True), 1, True),
        (LastCheckpoint(9.0, saved=True), 1, False),
        (None, 1, False),
        (LastCheckpoint(9.0, saved=True, newer=True), 0, False),
    ],
    ids=["newer", "one that was known", "none", "of an earlier round"],
)
def test_the_ledger_remembers_which_failures_came_after_a_new_checkpoint(
    b: LastCheckpoint | None, number: int, new: bool
) -> None:
    blame = incident("a")
    ledger = with_counters(
        halted("ab", HaltReason.FAILURE, blame=blame),
        failures=(SpentRestart(failure=replace(as_record(blame), round=7, new_checkpoint=True), age=1.0),),
    )
    assert ledger.round is not None
    assert ledger.halt is not None
    nodes = [seen("a", Phase.STOPPED, head=3), seen("b", Phase.STOPPED, head=3, number=number, checkpoint=b)]
    known = LeaderView(ledger=ledger, watch=watch(*nodes, now=NOW), now=NOW)
    counters, spends = next_counters(known, ledger.round, ledger.halt.incident)
    assert spends
    remembered = past_failures(with_counters(ledger, failures=counters.failures), NOW)
    assert [(one.round, one.new_checkpoint) for one in remembered] == [(7, True), (1, new)]


def test_a_failure_is_remembered_with_short_texts_and_tenths_of_seconds() -> None:
    ledger = halted("ab", HaltReason.FAILURE, at=NOW - 1.0)
    ledger = replace(ledger, head=replace(ledger.head, age=10.0))
    assert ledger.round is not None
    blame = replace(incident("a", after=5.26), host="h" * 50, exception="E" * 50)
    known = LeaderView(ledger=ledger, watch=watch(stopped("a"), stopped("b"), now=NOW + 0.26), now=NOW + 0.26)
    counters, _ = next_counters(known, ledger.round, blame)
    (spent,) = counters.failures
    assert (len(spent.failure.host.encode()), len(spent.failure.exception.encode())) == (37, 37)
    assert (spent.age, spent.failure.after) == (11.3, 5.3)
    (remembered,) = past_failures(with_counters(ledger, failures=counters.failures), NOW + 0.8)
    assert remembered.seconds_ago == pytest.approx(0.5)
    (remembered,) = past_failures(with_counters(ledger, failures=counters.failures), NOW - 0.5)
    assert remembered.seconds_ago == 0.0, "by the clock of a leader that came late"


@pytest.mark.parametrize(("counts_on", "step"), [(True, 30), (False, None)])
def test_of_a_failure_only_a_step_that_counts_on_over_rounds_is_remembered(counts_on: bool, step: int | None) -> None:
    assert as_record(replace(incident("a"), step=30, counts_on=counts_on)).step == step


@pytest.mark.parametrize(
    ("own", "told", "past", "step"),
    [
        pytest.param(None, 30, None, 30, id="nothing is known of the past"),
        pytest.param(None, 31, 30, 31, id="newer"),
        pytest.param(None, 30, 30, None, id="it was reached before, and the row may be old"),
        pytest.param(29, 30, 30, 30, id="the leader knows a step itself"),
    ],
)
def test_a_step_that_another_node_tells_counts_at_a_judgement_if_it_is_new(
    own: int | None, told: int, past: int | None, step: int | None
) -> None:
    rows = [running("b", reached=Reached(1, told)).row]
    known = None if own is None else Reached(1, own)
    failures = [] if past is None else [as_record(replace(incident("a", number=0), step=past))]
    assert judged_progress(incident("a"), rows, known, failures).step == step


def test_only_failures_of_workers_are_remembered() -> None:
    ledger = live("ab")
    assert ledger.round is not None
    lost_store = replace(incident("a"), kind=IncidentKind.STORE_DIED)
    counters, spends = next_counters(view(ledger, running("a"), running("b")), ledger.round, lost_store)
    assert (counters.failures, spends) == ((), False)
    ledger = halted("ab", HaltReason.FAILURE, blame=incident("a"))
    assert ledger.round is not None
    assert ledger.halt is not None
    known = view(ledger, stopped("a"), stopped("b", leaving=True))
    counters, spends = next_counters(known, ledger.round, ledger.halt.incident)
    assert (counters.failures, spends) == ((), False), "the workers failed because b left"


def test_a_restart_that_is_given_back_takes_its_failure_along() -> None:
    spent = SpentRestart(failure=as_record(incident("a")), age=1.0)
    again = Round(number=2, offer=offer("a", 2), same_as=1, charged=True)
    ledger = with_counters(then(live("ab"), again, at=20.0), restarts=2, failures=(spent, replace(spent, age=2.0)))
    ledger = then(ledger, Halt(round=2, reason=HaltReason.NODE_LOST, why="b"), at=21.0)
    known = view(ledger, stopped("a", number=2, head=4, offer=offer("a", 3)), running("b", head=2, changed=0.0))
    decision = decide(known)
    assert isinstance(decision, Append)
    assert decision.counters is not None
    assert decision.counters.failures == (spent,)


def test_the_age_of_a_run_is_that_of_its_newest_entry_and_the_time_since() -> None:
    ledger = live("a", at=10.0)
    assert [LeaderView(ledger=ledger, watch=watch(), now=now).age for now in (9.0, 10.0, 10.5)] == [10.0, 10.0, 10.5]


def test_the_ledger_hears_one_round_later_how_far_a_round_came() -> None:
    """A restart does not wait until the last node has stopped, so the ROUND is written before its row is."""
    ledger = live("ab", at=10.0)
    assert ledger.round is not None
    blame = replace(incident("a"), message="ValueError: boom", where="train.py:41 in step: x")
    old = [running("a"), running("b", reached=Reached(1, 20))]
    first, _ = next_counters(view(ledger, *old), ledger.round, blame)
    (known,) = past_failures(with_counters(ledger, failures=first.failures), NOW)
    assert (known.step, known.moved, known.place, known.digest) == (20, False, "train.py:41 in step", blame.digest)
    rows = [running("a"), running("b", reached=Reached(1, 90, moved=True, saved=True))]
    (known,) = past_failures(with_counters(ledger, failures=first.failures), NOW, [node.row for node in rows])
    assert (known.step, known.moved, known.new_checkpoint) == (90, True, True)
    ledger = with_counters(ledger, failures=first.failures)
    assert ledger.round is not None
    second, _ = next_counters(view(ledger, *rows), ledger.round, replace(blame, round=2))
    known, newest = past_failures(with_counters(ledger, failures=second.failures), NOW)
    assert (known.step, known.moved, known.new_checkpoint) == (90, True, True)
    assert (newest.round, newest.step, newest.moved) == (2, None, False)
