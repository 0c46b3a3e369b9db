"""A leader that was deposed for its silence about an incident (rule L2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_leader_edges import NOW, RESTART, began, outcome, running, stopped, view
from views import incident, live, settings, then

from elastic_core.protocol.entries import Body, Drain, Halt, HaltReason, Leader, Round
from elastic_core.protocol.failure_detector import DeposedLeader, NodeView
from elastic_core.protocol.leader_view import LeaderView
from elastic_core.protocol.ledger import Ledger


class TestADeposedLeader:
    """It was silent about an incident (rule L2)."""

    def ledger(self) -> Ledger:
        return then(live("abc", settings(1, 3)), Leader(why="silent"), at=99.0, author="b")

    def known(self, ledger: Ledger, *nodes: NodeView, **more: Any) -> LeaderView:
        known = began(view(ledger, *nodes, **more), NOW - 1)
        return replace(known, watch=replace(known.watch, deposed=DeposedLeader("a", 7, 98.0, unanswered=True)))

    def test_does_not_answer_for_others(self) -> None:
        nodes = [running("a", head=3), running("b", head=3, incident=incident("b")), running("c")]
        assert isinstance(outcome(self.known(self.ledger(), *nodes, verdict=RESTART)), Round), "c has yet to see that"

    def test_owes_an_answer_still_when_its_row_is_gone(self) -> None:
        nodes = [running("b", head=3, incident=incident("b")), running("c", head=3)]
        assert isinstance(outcome(self.known(self.ledger(), *nodes, verdict=RESTART)), Halt)

    @pytest.mark.parametrize(("between", "suspected_at"), [([], 100.1), ([Drain(nodes=("c",), why="asked")], 101.0)])
    def test_has_a_last_chance_only_if_the_halt_is_the_first_that_the_new_one_says(
        self, between: list[Drain], suspected_at: float
    ) -> None:
        ledger = self.ledger()
        bodies: list[Body] = [*between, Halt(round=1, reason=HaltReason.FAILURE, why="it was", incident=incident("b"))]
        for body in bodies:
            ledger = then(ledger, body, at=100.0)
        head = ledger.head.index
        nodes = [running("a"), stopped("b", head=head, incident=incident("b")), stopped("c", head=head)]
        assert outcome(self.known(ledger, *nodes, verdict=RESTART)) == suspected_at
