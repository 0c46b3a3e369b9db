"""Questions about the position of ranks (rule L14): of nodes without progress, and of ``elastic stacks``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from elastic_core.errors import RendezvousConnectionError
from elastic_core.protocol.entries import Entry, Halt, Open, Resume, Round, Stacks
from elastic_core.protocol.node_events import Hung, Locate
from elastic_core.protocol.roster import LocalStacks, NodeInfo, NodeRow
from simulator.channel import Payload
from simulator.engine import Process
from simulator.store import Connection

if TYPE_CHECKING:
    from simulator.agent import SimAgent
    from simulator.plan import Fault
    from simulator.world import Host, World

WINDOW = 4.0
"""Seconds without progress."""


def locate(agent: SimAgent, asked: Locate) -> LocalStacks:
    """Return an answer after a while, as if no rank moved."""
    step = agent.group.newest_step()
    agent._sleep(6.0 * agent.host.world.hub.random.random())
    texts = {agent.node_id: "stack"} if asked.full else {}
    return LocalStacks(answers=asked.index, places={f"in {agent.node_id}": (0,)}, step=step, texts=texts)


def check(world: World, entry: Entry, body: Stacks) -> None:
    """L14: one question at a time in a live round, and each report answers the newest question."""
    kind = "reports" if body.answers else "asks"
    world.count(f"STACKS {kind}")
    before, asked = world.checker.histories.written.get(entry.prev), None
    while before is not None and not isinstance(before.body, Open | Round | Resume | Halt):
        if isinstance(before.body, Stacks) and asked is None:
            asked = before
        before = world.checker.histories.written.get(before.prev)
    halted = before is None or isinstance(before.body, Halt | Open)
    if halted and not (before is not None and isinstance(before.body, Resume) and before.body.halt is None):
        world.checker.fail("L14", f"{entry.author} {kind} where the ranks are, and no round is live")
    question = None if asked is None or not isinstance(asked.body, Stacks) or asked.body.answers else asked
    # A leader that has joined since does not know of the question, and asks again.
    known = question is not None and world.checker.joined_at.get(entry.author, 0) < question.index
    if not body.answers and question is not None and known:
        world.checker.fail("L14", f"{entry.author} asks while question {question.index} is open")
    if body.answers and (question is None or question.index != body.answers):
        world.checker.fail("L14", f"{entry.author} reports what {body.answers} has asked, which is not open")
    if question is not None and body.answers and question.author != entry.author:
        world.count("STACKS another leader reports")
    if body.answers and "has not answered" in body.report:
        world.count("STACKS a node does not answer")


def _quiet(world: World, host: Host, fault: Fault) -> bool:
    """Report no progress of an agent of this host, for ``span``."""
    agent = next((one for one in host.living if one.group.alive()), None)
    if agent is None or agent.group.worker is None:
        return False
    number = agent.group.worker.number
    agent.inbox.post(Hung(number, WINDOW))
    world.hub.at(world.hub.now + fault.span, agent.inbox.post, Hung(number, 0.0))
    return True


def _ask(world: World, host: Host, fault: Fault) -> bool:
    """Run ``elastic stacks`` on this host; it ends after ``span``, or is killed if ``value`` is 1."""
    name = f"stacks-{world.new_id()}"
    process = Process(name, host.clock, host)
    versions = next((agent.info.versions for agent in host.agents), None)
    if versions is None:
        return False
    info = NodeInfo(node_id=name, host=host.name, host_id=name, slot=0, local_world_size=0, role="", versions=versions)
    row = Payload.of(NodeRow(info=info, wants_stacks="full" if fault.value else "brief"))

    def call(name: str, *given: Any) -> None:
        with contextlib.suppress(RendezvousConnectionError):
            getattr(Connection(world.store, host.channel, process, hosting=False), name)(*given)

    def end() -> None:
        world.hub.start(process, lambda: call("remove", name))

    world.hub.start(process, lambda: call("enter", name, row))
    if not fault.value:
        world.hub.at(world.hub.now + fault.span, end)
    return True


KINDS: dict[str, Callable[[World, Host, Fault], bool]] = {"quiet": _quiet, "ask": _ask}
