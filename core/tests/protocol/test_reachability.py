"""Whom the leader leaves out when the members of a failed round cannot reach each other (rule L5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from views import halted, incident, info, live, seen, settings, watch

from elastic_core.config.parse import OnNodeLoss
from elastic_core.incidents import Action, Verdict
from elastic_core.protocol.entries import Closed, Exclusion, HaltReason, Round
from elastic_core.protocol.failure_detector import NodeView
from elastic_core.protocol.leader import decide
from elastic_core.protocol.leader_entries import Append, Decision, LookAgain
from elastic_core.protocol.leader_view import (
    PROBE_WAIT_SECONDS,
    Judgement,
    LeaderView,
    describe_unreachable,
    find_unreachable,
)
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.roster import Phase

NOW = 100.0
RESTART, GIVE_UP = Verdict(Action.RESTART, "restarts are left"), Verdict(Action.GIVE_UP, "no restart is left")
BLAME = incident("c", after=5.0)


def node(name: str, unreachable: str = "", *, probed: int = 1, phase: Phase = Phase.STOPPED, **more: Any) -> NodeView:
    with_port = replace(info(name), address="10.0.0.1", port=7000)
    return seen(name, phase, head=3, node=with_port, probed=probed, unreachable=tuple(unreachable), **more)


def view(ledger: Ledger, *nodes: NodeView, now: float = NOW, verdict: Verdict = RESTART) -> LeaderView:
    return LeaderView(
        ledger=ledger, watch=watch(*nodes, now=now), now=now, judgement=Judgement(round=1, verdict=verdict)
    )


def failed(names: str, reason: HaltReason = HaltReason.FAILURE, **more: Any) -> Ledger:
    return halted(names, reason, settings(**more), at=NOW - 0.5, blame=BLAME)


def sealed(decision: Decision) -> Round:
    assert isinstance(decision, Append), decision
    assert isinstance(decision.body, Round), decision
    return decision.body


def ids(decision: Decision) -> str:
    return "".join(member.node_id for member in sealed(decision).members)


@pytest.mark.parametrize(
    ("broken_connections", "expected"),
    [
        pytest.param({}, None, id="everybody reaches everybody"),
        pytest.param({"a": "c", "b": "c"}, "c", id="nobody reaches c"),
        pytest.param({"c": "ab"}, "c", id="c reaches nobody"),
        pytest.param({"a": "c", "b": "c", "c": "ab"}, "c", id="both"),
        pytest.param({"a": "bc", "b": "a", "c": "a"}, "a", id="rank 0 is no exception"),
        pytest.param({"a": "b"}, "b", id="one complaint: who is complained of"),
        pytest.param({"b": "c", "c": "b"}, "c", id="one link is broken: the later rank, since rank 0 has the state"),
        pytest.param({"a": "x"}, None, id="somebody who is not in the round"),
        pytest.param({"a": "a"}, None, id="oneself"),
    ],
)
def test_the_one_with_most_broken_connections_is_accused(
    broken_connections: dict[str, str], expected: str | None
) -> None:
    nodes = [node(name, broken_connections.get(name, "")) for name in "abc"]
    ledger = failed("abc")
    assert ledger.round is not None
    assert find_unreachable(view(ledger, *nodes), ledger.round) == expected


def test_an_old_probe_does_not_count() -> None:
    ledger = failed("abc")
    assert ledger.round is not None
    current = replace(ledger.round, number=5)
    for probed, expected in ((3, None), (4, "c"), (5, "c"), (6, None)):
        assert find_unreachable(view(ledger, *(node(name, "c", probed=probed) for name in "ab")), current) == expected


def test_of_two_the_one_is_accused_that_others_were_left_out_for() -> None:
    """Rank 0 is not reached, and has cost the job b: it must not cost it c, too, and then b again, for ever."""
    ledger = failed("ac")
    assert ledger.round is not None
    pair = [node("a", "c"), node("c", "a")]
    for outside, expected in (("a", "a"), ("", "c")):
        b = node("b", outside, phase=Phase.WAITING)
        assert find_unreachable(view(ledger, *pair, b), ledger.round) == expected
        assert find_unreachable(view(ledger, node("a"), node("c"), b), ledger.round) is None, (
            "a network that works is believed"
        )


def test_a_probe_before_a_round_that_did_not_fail_does_not_count() -> None:
    """It trained for hours, perhaps, until a node was lost or a newcomer came."""
    nodes = [node("a", "c", probed=1), node("b"), node("c")]
    for reason, expected in ((HaltReason.FAILURE, "c"), (HaltReason.NODE_LOST, None), (HaltReason.RESIZE, None)):
        ledger = failed("abc", reason)
        assert ledger.round is not None
        assert find_unreachable(view(ledger, *nodes), replace(ledger.round, number=2)) == expected


@pytest.mark.parametrize(
    ("a", "expected"),
    [
        pytest.param(node("a", "c", probed=2, number=2), "c", id="it has probed anew"),
        pytest.param(node("a", probed=2, number=2), None, id="it has probed anew, and reached all"),
        pytest.param(node("a", "c", probed=1, number=1), "c", id="it was too late to start any workers"),
        pytest.param(node("a", "c", probed=1, number=2), None, id="it took part, and has not answered"),
        pytest.param(node("a", "c", probed=1, number=2, phase=Phase.FINISHED), None, id="it has finished"),
    ],
)
def test_a_node_that_took_part_once_more_is_believed_only_for_its_later_probe(
    a: NodeView, expected: str | None
) -> None:
    """The round that has failed now may have trained for hours, and who found something before may be what it lost."""
    ledger = failed("abc")
    assert ledger.round is not None
    others = [node("b", probed=2, number=2), node("c", probed=2, number=2)]
    assert find_unreachable(view(ledger, a, *others), replace(ledger.round, number=2)) == expected


def test_it_is_left_out_and_spends_no_restart_and_its_host_stays_out() -> None:
    decision = decide(view(failed("abc", min_nodes=2), node("a", "c"), node("b", "c"), node("c")))
    assert isinstance(decision, Append)
    assert ids(decision) == "ab"
    assert (sealed(decision).charged, decision.counters.restarts) == (False, 0)
    assert decision.counters.excluded == (Exclusion("id-host-c"),)
    assert sealed(decision).why == "host-c cannot be reached from host-a, host-b"


def test_a_newcomer_makes_up_for_it() -> None:
    nodes = [node("a", "b"), node("b"), node("d", phase=Phase.WAITING, number=0)]
    assert ids(decide(view(failed("ab", min_nodes=2), *nodes))) == "ad"


def test_one_that_is_lost_anyway_is_not_left_out_for_that() -> None:
    decision = decide(view(failed("abc"), node("a", "c"), node("b", "c"), node("c", changed=0.0)))
    assert isinstance(decision, Append)
    assert (ids(decision), sealed(decision).why, decision.counters.excluded) == ("ab", "it was", ())


def test_complaints_of_members_that_do_not_count_do_not_count_as_those_of_others() -> None:
    ledger = failed("acd")
    assert ledger.round is not None
    nodes = [node("a", "c"), node("c", "a"), node("d", "a", probed=0)]
    assert find_unreachable(view(ledger, *nodes), ledger.round) == "c"


def test_the_one_that_complains_of_everybody_is_named_so() -> None:
    nodes = [node("a"), node("b"), node("c", "ab")]
    ledger = failed("abc")
    assert ledger.round is not None
    assert describe_unreachable(view(ledger, *nodes), ledger.round, "c") == "host-c cannot reach host-a, host-b"


def test_it_is_not_taken_back_as_a_newcomer_while_the_others_suffice() -> None:
    first = decide(view(failed("abc", min_nodes=2), node("a", "c"), node("b", "c"), node("c")))
    assert isinstance(first, Append)
    ledger = live("ab", settings(min_nodes=2, max_nodes=3), counters=first.counters)
    nodes = [node(name, phase=Phase.RUNNING) for name in "ab"]
    waiting = node("c", phase=Phase.WAITING, number=0)
    decision = decide(view(ledger, *nodes, waiting, now=NOW))
    assert isinstance(decision, LookAgain), decision
    healthy = replace(ledger, head=replace(ledger.head, counters=replace(first.counters, excluded=())))
    assert isinstance(decide(view(healthy, *nodes, waiting, now=NOW)), Append), "else there would be a resize"


def test_a_job_that_would_give_up_goes_on_without_it() -> None:
    ledger = failed("abc", HaltReason.GIVING_UP, min_nodes=2, max_restarts=0)
    assert ids(decide(view(ledger, node("a", "c"), node("b", "c"), node("c"), verdict=GIVE_UP))) == "ab"


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"min_nodes": 3}, id="it is needed for the minimum"),
        pytest.param({"min_nodes": 2, "on_node_loss": OnNodeLoss.FAIL}, id="no node may be lost"),
    ],
)
def test_a_job_that_cannot_do_without_it_ends_and_says_so(more: dict[str, Any]) -> None:
    ledger = failed("abc", HaltReason.GIVING_UP, max_restarts=0, **more)
    decision = decide(view(ledger, node("a", "c"), node("b", "c"), node("c"), verdict=GIVE_UP))
    assert isinstance(decision, Append)
    assert isinstance(decision.body, Closed)
    assert decision.body.why == "no restart is left; host-c cannot be reached from host-a, host-b"


def test_a_job_that_cannot_do_without_it_tries_again_with_it() -> None:
    nodes = [node("a", "c"), node("b", "c"), node("c")]
    assert ids(decide(view(failed("abc", min_nodes=3), *nodes))) == "abc"


@pytest.mark.parametrize("reason", [HaltReason.FAILURE, HaltReason.GIVING_UP])
def test_probes_that_are_under_way_are_waited_for_but_not_for_long(reason: HaltReason) -> None:
    pair = [node("a", probed=0), node("b")]
    assert decide(view(failed("ab", reason), *pair, verdict=RESTART)) == LookAgain(NOW - 0.5 + PROBE_WAIT_SECONDS)
    ledger = failed("abc", reason, min_nodes=2)
    nodes = [node("a", probed=0), node("b", "c"), node("c")]
    verdict = RESTART if reason is HaltReason.FAILURE else GIVE_UP
    assert decide(view(ledger, *nodes, verdict=verdict)) == LookAgain(NOW - 0.5 + PROBE_WAIT_SECONDS)
    late = NOW - 0.5 + PROBE_WAIT_SECONDS
    nodes = [node("a", probed=0, now=late), node("b", "c", now=late), node("c", now=late)]
    assert ids(decide(view(ledger, *nodes, now=late, verdict=verdict))) == "ab"


@pytest.mark.parametrize("reason", [HaltReason.RESIZE, HaltReason.NODE_LOST, HaltReason.NODE_LEFT, HaltReason.UNSEEN])
def test_no_node_probes_where_nothing_has_failed(reason: HaltReason) -> None:
    ledger = halted("abc", reason, at=NOW - 0.5)
    assert ids(decide(view(ledger, *(node(name, probed=0) for name in "abc")))) == "abc"


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(seen("b", Phase.STOPPED, head=3), id="has no port"),
        pytest.param(node("b", probed=0, phase=Phase.FINISHED), id="has finished, and stops nothing"),
        pytest.param(node("b", probed=0, number=0, phase=Phase.WAITING), id="was too late to start any workers"),
    ],
)
def test_the_leader_does_not_wait_for_a_node_that_will_not_probe(other: NodeView) -> None:
    assert ids(decide(view(failed("a"), node("a", probed=0)))) == "a", "it has nobody to probe"
    assert ids(decide(view(failed("ab"), node("a"), other))) == "ab"


def test_an_unreachable_node_is_not_restarted_with_all_the_others() -> None:
    """A restart of the same members is one entry and asks no node; with complaints there is a HALT, and new probes."""
    ledger = live("abc")
    for broken_connections, restarts in (("", True), ("c", False)):
        nodes = [
            node("a", broken_connections, phase=Phase.RUNNING),
            node("b", phase=Phase.RUNNING),
            node("c", phase=Phase.RUNNING, incident=BLAME),
        ]
        decision = decide(view(ledger, *nodes))
        assert isinstance(decision, Append)
        assert isinstance(decision.body, Round) is restarts
