"""Who is taken for gone, and is not (rule S8): two hosts of one host id, and processes that outlive their warden.

A proof may be wrong where its assumption is broken: then only of a node that is out of touch with the store, and only
until its host id is known to be two hosts'. What a leader knows of that is found out here from what it has read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elastic_core.incidents import Incident
from elastic_core.rendezvous.backend import RosterRow
from elastic_core.rendezvous.ledger import Chair, Entry, Open, Resume
from elastic_core.rendezvous.rows import gone
from simulation import forgetting

if TYPE_CHECKING:
    from simulation.agent import SimAgent
    from simulation.plan import Fault
    from simulation.workers import Training
    from simulation.world import Host, World

SIGN = "its seat on the host"
"""What the cause of a loss says that was proved."""
TOUCH = 5.0
"""Seconds after a fault within which a node that lives may not have been heard of for a beat and a half."""
CONTRADICTIONS = 2
"""How often the beat of a node must grow that is proved to be gone, until nothing of its host is believed."""


def _outlive(world: World, host: Host, fault: Fault) -> bool:
    """An agent and its warden are killed at once, and what its workers have started trains on for ``span``."""
    agent = next((one for one in host.living if one.hands.alive() and not host.suspended), None)
    if agent is None:
        return False
    agent.kill()
    world.hub.at(world.hub.now + fault.span, agent.hands.orphaned)
    return True


@dataclass
class _Reader:
    """What a leader has read of the roster since it decides."""

    shown: set[str] = field(default_factory=set)
    """Whom rows have shown to be gone."""
    highest: dict[str, int] = field(default_factory=dict)
    grown: Counter[str] = field(default_factory=Counter)
    """How often the beat of each of these has grown since then."""


@dataclass
class Proofs:
    """Who was proved to be gone, and what contradicts that."""

    world: World
    _readers: dict[str, _Reader] = field(default_factory=dict)
    _excused: set[int] = field(default_factory=set)

    @property
    def deceptive(self) -> bool:
        """Whether a proof can be wrong in this plan."""
        return self.world.plan.twins is not None

    def appended(self, entry: Entry) -> None:
        """Somebody decides from now on, who has read nothing yet."""
        if isinstance(entry.body, Open | Chair | Resume):
            self._readers.pop(entry.chair, None)

    def listed(self, reader: str, rows: Sequence[RosterRow]) -> None:
        """An agent has read the whole roster."""
        if not self.deceptive:
            return
        known = self._readers.setdefault(reader, _Reader())
        for row in rows:
            if row.beat > known.highest.setdefault(row.node_id, row.beat):
                known.highest[row.node_id] = row.beat
                known.grown[row.node_id] += row.node_id in known.shown
        values: list[Any] = [row.value for row in rows]
        known.shown |= gone(value.value for value in values)

    def check_lost(self, entry: Entry, lost: Incident) -> None:
        """S8: who is taken for gone is; or else it was out of touch, and nobody could know that the proof is wrong."""
        agent = self.world.agent(lost.node_id)
        if agent is None or SIGN not in lost.message or agent.gone_at is not None:
            return
        if self._deceived(entry, agent):
            self.world.count("S8 a node that was out of touch is taken for gone, and lives")
        else:
            self.world.truth.violated("S8", f"{lost.node_id} is taken for gone, and lives: {lost.message}")

    def excuses(self, entry: Entry, training: Training) -> bool:
        """S4: whether a round may be sealed beside one that trains: somebody of that one seems to be gone."""
        agents = [self.world.agent(node_id) for node_id in training.gangs]
        if not any(agent is not None and self._deceived(entry, agent) for agent in agents):
            return False
        self._excused.add(id(training))
        self._check_over(training, self.world.hub.now + self.world.plan.fence_after)
        return True

    def excused(self, training: Training) -> bool:
        """Whether a round may train on beside another one."""
        return id(training) in self._excused

    def _check_over(self, training: Training, until: float) -> None:
        """S4: it trains no longer once its nodes are in touch, nor beyond the fence."""
        if not training.whole:
            return
        number, hub = training.round.number, self.world.hub
        if node_id := forgetting.overdue(self.world, training):
            self.world.truth.violated("S4", f"round {number} is taken for over and trains, and {node_id} must know")
        elif hub.now > until:
            self.world.truth.violated("S4", f"round {number} is taken for over and trains beyond the fence")
        else:
            self.world.count("S8 a round trains on that is taken for over")
            hub.at(hub.now + forgetting.LOOKS, self._check_over, training, until)

    def _deceived(self, entry: Entry, agent: SimAgent) -> bool:
        """Whether the author of an entry may take a node for gone that is not."""
        host, plan = agent.host, self.world.plan
        if plan.twins is None or not host.is_twin or agent.gone_at is not None:
            return False
        author = self.world.agent(entry.author)
        troubled = max(host.troubled_until, self.world.troubled_until, agent.started_at)
        if author is not None:
            troubled = max(troubled, author.host.troubled_until)
        return self.world.hub.now - troubled < TOUCH and agent.boot_id not in self._contradicted(entry.author)

    def _contradicted(self, reader: str) -> set[str]:
        """The host ids that a leader must know to be two hosts'."""
        known = self._readers.get(reader)
        often = [] if known is None else [one for one, count in known.grown.items() if count >= CONTRADICTIONS]
        return {agent.boot_id for node_id in often if (agent := self.world.agent(node_id)) is not None}


KINDS: dict[str, Callable[[World, Host, Fault], bool]] = {"outlive": _outlive}
