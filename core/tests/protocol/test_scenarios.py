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
from elastic_core.errors import RendezvousStateError
from elastic_core.exit_codes import ExitCode
from elastic_core.incidents import Action, History, Incident, IncidentKind, Verdict, strictest
from elastic_core.plugins.builtin import MaxRestartsPolicy
from elastic_core.protocol.admission import Admission, admit
from elastic_core.protocol.counters import past_failures
from elastic_core.protocol.entries import (
    Answers,
    Body,
    Closed,
    Counters,
    Drain,
    Entry,
    Halt,
    HaltReason,
    Leader,
    Offer,
    Open,
    Over,
    Plan,
    Question,
    Resume,
    Round,
    StopAt,
    place,
)
from elastic_core.protocol.failure_detector import (
    DeposedLeader,
    LeaderSigns,
    Observation,
    Watch,
    contact_gap,
    forget,
    forget_older_epochs,
    is_lost,
    observe,
    succession_place,
    takeover_at,
)
from elastic_core.protocol.leader import decide
from elastic_core.protocol.leader_entries import Append, AskPolicies, LookAgain, SumUp
from elastic_core.protocol.leader_view import Judgement, LeaderView
from elastic_core.protocol.ledger import HistoryChangedError, Ledger, compose, open_ledger, restore_ledger, stands_on
from elastic_core.protocol.node import NodeState, failed_round, row_of, step
from elastic_core.protocol.node_events import (
    Answered,
    AnswerFound,
    Asked,
    Checkpointed,
    Effect,
    EntriesRead,
    Exit,
    FindAnswer,
    HistoryReplaced,
    Leaving,
    MakeOffer,
    NodeEvent,
    Notify,
    Offered,
    Probed,
    Progressed,
    RunReplaced,
    Start,
    Stop,
    StoreLost,
    Work,
    WorkerFailed,
    WorkersDone,
    WorkersGone,
)
from elastic_core.protocol.repair import (
    Overlap,
    Rejoin,
    Settlement,
    compose_resume,
    describe_loss,
    overlap,
    settle,
)
from elastic_core.protocol.roster import Answer, Ask, NodeInfo, NodeRow, Slots
from elastic_core.protocol.settings import Agreement, Settings, Versions
from elastic_core.rendezvous.backend import ORIGIN
from elastic_core.session.contact import FENCE_SHARE

SCENARIOS = Path(__file__).with_name("scenarios")
TICK = 0.5
"""Seconds between two looks at the clock while a command waits."""
SIZE = 2
"""Workers of each node."""
SIGTERM_EXIT = 143
VERSIONS = Versions(python="3.11.7", torch="2.13.0")
GRACES = {True: "--shutdown_timeout", False: "--failure_grace"}


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
    behind: bool = False
    """True if it reads no new entries, although it sends heartbeats."""
    idle: bool = False
    """True if its workers make no progress."""
    lingers: bool = False
    """True if a process of its workers outlives each stop."""
    holds: bool = False
    """True if it is cut off with its next entry on the way."""
    pending: Entry | None = None
    """The entry that was on the way."""
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
    put_off_in: int = 0
    """The newest round in which it has said why a node that waits gets no place yet."""


class World:
    """Some nodes and a store, on one clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.store: list[Entry] = []
        self.rows: dict[str, tuple[NodeRow, int, int]] = {}
        self.nodes: dict[str, Node] = {}
        self.may_forget = False
        self.policy: Verdict | None = None
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

    def on_open(self, name: str, nnodes: str, uid: str = "", forgets: str = "", size: str = "", **options: str) -> None:
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
        self.begin(name, Open(scheduler_uid=uid or None, settings=settings), size)

    def begin(self, name: str, body: Open, size: str = "") -> None:
        before = self.newest() if self.store else None
        entry = compose(before, body, entry_id=self.new_id(), author=name, now=self.now, run=f"run-{self.new_id()}")
        self.append(entry)
        self.enter(name, open_ledger(entry, self.now), leads=True, size=size)

    def on_join(self, name: str, uid: str = "", host: str = "", size: str = "") -> None:
        ledger = self.newest()
        alive = [node.name for node in self.nodes.values() if node.alive]
        match admit(ledger, uid or None, alive):
            case Admission.JOIN:
                self.enter(name, ledger, host=host, size=size)
            case Closed() as closed:
                self.say(name, f"reports the verdict of the run and exits with {closed.exit_code}: {closed.why}")
            case _:
                self.begin(name, Open(scheduler_uid=uid or None, settings=ledger.settings))

    def on_wait(self, seconds: str) -> None:
        until = self.now + float(seconds)
        self.settle()
        while self.now < until:
            at = self.now + TICK if self.look_at is None else min(self.now + TICK, max(self.look_at, self.now + 0.001))
            self.now = round(min(at, until), 3)
            self.settle()

    def on_idle(self, name: str) -> None:
        self.nodes[name].idle = True

    def on_port_taken(self, name: str) -> None:
        node, message = self.nodes[name], "port 29500 is taken"
        round_, host = node.state.row.round, node.state.row.info.host
        incident = Incident(
            kind=IncidentKind.PORT_TAKEN, round=round_, node_id=name, host=host, after=0.1, message=message
        )
        self.say(name, f"cannot serve the workers' store of round {round_}: {message}")
        self.hears(node, WorkerFailed(incident))

    def on_fail(self, name: str, rank: str, code: str = "1", message: str = "", after: str = "60") -> None:
        node = self.nodes[name]
        incident = Incident(
            kind=IncidentKind.WORKER_FAILED,
            round=node.state.row.round,
            node_id=name,
            host=node.state.row.info.host,
            after=float(after),
            rank=int(rank),
            exit_code=int(code),
            message=message,
            exception=message.partition(":")[0],
            follows_peer="by peer" in message,
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

    def on_kill(self, *names: str) -> None:
        """SIGKILL for the agent, its warden and its workers."""
        for name in names:
            self.nodes[name].alive = False
            self.say(name, "all its processes are killed; its host lives")

    def on_hold(self, name: str) -> None:
        self.nodes[name].holds = True

    def on_behind(self, *names: str) -> None:
        for name in names:
            self.nodes[name].behind = True
            self.say(name, "reads no new entries; its heartbeats go on")

    def on_catch_up(self, *names: str) -> None:
        for name in names:
            node = self.nodes[name]
            node.behind = False
            self.say(name, f"reads again: {self.missed(node)}")

    def on_linger(self, name: str) -> None:
        self.nodes[name].lingers = True

    def on_gone(self, name: str) -> None:
        self.nodes[name].lingers = False
        self.say(name, "the last process of its old workers has ended")
        self.hears(self.nodes[name], WorkersGone())

    def on_stuck(self, name: str) -> None:
        node, why = self.nodes[name], "process 4711 cannot be killed"
        self.hears(node, Leaving(why, ExitCode.WITHDRAWN))
        self.write(node)
        self.say(name, f"exits with {ExitCode.WITHDRAWN:d}: {why}")
        node.alive = False

    def on_checkpoint(self, *names: str) -> None:
        for name in names:
            self.say(name, "its workers have saved a checkpoint")
            self.hears(self.nodes[name], Checkpointed(self.nodes[name].state.row.round, self.now))

    def on_policy(self, action: str, reason: str, delay: str = "0", exclude_for: str = "") -> None:
        self.policy = Verdict(
            Action[action], reason, delay=float(delay), exclude_for=float(exclude_for) if exclude_for else None
        )

    def on_ranks(self) -> None:
        """What each node tells its workers."""
        for node in self.nodes.values():
            current = node.state.ledger.round
            if node.alive and node.state.work is Work.RUNNING and current is not None:
                at, store = place(current.members, node.name), current.offer
                ranks = f"{at.first_rank}-{at.first_rank + at.local_world_size - 1} of {at.world_size}"
                self.say(node.name, f"round {current.number}: ranks {ranks}, store {store.address}:{store.port}")

    def on_cut(self, *names: str) -> None:
        for name in names:
            self.nodes[name].cut = True
            self.say(name, "does not reach the store any more")

    def on_heal(self, *names: str) -> None:
        for name in names:
            node = self.nodes[name]
            node.cut = False
            if node.pending is not None:
                self.append(node.pending)
                node.pending = None
            missed = self.missed(node)
            self.say(name, "reaches the store again" + (f", and reads {missed}" if missed else ""))

    def missed(self, node: Node) -> str:
        first, last = node.state.ledger.head.index + 1, self.store[-1].index
        return "" if first > last else f"entry {last}" if first == last else f"entries {first} to {last}"

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
        self.hears(node, Progressed(node.state.row.round, takes_notices=True))

    def on_ask(self, name: str, question: str) -> None:
        self.say(name, f"asks for the {question}")
        self.hears(self.nodes[name], Asked(self.nodes[name].state.row.round, question, "0"))

    def on_request(self, question: str) -> None:
        name, known = f"request-{next(self.ids)}", max(node.state.ledger.head.index for node in self.nodes.values())
        self.say("shell", f"asks for the {question}")
        self.rows[name] = NodeRow(info=_shell(name), asks=(Ask(question, "0", known),)), 1001, 0

    def on_drain(self, host: str) -> None:
        self.say("shell", f"elastic drain {host}")
        self.rows["request"] = NodeRow(info=_shell("request"), drain=self.names_on(host)), 1000, 0

    def on_release(self, host: str) -> None:
        self.say("shell", f"elastic release {host}")
        self.rows["request"] = NodeRow(info=_shell("request"), release=self.names_on(host)), 1000, 0

    def names_on(self, host: str) -> tuple[str, ...]:
        return tuple(name for name, node in self.nodes.items() if node.state.row.info.host == host)

    def on_forge(self, name: str) -> None:
        """A process that can write to the store, and is not the leader, writes a HALT."""
        body = Halt(round=self.nodes[self.store[-1].leader].state.row.round, reason=HaltReason.FAILURE, why="stop")
        self.append(compose(self.newest(), body, entry_id=self.new_id(), author=name, now=self.now))

    def on_leave(self, name: str) -> None:
        self.say(name, "receives SIGTERM")
        self.hears(self.nodes[name], Leaving("received SIGTERM", SIGTERM_EXIT))

    def on_empty(self) -> None:
        self.say("store", "restarts without its data")
        self.store, self.rows = [], {}

    def on_lose(self, count: str) -> None:
        """The store comes back from a copy that lacks its newest entries."""
        self.store = self.store[: -int(count)]
        self.say("store", f"comes back as it was; its newest entry is {self.store[-1].index}")

    # The store -------------------------------------------------------------------------------------------------------

    def new_id(self) -> str:
        return f"e{next(self.ids)}"

    def append(self, entry: Entry, note: str = "") -> bool:
        """Append an entry if it follows the newest one (rule S2). Whether the store took it."""
        head = self.store[-1].link if self.store else ORIGIN
        if (entry.index, entry.prev) != (head.index + 1, head.id):
            self.say("store", f"refuses entry {entry.index}, a {entry.kind} by {entry.author}: there is one already")
            return False
        self.store.append(entry)
        self.say("ledger", f"{entry.index} {describe(entry)}{note}")
        return True

    def newest(self) -> Ledger:
        """The ledger of a newcomer."""
        head = self.store[-1]
        offset = self.store[0].index
        return restore_ledger(head, {index: self.store[index - offset] for index in stands_on(head)}, self.now)

    # Nodes -----------------------------------------------------------------------------------------------------------

    def enter(self, name: str, ledger: Ledger, *, leads: bool = False, host: str = "", size: str = "") -> None:
        info = NodeInfo(
            node_id=name,
            host=f"host-{host or name}",
            host_id=f"id-{host or name}",
            slot=0,
            slots=Slots(at=int(self.now * 1e9) + 1),
            local_world_size=int(size or SIZE),
            role="default",
            versions=VERSIONS,
            address="10.0.0.1",
            port=4000,
        )
        state = NodeState(row=NodeRow(info=info, offer=_offer(name, 1)), ledger=ledger)
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
                notices: list[NodeEvent] = [Progressed(current.number, takes_notices=True)] if node.steps else []
                return notices if node.idle else [Progressed(current.number), *notices]
            case Stop(why, planned):
                self.say(node.name, f"stops its workers ({GRACES[planned]}): {why}")
                return [] if node.lingers else [WorkersGone()]
            case Notify(notice) if notice is not None and notice.step is None:
                self.say(node.name, f"asks its workers to stop; they are at steps {', '.join(map(str, node.steps))}")
                return [Answered(notice, node.steps)]
            case Notify(notice) if notice is not None:
                self.say(node.name, f"its workers stop at step {notice.step}, save, and exit with 0")
                return [WorkersDone(stepped_down=True)]
            case FindAnswer(index, name, _):
                self.say(node.name, f"answers for the {name}")
                return [AnswerFound(Answer(index, f'"{node.name} is fine"'))]
            case MakeOffer():
                node.offers += 1
                return [Offered(_offer(node.name, node.offers))]
            case Exit(code, why, rejoin):
                self.say(node.name, f"enters as a new node: {why}" if rejoin else f"exits with {code}: {why}")
                self.write(node)
                node.alive = False
                if not node.state.ledger.is_member(node.name):
                    self.rows.pop(node.name, None)
                if rejoin:
                    self.enter(f"{node.name}2", self.newest(), host=node.name)
        return []

    def read(self, node: Node) -> bool:
        """A node reads what is new in the ledger. Whether there was anything."""
        news = tuple(self.store[node.state.ledger.head.index + 1 - self.store[0].index :]) if self.store else ()
        if not news:
            return False
        try:
            self.hears(node, EntriesRead(news, self.now))
        except HistoryChangedError:  # another run goes on in this store
            return self.settle_history(node)
        except RendezvousStateError as exc:
            self.say(node.name, f"reads no further, and sends no more heartbeats: {str(exc).splitlines()[0]}")
            node.cut = True
            self.hears(node, StoreLost())
            return True
        node.entries += news
        drained = node.name in node.state.ledger.asked and node.state.leaving is None
        if drained and node.alive:
            grace = node.state.ledger.settings.timing.plan_timeout if node.state.work is Work.RUNNING else 0.0
            self.hears(node, Leaving("asked to leave by elastic drain", SIGTERM_EXIT, grace))
        return True

    def restore(self, node: Node) -> bool:
        """A heartbeat compares the store's history with the node's. Whether anything followed."""
        mine, head = node.state.ledger, self.store[-1].index if self.store else 0
        at = self.store[min(head, mine.head.index) - self.store[0].index] if self.store else None
        match overlap(mine, node.entries, head, at):
            case Overlap.BEHIND:
                for entry in (entry for entry in node.entries if entry.index > head):
                    self.append(entry, f" (put back by {node.name})")
                return True
            case Overlap.DIVERGED:
                return self.settle_history(node)
        return False

    def settle_history(self, node: Node) -> bool:
        """A node and the store have different histories (rule S3). Whether anything followed."""
        mine, before, theirs = node.state.ledger, node.state, self.newest() if self.store else None
        match settle(mine, node.entries, theirs):
            case Settlement.RESUME:
                head = self.store[-1].link if self.store else ORIGIN
                body = compose_resume(mine, describe_loss(head.index, mine))
                entry = compose(
                    mine,
                    body,
                    entry_id=self.new_id(),
                    author=node.name,
                    leader=mine.leader,
                    now=self.now,
                    store=head,
                )
                self.append(entry)
                return self.settle_history(node)
            case Settlement.ADOPT if theirs is not None:
                node.entries = (theirs.head,)
                self.hears(node, HistoryReplaced(theirs))
                if node.state.work is before.work is Work.RUNNING:
                    self.say(node.name, f"reads RESUME; its workers of round {before.row.round} go on")
                return True
            case Rejoin(why):
                self.hears(node, RunReplaced(why))
                return True
        return False

    # Time ------------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let all nodes act on what they see at this instant until nothing changes."""
        for node in list(self.nodes.values()):
            self.heartbeat(node)
        changed = True
        while changed:
            changed = False
            for node in list(self.nodes.values()):
                if node.connected and not node.behind:
                    changed |= self.restore(node)
                if node.connected and not node.behind:
                    changed |= self.read(node)
                if node.connected:
                    self.write(node)
            for node in list(self.nodes.values()):
                if node.connected and not node.behind:
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
        host = self.rows[ledger.leader][0].info.host
        why = f"{host} has given no sign of life for {self.now - node.heard[1]:.1f} s"
        if heard.unanswered:
            why = f"{host} has not answered the failure on {node.state.row.info.host}"
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
        self.prune(ledger, leads)
        decision = decide(self.view(ledger, leads))
        if isinstance(decision, AskPolicies):
            history = self.history(ledger)
            verdicts = [MaxRestartsPolicy().elastic_judge_failure(decision.incident, history)]
            verdict = strictest([self.policy, *verdicts] if self.policy else verdicts)
            past = [f"{one.exception or f'exit code {one.exit_code}'} in round {one.round}" for one in history.failures]
            known = f" (the ledger remembers {', '.join(past)})" if past else ""
            self.say("leader", f"asks the failure policies{known}: {verdict.action.name}, {verdict.reason}")
            leads.judgement = Judgement(round=decision.incident.round, verdict=verdict)
            decision = decide(self.view(ledger, leads))
        if isinstance(decision, SumUp):
            told = [f"{one.node} is silent" if one.silent else str(one.value) for one in decision.answers]
            decision = decide(replace(self.view(ledger, leads), report=json.dumps(", ".join(told))))
        match decision:
            case Append(body, counters):
                entry = self.entry(ledger, node, body, counters)
                if node.holds:
                    node.holds, node.cut, node.pending = False, True, entry
                    self.say(node.name, f"loses contact; entry {entry.index}, a {entry.kind}, is on its way")
                    return True
                return self.append(entry)
            case LookAgain(at, waiting, awaited, _, put_off):
                self.look_at, whom = at, awaited or waiting
                if waiting and leads.waits != (ledger.head.index, whom):
                    self.say("leader", f"waits for {waiting}")
                leads.waits = ledger.head.index, whom
                if put_off and ledger.round is not None and leads.put_off_in != ledger.round.number:
                    leads.put_off_in = ledger.round.number
                    self.say("leader", f"puts off the resize: {put_off}")
        return False

    def prune(self, ledger: Ledger, leads: Leads) -> None:
        """Remove the rows of dead nodes, but not those of the newest round, which still prove that it is over (P2)."""
        members = ledger.round.group_ranks if ledger.round is not None else {}
        others = [name for name in leads.watch.nodes if name not in members]
        dead = [name for name in others if is_lost(leads.watch, name, ledger.settings.timing, self.now)]
        leads.watch = forget(leads.watch, dead)
        for name in dead:
            self.rows.pop(name, None)
            if name in self.nodes:
                self.say("leader", f"removes the row of {name}, which is lost")

    def entry(self, ledger: Ledger, node: Node, body: Body, counters: Counters) -> Entry:
        return compose(ledger, body, entry_id=self.new_id(), author=node.name, now=self.now, counters=counters)

    def history(self, ledger: Ledger) -> History:
        """What policies know of the past (rule L10)."""
        counters, rows = ledger.counters, [row for row, _, _ in self.rows.values()]
        return History(
            restarts=counters.restarts,
            max_restarts=ledger.settings.agreement.max_restarts,
            rounds_without_progress=counters.barren,
            losses={host: losses.count for host, losses in counters.losses.items()},
            failures=past_failures(ledger, self.now, rows),
        )

    def view(self, ledger: Ledger, leads: Leads) -> LeaderView:
        return LeaderView(
            ledger=ledger, watch=leads.watch, now=self.now, judgement=leads.judgement, may_forget=self.may_forget
        )


def _offer(name: str, nth: int) -> Offer:
    return Offer(address=f"10.0.0.{ord(name[0])}", port=29500 + nth, id=f"{name}{nth}")


def _shell(node_id: str) -> NodeInfo:
    """The info of a request that somebody types."""
    return NodeInfo(node_id=node_id, host="shell", host_id="", slot=0, local_world_size=0, role="", versions=VERSIONS)


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
