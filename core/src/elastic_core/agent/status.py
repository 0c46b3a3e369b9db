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
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial

from elastic_core.agent.console import write_all
from elastic_core.agent.report import WRITE_MAX_SECONDS, RunSummary, ledger_events, no_place
from elastic_core.agent.resources import Resources
from elastic_core.config.run import RunConfig, describe_limit
from elastic_core.errors import without_passwords
from elastic_core.events import Event
from elastic_core.exit_codes import describe_exit
from elastic_core.host.terminal import printable
from elastic_core.incidents import Incident
from elastic_core.protocol.counters import past_failures
from elastic_core.protocol.entries import Halt, HaltReason
from elastic_core.protocol.failure_detector import NodeView
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.node import NodeState
from elastic_core.protocol.node_events import EntriesRead, NodeEvent, Work
from elastic_core.session.decision_log import DecisionLog, write
from elastic_core.session.session import Session
from elastic_core.threads import bounded

SHOWN_NODES = 64  # how many nodes a leader lists
SIGNAL = signal.SIGQUIT
QUIET_SECONDS = 0.1  # a dump of the stacks is complete when nothing more of it comes for so long
ROOM_BYTES = 1 << 18  # of the pipe; stacks that do not fit there are cut off
_END = b"\0"
_THREAD = re.compile(r"^(Thread|Current thread) (0x[0-9a-f]+)")


class Account:
    """A record of what this node has seen of its run: for events, the state on SIGQUIT, and the summary at the end."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._since = resources.node.now()  # when the node's state last changed
        self._incident: Incident | None = None  # the newest failure that is known here
        self._nodes_lost = 0  # how often a round ended because nodes were lost, since this node joined
        self._no_place: Event | None = None
        self.decisions, self.leader_decisions = DecisionLog(), DecisionLog()

    def follow(self, before: NodeState, state: NodeState, event: NodeEvent) -> None:
        """Note what :meth:`describe` shows, and publish what entries have brought; no decision depends on it."""
        halt = state.ledger.halt
        old, new = ((one.work, one.row.round, one.ledger.is_live) for one in (before, state))
        if old != new:
            self._since = self._resources.node.now()
        self._incident = state.row.incident or (halt and halt.incident) or self._incident
        if not isinstance(event, EntriesRead):
            return
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
        node, ledger, head = self._resources.node, state.ledger, state.ledger.head
        now, since = node.now(), self._since
        leads = "this node" if ledger.leader == state.row.info.node_id else f"node {ledger.leader}"
        rows = [
            ("run", f"{head.run}, known here for {_age(ledger.opened_at, now)}"),
            ("decides", f"{leads}, term {head.term}"),
            ("entry", f"{head.index} is the newest, {head.kind}, read {_age(ledger.head_at, now)} ago"),
            ("round", _round(ledger, now)),
            ("restarts", f"{ledger.counters.restarts}{describe_limit(ledger.settings.agreement.max_restarts)} spent"),
            ("waits for", f"{_waits_for(state, session.waiting_for)}, for {_age(since, now)}"),
        ]
        if state.leaving is not None:
            rows.append(("leaves", state.leaving.why))
        nodes = [*session.watch.nodes.values()]
        rows += [("node", _node(seen, now)) for seen in nodes[:SHOWN_NODES]]
        if len(nodes) > SHOWN_NODES:
            rows.append(("", f"and {len(nodes) - SHOWN_NODES} more nodes"))
        rows += self._workers(now)
        failing = f"; failing: {', '.join(sorted(session.contact.failing))}" if session.contact.failing else ""
        rows.append(("store", f"last contact {_age(session.contact.at, now)} ago{failing}"))
        if (found := self._incident) is not None:
            who = "" if found.rank is None else f"rank {found.rank} on "
            rows.append(("failure", f"the newest: round {found.round}, {who}{found.host}: {found.describe()}"))
        return _text(f"{state.row.info} (node {state.row.info.node_id}, pid {os.getpid()})", node.config, rows)

    def _workers(self, now: float) -> Iterator[tuple[str, str]]:
        """Yield the lines of the workers, and of their last checkpoint."""
        group = self._resources.group
        progress, started = group.progress.newest(), _age(group.started_at, now)
        for worker in group.workers:
            rank = worker.assignment.rank
            if worker.exit_code is not None:
                what = f"pid {worker.pid}, {describe_exit(worker.exit_code)} {_age(worker.ended_at, now)} ago"
            elif worker.pid is None:
                what = f"being started, for {started}"
            else:
                joined = ", in its process group" if worker.initialized else ""
                what = f"pid {worker.pid}, started {started} ago{joined}"
                if (known := progress.get(rank)) is not None:
                    what += f", {known[0].describe() or 'moving'}, last progress {known[1]:.1f} s ago"
            yield f"rank {rank}", what
        if (saved := group.progress.last_checkpoint()) is not None:
            yield "checkpoint", f"{'' if saved[0] is None else f'of step {saved[0]}, '}saved {saved[1]:.1f} s ago"

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


def describe_joining(config: RunConfig, since: float) -> str:
    """Return the state of an agent that has waited to join its job since this instant of the monotonic clock."""
    waits = f"the store, to join the job, for {_age(since, time.monotonic())}"
    return _text(f"the agent with pid {os.getpid()}", config, [("waits for", waits)])


def _text(who: str, config: RunConfig, rows: Iterable[tuple[str, str]]) -> str:
    at = f" at {without_passwords(config.rdzv_endpoint)}" if config.rdzv_endpoint else ""
    lines = [("job", f"{config.rdzv_id!r} over {config.rdzv_backend}{at}"), *rows]
    head = f"[elastic] the state of {printable(who)}; it goes on\n"
    return head + "".join(f"  {label:<10} {printable(text)}\n" for label, text in lines)


def _round(ledger: Ledger, now: float) -> str:
    current = ledger.round
    if ledger.closed is not None:
        return f"none any more: the job is closed: {ledger.closed.why}"
    if current is None:
        return "none yet"
    if ledger.halt is not None:
        return f"{current.number}, halted {_age(ledger.halt_at, now)} ago: {ledger.halt.why}"
    return f"{current.number}, live for {_age(ledger.round_at, now)} ({current.why})"


def _waits_for(state: NodeState, nodes: str) -> str:
    ledger, number = state.ledger, state.row.round
    member = ledger.is_member(state.row.info.node_id)
    if ledger.closed is not None:
        return "its own end: the job is closed"
    if nodes:
        return nodes
    if state.work is Work.STOPPING:
        return f"the processes of round {number} to end"
    if state.work is Work.RUNNING and ledger.planned_stop is not None:
        at = "" if (stop := ledger.planned_stop.stop_at) is None else f" at step {stop.step}"
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


def _node(seen: NodeView, now: float) -> str:
    """Return a node of the roster, as the leader knows it."""
    row = seen.row
    of, leaving = f" round {row.round}" if row.round else "", ", leaving" if row.leaving else ""
    return f"{row.info}, {row.phase.value}{of}{leaving}, last sign of life {_age(seen.changed_at, now)} ago"


def _age(instant: float, now: float) -> str:
    return f"{max(0.0, now - instant):.1f} s"


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
