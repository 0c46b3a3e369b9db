"""A halted round is over: what the ledger says of it outlives the rows that prove it (rule S4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from views import entry, halted, incident, live, members, offer, seen, settings, start, then, watch

from elastic_core.config.parse import OnNodeLoss
from elastic_core.errors import RendezvousStateError
from elastic_core.protocol.entries import Closed, HaltReason, Leader, Over, Round
from elastic_core.protocol.failure_detector import NodeView
from elastic_core.protocol.leader import OVER_DELAY_SECONDS, decide
from elastic_core.protocol.leader_entries import Append, LookAgain
from elastic_core.protocol.leader_view import Judgement, LeaderView
from elastic_core.protocol.ledger import Ledger, advance, compose, open_ledger, restore_ledger
from elastic_core.protocol.limits import HOSTS_BYTES, MAX_LEFT_MEMBERS, fit_names
from elastic_core.protocol.repair import compose_resume
from elastic_core.protocol.roster import Phase
from elastic_core.rendezvous.backend import ORIGIN

NOW = 100.0
TWO = settings(min_nodes=2, max_nodes=2, fence_after=600.0)
LEFT = halted("ab", HaltReason.NODE_LEFT, TWO, at=NOW)
LEAVER = seen("b", Phase.STOPPED, head=3, leaving=True)
STAYER = seen("a", Phase.STOPPED, head=3)


def view(ledger: Ledger, *nodes: NodeView, now: float, may_forget: bool = True) -> LeaderView:
    return LeaderView(ledger=ledger, watch=watch(*nodes, now=now), now=now, may_forget=may_forget)


def resumed(ledger: Ledger, at: float) -> Ledger:
    """The ledger of a node that goes on after the store has lost everything."""
    body = compose_resume(ledger, "the store came back empty")
    return open_ledger(compose(ledger, body, entry_id="r1", author="c", leader="c", now=at, store=ORIGIN), at)


@pytest.mark.parametrize(
    ("what", "nodes", "after", "may_forget", "expected"),
    [
        ("nodes are missing", [STAYER, LEAVER], OVER_DELAY_SECONDS, True, Over(round=1, left=("b",))),
        ("not at once", [STAYER, LEAVER], 0.9 * OVER_DELAY_SECONDS, True, None),
        ("a store that forgets nothing keeps the rows", [STAYER, LEAVER], OVER_DELAY_SECONDS, False, None),
        ("who stays has stopped", [STAYER], OVER_DELAY_SECONDS, True, Over(round=1)),
        ("nobody is known to have stopped", [seen("a", Phase.RUNNING, head=3)], OVER_DELAY_SECONDS, True, None),
        ("a replacement is there", [STAYER, LEAVER, seen("c", head=3)], OVER_DELAY_SECONDS, True, "a round"),
    ],
)
def test_a_leader_that_waits_writes_down_that_the_round_is_over(
    what: str, nodes: list[NodeView], after: float, may_forget: bool, expected: Any
) -> None:
    decision = decide(view(LEFT, *nodes, now=NOW + after, may_forget=may_forget))
    if isinstance(decision, Append):
        assert decision.body == expected or (expected == "a round" and isinstance(decision.body, Round))
    else:
        assert expected is None


def test_it_looks_again_when_it_is_time_to_write_that() -> None:
    decision = decide(view(LEFT, STAYER, LEAVER, now=NOW + 0.5))
    assert isinstance(decision, LookAgain)
    assert decision.at == NOW + OVER_DELAY_SECONDS


def test_it_looks_again_sooner_for_what_it_waits_for_anyway() -> None:
    assert OVER_DELAY_SECONDS > 0.7
    silent = seen("c", head=3, changed=NOW - 5.3)
    three = halted("ab", HaltReason.NODE_LEFT, settings(min_nodes=3, max_nodes=3), at=NOW)
    decision = decide(view(three, STAYER, LEAVER, silent, now=NOW + 0.5))
    assert isinstance(decision, LookAgain)
    assert decision.at == NOW - 5.3 + 6.0


def test_it_looks_again_for_that_when_it_waits_for_no_instant() -> None:
    """The policies still think."""
    blame = incident("a")
    ledger = halted("ab", HaltReason.FAILURE, TWO, at=NOW, blame=blame)
    nodes = [seen(name, Phase.STOPPED, head=3, incident=blame) for name in "ab"]
    decision = decide(replace(view(ledger, *nodes, now=NOW + 0.5), judgement=Judgement(round=1)))
    assert isinstance(decision, LookAgain)
    assert decision.at == NOW + OVER_DELAY_SECONDS


def test_of_those_who_have_left_as_many_are_named_as_an_entry_has_room_for() -> None:
    names = "".join(chr(0x100 + i) for i in range(MAX_LEFT_MEMBERS + 1))
    nodes = [seen(name, Phase.STOPPED, head=3, leaving=True) for name in names]
    decision = decide(view(halted(names, HaltReason.NODE_LEFT, TWO, at=NOW), *nodes, now=NOW + OVER_DELAY_SECONDS))
    assert isinstance(decision, Append)
    assert decision.body == Over(round=1, left=tuple(names[:MAX_LEFT_MEMBERS]))


def test_a_node_of_which_nothing_is_known_goes_by_its_id() -> None:
    assert view(start(), now=NOW).describe_nodes(["x"]) == "x"


def test_a_round_that_follows_in_a_resumed_run_is_not_over() -> None:
    after = resumed(then(LEFT, Over(round=1, left=("b",)), at=NOW + 1), NOW + 5)
    sealed = then(after, Round(number=2, offer=offer("c"), members=members("cd")), at=NOW + 6)
    assert sealed.over is None
    entries = {after.head.index: after.head, sealed.head.index: sealed.head}
    assert restore_ledger(sealed.head, entries, NOW + 9).over is None


def test_it_is_written_again_only_when_another_member_has_left() -> None:
    ledger = then(LEFT, Over(round=1, left=("b",)), at=NOW + 1)
    waits = decide(view(ledger, STAYER, LEAVER, now=NOW + 50))
    assert isinstance(waits, LookAgain)
    also = decide(view(ledger, seen("a", Phase.STOPPED, head=3, leaving=True), LEAVER, now=NOW + 50))
    assert isinstance(also, Append)
    assert also.body == Over(round=1, left=("a", "b"))


@pytest.mark.parametrize("known", [True, False])
def test_a_node_that_goes_on_after_the_store_was_emptied_waits_for_no_fence_of_a_round_that_is_over(
    known: bool,
) -> None:
    ledger = then(LEFT, Over(round=1, left=("b",)), at=NOW + 1) if known else LEFT
    ledger = resumed(ledger, NOW + 5)
    others = [seen(name, head=1, now=NOW + 60) for name in "cd"]
    decision = decide(view(ledger, *others, now=NOW + 60))
    if known:
        assert isinstance(decision, Append)
        assert isinstance(decision.body, Round)
        assert [member.node_id for member in decision.body.members] == ["c", "d"]
    else:
        assert isinstance(decision, LookAgain)
        assert set(decision.silent) == {"a", "b"}
        assert "elastic release" not in decision.waiting, "there is no row of anybody to be released"


@pytest.mark.parametrize(("left", "ends"), [(("b",), False), ((), True)])
def test_a_node_that_had_left_in_order_is_not_taken_for_lost_when_its_row_is(left: tuple[str, ...], ends: bool) -> None:
    strict = settings(min_nodes=1, max_nodes=2, on_node_loss=OnNodeLoss.FAIL)
    ledger = then(halted("ab", HaltReason.NODE_LEFT, strict, at=NOW), Over(round=1, left=left), at=NOW + 1)
    decision = decide(view(resumed(ledger, NOW + 5), seen("a", Phase.STOPPED, head=1, now=NOW + 60), now=NOW + 60))
    assert isinstance(decision, Append)
    assert isinstance(decision.body, Round) is not ends


def test_a_run_that_is_resumed_knows_that_its_round_is_over() -> None:
    over = Over(round=1, left=("b",))
    ledger = resumed(then(LEFT, over, at=NOW + 1), NOW + 5)
    assert ledger.over == over
    assert restore_ledger(ledger.head, {1: ledger.head}, NOW + 6).over == over


def test_a_newcomer_knows_it_from_the_entry_that_the_newest_one_names() -> None:
    over = entry(LEFT, Over(round=1, left=("b",)), at=NOW + 1)
    ledger = advance(LEFT, over, NOW + 1)
    entries = {1: start(TWO).head, 2: live("ab", TWO).head, 3: LEFT.head, 4: over}
    assert restore_ledger(over, entries, NOW + 2).over == ledger.over == over.body
    later = entry(ledger, Leader(why="silent"), at=NOW + 2, author="c")
    assert restore_ledger(later, entries, NOW + 3).over == over.body
    with pytest.raises(RendezvousStateError, match=r"stands on entries \[1, 2, 3, 4\], which lead to another state"):
        restore_ledger(later, {**entries, 4: LEFT.head}, NOW + 3)


def test_a_newcomer_to_a_closed_run_does_not_need_it() -> None:
    ledger = then(LEFT, Over(round=1, left=("b",)), at=NOW + 1)
    ledger = then(ledger, Closed(success=False, why="too few nodes", exit_code=1), at=NOW + 2)
    entries = {1: start(TWO).head, 2: live("ab", TWO).head}
    assert restore_ledger(ledger.head, entries, NOW + 3).closed == ledger.closed is not None


def test_the_next_round_and_its_halt_know_nothing_of_it() -> None:
    ledger = then(LEFT, Over(round=1), at=NOW + 1)
    ledger = then(ledger, Round(number=2, offer=offer("a", 2), members=members("ac")), at=NOW + 2)
    assert (ledger.over, ledger.head.anchors.over) == (None, 0)


def test_a_live_round_is_not_over() -> None:
    ledger = live("ab", TWO)
    with pytest.raises(RendezvousStateError, match="is an OVER, but no round was halted"):
        advance(ledger, entry(ledger, Over(round=1), at=NOW), NOW)


def test_the_halt_has_stood_for_as_long_whether_it_is_over_or_not() -> None:
    assert then(LEFT, Over(round=1), at=NOW + 7).head.since_halt == 7.0


# Names of members without rows ---------------------------------------------------------------------------------------


def test_members_without_a_row_are_named_by_the_hosts_that_their_round_was_given() -> None:
    nodes = [seen(name, head=1, now=NOW) for name in "ab"]
    decision = decide(view(start(settings(2, 2)), *nodes, now=NOW, may_forget=False))
    assert isinstance(decision, Append)
    assert isinstance(decision.body, Round)
    assert decision.body.hosts == ("host-a", "host-b")
    ledger = then(start(settings(2, 2)), decision.body, at=NOW)
    ledger = then(ledger, Round(number=2, offer=offer("a", 3), same_as=1), at=NOW + 1)
    alone = view(resumed(ledger, NOW + 5), now=NOW + 60)
    assert alone.describe_nodes("ab") == "host-a, host-b"
    assert alone.describe_nodes("x") == "x", "no member, and no row"


def test_hosts_that_do_not_fit_are_left_out() -> None:
    names = [f"a-host-with-a-long-name-{number:05}" for number in range(20_000)]
    fit = fit_names(names, HOSTS_BYTES)
    assert fit == tuple(names[: len(fit)])
    assert len(fit) == HOSTS_BYTES // len('"a-host-with-a-long-name-00000",')
