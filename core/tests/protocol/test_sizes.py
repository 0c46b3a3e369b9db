"""The sizes of a round (rule L15), and which of the waiting nodes get the places (rule L16)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from views import halted, info, live, seen, settings, start, watch, with_counters

from elastic_core.protocol.entries import HaltReason, HostLosses, Round
from elastic_core.protocol.failure_detector import NodeView
from elastic_core.protocol.leader import decide
from elastic_core.protocol.leader_entries import Append, Decision, LookAgain
from elastic_core.protocol.leader_view import LeaderView
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.planned_stop import next_resize
from elastic_core.protocol.roster import Phase
from elastic_core.protocol.settings import Agreement, Settings

NOW = 100.0


def view(ledger: Ledger, *nodes: NodeView, now: float = NOW) -> LeaderView:
    return LeaderView(ledger=ledger, watch=watch(*nodes, now=now), now=now)


def body(decision: Decision) -> Any:
    assert isinstance(decision, Append), decision
    return decision.body


def ids(sealed: Round) -> str:
    return "".join(member.node_id for member in sealed.members)


def running(name: str, **more: Any) -> NodeView:
    return seen(name, Phase.RUNNING, head=2, **more)


def stopped(name: str) -> NodeView:
    return seen(name, Phase.STOPPED, head=3)


def sized(*sizes: int, **timing: Any) -> Settings:
    plain = settings(sizes[0], sizes[-1], **timing)
    return replace(plain, agreement=replace(plain.agreement, sizes=sizes))


def agreement(*sizes: int, most: int = 0) -> Agreement:
    return Agreement(
        min_nodes=sizes[0], max_nodes=most or sizes[-1], max_restarts=0, sizes=sizes if len(sizes) > 1 else ()
    )


@pytest.mark.parametrize(
    ("nodes", "plain", "in_sizes"), [(1, 0, 0), (3, 0, 0), (4, 4, 4), (5, 5, 4), (7, 7, 6), (8, 8, 8), (20, 8, 8)]
)
def test_the_largest_size_for_which_enough_nodes_are_there(nodes: int, plain: int, in_sizes: int) -> None:
    assert agreement(4, most=8).largest_size(nodes) == plain
    assert agreement(4, 6, 8).largest_size(nodes) == in_sizes


@pytest.mark.parametrize(
    ("nodes", "plain", "in_sizes"), [(0, 4, 4), (4, 5, 6), (5, 6, 6), (6, 7, 8), (8, None, None), (9, None, None)]
)
def test_the_size_after_that(nodes: int, plain: int | None, in_sizes: int | None) -> None:
    assert agreement(4, most=8).next_size(nodes) == plain
    assert agreement(4, 6, 8).next_size(nodes) == in_sizes


@pytest.mark.parametrize(
    ("sizes", "training", "waiting", "text"),
    [
        ((4, 6, 8), 6, 1, "6 of 7 nodes train: --nnodes=4,6,8 has no size 7"),
        ((4, 6, 8), 6, None, "6 of 7 nodes train: --nnodes=4,6,8 has no size 7"),
        ((4, 6, 8), 6, 2, ""),
        ((2, 4, 6, 8), 2, 1, "2 of 3 nodes train: --nnodes=2:8:2 has no size 3"),
        ((4, 8), 4, 2, "4 of 6 nodes train: --nnodes=4,8 has no size 6"),
        ((4, 8), 4, None, "4 nodes train, and fewer than 4 wait: --nnodes=4,8 has no size from 5 to 7"),
        ((4, 6, 8), 8, 3, "the job has all 8 node(s) that it takes"),
        ((4, 6, 7), 6, None, ""),
    ],
)
def test_why_a_node_waits_is_said(sizes: tuple[int, ...], training: int, waiting: int | None, text: str) -> None:
    assert agreement(*sizes).describe_sizes(training, waiting) == text


@pytest.mark.parametrize(("came", "members"), [("abcd", "abcd"), ("abcde", "abcd"), ("abcdef", "abcdef")])
def test_the_first_round_has_a_size(came: str, members: str) -> None:
    assert ids(body(decide(view(start(sized(4, 6, 8)), *map(seen, came))))) == members


def test_fewer_nodes_than_the_smallest_size_wait_for_more() -> None:
    decision = decide(view(start(sized(4, 6)), *map(seen, "abc")))
    assert isinstance(decision, LookAgain)
    assert decision.waiting.startswith("1 more node(s)")


def test_one_node_more_does_not_end_a_round_and_a_second_one_does() -> None:
    ledger, nodes = live("abcd", sized(4, 6, 8)), [running(name) for name in "abcd"]
    assert isinstance(decide(view(ledger, *nodes, seen("e", head=2))), LookAgain)
    halt = body(decide(view(ledger, *nodes, seen("e", head=2), seen("f", head=2), seen("g", head=2))))
    assert (halt.reason, halt.why) == (HaltReason.RESIZE, "host-e, host-f joins the 4 node(s) of the round")


def test_of_five_nodes_that_are_left_four_train() -> None:
    ledger = halted("abcdef", HaltReason.NODE_LOST, sized(4, 6), at=NOW - 20)
    nodes = [stopped(name) for name in "abdef"]
    assert ids(body(decide(view(ledger, *nodes)))) == "abde"


def test_a_spare_fills_the_size_and_nobody_has_to_wait() -> None:
    ledger = halted("abcdef", HaltReason.NODE_LOST, sized(4, 6), at=NOW - 20)
    nodes = [stopped(name) for name in "abdef"]
    assert ids(body(decide(view(ledger, *nodes, seen("g", head=3))))) == "abdefg"


def test_the_wait_for_a_resize_counts_from_when_the_size_could_be_reached() -> None:
    ledger = live("ab", sized(2, 4, resize_wait=60))
    later = NOW + 200.0
    nodes = [running(name, now=later) for name in "ab"]
    first = replace(seen("c", head=2, now=later), arrived_at=NOW)
    second = replace(seen("d", head=2, now=later), arrived_at=later - 1)
    known = view(ledger, *nodes, first, second, now=later)
    assert known.ledger.round is not None
    assert next_resize(known, known.ledger.round)[0] == later + 59


def returning(*hosts: str, count: int = 1) -> dict[str, HostLosses]:
    return {f"id-host-{host}": HostLosses(count, 0.0) for host in hosts}


def test_a_node_on_a_host_that_was_lost_goes_before_an_earlier_spare() -> None:
    ledger = with_counters(halted("ab", HaltReason.NODE_LOST, settings(2, 2), at=NOW - 20), losses=returning("d"))
    nodes = [stopped("a"), seen("c", head=3), seen("d", head=3)]
    assert ids(body(decide(view(ledger, *nodes)))) == "ad"


def test_a_node_on_the_host_of_a_member_that_leaves_goes_before_an_earlier_spare() -> None:
    ledger = halted("ab", HaltReason.NODE_LEFT, settings(2, 2), at=NOW - 20)
    again = seen("d", head=3)
    again = replace(again, row=replace(again.row, info=replace(again.row.info, host_id="id-host-b")))
    nodes = [stopped("a"), seen("b", Phase.STOPPED, leaving=True, head=3), seen("c", head=3), again]
    assert ids(body(decide(view(ledger, *nodes)))) == "ad"


def test_a_node_on_the_host_of_a_member_that_stays_goes_before_no_earlier_spare() -> None:
    beside = seen("d", head=3, node=info("d", host="host-a", slot=1))
    ledger = halted("ab", HaltReason.NODE_LEFT, settings(2, 2), at=NOW - 20)
    nodes = [stopped("a"), seen("b", Phase.STOPPED, leaving=True, head=3), seen("c", head=3), beside]
    assert ids(body(decide(view(ledger, *nodes)))) == "ac"


def test_a_host_that_was_lost_three_times_goes_after_a_spare() -> None:
    lost = returning("d", count=3)
    ledger = with_counters(halted("ab", HaltReason.NODE_LOST, settings(2, 2), at=NOW - 20), losses=lost)
    assert ids(body(decide(view(ledger, stopped("a"), seen("c", head=3), seen("d", head=3))))) == "ac"


def test_spares_take_places_in_the_order_in_which_they_came() -> None:
    ledger = halted("ab", HaltReason.NODE_LOST, settings(2, 2), at=NOW - 20)
    assert ids(body(decide(view(ledger, stopped("a"), seen("d", head=3, serial=2), seen("c", head=3))))) == "ad"


def test_settings_that_differ_in_sizes_or_spares_are_named() -> None:
    here, there = agreement(4, 6, 8), agreement(4, most=8)
    assert here.difference(there) == "sizes: 4, 6, 8 here, none there"
    assert replace(there, spares=2).difference(there) == "spares: 2 here, 0 there"
