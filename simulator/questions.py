"""Questions to all nodes of a round (rule L14), of monitors that ask again and again, and of commands."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from elastic_core.errors import RendezvousConnectionError
from elastic_core.protocol.entries import Answers, Entry, Halt, Open, Question, Resume, Round
from elastic_core.protocol.node_events import Asked
from elastic_core.protocol.roster import Ask, NodeInfo, NodeRow
from elastic_core.questions import AskedQuestion, NodeAnswer
from simulator.channel import Payload
from simulator.engine import Process
from simulator.store import Connection

if TYPE_CHECKING:
    from simulator.agent import SimAgent
    from simulator.plan import Fault
    from simulator.world import Host, World

NAMES = "load", "place"
SILENT = "silent"


class SimRound:
    """A round as the agent shows it to monitors, with one that answers each question and asks again in ``asks_until``.

    It is its own ``callbacks``.
    """

    last_words = ()

    def __init__(self, agent: SimAgent) -> None:
        self.agent, self.callbacks = agent, self
        self.asks_until = 0.0

    @property
    def number(self) -> int:
        """The number of the newest round whose workers were started here; 0 for none."""
        worker = self.agent.group.worker
        return 0 if worker is None else worker.number

    def find(self, name: str, value: object) -> str:
        """Return an answer after a while."""
        self.agent._sleep(6.0 * self.agent.host.world.hub.random.random())
        return f'"{self.agent.node_id}"'

    def take(self, name: str, report: object) -> None:
        """Ask again, as a monitor does whose reason to ask lasts."""
        if self.agent.host.world.hub.now < self.asks_until:
            self.agent.inbox.post(Asked(self.number, name, "0"))


def sum_up(agent: SimAgent, question: AskedQuestion, answers: Sequence[NodeAnswer], before: str) -> str:
    """Return the report of a plugin that takes a while."""
    agent._sleep(agent.host.world.hub.random.random())
    return f'"{SILENT}"' if any(one.silent for one in answers) else '"all"'


def check(world: World, entry: Entry, body: Question | Answers) -> None:
    """L14: one question at a time in a live round, and each ANSWERS is of the newest question."""
    does = "asks" if isinstance(body, Question) else "answers"
    world.count(f"L14 a leader {does}")
    before, asked = world.checker.histories.written.get(entry.prev), None
    while before is not None and not isinstance(before.body, Open | Round | Resume | Halt):
        if isinstance(before.body, Question | Answers) and asked is None:
            asked = before
        before = world.checker.histories.written.get(before.prev)
    halted = before is None or isinstance(before.body, Halt | Open)
    if halted and not (before is not None and isinstance(before.body, Resume) and before.body.halt is None):
        world.checker.fail("L14", f"{entry.author} {does}, and no round is live")
    question = None if asked is None or not isinstance(asked.body, Question) else asked
    # A leader that has joined since does not know of the question, and asks again.
    known = question is not None and world.checker.joined_at.get(entry.author, 0) < question.index
    if isinstance(body, Question):
        if question is not None and known:
            world.checker.fail("L14", f"{entry.author} asks while question {question.index} is open")
        return
    if question is None or question.index != body.question:
        world.checker.fail("L14", f"{entry.author} answers question {body.question}, which is not open")
    elif question.author != entry.author:
        world.count("L14 another leader answers")
    if SILENT in body.report:
        world.count("L14 a node does not answer")


def _quiet(world: World, host: Host, fault: Fault) -> bool:
    """Have a monitor of an agent of this host ask, again after each report for ``span``."""
    agent = next((one for one in host.living if one.group.alive()), None)
    if agent is None or agent.group.worker is None:
        return False
    number, name = agent.group.worker.number, world.hub.random.choice(NAMES)
    agent.group.round.asks_until = world.hub.now + fault.span
    agent.inbox.post(Asked(number, name, "0"))
    world.hub.at(world.hub.now + fault.span, agent.inbox.post, Asked(number, name, None))
    return True


def _ask(world: World, host: Host, fault: Fault) -> bool:
    """Run a command that asks on this host; it ends after ``span``, or is killed if ``value`` is 1."""
    name = f"request-{world.new_id()}"
    process = Process(name, host.clock, host)
    versions = next((agent.info.versions for agent in host.agents), None)
    if versions is None:
        return False
    info = NodeInfo(node_id=name, host=host.name, host_id=name, slot=0, local_world_size=0, role="", versions=versions)
    row = Payload.of(NodeRow(info=info, asks=(Ask(NAMES[0], "0", _newest(world)),)))

    def call(name: str, *given: Any) -> None:
        with contextlib.suppress(RendezvousConnectionError):
            getattr(Connection(world.store, host.channel, process, hosting=False), name)(*given)

    def end() -> None:
        world.hub.start(process, lambda: call("remove", name))

    world.hub.start(process, lambda: call("enter", name, row))
    if not fault.value:
        world.hub.at(world.hub.now + fault.span, end)
    return True


def _newest(world: World) -> int:
    """Return the index of the newest entry that an agent has read."""
    agents = [agent for host in world.hosts for agent in host.agents if agent.supervisor is not None]
    return max((agent.supervisor.session.ledger.head.index for agent in agents if agent.supervisor), default=0)


KINDS: dict[str, Callable[[World, Host, Fault], bool]] = {"quiet": _quiet, "ask": _ask}
