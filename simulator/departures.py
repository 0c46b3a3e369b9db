"""Members that leave in order before the store loses its data: no leader waits for their fence (rule S4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_core.protocol.roster import Phase
from simulator import data_loss, leaders

if TYPE_CHECKING:
    from elastic_core.events import Event
    from simulator.agent import SimAgent
    from simulator.world import World

KNOWN = 3.0
"""Seconds after a member's end within which a leader with contact to the store has recorded it."""


@dataclass
class Departures:
    """The members that left in order, and the nodes that knew of it when the store lost its data."""

    world: World
    known: set[str] = field(default_factory=set)
    """Rounds, by their offers, with a member that left in order and a leader that had the time to record it."""
    survivors: dict[str, list[SimAgent]] = field(default_factory=dict)
    """The nodes that had read all of such a round when the store lost its data."""

    def on_exit(self, agent: SimAgent) -> None:
        """Record that an agent has ended; if it left in order, other nodes must know of it soon."""
        state = agent.state
        if agent.leaving and state is not None and state.row.phase is Phase.STOPPED and state.ledger.round is not None:
            offer = state.ledger.round.offer.id
            self.world.hub.at(self.world.hub.now + KNOWN, self._expect_known, agent.node_id, offer)

    def _expect_known(self, node_id: str, offer: str) -> None:
        entry, leader = leaders.newest(self.world), leaders.leader(self.world)
        if entry is None or leader is None or leader.over or leader.process.frozen or not entry.anchors.halt:
            return
        current = self.world.newest_round(entry.run)
        if current is None or current.offer.id != offer or not data_loss.has_contact(self.world, leader.host, KNOWN):
            return
        self.known.add(offer)

    def on_wipe(self) -> None:
        """Record that the store is about to lose all its data."""
        for agent in self.world.living():
            state = agent.state
            if state is None or agent.process.frozen or state.ledger.round is None or state.ledger.halt is None:
                continue
            if (offer := state.ledger.round.offer.id) in self.known and data_loss.has_contact(
                self.world, agent.host, 0.0
            ):
                self.survivors.setdefault(offer, []).append(agent)

    def on_event(self, agent: SimAgent, event: Event) -> None:
        """Check a leader's report of the nodes that the job waits for."""
        if event.name != "waiting" or "may still be training" not in event.message or agent.state is None:
            return
        current = agent.state.ledger.round
        knew = self.survivors.get(current.offer.id, []) if current is not None else []
        for other in knew:
            if not other.over and not other.process.frozen:
                self.world.checker.fail(
                    "S4", f"{agent.node_id} waits for the fence of a round that {other.node_id} knew to be over"
                )
                return
