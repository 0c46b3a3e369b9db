"""Describes the state of an agent, for users who ask why nothing happens; on SIGQUIT an agent writes it to stderr.

The Python stacks of its threads follow, and it goes on. :mod:`faulthandler` writes them from the signal's handler into
a pipe that never blocks. A thread at the other end adds the state, and copies all of it to stderr. So the dump comes
even if a call does not return, and a stuck console does not stop the agent.
"""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import fcntl
import os
import re
import select
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from elastic_core.agent.console import write_all
from elastic_core.agent.report import ledger_events, no_place
from elastic_core.agent.resources import Resources
from elastic_core.agent.run_summary import WRITE_MAX_SECONDS, RunSummary
from elastic_core.agent.worker import Worker
from elastic_core.config.run import RunConfig, describe_limit
from elastic_core.errors import without_passwords
from elastic_core.events import Event
from elastic_core.exit_codes import describe_exit
from elastic_core.host.terminal import printable
from elastic_core.incidents import Incident
from elastic_core.progress import Progress
from elastic_core.protocol.counters import past_failures
from elastic_core.protocol.entries import Halt, HaltReason
from elastic_core.protocol.failure_detector import NodeView
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.members import Member, place
from elastic_core.protocol.node import NodeState
from elastic_core.protocol.node_events import EntriesRead, Work
from elastic_core.protocol.roster import NodeInfo
from elastic_core.session.decision_log import DecisionLog, write
from elastic_core.session.session import Session
from elastic_core.threads import bounded

SHOWN_NODES = 64  # how many nodes of a round are listed
SIGNAL = signal.SIGQUIT
QUIET_SECONDS = 0.1  # a dump of the stacks is complete when nothing more of it comes for so long
ROOM_BYTES = 1 << 18  # of the pipe; stacks that do not fit there are cut off
_END = b"\0"
_THREAD = re.compile(r"^(Thread|Current thread) (0x[0-9a-f]+)")


@dataclass(frozen=True, kw_only=True)
class Status:
    """What an agent knows at one instant besides its state. Instants are its monotonic clock, in seconds."""

    job: str  # the job's id
    store: str  # its backend and endpoint, without passwords
    pid: int  # of the agent
    now: float  # this instant
    since: float  # when the agent's state last changed
    workers: Sequence[Worker] = ()  # of its newest round
    started_at: float = 0.0  # when those were started
    progress: Mapping[int, tuple[Progress, float]] = field(default_factory=dict)
    """The progress of workers by rank, and how many seconds ago it last moved."""
    checkpoint: tuple[int | None, float] | None = (
        None  # the step of the last checkpoint, if known, and its age in seconds
    )
    contact_at: float | None = None  # when it last knew all that the store had taken
    failing: Collection[str] = ()  # the threads whose last operation on the store failed
    node_views: Mapping[str, NodeView] = field(default_factory=dict)  # the rows of the roster, if the node leads
    waiting_for: str = ""  # the nodes for which the job waits, if the node leads and knows them
    incident: Incident | None = None  # the newest failure that it knows of

    @classmethod
    def of(cls, config: RunConfig) -> Status:
        """Return the status of an agent that begins now."""
        now = time.monotonic()
        at = f" at {without_passwords(config.rdzv_endpoint)}" if config.rdzv_endpoint else ""
        return cls(job=repr(config.rdzv_id), store=f"{config.rdzv_backend}{at}", pid=os.getpid(), now=now, since=now)

    def describe_joining(self) -> str:
        """Return the state now of an agent that has waited to join its job since :attr:`since`."""
        status = replace(self, now=time.monotonic())
        rows = [("waits for", status.describe_wait("the store, to join the job"))]
        return _text(f"the agent with pid {self.pid}", status, rows)

    def describe_wait(self, what: str) -> str:
        """Return what the agent waits for, and for how long it has."""
        return f"{what}, for {_age(self.since, self)}"


class Account:
    """A record of what this node has seen of its run: for events, the state on SIGQUIT, and the summary at the end."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._since = resources.node.now()  # when the node's state last changed
        self._incident: Incident | None = None  # the newest failure that is known here
        self._nodes_lost = 0  # how often a round ended because nodes were lost, since this node joined
        self._no_place: Event | None = None
        self.decisions, self.leader_decisions = DecisionLog(), DecisionLog()

    def follow(self, before: NodeState, state: NodeState) -> None:
        """Note what :meth:`describe` shows; no decision depends on it."""
        halt = state.ledger.halt
        old, new = ((one.work, one.row.round, one.ledger.is_live) for one in (before, state))
        if old != new:
            self._since = self._resources.node.now()
        self._incident = state.row.incident or (halt and halt.incident) or self._incident

    def report(self, before: NodeState, state: NodeState, event: EntriesRead) -> None:
        """Publish what entries have brought."""
        for news in ledger_events(before.ledger, event.entries, event.now, state.row.info.node_id, before.row.incident):
            self._resources.node.publish(news)
        halts = [entry.body for entry in event.entries if isinstance(entry.body, Halt)]
        self._nodes_lost += sum(halt.reason is HaltReason.NODE_LOST for halt in halts)
        self.report_no_place(state)

    def report_no_place(self, state: NodeState) -> None:
        """Publish why the job does not take this node; once for each reason."""
        why = no_place(state.ledger, state.row.info)
        if why is not None and why != self._no_place:
            self._resources.node.publish(why)
            self._no_place = why

    def describe(self, state: NodeState, session: Session) -> str:
        """Return what this agent does and waits for. Any thread may call this."""
        node, group = self._resources.node, self._resources.group
        status = replace(
            Status.of(node.config),
            now=node.now(),
            since=self._since,
            workers=group.workers,
            started_at=group.started_at,
            progress=group.progress.newest(),
            checkpoint=group.progress.last_checkpoint(),
            contact_at=session.contact.at,
            failing=(*session.contact.failing,),
            node_views=session.watch.nodes,
            waiting_for=session.waiting_for,
            incident=self._incident,
        )
        return describe_node(state, status)

    def write_decisions(self, state: NodeState) -> str:
        """Write the newest decisions for a bug report, and return the path of the file, or why there is none.

        A disk that does not answer, as that of a dead server, is not waited for longer than WRITE_MAX_SECONDS.
        """
        node, logs = self._resources.node, (self.decisions, self.leader_decisions)
        directory = None if node.temporary else node.directory
        try:
            return str(bounded(partial(write, logs, state.row.info.node_id, directory), WRITE_MAX_SECONDS))
        except Exception as exc:  # a full disk must not end the agent, nor replace the exception that has
            return f"not written: {exc}"

    def summarize(self, ledger: Ledger) -> RunSummary:
        """Return what the run came to."""
        node, group = self._resources.node, self._resources.group
        return RunSummary(
            job=node.config.rdzv_id,
            run=node.run_uid,
            node=str(node.info),
            rounds=0 if ledger.round is None else ledger.round.number,
            restarts=ledger.counters.restarts,
            max_restarts=ledger.settings.agreement.max_restarts,
            nodes_lost=self._nodes_lost,
            seconds=round(ledger.age(node.now()), 1),
            interrupted_seconds=round(group.interruptions.seconds, 3),
            failures=past_failures(ledger, node.now()),
            logs=None if node.temporary else node.directory,
            stop_facts=group.stop_facts,
        )


def describe_node(state: NodeState, status: Status) -> str:
    """Return the state of an agent that follows a ledger."""
    ledger, info = state.ledger, state.row.info
    head = ledger.head
    leads = "this node" if ledger.leader == info.node_id else _named(ledger.leader, status.node_views)
    rows = [
        ("run", f"{head.run}, known here for {_age(ledger.opened_at, status)}"),
        ("decides", f"{leads}, term {head.term}"),
        ("entry", f"{head.index} is the newest, {head.kind}, read {_age(ledger.head_at, status)} ago"),
        ("round", _round(ledger, status)),
        ("restarts", f"{ledger.counters.restarts}{describe_limit(ledger.settings.agreement.max_restarts)} spent"),
        ("waits for", status.describe_wait(_waits_for(state, status))),
    ]
    if state.leaving is not None:
        rows.append(("leaves", state.leaving.why))
    members = () if ledger.round is None else ledger.round.members
    who = f"{info} (node {info.node_id}, pid {status.pid})"
    return _text(who, status, rows, _nodes(info, members, status))


def _text(who: str, status: Status, rows: Sequence[tuple[str, str]], nodes: Iterable[tuple[str, str]] = ()) -> str:
    lines = [("job", f"{status.job} over {status.store}"), *rows, *nodes]
    lines += [(f"rank {worker.assignment.rank}", _worker(worker, status)) for worker in status.workers]
    if status.checkpoint is not None:
        step, age = status.checkpoint
        lines.append(("checkpoint", f"{'' if step is None else f'of step {step}, '}saved {age:.1f} s ago"))
    if status.contact_at is not None:
        failing = f"; failing: {', '.join(sorted(status.failing))}" if status.failing else ""
        lines.append(("store", f"last contact {_age(status.contact_at, status)} ago{failing}"))
    if status.incident is not None:
        lines.append(("failure", f"the newest: {_failure(status.incident)}"))
    head = f"[elastic] the state of {printable(who)}; it goes on\n"
    return head + "".join(f"  {label:<10} {printable(text)}\n" for label, text in lines)


def _round(ledger: Ledger, status: Status) -> str:
    current = ledger.round
    if ledger.closed is not None:
        return f"none any more: the job is closed: {ledger.closed.why}"
    if current is None:
        return "none yet"
    if ledger.halt is not None:
        halted = f"halted {_age(ledger.halt_at, status)} ago: {ledger.halt.why}"
        return f"{current.number}, {halted}"
    return f"{current.number}, live for {_age(ledger.round_at, status)} ({current.why})"


def _waits_for(state: NodeState, status: Status) -> str:
    ledger, number = state.ledger, state.row.round
    member = ledger.is_member(state.row.info.node_id)
    if ledger.closed is not None:
        return "its own end: the job is closed"
    if status.waiting_for:
        return status.waiting_for
    if state.work is Work.STOPPING:
        return f"the processes of round {number} to end"
    if state.work is Work.RUNNING and ledger.plan is not None:
        at = "" if ledger.stop_at is None else f" at step {ledger.stop_at.step}"
        return f"the workers of round {number} to stop together{at}"
    if state.work is Work.RUNNING:
        return "nothing: the workers run"
    if state.work is Work.DONE:
        return "the other nodes: all workers here have exited with 0"
    if ledger.is_live and member:
        return "the workers of the round to be started"
    if ledger.is_live:
        return "a place in the job, whose round runs without this node"
    return "the next round to begin"


def _nodes(info: NodeInfo, members: tuple[Member, ...], status: Status) -> Iterator[tuple[str, str]]:
    """Yield the nodes of the newest round in rank order, and then the nodes that are in no round."""
    for member in members[:SHOWN_NODES]:
        first = place(members, member.node_id).first_rank
        size = member.local_world_size
        ranks = f"rank {first}" if size == 1 else f"ranks {first} to {first + size - 1}"
        own = member.node_id == info.node_id
        seen = status.node_views.get(member.node_id)
        where = f"{info}, this node" if own else _seen(member.node_id, seen, status)
        yield "member", f"{ranks} on {where}"
    if len(members) > SHOWN_NODES:
        yield "", f"and {len(members) - SHOWN_NODES} more members"
    known = {member.node_id for member in members}
    others = [seen for node_id, seen in status.node_views.items() if node_id not in known and node_id != info.node_id]
    for seen in others[:SHOWN_NODES]:
        yield "other node", _seen(seen.node_id, seen, status)
    if len(others) > SHOWN_NODES:
        yield "", f"and {len(others) - SHOWN_NODES} more nodes"


def _seen(node_id: str, seen: NodeView | None, status: Status) -> str:
    if seen is None:
        return f"node {node_id}"
    row = seen.row
    of = f" round {row.round}" if row.round else ""
    leaving = ", leaving" if row.leaving else ""
    return f"{row.info}, {row.phase.value}{of}{leaving}, last sign of life {_age(seen.changed_at, status)} ago"


def _named(node_id: str, node_views: Mapping[str, NodeView]) -> str:
    seen = node_views.get(node_id)
    return f"node {node_id}" if seen is None else f"{seen.row.info} (node {node_id})"


def _worker(worker: Worker, status: Status) -> str:
    if worker.exit_code is not None:
        ended = describe_exit(worker.exit_code)
        return f"pid {worker.pid}, {ended} {_age(worker.ended_at, status)} ago"
    if worker.pid is None:
        return f"being started, for {_age(status.started_at, status)}"
    group = ", in its process group" if worker.initialized else ""
    progress, ago = status.progress.get(worker.assignment.rank, (Progress(), 0.0))
    words = progress.describe() or ("moving" if worker.assignment.rank in status.progress else "")
    reached = f", {words}, last progress {ago:.1f} s ago" if words else ""
    return f"pid {worker.pid}, started {_age(status.started_at, status)} ago{group}{reached}"


def _failure(incident: Incident) -> str:
    who = "" if incident.rank is None else f"rank {incident.rank} on "
    error = f": {incident.message}" if incident.message and incident.message != incident.cause() else ""
    return f"round {incident.round}, {who}{incident.host}: {incident.cause()}{error}"


def _age(instant: float, status: Status) -> str:
    return f"{max(0.0, status.now - instant):.1f} s"


class StateDump:
    """Writes the state on each SIGQUIT, until it is closed. Main thread only.

    Nothing is written if the node leaves on SIGQUIT, or if the program that runs the agent has a handler for it.

    Args:
        handled: The signals on which the node leaves.
        describe: Returns what the agent does; called on another thread.
        fd: Where to write; the caller closes it.
    """

    def __init__(self, handled: Collection[int], describe: Callable[[], str], fd: int = 2) -> None:
        self._fd, self._describe = fd, describe
        self._pipe: tuple[int, int] | None = None
        self._started = False
        self._before = signal.getsignal(SIGNAL)
        if SIGNAL in handled or self._before not in (signal.SIG_DFL, signal.SIG_IGN):
            return
        self._pipe = os.pipe2(os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # more than this user may have
            fcntl.fcntl(self._pipe[1], fcntl.F_SETPIPE_SZ, ROOM_BYTES)
        os.set_blocking(self._pipe[1], False)
        signal.signal(SIGNAL, lambda *_: self._start())
        faulthandler.register(SIGNAL, file=self._pipe[1], all_threads=True, chain=True)

    def show(self, describe: Callable[[], str]) -> None:
        """Write what ``describe`` returns from now on, also if the main thread is in a call that does not return.

        This starts the thread, unless a signal has: a backend that forks while it is made needs a single thread.
        """
        self._describe = describe
        self._start()

    def close(self) -> None:
        """Restore the signal's handler."""
        if self._pipe is None:
            return
        faulthandler.unregister(SIGNAL)
        signal.signal(SIGNAL, self._before)
        if not self._started:
            os.close(self._pipe[0])
        else:
            with contextlib.suppress(BlockingIOError):  # the thread is stuck with stderr, and ends with the process
                os.write(self._pipe[1], _END)
        os.close(self._pipe[1])
        self._pipe = None

    def _start(self) -> None:
        """Start the thread, once, without the locks of :mod:`threading`, which a signal may have interrupted."""
        if self._pipe is not None and not self._started:
            self._started = True
            _thread.start_new_thread(self._run, (self._pipe[0],))

    def _run(self, reading: int) -> None:
        while stacks := _read(reading):
            try:
                state = self._describe()
            except Exception as exc:  # in the middle of a change
                state = f"  the state cannot be described: {type(exc).__name__}: {exc}\n"
            with contextlib.suppress(OSError):  # stderr has no reader any more
                write_all(self._fd, f"{state}{indent_stacks(stacks)}".encode(errors="backslashreplace"))
        os.close(reading)


def _read(fd: int) -> str:
    """Wait for stacks in the pipe, until no more of them come, and return them; '' at the end."""
    data, poll = b"", select.poll()
    poll.register(fd, select.POLLIN)
    while poll.poll(None if not data else QUIET_SECONDS * 1000):
        part = os.read(fd, ROOM_BYTES)
        if not part or part.endswith(_END):
            return ""
        data += part
    return data.decode(errors="replace")


def indent_stacks(stacks: str) -> str:
    """Return the stacks with the names of their threads in place of the numbers."""
    names = {thread.ident: thread.name for thread in threading.enumerate()} | {threading.get_ident(): "of this dump"}

    def named(found: re.Match[str]) -> str:
        return f"{found[1]} {names.get(int(found[2], 16), found[2])}"

    return "".join(f"  {printable(_THREAD.sub(named, line))}\n" for line in stacks.splitlines())
