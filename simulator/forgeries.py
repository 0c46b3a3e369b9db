"""Writers that reach the store and are no node of the job: no node may act on their entries and rows (I10).

Without a job token, an entry of another author than the leader is refused by its author (rule S1); with one, any value
without its seal is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from elastic_core.protocol.codec import encode_entry, encode_row
from elastic_core.protocol.entries import Body, Closed, Entry, Halt, HaltReason, Offer, Round
from elastic_core.protocol.ledger import compose
from elastic_core.protocol.roster import Phase
from elastic_core.rendezvous.guard import Seal, protect
from elastic_core.rendezvous.job_token import JobToken
from simulator import leaders, outages
from simulator.channel import Payload
from simulator.leave_rules import FORGED
from simulator.rules import row_of

if TYPE_CHECKING:
    from elastic_core.rendezvous.backend import RendezvousBackend
    from simulator.agent import SimAgent
    from simulator.plan import Fault
    from simulator.store import Connection
    from simulator.world import Host, World

TOKEN = JobToken(b"the token that all nodes of this job have", "the simulator")
OTHER = JobToken(b"another one, of which a stranger seals its forgeries", "the simulator")
JOB = "job"
LEAVE_SECONDS = 4.0
"""Seconds after which a leader has read a row that was changed."""


def connection(store: Connection, sealed: bool, now: Callable[[], float]) -> RendezvousBackend:
    """Return a node's first connection: sealed where the job has a token."""
    return protect(store, "simulated store", TOKEN, JOB, now) if sealed else store


@dataclass
class Forgeries:
    """The forged entries and rows, and the checks that no node acts on them."""

    world: World
    entries: set[str] = field(default_factory=set)
    """Ids of forged entries."""
    rows: int = 0
    """Number of forged rows."""

    def check_read(self, agent: SimAgent, entry: Entry) -> None:
        """I10: an agent does not go on from a forged entry."""
        if entry.id in self.entries:
            why = f"{agent.node_id} goes on from entry {entry.index}, which no node of the job has written"
            self.world.checker.fail("I10", why)

    def check_rows(self, leader: SimAgent | None) -> None:
        """I10: a leader does not decide by a forged row."""
        if not self.rows or leader is None or leader.over or leader.supervisor is None:
            return
        for seen in leader.supervisor.session.watch.nodes.values():
            if FORGED in seen.row.unreachable:
                why = f"{leader.node_id} believes a row of {seen.node_id} that this node has not written"
                self.world.checker.fail("I10", why)


def _forge_entry(world: World, host: Host, fault: Fault) -> bool:
    """Append a forged entry: a ROUND at another address, a HALT or a CLOSED, by ``value`` modulo 3.

    Without a token it has an author of its own; with one it has the leader's name, and the seal of another job or, with
    ``value`` 3 and more, none.
    """
    leader, replica = leaders.leader(world), world.store.master
    ledger = None if leader is None or leader.state is None else leader.state.ledger
    if leader is None or ledger is None or ledger.closed is not None or ledger.head.id != replica.entries[-1][0]:
        return False
    halt = ledger.round and Halt(round=ledger.round.number, reason=HaltReason.UNSEEN, why="forged")
    bodies: list[Body] = [
        halt if halt is not None and ledger.is_live else _closed(),
        _closed(),
        Round(
            number=1 if ledger.round is None else ledger.round.number + 1,
            offer=Offer("203.0.113.66", 6666, "forged"),
            members=() if ledger.round is None else ledger.round.members,
        ),
    ]
    entry = compose(
        ledger,
        bodies[int(fault.value) % 3],
        entry_id=f"forged {world.new_id()}",
        author=leader.node_id if world.plan.has_token else "stranger",
        now=leader.host.now(),
        leader=ledger.leader,
    )
    world.checker.forgeries.entries.add(entry.id)
    data = encode_entry(entry)
    if world.plan.has_token:
        data = Seal(OTHER, JOB).entry(entry.index, data) if fault.value < 3 else data
    replica.add(entry.id, Payload.of(entry, data))
    return True


def _closed() -> Closed:
    return Closed(success=True, why="forged", exit_code=0)


def _forge_row(world: World, host: Host, fault: Fault) -> bool:
    """Forge a member's row: its workers have stopped, or it leaves (``value`` 1)."""
    replica = world.store.master
    agents = [agent for agent in host.living if agent.node_id in replica.rows]
    row = row_of(replica, agents[0].node_id) if agents else None
    if not world.plan.has_token or row is None:
        return False
    node_id = row.info.node_id
    forged = replace(row, unreachable=(FORGED,))
    forged = replace(forged, phase=Phase.STOPPED) if fault.value == 0.0 else replace(forged, leaving=True)
    revision = replica.rows[node_id].revision + 1
    replica.amend(node_id, revision, Payload.of(forged, Seal(OTHER, JOB).row(node_id, revision, encode_row(forged))))
    world.checker.forgeries.rows += 1
    host.faulty_until = outages.FOR_EVER
    world.hub.at(world.hub.now + LEAVE_SECONDS, _check, world)
    return True


def _check(world: World) -> None:
    world.checker.forgeries.check_rows(leaders.leader(world))


KINDS: dict[str, Callable[[World, Host, Fault], bool]] = {"forge-entry": _forge_entry, "forge-row": _forge_row}
