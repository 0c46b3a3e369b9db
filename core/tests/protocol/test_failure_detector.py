"""Rule L1: liveness from heartbeats that stop changing over the leader's own successful reads."""

from __future__ import annotations

import math
from collections import UserDict
from collections.abc import Iterable, ValuesView
from dataclasses import replace
from typing import Any

import pytest
from views import incident, info, offer, start

from elastic_core.config.run import Timing
from elastic_core.protocol.failure_detector import (
    DeposedLeader,
    NodeView,
    Observation,
    Watch,
    contact_gap,
    forget,
    forget_older_epochs,
    is_lost,
    mark_interrupted,
    observe,
    roster_read_interval,
    vouch,
)
from elastic_core.protocol.leader_view import LeaderView
from elastic_core.protocol.roster import SLOTS, NodeInfo, NodeRow, Slots, find_gone_nodes

TIMING = Timing()


def row(
    name: str,
    serial: int,
    heartbeat: int = 0,
    *,
    head: int = 1,
    host: str | None = None,
    slots: Slots = Slots(),  # noqa: B008  # a value
    revision: int = 0,
) -> Observation:
    return Observation(NodeRow(info=info(name, host=host, slots=slots), head=head), serial, heartbeat, revision)


def watched(*reads: tuple[float, list[Observation]]) -> Watch:
    watch = Watch()
    for now, rows in reads:
        watch = observe(watch, rows, now)
    return watch


def test_a_node_is_lost_when_its_heartbeat_stood_still_for_the_limit() -> None:
    watch = watched(*[(now, [row("a", 1, int(now)), row("b", 2, 5)]) for now in (0.0, 2.0, 4.0, 6.0)])
    assert [is_lost(watch, name, TIMING, 6.0) for name in "ab"] == [False, True]


def test_a_change_of_the_row_is_as_good_as_a_heartbeat() -> None:
    watch = watched(
        (0.0, [row("a", 1)]), (2.0, [row("a", 1)]), (4.0, [row("a", 1, head=2)]), (6.0, [row("a", 1, head=2)])
    )
    assert not is_lost(watch, "a", TIMING, 6.0)
    assert watch.nodes["a"].seen_at == 4.0


def test_after_a_gap_in_its_own_reads_the_leader_judges_nobody_for_a_full_period() -> None:
    """FAULTS 6 and 16: it was the leader that slept."""
    watch = watched((0.0, [row("a", 1)]), (60.0, [row("a", 1)]))
    assert not is_lost(watch, "a", TIMING, 60.0)
    assert not is_lost(watch, "a", TIMING, 65.9)
    assert is_lost(watch, "a", TIMING, 66.0)


def test_only_what_the_leader_has_itself_seen_to_change_is_a_sign() -> None:
    first, then = [row("a", 1), row("b", 2)], [row("a", 1, heartbeat=2), row("b", 2)]
    found = watched((10.0, first), (12.0, then), (30.0, then))
    assert [seen.sign_at for seen in found.nodes.values()] == [12.0, -math.inf]
    assert [seen.changed_at for seen in found.nodes.values()] == [30.0, 30.0], "after a gap, nobody is judged"


def test_a_look_that_comes_just_in_time_is_no_gap() -> None:
    watch = watched((0.0, [row("a", 1)]), (3.0, [row("a", 1)]), (6.0, [row("a", 1)]))
    assert (is_lost(watch, "a", TIMING, 6.0), watch.gap_at) == (True, -math.inf)
    assert observe(watch, [row("a", 1)], 9.1).gap_at == 9.1


def test_time_that_the_leader_chose_to_sleep_is_no_gap() -> None:
    """With 11,000 rows it lets changes gather for 1.1 s after each look, and then waits for a heartbeat."""
    watch = observe(Watch(), [row("a", 1)], 0.0)
    for now in (3.2, 6.4):
        watch = observe(watch, [row("a", 1)], now, slept=3.1)
    assert is_lost(watch, "a", TIMING, 6.4)
    assert not is_lost(observe(watch, [row("a", 1)], 13.0, slept=3.1), "a", TIMING, 13.0), (
        "3.5 s without an answer are one"
    )


@pytest.mark.parametrize(
    ("heartbeat", "lost_after", "seconds"), [(2.0, 6.0, 1.5), (0.5, 6.0, 0.5), (2.0, 8.0, 2.0), (5.0, 15.0, 3.75)]
)
def test_the_leader_looks_four_times_in_a_silence_and_once_a_heartbeat(
    heartbeat: float, lost_after: float, seconds: float
) -> None:
    """A heartbeat is seen one distance of looks late at most, so a silence is found after 5/4 of ``lost_after`` at
    most.
    """
    assert roster_read_interval(Timing(beat_interval=heartbeat, lost_after=lost_after)) == seconds


def test_a_look_that_always_takes_long_is_no_gap() -> None:
    assert contact_gap(TIMING, 1.0) == contact_gap(TIMING)
    assert contact_gap(TIMING, 4.0) == 6.0


def test_a_connection_that_broke_is_a_gap_however_short() -> None:
    """Others were cut off as well, and try again at instants of their own."""
    watch = mark_interrupted(watched((0.0, [row("a", 1)]), (2.0, [row("a", 1)])))
    watch = observe(watch, [], 2.5)
    assert not is_lost(watch, "a", TIMING, 8.4)
    assert not is_lost(watch, "never seen", TIMING, 8.4)
    assert is_lost(watch, "a", TIMING, 8.5)
    assert is_lost(watch, "never seen", TIMING, 8.5)
    assert mark_interrupted(Watch()) == Watch(), "who has not looked yet has missed nothing"


@pytest.mark.parametrize(
    ("heartbeat", "lost_after", "gap"), [(2.0, 6.0, 3.0), (0.5, 2.0, 1.0), (0.5, 1.5, 0.75), (5.0, 15.0, 7.5)]
)
def test_a_gap_is_longer_than_a_heartbeat_and_shorter_than_what_others_are_judged_by(
    heartbeat: float, lost_after: float, gap: float
) -> None:
    assert contact_gap(Timing(beat_interval=heartbeat, lost_after=lost_after)) == gap


def test_a_row_that_the_store_lost_is_judged_like_a_heartbeat_that_stopped() -> None:
    watch = watched((0.0, [row("a", 1)]), (2.0, []), (4.0, []))
    assert not is_lost(watch, "a", TIMING, 5.9)
    assert not watch.nodes["a"].listed
    assert is_lost(watch, "a", TIMING, 6.0)


def test_a_newer_incarnation_on_the_same_slot_is_proof_of_death() -> None:
    """Newer by the clock of their host: a store that was emptied may have taken the older one's row last."""
    watch = watched((0.0, [row("a", 2, host="h", slots=Slots(100)), row("b", 1, host="h", slots=Slots(200))]))
    assert [is_lost(watch, name, TIMING, 3.0) for name in "ab"] == [True, False]


TWINS = {"a": Slots(100), "b": Slots(200)}
"""Of two machines with one host id: b's row proves that a is gone."""


def twins(heartbeats: Iterable[tuple[float, int, int]]) -> Watch:
    """Return the view of both at these times, with these heartbeats."""
    return watched(
        *(
            (at, [row(n, i, b, host="h", slots=TWINS[n]) for i, (n, b) in enumerate(zip("ab", both, strict=True))])
            for at, *both in heartbeats
        )
    )


def test_a_proof_waits_until_the_heartbeat_has_stood_still_for_a_heartbeat_and_a_half() -> None:
    watch = twins([(0.0, 1, 1), (2.0, 2, 2)])
    assert watch.gone == {"a"}
    assert [is_lost(watch, "a", TIMING, now) for now in (2.0, 4.9, 5.0)] == [False, False, True]
    views = [LeaderView(ledger=start(), watch=watch, now=now) for now in (4.9, 5.0)]
    assert [view.is_proved_gone(watch.nodes["a"]) for view in views] == [False, True]
    assert [is_lost(watch, "b", TIMING, now) for now in (5.0, 7.9)] == [False, False]


def test_a_host_is_distrusted_when_the_heartbeat_of_one_that_is_proved_to_be_gone_goes_on() -> None:
    watch = twins([(0.0, 1, 1), (2.0, 2, 2), (4.0, 3, 3)])
    assert [*watch.gone, *watch.distrusted] == ["id-h"]
    assert not is_lost(watch, "a", TIMING, 9.9), "it is judged by its heartbeats alone from then on"
    assert is_lost(watch, "a", TIMING, 10.0)
    again = observe(watch, [row("a", 1, 3, host="h"), row("c", 3, host="h", slots=Slots(300))], 6.0)
    assert again.gone == set(), "for as long as this leader decides"


def test_one_late_heartbeat_of_a_dead_node_contradicts_nothing_nor_does_a_store_that_goes_back() -> None:
    watch = twins([(0.0, 5, 1), (2.0, 6, 2), (4.0, 4, 3), (6.0, 6, 4)])
    assert [*watch.gone, *watch.distrusted] == ["a"]
    assert is_lost(watch, "a", TIMING, 9.0)


def test_an_older_row_from_a_copy_of_the_store_takes_nothing_back() -> None:
    watch = watched((0.0, [row("a", 1, 5, head=7, revision=4)]), (2.0, [row("a", 1, 2, head=3, revision=2)]))
    seen = watch.nodes["a"]
    assert (seen.row.head, seen.listed, seen.changed_at) == (7, False, 2.0), "its heartbeat shows that it is alive"
    assert seen.sign_at == 2.0
    watch = observe(watch, [row("a", 7, 2, head=3, revision=2)], 4.0)
    assert (watch.nodes["a"].changed_at, watch.nodes["a"].sign_at) == (2.0, 2.0)
    assert watch.nodes["a"].serial == 7, "its place is that of the store as it is now"
    away = observe(watch, [row("a", 7, 2, head=3, revision=2)], 60.0)
    assert (away.nodes["a"].changed_at, away.nodes["a"].sign_at) == (60.0, 2.0), "after a gap nobody is judged"
    watch = observe(watch, [row("a", 1, 3, head=7, revision=4)], 6.0)
    assert watch.nodes["a"].listed


def test_heartbeats_are_counted_through_a_copy_of_the_store_that_has_an_older_row() -> None:
    newer, older = [row("a", 1, 5, revision=4)], [row("a", 1, 6, revision=2)]
    watch = vouch(watched((0.0, newer)), ["a"])
    watch = observe(watch, older, 2.0)
    assert (watch.nodes["a"].highest, watch.nodes["a"].contradictions) == (6, 1)
    watch = observe(watch, older, 4.0)
    assert (watch.nodes["a"].highest, watch.nodes["a"].contradictions) == (6, 1), "the heartbeat stands still"


def test_a_node_that_has_gone_back_to_an_earlier_entry_says_so_itself() -> None:
    """Its earlier entries were of a history that the job has not gone on with (rule S3)."""
    watch = watched((0.0, [row("a", 1, 5, head=7, revision=4)]), (2.0, [row("a", 1, 6, head=3, revision=5)]))
    seen = watch.nodes["a"]
    assert (seen.row.head, seen.listed) == (3, True)


def test_a_row_that_the_store_lost_proves_nothing_of_one_that_came_after() -> None:
    """An empty store counts serials from 1 again."""
    a, b = row("a", 7, host="h", slots=Slots(100)), row("b", 1, host="h", slots=Slots(200))
    watch = watched((0.0, [a]), (2.0, [b]))
    assert [is_lost(watch, name, TIMING, 4.0) for name in "ab"] == [True, False]


def test_a_proof_from_a_row_stands_when_the_store_has_lost_the_row() -> None:
    a, b = row("a", 1, host="h", slots=Slots(100)), row("b", 2, host="h", slots=Slots(200))
    watch = watched((0.0, [a, b]), (2.0, [a]))
    assert [is_lost(watch, name, TIMING, 4.0) for name in "ab"] == [True, False]


A = NodeRow(info=info("a", host="h", slot=2, slots=Slots(100)))


@pytest.mark.parametrize(
    ("why", "other", "shown"),
    [
        ("its slot was free later", info("b", host="h", slot=0, slots=Slots(101)), "a"),
        ("its slot is the other's now", info("b", host="h", slot=2, slots=Slots(101, (0,))), "a"),
        ("its slot was held", info("b", host="h", slot=0, slots=Slots(101, (1, 2))), ""),
        ("its slot was free before", info("b", host="h", slot=1, slots=Slots(99)), "b"),
        ("its slot was the other's before", info("b", host="h", slot=2, slots=Slots(99)), "b"),
        ("they came in one instant", info("b", host="h", slot=0, slots=Slots(100)), ""),
        ("of another host", info("b", host="i", slot=0, slots=Slots(101)), ""),
        ("it has no slot", info("b", host="h", slot=0, slots=Slots()), ""),
    ],
)
def test_a_look_at_slots_shows_who_is_gone(why: str, other: NodeInfo, shown: str) -> None:
    assert find_gone_nodes([A, NodeRow(info=other)]) == find_gone_nodes([NodeRow(info=other), A]) == set(shown), why
    watch = watched((0.0, [Observation(A, 1, 0), Observation(NodeRow(info=other), 2, 0)]))
    assert [is_lost(watch, name, TIMING, 3.0) for name in "ab"] == [name in shown for name in "ab"]


def test_a_later_look_counts_and_never_against_its_own_node() -> None:
    b = NodeRow(info=info("b", host="h", slot=0, slots=Slots(101, (2,))))
    later = replace(b, slots=Slots(300, (5,)))
    since = NodeRow(info=info("c", host="h", slot=2, slots=Slots(301, (0,))))
    assert [sorted(find_gone_nodes(rows)) for rows in ([A, b], [A, later], [later, since])] == [[], ["a"], []]


def test_a_proof_from_one_look_stands_when_the_next_one_finds_the_slot_taken_or_the_row_is_gone() -> None:
    b = NodeRow(info=info("b", host="h", slot=0, slots=Slots(101)))
    again = replace(b, slots=Slots(200, (2,)))
    watch = watched((0.0, [Observation(A, 1, 0), Observation(b, 2, 0)]))
    changed = observe(watch, [Observation(A, 1, 0), Observation(again, 2, 0, 1)], 1.0)
    assert (sorted(find_gone_nodes([A, again])), sorted(changed.gone)) == ([], ["a"])
    assert forget(watch, iter("cb")).gone == {"a"}
    assert forget(watch, "a").gone == set()


def test_a_node_beyond_the_slots_that_are_looked_at_is_gone_when_another_has_its_slot() -> None:
    far = NodeRow(info=info("a", host="h", slot=SLOTS, slots=Slots(100)))
    near = NodeRow(info=info("b", host="h", slot=0, slots=Slots(101)))
    same = NodeRow(info=info("b", host="h", slot=SLOTS, slots=Slots(101)))
    assert [sorted(find_gone_nodes(rows)) for rows in ([far, near], [far, same])] == [[], ["a"]]


def test_a_node_without_a_row_at_the_leaders_first_look_gets_as_long_as_one_whose_heartbeat_stopped() -> None:
    watch = watched((10.0, []), (12.0, []))
    assert not is_lost(watch, "a", TIMING, 15.9)
    assert is_lost(watch, "a", TIMING, 16.0)


def test_two_slots_of_one_host_live_side_by_side() -> None:
    other = Observation(NodeRow(info=info("b", host="h", slot=1)), 2, 0)
    watch = watched((0.0, [row("a", 1, host="h"), other]))
    assert [is_lost(watch, name, TIMING, 0.0) for name in "ab"] == [False, False]


def test_when_most_fall_silent_together_the_store_is_suspected_first() -> None:
    names = "abcde"
    reads = [(float(now), [row(n, i, now if n == "a" else 0) for i, n in enumerate(names)]) for now in range(0, 14, 2)]
    at_six, at_twelve = watched(*reads[:4]), watched(*reads)
    assert [is_lost(at_six, name, TIMING, 6.0) for name in names] == [False] * 5
    assert [is_lost(at_twelve, name, TIMING, 12.0) for name in names] == [False, True, True, True, True]


@pytest.mark.parametrize(
    ("nodes", "silent", "lost"),
    [
        pytest.param(4, 1, True, id="one of four"),
        pytest.param(4, 2, True, id="half of four"),
        pytest.param(4, 3, False, id="most of four"),
        pytest.param(3, 2, True, id="most of three are too few to blame the store"),
        pytest.param(5, 2, True, id="less than half of five"),
        pytest.param(5, 3, False, id="most of five"),
    ],
)
def test_a_silent_node_is_lost_at_the_limit_unless_most_nodes_are_silent(nodes: int, silent: int, lost: bool) -> None:
    watch = watched(
        *((at, [row(f"n{i}", i, 0 if i < silent else int(at)) for i in range(nodes)]) for at in (0.0, 2.0, 4.0, 6.0))
    )
    assert is_lost(watch, "n0", TIMING, 6.0) is lost


def test_when_a_failure_was_first_reported_is_remembered() -> None:
    """The leader waits for a better cause from then on."""
    quiet, first = row("a", 1), row("a", 1, revision=1)
    first = replace(first, row=replace(first.row, incident=incident("a")))
    again = replace(first, row=replace(first.row, head=2))
    better = replace(first, row=replace(first.row, incident=incident("a", after=4.0)))
    watch = watched((0.0, [quiet]), (2.0, [first]), (4.0, [again]))
    assert watch.nodes["a"].reported_at == 2.0
    assert observe(watch, [better], 6.0).nodes["a"].reported_at == 6.0


def test_a_node_that_is_vouched_to_be_gone_is_gone_with_all_that_were_proved_to_be() -> None:
    rows = [row("a", 1, host="h", slots=Slots(100)), row("b", 2, host="h", slots=Slots(200)), row("c", 3)]
    watch = watched((0.0, rows))
    assert vouch(watch, ["c", "a stranger"]).gone == {"a", "c"}
    assert vouch(watch, ["c", "a stranger"]).proven == {"a", "c"}, "of a stranger there is nothing to be known"
    assert vouch(watched((0.0, rows), (2.0, rows[1:])), ["c"]).gone == {"a", "c"}


def test_heads_of_an_older_epoch_are_forgotten_once() -> None:
    watch = watched((0.0, [row("a", 1, head=7)]))
    assert forget_older_epochs(watch, 0) is watch
    later = forget_older_epochs(watch, 1)
    assert later.nodes["a"].row.head == 0
    assert forget_older_epochs(later, 1) is later


@pytest.mark.parametrize(
    ("says", "left"),
    [
        ({"head": 7}, {}),
        ({"answered": 3, "steps": (7,)}, {"steps": (7,)}),
        ({"offer": offer("a")}, {}),
        (
            {"head": 7, "answered": 3, "offer": offer("a"), "leaving": True, "grace": 9.0},
            {"leaving": True, "grace": 9.0},
        ),
    ],
)
def test_of_an_older_epoch_a_row_has_seen_answered_and_offered_nothing(
    says: dict[str, Any], left: dict[str, Any]
) -> None:
    old = NodeRow(info=info("a"), epoch=1, **says)
    assert old.within(1) is old
    assert old.within(2) == NodeRow(info=info("a"), epoch=1, **left)
    silent = old.within(2)
    assert silent.within(2) is silent, "what it said no more is not taken out again"


def test_a_node_that_was_never_seen_is_dead() -> None:
    assert is_lost(Watch(), "x", TIMING, 0.0)


def test_forgotten_nodes_are_gone() -> None:
    assert list(forget(watched((0.0, [row("a", 1), row("b", 2)])), ["a"]).nodes) == ["b"]


def test_an_old_leader_whose_row_was_removed_is_alive_when_it_enters_again() -> None:
    """Its heartbeat begins at 0 again, which may be all that was heard of it."""
    first = observe(Watch(deposed=DeposedLeader("a", 0, 1.0)), [row("b", 2)], 7.0)
    assert not is_lost(observe(first, [row("b", 2), row("a", 3, 0)], 9.0), "a", TIMING, 9.0)


def test_a_new_leader_goes_on_from_what_it_had_heard_of_the_old_one() -> None:
    started = Watch(deposed=DeposedLeader("a", 5, 1.0))
    still, stirred = observe(started, [row("a", 1, 5)], 7.0), observe(started, [row("a", 1, 6)], 7.0)
    assert [is_lost(watch, "a", TIMING, 7.0) for watch in (still, stirred)] == [True, False]


class Counted(UserDict[str, NodeView]):
    """Nodes that count how often they have been iterated."""

    looks = 0

    def values(self) -> ValuesView[NodeView]:
        self.looks += 1
        return super().values()


def test_judging_all_nodes_looks_at_each_a_few_times_however_many_there_are() -> None:
    watch = watched(*[(now, [row(f"n{i}", i) for i in range(1, 100)]) for now in (0.0, 2.0)])
    nodes = Counted(watch.nodes)
    watch = replace(watch, nodes=nodes)
    assert not any(is_lost(watch, node_id, TIMING, 3.0) for node_id in list(nodes))
    assert nodes.looks <= 2
