"""Checks of the protocol's rules beyond the invariants, as far as they show from outside.

Most of them hold for healthy nodes (``health``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.exit_codes import ExitCode
from elastic_core.incidents import Incident, IncidentKind, distance_to_cause
from elastic_core.protocol.entries import Closed, Entry, Halt, HaltReason, Round
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.node_events import Work
from elastic_core.protocol.roster import NodeRow
from simulator import finish_coverage, leave_rules, programs, reachability, resizes, round_sizes, slot_rules, verdicts
from simulator.health import healthy_agent
from simulator.workers import State

if TYPE_CHECKING:
    from simulator.agent import SimAgent
    from simulator.replica import Replica
    from simulator.world import World

RESIZES_APART = 9.0
"""Seconds between the end of one resize and the next (rule L4), less the drift of clocks."""
LOSSES, BARREN = 3, 10
"""Losses of a host, and consecutive rounds without progress, that are the most allowed (rule L4)."""
FREED = 2.0
"""Seconds within which the warden has killed a process that the kernel released."""


def check_halt(world: World, replica: Replica, entry: Entry, body: Halt) -> None:
    """L1: a healthy node is not lost. L4: resizes are batched. L13: they lose little."""
    check_cause(world, entry, body.incident)
    lost = body.incident if body.incident is not None and body.incident.kind is IncidentKind.NODE_LOST else None
    if lost is not None and healthy_agent(world, lost.node_id) is not None:
        world.checker.fail("L1", f"{lost.node_id} is healthy, and taken for lost")
    if lost is not None:
        world.checker.proofs.check_lost(entry, lost)
    if lost is not None and "its last process is gone" in lost.message:
        world.count("S8 a node is lost that a row of its host shows to be gone")
    if body.reason is not HaltReason.RESIZE:
        return
    resizes.check_resize(world, replica, entry)
    round_sizes.check_resize(world, entry, world.checker.histories.newest_round(replica, entry.run))
    now = world.hub.now
    resized_at = world.checker.resized_at.get(entry.run)
    if resized_at is not None and now - resized_at < RESIZES_APART and entry.run not in world.checker.histories.forked:
        world.checker.fail("L4", f"the second resize within {now - resized_at:.1f} s")


def check_cause(world: World, entry: Entry, blamed: Incident | None) -> None:
    """Check that no failure is blamed if the leader has read of one closer to the root cause."""
    if blamed is None or distance_to_cause(blamed) == 0:
        return
    world.count("what follows from a peer's loss is blamed, since nothing else is known")
    for row in leave_rules.read_before(world, entry.id, entry.run):
        cause = row.incident
        if cause is not None and cause.round == blamed.round and distance_to_cause(cause) < distance_to_cause(blamed):
            world.checker.fail("cause", f"{blamed.node_id} is blamed; {cause.node_id} has reported {cause.message}")


def check_leader(world: World, before: Entry | None, entry: Entry, kind: str) -> None:
    """L1: a healthy leader is not deposed."""
    if before is None or kind not in ("after silence", "unanswered"):
        return
    if healthy_agent(world, before.leader) is not None:
        world.checker.fail("L1", f"{before.leader} is healthy, and deposed ({kind})")


def check_closed(world: World, replica: Replica, entry: Entry, body: Closed) -> None:
    """Check a verdict: success after all have finished; P3: it names missing nodes; S6: no living run is abandoned."""
    reachability.check_closed(world, entry, body)
    check_cause(world, entry, body.incident)
    current = world.checker.histories.newest_round(replica, entry.run)
    if current is not None and body.incident is not None:
        verdicts.check_judged_failure(world, entry, current, current)
    if body.success:
        for member in current.members if current is not None else ():
            worker = world.worker(entry.run, current, member.node_id)
            if worker is None or worker.done_at is None:
                world.checker.fail("success", f"the job is done, but {member.node_id} has not finished")
        if current is not None:
            finish_coverage.note_success(world, replica, entry, current)
    if body.exit_code == ExitCode.TOO_FEW_NODES:
        world.count("L6 too few nodes for too long")
        if not any(sign in body.why for sign in ("missing: ", "never came")):
            world.checker.fail("P3", f"the verdict names no missing node: {body.why}")
        here = _healthy_nodes(world, entry.run)
        if len(here) >= world.plan.min_nodes:
            world.checker.fail("P1", f"the verdict has too few nodes, but {', '.join(here)} are healthy")
    if "The value for" in body.why:
        world.count("a run ends because an entry is too large")
    if "without progress" in body.why:
        world.count("L4 ten rounds without progress")
    if "--on_node_loss=fail" in body.why:
        world.count("a lost node ends the job")
    if "abandoned" in body.why:
        world.count("S6 an abandoned run is closed")
        others = _healthy_nodes(world, entry.run)
        if others:
            world.checker.fail("S6", f"the run is abandoned, but {', '.join(others)} is healthy")


def _healthy_nodes(world: World, run: str) -> list[str]:
    return [agent.node_id for agent in world.living() if agent.run == run and healthy_agent(world, agent.node_id)]


def check_slots(world: World, before: Entry | None, entry: Entry, body: Round, earlier: Round | None) -> None:
    """S7: a node with a slot has joined this run and read its RESUME. L4: bad hosts get none while others suffice.

    Members of the round ``earlier`` that stopped for newcomers stay, and so may other nodes of their hosts.
    """
    leave_rules.check_slots(world, entry, body)
    slot_rules.check(world, before, entry, body, earlier)
    agents = [agent for member in body.members if (agent := world.agent(member.node_id)) is not None]
    said = {row.info.node_id for row in leave_rules.read_before(world, entry.id, entry.run)}
    for agent in agents:
        if agent.run != entry.run and (agent.run or agent.node_id not in said):  # else its row was faster than itself
            world.checker.fail("S7", f"{agent.node_id} is given a slot and has not joined run {entry.run}")
        if agent.state is not None and agent.state.ledger.head.epoch < entry.epoch:
            world.checker.fail("S7", f"{agent.node_id} is given a slot and has not read that the run was resumed")
    counted = before.counters.losses if before is not None else {}  # those that this round counts come with it
    often = {host for host, losses in counted.items() if losses.count >= LOSSES}
    if entry.counters.barren >= BARREN:
        world.checker.fail("L4", f"a round follows {entry.counters.barren} that got nowhere")
    halt = world.checker.histories.halt_before(entry)
    resized = halt is not None and halt.reason is HaltReason.RESIZE
    stays = {member.node_id for member in earlier.members} if resized and earlier is not None else set()
    good = {agent.boot_id for agent in agents if agent.node_id in stays}
    bad = [agent for agent in agents if agent.boot_id in often - good]
    if bad and len(agents) - len(bad) >= world.plan.min_nodes:
        world.checker.fail("L4", f"{bad[0].node_id} was lost too often, and others suffice")


def check_joined(world: World, agent: SimAgent, ledger: Ledger) -> None:
    """S6: no node joins another job's run, nor the next run once its own has ended."""
    programs.check_joined(world, agent, ledger)
    for verdict in _verdicts_since(world, agent)[:1]:
        if verdict.run != ledger.head.run and verdict.index < ledger.head.index:  # else it is too young to be known
            why = f"{agent.node_id} joins run {ledger.head.run}, and run {verdict.run}, for which it came, is over"
            world.checker.fail("S6", why)
    if agent.uid is not None and ledger.opened.scheduler_uid != agent.uid:
        world.checker.fail("S6", f"{agent.node_id} of {agent.uid} joins the run of {ledger.opened.scheduler_uid}")


def check_reported(world: World, agent: SimAgent, closed: Closed) -> None:
    """S6: an abandoned run has no verdict."""
    programs.check_reported(world, agent, closed)
    if closed.abandoned:
        world.checker.fail("S6", f"{agent.node_id} reports the end of a run that was abandoned")
    if _verdicts_since(world, agent):
        world.count("S6 a latecomer reports the verdict on the run that it came for")


def _verdicts_since(world: World, agent: SimAgent) -> list[Entry]:
    """Return the verdicts on an agent's possible runs since it first read the ledger; the first is on its own run."""
    if agent.verdicts_before is None or world.lost_data:
        return []
    since = [(entry, entry.body) for entry in world.checker.verdicts[agent.verdicts_before :]]
    uids, commands = world.checker.histories.uids, world.checker.histories.commands
    return [
        entry
        for entry, body in since
        if isinstance(body, Closed) and not body.abandoned and agent.uid in (None, uids.get(entry.run))
        if entry.run not in commands or not programs.differ(world, agent.command, commands[entry.run])
    ]


def check_ledger_obeyed(world: World, agent: SimAgent) -> None:
    """Check that no workers run that an entry forbids, once the agent has handled the entry."""
    state = agent.state
    if state is None or state.work is not Work.RUNNING:
        return
    ledger: Ledger = state.ledger
    if not ledger.is_live or ledger.round is None or ledger.round.number != state.row.round:
        number = state.row.round
        world.checker.fail("S1", f"{agent.node_id} has read entry {ledger.head.index}, and goes on with {number}")


def check_exit(world: World, agent: SimAgent, why: str) -> None:
    """P4: an agent that ends has no workers, unless they cannot be killed."""
    worker = agent.group.worker
    if agent.state is None or agent.group.left_stuck or why.startswith("process "):
        return
    if worker is not None and (worker.stuck or world.hub.now - worker.unblocked_at < FREED):
        return
    if agent.state.work not in (Work.NONE, Work.DONE) or (worker is not None and worker.state is not State.GONE):
        world.checker.fail("P4", f"{agent.node_id} ends while its workers are {agent.state.work.value}")


def row_of(replica: Replica, node_id: str) -> NodeRow | None:
    """Return a node's row on a server."""
    row = replica.rows.get(node_id)
    found: NodeRow | None = None if row is None else row.value.value  # type: ignore[attr-defined]
    return found
