"""Up to a thousand nodes that only send heartbeats, some of which fall silent (rule L1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_core.config.run import Timing
from elastic_core.protocol.roster import NodeInfo, NodeRow
from elastic_core.protocol.settings import Versions
from elastic_core.rendezvous.backend import RosterRow
from simulator.channel import Payload

if TYPE_CHECKING:
    from simulator.plan import Fault
    from simulator.world import Host, World

FIRST_SERIAL = 1_000_000
"""Serials of these nodes; all are greater than those of agents."""
DRIFT = 1.04
"""Factor by which a leader's clock may delay the detection of a silent node."""
TIMING = Timing()


@dataclass
class IdleNodes:
    """The rows of these nodes on the server."""

    world: World
    rows: dict[str, RosterRow] = field(default_factory=dict)
    """Their rows as entered, by node id, without those that were removed."""
    silent: dict[str, float] = field(default_factory=dict)
    """The time of the last heartbeat of each silent node."""

    def __post_init__(self) -> None:
        for number in range(self.world.plan.idle_nodes):
            name = f"crowd-{number}"
            info = NodeInfo(
                node_id=name,
                host=name,
                host_id=name,
                slot=0,
                local_world_size=1,
                role="",
                versions=Versions(python="3.11.7"),
            )
            self.rows[name] = RosterRow(name, FIRST_SERIAL + number, 0, Payload.of(NodeRow(info=info)), 0)

    def roster(self) -> list[RosterRow]:
        """Return their rows as a read of the whole roster finds them now."""
        now, interval, silent = self.world.hub.now, TIMING.beat_interval, self.silent
        heartbeats = {
            name: int(silent.get(name, now) / interval + row.serial % 97 / 97) for name, row in self.rows.items()
        }
        return [RosterRow(name, row.serial, 0, row.value, heartbeats[name]) for name, row in self.rows.items()]

    def remove(self, name: str) -> None:
        """Record that a leader has found one of them to be lost."""
        if self.rows.pop(name, None) is None:
            return
        if name not in self.silent:
            self.world.checker.fail("L1", f"{name} heartbeats, and is taken for lost among {len(self.rows)}")
        self.world.count("L1 a node is found that is silent among many")


def detection_seconds(world: World) -> float:
    """Return the seconds from a last heartbeat to its detection: L1's limit, and two heartbeat intervals."""
    wait, look = TIMING.beat_interval, world.plan.roster_seconds
    return DRIFT * (TIMING.lost_after + wait + 2 * (wait + look) + look) + 1.0


def _silence_node(world: World, host: Host, fault: Fault) -> bool:
    """Stop the heartbeats of one node, by ``value``."""
    names = list(world.idle_nodes.rows)
    if not names:
        return False
    name = names[int(fault.value) % len(names)]
    world.idle_nodes.silent.setdefault(name, world.hub.now)
    world.hub.at(world.hub.now + detection_seconds(world), _check_found, world, name)
    return True


def _check_found(world: World, name: str) -> None:
    if name in world.idle_nodes.rows and not world.checker.verdicts:
        nodes, silence = len(world.idle_nodes.rows), detection_seconds(world)
        why = f"{name} has been silent for {silence:.1f} s among {nodes}, and no leader has found it"
        world.checker.fail("L1", why)


KINDS: dict[str, Callable[[World, Host, Fault], bool]] = {"hush": _silence_node}
