"""Scenarios: text files that show what the protocol does, and that are compared with what it does.

Each file in ``scenarios`` begins with a comment that says what happens. Then come blocks: commands, a line ``----``,
and what follows from them until nothing changes any more. A line of output has the second, who acts, and what it does.
``scenarios/README.md`` lists the commands. Decisions, node states, liveness and succession are the shipped pure
functions; this file has only a store in memory, a clock that a command moves on, and the texts.

To write the files anew after a change: ``REWRITE_SCENARIOS=1 python -m pytest core/tests/protocol/test_scenarios.py``.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from elastic_core.config.parse import OnNodeLoss, node_range
from elastic_core.config.run import Timing
from elastic_core.incidents import History, Incident, IncidentKind, is_peer_loss
from elastic_core.plugins.builtin import MaxRestartsPolicy
from elastic_core.protocol.admission import Join, OpenNext, Report, admit
from elastic_core.protocol.entries import (
    Answers,
    Body,
    Closed,
    Counters,
    Drain,
    Entry,
    Halt,
    Leader,
    Offer,
    Open,
    Over,
    Plan,
    Question,
    Resume,
    Round,
    StopAt,
)
from elastic_core.protocol.failure_detector import (
    DeposedLeader,
    Observation,
    Watch,
    contact_gap,
    forget_older_epochs,
    observe,
)
from elastic_core.protocol.leader import decide
from elastic_core.protocol.leader_entries import Append, AskPolicies, LookAgain, SumUp
from elastic_core.protocol.leader_view import Judgement, LeaderView, Summary
from elastic_core.protocol.ledger import Ledger, compose, open_ledger, restore_ledger, stands_on
from elastic_core.protocol.node import NodeState, failed_round, row_of, step
from elastic_core.protocol.node_events import (
    Answered,
    AnswerFound,
    Asked,
    Effect,
    EntriesRead,
    Exit,
    FindAnswer,
    Grace,
    HistoryReplaced,
    Leaving,
    MakeOffer,
    NodeEvent,
    Notify,
    Offered,
    Probed,
    Progressed,
    Start,
    SteppedDown,
    Stop,
    TakesNotices,
    Work,
    WorkerFailed,
    WorkersDone,
    WorkersGone,
)
from elastic_core.protocol.repair import Diverged, Memory, WriteResume, compose_resume, describe_loss, overlap, settle
from elastic_core.protocol.roster import Answer, Ask, NodeInfo, NodeRow
from elastic_core.protocol.settings import Agreement, Settings, Versions
from elastic_core.protocol.succession import LeaderSigns, succession_place, takeover_at
from elastic_core.rendezvous.backend import ORIGIN
from elastic_core.session.contact import FENCE_SHARE

SCENARIOS = Path(__file__).with_name("scenarios")
TICK = 0.5
"""Seconds between two looks at the clock while a command waits."""
SIZE = 2
"""Workers of each node."""
SIGTERM_EXIT = 143
VERSIONS = Versions(python="3.11.7", torch="2.13.0")
GRACES = {Grace.PLANNED: "--shutdown_timeout", Grace.BROKEN: "--failure_grace"}


@dataclass
class Node:
    """An agent: its state, and what the world does to it."""

    name: str
    state: NodeState
    serial: int
    contact_at: float
    alive: bool = True
    cut: bool = False
    """True if it does not reach the store."""
    leads: Leads | None = None
    heartbeat: int = 0
    offers: int = 1
    reached_not: set[str] = field(default_factory=set)
    """The nodes that its probes do not reach."""
    steps: tuple[int, ...] = ()
    """The newest step of each worker, if the script calls ``should_checkpoint``."""
    heard: tuple[int, float] = (0, 0.0)
    """The leader's heartbeat, and when it last changed."""
    reported: tuple[float, int] | None = None
    """When it reported an incident, and the newest entry that it had read then."""
    entries: tuple[Entry, ...] = ()

    @property
    def connected(self) -> bool:
        return self.alive and not self.cut


@dataclass
class Leads:
    """The knowledge of a node that decides."""

    watch: Watch
    judgement: Judgement | None = None
    waits: tuple[int, str] = (0, "")


class World:
    """Some nodes and a store, on one clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.store: list[Entry] = []
        self.rows: dict[str, tuple[NodeRow, int, int]] = {}
        self.nodes: dict[str, Node] = {}
        self.may_forget = False
        self.look_at: float | None = None
        self.lines: list[str] = []
        self.ids = itertools.count(1)

    def say(self, who: str, what: str) -> None:
        self.lines.append(f"{self.now:7.1f}  {who:7} {what}")

    # Commands --------------------------------------------------------------------------------------------------------

    def play(self, command: str) -> None:
        name, *words = shlex.split(command)
        options = dict(word.split("=", 1) for word in words if "=" in word)
        names = [word for word in words if "=" not in word]
        getattr(self, f"on_{name}")(*names, **options)

    def on_open(self, name: str, nnodes: str, uid: str = "", forgets: str = "", **options: str) -> None:
        nodes = node_range(nnodes)
        loss = OnNodeLoss(options.pop("on_node_loss", "replace"))
        restarts = int(options.pop("max_restarts", "3"))
        agreement = Agreement(
            min_nodes=nodes.least,
            max_nodes=nodes.most,
            sizes=nodes.sizes,
            spares=int(options.pop("spares", "0")),
            max_restarts=restarts,
            on_node_loss=loss,
        )
        timing = Timing(**{key: float(value) for key, value in options.items()})
        settings = Settings(agreement=agreement, timing=timing, versions=VERSIONS, host=f"host-{name}")
        self.may_forget = bool(forgets)
        self.begin(name, Open(scheduler_uid=uid or None, settings=settings))

    def begin(self, name: str, body: Open) -> None:
        before = self.newest() if self.store else None
        entry = compose(before, body, entry_id=self.new_id(), author=name, now=self.now, run=f"run{len(self.store)}")
        self.append(entry)
        self.enter(name, open_ledger(entry, self.now), leads=True)

    def on_join(self, name: str, uid: str = "") -> None:
        ledger = self.newest()
        alive = [node.name for node in self.nodes.values() if node.alive]
        match admit(ledger, uid or None, alive):
            case Join():
                self.enter(name, ledger)
            case Report(closed):
                self.say(name, f"reports the verdict of the run and exits with {closed.exit_code}: {closed.why}")
            case OpenNext():
                self.begin(name, Open(scheduler_uid=uid or None, settings=ledger.settings))

    def on_wait(self, seconds: str) -> None:
        until = self.now + float(seconds)
        self.settle()
        while self.now < until:
            at = self.now + TICK if self.look_at is None else min(self.now + TICK, max(self.look_at, self.now + 0.001))
            self.now = round(min(at, until), 3)
            self.settle()

    def on_fail(self, name: str, rank: str, code: str = "1", message: str = "", after: str = "60") -> None:
        node = self.nodes[name]
        incident = Incident(
            kind=IncidentKind.WORKER_FAILED,
            round=node.state.round,
            node_id=name,
            host=f"host-{name}",
            after=float(after),
            rank=int(rank),
            exit_code=int(code),
            message=message,
            exception=message.partition(":")[0],
            follows_peer=is_peer_loss(message, "/torch/distributed/distributed_c10d.py"),
        )
        self.say(name, f"rank {rank} {incident.cause()}" + (f": {message}" if message else ""))
        node.reported = self.now, node.state.ledger.head.index
        self.hears(node, WorkerFailed(incident))

    def on_finish(self, *names: str) -> None:
        for name in names:
            self.say(name, "all workers exited with 0")
            self.hears(self.nodes[name], WorkersDone())

    def on_crash(self, *names: str) -> None:
        """The host loses its power."""
        for name in names:
            self.nodes[name].alive = False
            self.say(name, "is gone with its host")

    def on_cut(self, *names: str) -> None:
        for name in names:
            self.nodes[name].cut = True
            self.say(name, "does not reach the store any more")

    def on_heal(self, *names: str) -> None:
        for name in names:
            node = self.nodes[name]
            node.cut = False
            missed = f"{node.state.ledger.head.index + 1} to {self.store[-1].index}"
            self.say(name, f"reaches the store again, and reads entries {missed}")

    def on_unreachable(self, name: str) -> None:
        for other in self.nodes.values():
            if other.name == name:
                other.reached_not = set(self.nodes) - {name}
            else:
                other.reached_not = {name}
        self.say(name, "and its peers do not reach each other; all of them reach the store")

    def on_steps(self, name: str, *steps: str) -> None:
        node = self.nodes[name]
        node.steps = tuple(map(int, steps))
        self.hears(node, TakesNotices(node.state.round))

    def on_ask(self, name: str, question: str) -> None:
        self.say(name, f"asks for the {question}")
        self.hears(self.nodes[name], Asked(self.nodes[name].state.round, question, "0"))

    def on_request(self, question: str) -> None:
        name, known = f"request-{next(self.ids)}", max(node.state.ledger.head.index for node in self.nodes.values())
        info = NodeInfo(node_id=name, host="shell", host_id="", slot=0, local_world_size=0, role="", versions=VERSIONS)
        self.say("shell", f"asks for the {question}")
        self.rows[name] = NodeRow(info=info, asks=(Ask(question, "0", known),)), 1001, 0

    def on_drain(self, host: str) -> None:
        info = NodeInfo(
            node_id="request", host="shell", host_id="", slot=0, local_world_size=0, role="", versions=VERSIONS
        )
        named = tuple(name for name, node in self.nodes.items() if node.state.info.host == host)
        self.say("shell", f"elastic drain {host}")
        self.rows["request"] = NodeRow(info=info, drain=named), 1000, 0

    def on_leave(self, name: str) -> None:
        self.say(name, "receives SIGTERM")
        self.hears(self.nodes[name], Leaving("received SIGTERM", SIGTERM_EXIT))

    def on_empty(self) -> None:
        self.say("store", "restarts without its data")
        self.store, self.rows = [], {}

    # The store -------------------------------------------------------------------------------------------------------

    def new_id(self) -> str:
        return f"e{next(self.ids)}"

    def append(self, entry: Entry) -> None:
        self.store.append(entry)
        self.say("ledger", f"{entry.index} {describe(entry)}")

    def newest(self) -> Ledger:
        """The ledger of a newcomer."""
        head = self.store[-1]
        offset = self.store[0].index
        return restore_ledger(head, {index: self.store[index - offset] for index in stands_on(head)}, self.now)

    # Nodes -----------------------------------------------------------------------------------------------------------

    def enter(self, name: str, ledger: Ledger, *, leads: bool = False) -> None:
        info = NodeInfo(
            node_id=name,
            host=f"host-{name}",
            host_id=f"id-{name}",
            slot=0,
            local_world_size=SIZE,
            role="default",
            versions=VERSIONS,
            address="10.0.0.1",
            port=4000,
        )
        state = NodeState(info=info, ledger=ledger, offer=_offer(name, 1))
        node = Node(name, state, serial=len(self.nodes) + 1, contact_at=self.now, heard=(0, self.now))
        node.entries = (ledger.head,)
        node.leads = Leads(Watch()) if leads else None
        self.nodes[name] = node
        self.write(node)

    def write(self, node: Node) -> None:
        if node.connected:
            self.rows[node.name] = row_of(node.state), node.serial, node.heartbeat

    def hears(self, node: Node, event: NodeEvent) -> None:
        """An event happens to a node; it acts, and what comes of that are its next events."""
        before = node.state
        node.state, effects = step(before, event)
        broken = failed_round(before, node.state)
        following = [following for effect in effects for following in self.act(node, effect)]
        if broken is not None:
            unreachable = tuple(sorted(node.reached_not & broken.group_ranks.keys()))
            if unreachable:
                self.say(node.name, f"does not reach {', '.join(unreachable)}")
            following.append(Probed(broken.number, unreachable))
        for one in following:
            self.hears(node, one)

    def act(self, node: Node, effect: Effect) -> list[NodeEvent]:
        match effect:
            case Start(current, _):
                self.say(node.name, f"starts its workers of round {current.number}")
                notices: list[NodeEvent] = [TakesNotices(current.number)] if node.steps else []
                return [Progressed(current.number), *notices]
            case Stop(grace, why):
                self.say(node.name, f"stops its workers ({GRACES[grace]}): {why}")
                return [WorkersGone()]
            case Notify(notice) if notice is not None and notice.step is None:
                self.say(node.name, f"asks its workers to stop; they are at steps {', '.join(map(str, node.steps))}")
                return [Answered(notice, node.steps)]
            case Notify(notice) if notice is not None:
                self.say(node.name, f"its workers stop at step {notice.step}, save, and exit with 0")
                return [SteppedDown()]
            case FindAnswer(index, name, _):
                self.say(node.name, f"answers for the {name}")
                return [AnswerFound(Answer(index, f'"{node.name} is fine"'))]
            case MakeOffer():
                node.offers += 1
                return [Offered(_offer(node.name, node.offers))]
            case Exit(code, why, _):
                self.say(node.name, f"exits with {code}: {why}")
                self.write(node)
                node.alive = False
                if not node.state.ledger.is_member(node.name):
                    self.rows.pop(node.name, None)
        return []

    def read(self, node: Node) -> bool:
        """A node reads what is new in the ledger. Whether there was anything."""
        if not self.store or self.store[0].index > node.state.ledger.head.index + 1:
            return False
        mine = node.state.ledger.head
        if isinstance(self.store[0].body, Resume) and self.store[0].epoch > mine.epoch:
            ledger = self.newest()
            node.entries = (ledger.head,)
            before = node.state
            self.hears(node, HistoryReplaced(ledger))
            if node.state.work is before.work is Work.RUNNING:
                self.say(node.name, f"reads RESUME; its workers of round {before.round} go on")
            return True
        news = tuple(self.store[mine.index + 1 - self.store[0].index :])
        if not news:
            return False
        node.entries += news
        self.hears(node, EntriesRead(news, self.now))
        drained = node.name in node.state.ledger.asked and node.state.leaving is None
        if drained and node.alive:
            grace = node.state.ledger.settings.timing.plan_timeout if node.state.work is Work.RUNNING else 0.0
            self.hears(node, Leaving("asked to leave by elastic drain", SIGTERM_EXIT, grace))
        return True

    def restore(self, node: Node) -> bool:
        """A heartbeat compares the store's history with the node's. Whether the node mended the store."""
        mine, memory = node.state.ledger, Memory(node.entries)
        if self.store or not isinstance(overlap(mine, memory, 0, None), Diverged):
            return False
        if not isinstance(settle(mine, memory, None), WriteResume):
            return False
        body = compose_resume(mine, describe_loss(0, mine))
        entry = compose(
            mine, body, entry_id=self.new_id(), author=node.name, leader=mine.leader, now=self.now, store=ORIGIN
        )
        self.append(entry)
        return True

    # Time ------------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let all nodes act on what they see at this instant until nothing changes."""
        for node in list(self.nodes.values()):
            self.heartbeat(node)
        changed = True
        while changed:
            changed = False
            for node in list(self.nodes.values()):
                if node.connected:
                    changed |= self.restore(node)
                if node.connected:
                    changed |= self.read(node)
                if node.connected:
                    self.write(node)
            for node in list(self.nodes.values()):
                if node.connected:
                    changed |= self.lead(node) if node.leads is not None else self.succeed(node)

    def heartbeat(self, node: Node) -> None:
        timing = node.state.ledger.settings.timing
        if node.connected:
            node.contact_at = self.now
            node.heartbeat = int(self.now / timing.beat_interval)
            self.write(node)
        elif node.alive and node.state.work is Work.RUNNING:
            silence = self.now - node.contact_at
            if silence >= FENCE_SHARE * timing.fence_after:
                self.say(node.name, f"its warden stops its workers: no contact with the store for {silence:.0f} s")
                self.hears(node, WorkersGone())

    def succeed(self, node: Node) -> bool:
        """A node watches the leader, and takes its place when its turn has come. Whether it did."""
        ledger = node.state.ledger
        if ledger.closed is not None or ledger.leader not in self.rows or node.state.leaving is not None:
            return False
        heartbeat = self.rows[ledger.leader][2]
        if heartbeat != node.heard[0]:
            node.heard = heartbeat, self.now
        reported_at = None
        if node.reported is not None and node.reported[1] == ledger.head.index:
            reported_at = node.reported[0]
        signs = LeaderSigns(heartbeat_changed_at=node.heard[1], reported_at=reported_at)
        arrivals = [name for name, _ in sorted(self.rows.items(), key=lambda item: item[1][1]) if name in self.nodes]
        if self.now < takeover_at(ledger, signs, succession_place(ledger, arrivals, node.name)):
            return False
        heard = DeposedLeader(ledger.leader, *node.heard, unanswered=reported_at is not None)
        why = f"host-{ledger.leader} has given no sign of life for {self.now - node.heard[1]:.1f} s"
        self.append(compose(ledger, Leader(why=why), entry_id=self.new_id(), author=node.name, now=self.now))
        node.leads = Leads(Watch(deposed=heard))
        return True

    def lead(self, node: Node) -> bool:
        """The leader looks, and decides. Whether it wrote an entry."""
        ledger, leads = node.state.ledger, node.leads
        assert leads is not None
        if ledger.leader != node.name:
            node.leads = None
            return False
        epoch = ledger.head.epoch
        rows = [Observation(row.within(epoch), serial, heartbeat) for row, serial, heartbeat in self.rows.values()]
        watch = forget_older_epochs(leads.watch, epoch)
        leads.watch = observe(watch, rows, self.now, gap=contact_gap(ledger.settings.timing))
        decision = decide(self.view(ledger, leads))
        if isinstance(decision, AskPolicies):
            verdict = MaxRestartsPolicy().elastic_judge_failure(decision.incident, _history(ledger))
            self.say("leader", f"asks the failure policies: {verdict.action.name}, {verdict.reason}")
            leads.judgement = Judgement(round=decision.incident.round, verdict=verdict)
            decision = decide(self.view(ledger, leads))
        if isinstance(decision, SumUp):
            told = [f"{one.node} is silent" if one.silent else str(one.value) for one in decision.answers]
            report = Summary(decision.index, json.dumps(", ".join(told)))
            decision = decide(replace(self.view(ledger, leads), summary=report))
        match decision:
            case Append(body, counters):
                self.append(self.entry(ledger, node, body, counters))
                return True
            case LookAgain(at, waiting, _):
                self.look_at = at
                whom = waiting.partition(", for up to")[0]
                if waiting and leads.waits != (ledger.head.index, whom):
                    self.say("leader", f"waits for {waiting}")
                leads.waits = ledger.head.index, whom
        return False

    def entry(self, ledger: Ledger, node: Node, body: Body, counters: Counters) -> Entry:
        return compose(ledger, body, entry_id=self.new_id(), author=node.name, now=self.now, counters=counters)

    def view(self, ledger: Ledger, leads: Leads) -> LeaderView:
        return LeaderView(
            ledger=ledger, watch=leads.watch, now=self.now, judgement=leads.judgement, may_forget=self.may_forget
        )


def _offer(name: str, nth: int) -> Offer:
    return Offer(address=f"10.0.0.{ord(name[0])}", port=29500 + nth, id=f"{name}{nth}")


def _history(ledger: Ledger) -> History:
    counters, agreement = ledger.counters, ledger.settings.agreement
    return History(
        restarts=counters.restarts, max_restarts=agreement.max_restarts, rounds_without_progress=counters.barren
    )


def describe(entry: Entry) -> str:
    """An entry in words: its kind, its author, and what it says."""
    by = f"by {entry.author}"
    match entry.body:
        case Open(settings=settings):
            agreement = settings.agreement
            plain = f"{agreement.min_nodes}:{agreement.max_nodes}"
            nodes = f"--nnodes={agreement.nnodes if agreement.sizes else plain}"
            nodes += f" --spares={agreement.spares}" if agreement.spares else ""
            return f"OPEN {by}: {nodes} --max_restarts={agreement.max_restarts}"
        case Leader(why=why):
            return f"LEADER {by}: {entry.leader} leads in term {entry.term}; {why}"
        case Round() as body:
            spent = f"restarts spent: {entry.counters.restarts}"
            return f"ROUND {body.number} {by}: {_members(body)}; {body.why}; {spent}"
        case Halt() as body:
            planned = ", planned" if body.planned else ""
            return f"HALT of round {body.round} {by}: {body.reason.value}{planned}; {body.why}"
        case Plan() as body:
            return f"PLAN for round {body.round} {by}: {body.reason.value}; {body.why}; within {body.deadline:g} s"
        case StopAt() as body:
            return f"STOP_AT {by}: step {body.step}; a node leaves: {'yes' if body.leaving else 'no'}"
        case Over() as body:
            left = f"; left in order: {', '.join(body.left)}" if body.left else ""
            return f"OVER of round {body.round} {by}{left}"
        case Drain() as body:
            return f"DRAIN {by}: {', '.join(body.nodes)} {body.why}"
        case Question() as body:
            return f"QUESTION {by} of {body.asked_by} to round {body.round}: {body.name} {body.value}"
        case Answers() as body:
            return f"ANSWERS {by} to question {body.question}: {body.report}"
        case Closed() as body:
            return f"CLOSED {by}: {'success' if body.success else 'failure'}, exit code {body.exit_code}; {body.why}"
        case Resume() as body:
            state = "live" if body.halt is None else f"halted ({body.halt.reason.value})"
            return f"RESUME {by}: epoch {entry.epoch}, round {body.round.number} is {state}; {body.why}"
    raise AssertionError(entry.body)


def _members(body: Round) -> str:
    if body.same_as:
        return f"the members of round {body.same_as}"
    firsts = itertools.accumulate((member.local_world_size for member in body.members), initial=0)
    return ", ".join(
        f"{member.node_id} has ranks {first}-{first + member.local_world_size - 1}"
        for member, first in zip(body.members, firsts, strict=False)
    )


def run(text: str) -> str:
    """The scenario with the output that the protocol gives now."""
    world, output = World(), False
    written: list[str] = []
    commands: list[str] = []
    for line in [*text.splitlines(), ""]:
        if output and line:
            continue
        if output and not line:
            output = False
            written.append("")
        elif line == "----":
            for command in commands:
                world.play(command)
            world.settle()
            written += [*commands, line, *world.lines]
            world.lines, commands, output = [], [], True
        elif line.startswith("#") or not line:
            written.append(line)
        else:
            commands.append(line)
    assert not commands, f"commands without '----': {commands}"
    return "\n".join(written).rstrip() + "\n"


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.txt")), ids=lambda path: path.stem)
def test_the_protocol_does_what_the_scenario_shows(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# "), "a scenario begins with what happens in it"
    now = run(text)
    if os.environ.get("REWRITE_SCENARIOS"):
        path.write_text(now, encoding="utf-8")
    assert now == text or os.environ.get("REWRITE_SCENARIOS")


def test_there_are_a_dozen_scenarios() -> None:
    assert len(list(SCENARIOS.glob("*.txt"))) >= 12
