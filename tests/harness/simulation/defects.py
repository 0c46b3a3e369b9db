"""Defects to plant: a module, a piece of its source that occurs once, and what stands there instead."""

from __future__ import annotations

from dataclasses import dataclass

RENDEZVOUS = "elastic_core.rendezvous."


@dataclass(frozen=True)
class Mutant:
    """One planted defect."""

    name: str
    module: str
    old: str
    new: str
    profile: str
    """The profile whose plans notice it soonest."""
    most: int = 400
    """Plans that it may survive."""
    first: int = 0
    """The plan to begin with: rare ones are known to be noticed soon after it."""


def _m(name: str, module: str, old: str, new: str, profile: str, most: int = 400, first: int = 0) -> Mutant:
    return Mutant(name, module if "." in module else RENDEZVOUS + module, old, new, profile, most, first)


MUTANTS: tuple[Mutant, ...] = (
    # Who decides
    _m("everybody decides", "session", "chairs = self._ledger.chair == self._node_id", "chairs = True", "agents"),
    _m("a successor keeps the term", "ledger", "head.term + isinstance(body, Chair)", "head.term", "agents"),
    _m("nobody succeeds a silent chair", "succession", "+ ledger.settings.timing.lost_after", "+ 10_000.0", "agents"),
    _m(
        "a report is never answered",
        "pulse",
        "self._ledger, self._reported_at = ledger, None",
        "self._ledger = ledger",
        "workers",
    ),
    # Writing
    _m(
        "a blind write",
        "simulation.store",
        "if self.head != prev.index or self._id(prev.index) != prev.id:",
        "if False:",
        "network",
    ),
    _m(
        "an entry is written over",
        "simulation.store",
        "        if self.head != prev.index or",
        "        del self.entries[prev.index:]\n        if self.head != prev.index or",
        "network",
    ),
    _m("an unclosed run is opened anew", "join", "if abandoned and ledger is not None:", "if False:", "reused"),
    # Sealing
    _m(
        "below the minimum",
        "decide",
        "    if len(nodes) >= scene.agreement.min_nodes:\n        why",
        "    if nodes:\n        why",
        "agents",
    ),
    _m("the first round below the minimum", "decide", "if len(came) >= agreement.min_nodes:", "if came:", "agents"),
    _m("above the maximum", "decide", "*muster.joining])[: scene.agreement.max_nodes]", "*muster.joining])", "agents"),
    _m("the first round above the maximum", "decide", "came[: agreement.max_nodes]", "came", "agents"),
    _m("no fence", "decide", "if scene.now < fence and not _is_over(scene, old):", "if False:", "network", first=85),
    _m("a short fence", "decide", "+ scene.timing.fence_after", "+ 2.0", "network", first=85),
    _m(
        "a round is over because its members are lost",
        "decide",
        "if stopped or failed or idle or superseded(scene.watch, seen):",
        "if stopped or failed or idle or scene.dead(seen.node_id):",
        "network",
        first=85,
    ),
    _m(
        "a used store again for the same members",
        "sealing",
        "if offer is None or offer == current.offer:",
        "if offer is None:",
        "workers",
    ),
    _m("success when the first has finished", "decide", "if len(finished) == len(ids):", "if finished:", "workers"),
    _m(
        "an old FINISHED counts",
        "scene",
        "seen.row.phase is Phase.FINISHED and seen.row.round == current.number",
        "seen.row.phase is Phase.FINISHED",
        "workers",
    ),
    _m("success is not noticed", "decide", "if len(finished) == len(ids):", "if False:", "workers"),
    _m(
        "somebody joins at the end",
        "decide",
        "if scene.room(current) and not finished:",
        "if scene.room(current):",
        "workers",
        3000,
        first=90,
    ),
    _m(
        "resizes are not batched",
        "decide",
        "return ledger.resized_at + max(RESIZE_PAUSE, RESIZE_PAUSE_FACTOR * ledger.resize_cost)",
        "return ledger.resized_at",
        "agents",
        3000,
    ),
    _m(
        "rounds that never get anywhere go on",
        "sealing",
        "MAX_BARREN_ROUNDS = 10",
        "MAX_BARREN_ROUNDS = 10_000",
        "barren",
    ),
    _m("a flapping host is seated for ever", "scene", "MAX_LOSSES = 3\n", "MAX_LOSSES = 3000\n", "flapping", first=110),
    _m(
        "nobody gives up waiting",
        "decide",
        "    deadline = ledger.halt_at + scene.timing.join_timeout",
        "    deadline = ledger.halt_at + 10_000.0",
        "few",
    ),
    # Books
    _m(
        "failures are for free",
        "books",
        "restarts=counters.restarts + spends, barren",
        "restarts=counters.restarts, barren",
        "workers",
    ),
    _m(
        "failures that end in a HALT are for free",
        "books",
        "restarts=counters.restarts + spends - given_back",
        "restarts=counters.restarts - given_back",
        "workers",
    ),
    _m(
        "a failure costs two",
        "books",
        "restarts=counters.restarts + spends - given_back",
        "restarts=counters.restarts + 2 * spends - given_back",
        "workers",
    ),
    _m(
        "a lost node costs a restart",
        "books",
        "spends = charged(halt.incident) and not lost and not left",
        "spends = charged(halt.incident) or bool(lost)",
        "agents",
    ),
    _m(
        "the budget has no end",
        "simulation.agent",
        "if history.restarts < history.max_restarts:",
        "if True:",
        "workers",
    ),
    # Who is lost
    _m("nobody is ever lost", "watch", "or now >= silent_at(watch, seen, timing)", "", "agents"),
    _m(
        "a wall clock",
        "simulation.world",
        "return self.clock.now()",
        "return self.clock.now() + self.wall_offset",
        "agents",
        3000,
    ),
    _m("a host has one seat", "watch", "other.row.info.seat == info.seat", "True", "agents"),
    _m(
        "the older one of a seat lives",
        "watch",
        "other.serial > seen.serial",
        "other.serial < seen.serial",
        "agents",
        first=160,
    ),
    _m(
        "the dead keep their rows",
        "chair",
        "            store.remove(node_id)\n        self.watch",
        "            pass\n        self.watch",
        "agents",
    ),
    _m(
        "who stops by itself is not missed",
        "decide",
        "if stopped and seen.row.incident is None:",
        "if False:",
        "fenced",
        first=100,
    ),
    _m(
        "a lost member is not missed",
        "decide",
        "    if scene.dead(node_id):\n        lost",
        "    if False:\n        lost",
        "agents",
    ),
    # The node
    _m(
        "workers are started over others",
        "node",
        "    if state.work is Work.NONE:\n",
        "    if state.work in (Work.NONE, Work.STOPPING):\n",
        "workers",
    ),
    _m(
        "a HALT is not obeyed",
        "node",
        "    if ledger.halt is not None:\n        planned",
        "    if False:\n        planned",
        "agents",
    ),
    _m(
        "the next round is not noticed",
        "node",
        "if ledger.round is not None and ledger.round.number != state.round:",
        "if False:",
        "workers",
    ),
    _m(
        "CLOSED is not obeyed",
        "node",
        "    if ledger.closed is not None:\n        return Stop",
        "    if False:\n        return Stop",
        "workers",
    ),
    _m(
        "a round is started twice", "node", "current.number <= state.round:", "current.number < state.round:", "workers"
    ),
    _m(
        "who is left out starts, too",
        "node",
        "return current if state.ledger.is_member(state.info.node_id) else None",
        "return current",
        "agents",
    ),
    _m(
        "an agent ends before its workers",
        "node",
        "if state.work in (Work.NONE, Work.DONE) and (end",
        "if state.work is not Work.RUNNING and (end",
        "agents",
    ),
    _m(
        "a row never shows what was seen",
        "node",
        "        head=state.ledger.head.index,\n",
        "        head=0,\n",
        "agents",
        1000,
    ),
    _m(
        "FINISHED does not last",
        "node",
        "phase = state.phase if state.phase is Phase.FINISHED else Phase.STOPPED",
        "phase = Phase.STOPPED",
        "workers",
        3000,
    ),
    # The fence
    _m(
        "no dead-man's switch",
        "elastic_core.agent.supervisor",
        "        self._arm_fence()\n        self._inbox.at",
        "        self._warden.fence(None)\n        self._inbox.at",
        "fenced",
        3000,
        first=200,
    ),
    _m(
        "the fence comes late",
        "elastic_core.agent.supervisor",
        "FENCE_SHARE = 0.8",
        "FENCE_SHARE = 1.5",
        "fenced",
        3000,
        first=290,
    ),
    _m(
        "a failed call is contact with the store",
        "session",
        "    def _store_failed(self, exc: RendezvousConnectionError) -> None:\n",
        "    def _store_failed(self, exc: RendezvousConnectionError) -> None:\n"
        "        self.contact_at = self._clock.now()\n",
        "fenced",
        3000,
        first=200,
    ),
    # Stopping together
    _m("the step of a plan is one too low", "planning", "step=max(steps) + 1", "step=max(steps)", "graceful"),
    _m(
        "the step of a plan is the slowest rank's", "planning", "step=max(steps) + 1", "step=min(steps) + 1", "graceful"
    ),
    _m(
        "a step is named before all have answered",
        "planning",
        "if len(answered) == len(ids) else None",
        "if answered else None",
        "graceful",
        1000,
    ),
    _m(
        "an exit that was asked for is a finished node",
        "node",
        "return replace(state, stepped_down=True)",
        "return replace(state, work=Work.DONE, phase=Phase.FINISHED)",
        "graceful",
    ),
    _m(
        "who has stopped as planned is missed",
        "decide",
        "if scene.ledger.plan is not None and stepped_down(current, seen):",
        "if False:",
        "graceful",
        1000,
    ),
    _m(
        "all are halted before all have stopped",
        "planning",
        "    if not left:\n",
        "    if len(left) < len(ids):\n",
        "graceful",
    ),
    _m(
        "workers are not told of a plan",
        "node",
        "if state.work is Work.RUNNING and (told := _notice(state)) != state.told:",
        "if (told := state.told) is not None and (told := _notice(state)) != state.told:",
        "graceful",
        2000,
    ),
    _m(
        "a plan has no deadline",
        "planning",
        "    if scene.now >= deadline:\n",
        "    if False:\n",
        "graceful",
        3000,
    ),
    _m("a rank does not hold", "simulation.steps", "notice.plan, None, True", "notice.plan, None, False", "graceful"),
    # Coming in
    _m(
        "any uid joins",
        "admission",
        "    if same or uid is None:\n        return Join()",
        "    if True:\n        return Join()",
        "reused",
    ),
    _m(
        "a living run is abandoned",
        "admission",
        "return uid is not None and uid != ledger.scheduler_uid",
        "return False",
        "reused",
        3000,
        first=280,
    ),
)
