"""The resources of both agents, ``agent.supervisor`` and ``handlers.agent``: opened at the start, closed at the end."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from elastic_core.agent import probing
from elastic_core.agent.directories import log_directory, make_directories, marked
from elastic_core.agent.event_loop import EventLoop, HostEnds, Overdue
from elastic_core.agent.fd_store import FdStore
from elastic_core.agent.output import Output
from elastic_core.agent.report import Publish, warden_silent
from elastic_core.agent.run_summary import RunSummary
from elastic_core.agent.slot import Slot
from elastic_core.agent.start_gate import StartDelay
from elastic_core.agent.status import Status
from elastic_core.agent.worker_channels import Reports
from elastic_core.agent.workers import WorkerGroup
from elastic_core.config.parse import Stream
from elastic_core.config.run import SIGNALS, RunConfig
from elastic_core.events import Event, Level
from elastic_core.exit_codes import ExitCode
from elastic_core.incidents import Incident
from elastic_core.plugins.manager import Plugins
from elastic_core.progress_table import ProgressTable
from elastic_core.protocol.node_events import AnswerFound, FindAnswer, Grace, Leaving, Stop, WorkerFailed
from elastic_core.protocol.questions import decode
from elastic_core.protocol.roster import Answer, NodeInfo
from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_core.threads import keep_a_starter
from elastic_core.warden.client import CLOSING, Warden
from elastic_core.warden.linux import catches, run_nanoseconds
from elastic_core.warden.messages import WardenEvent

HELPERS_MAX_SECONDS = 5.0  # for what successful workers have left running
NOTICES = signal.SIGURG, signal.SIGUSR1, signal.SIGUSR2
"""Signals by which a scheduler says that it takes the node away. Workers get SIGTERM, on which scripts save."""
WARDEN_SILENCE_SECONDS, WARDEN_LOOKS = 10.0, 4  # for which a warden may not run, at this many heartbeats at least
WARDEN_PATIENCE = 5.0  # seconds that the warden gets to kill all processes after the second signal


@dataclass(slots=True)
class WardenWatch:
    """Notices that the warden does not run, although it is sent a message at each heartbeat."""

    ran: int = -1  # nanoseconds, at the last look
    ran_at: float = 0.0
    looks: int = 0  # since then

    def look(self, ran: int, now: float) -> float:
        """Return for how many seconds it has not run, once, if that is too long; else 0."""
        if ran != self.ran:
            self.ran, self.ran_at, self.looks = ran, now, 0
        self.looks += self.looks < WARDEN_LOOKS or now - self.ran_at >= WARDEN_SILENCE_SECONDS
        return now - self.ran_at if self.looks == WARDEN_LOOKS + 1 else 0.0


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of one run on one node."""

    config: RunConfig
    plugins: Plugins
    publish: Publish
    info: NodeInfo
    loop: EventLoop
    signals: frozenset[int]  # the signals on which the node leaves
    warden: Warden
    group: WorkerGroup
    fd_store: FdStore  # memory files that outlive the workers
    unreachable: probing.Unreachable = probing.unreachable  # probes the node's peers
    warden_watch: WardenWatch = field(default_factory=WardenWatch)

    def announce(self, describe: Callable[[], str], connect: Callable[[], RendezvousBackend] | None) -> None:
        """Tell the observers that this node has joined its run; the arguments are those of the hook."""
        group, leave = self.group, self.plugins.host_end.leave
        log_dir = None if group.temporary else group.directory
        facts = self.config, group.run_uid, self.info, log_dir, leave, self.publish
        self.plugins.run_starts(*facts, describe, connect)

    def fence(self, seconds: float | None, now: float) -> None:
        """Have the warden stop all workers in so many seconds, as of :meth:`Warden.fence`, and see that it runs."""
        self.warden.fence(seconds)
        if silence := self.warden_watch.look(run_nanoseconds(self.warden.pid), now):
            self.publish(warden_silent(self.warden.pid, silence))

    def start_delay(self, now: Callable[[], float]) -> StartDelay:
        """Return the wait before the start of workers."""
        return StartDelay(self.plugins.before_start, self.group.run_uid, self.loop, now, self.publish)

    def find_answer(self, asked: FindAnswer, start: Callable[..., threading.Thread]) -> None:
        """Have a monitor answer a question, on another thread, which posts an AnswerFound."""
        questions = self.group.round.questions

        def run() -> None:
            self.loop.post(AnswerFound(Answer(asked.index, questions.find(asked.name, decode(asked.value)))))

        start(target=run, name="elastic-answer", daemon=True).start()

    def say_last(self, halt: int, start: Callable[..., threading.Thread]) -> bool:
        """Have monitors say what a failed rank may have waited for, as :meth:`find_answer`; False for none to ask."""
        questions = self.group.round.questions
        if not questions.last_words or not any(worker.is_running for worker in self.group.workers):
            return False

        def run() -> None:
            self.loop.post(AnswerFound(Answer(halt, questions.say_last())))

        start(target=run, name="elastic-last-words", daemon=True).start()
        return True

    def status(self, now: float, since: float, incident: Incident | None) -> Status:
        """Return what is known of the workers; arguments are fields of a Status."""
        group = self.group
        return replace(
            Status.of(self.config),
            now=now,
            since=since,
            workers=group.workers,
            started_at=group.started_at,
            progress=group.progress.newest(),
            checkpoint=group.progress.last_checkpoint(),
            incident=incident,
        )

    def summarize(self, **counters: Any) -> RunSummary:
        """Return what the run came to; ``counters`` are the fields of a RunSummary that the job's ledger knows."""
        return RunSummary(
            job=self.config.rdzv_id,
            run=self.group.run_uid,
            node=str(self.info),
            interrupted_seconds=round(self.group.interrupted_seconds, 3),
            logs=None if self.group.temporary else self.group.directory,
            stop_facts=self.group.stop_facts,
            **counters,
        )


def stop_workers(
    resources: Resources, stop: Stop, received: int | None, failure: Incident | None
) -> WorkerFailed | None:
    """Stop the workers of a round; return the one that exited early, if that explains the round's ``failure``.

    ``received`` is the signal for which this node leaves. The workers get it too, unless it is a notice to the agent
    for which no worker has a handler.
    """
    config, group = resources.config, resources.group
    if stop.grace is not Grace.PLANNED:
        early = group.early_exit(failure)
        group.stop(config.failure_grace, broken=True, failure=failure)
        return early
    pids = [worker.pid for worker in group.workers if worker.is_running and worker.pid is not None]
    known = received is not None and (received not in NOTICES or any(catches(pid, received) for pid in pids))
    group.stop(config.shutdown_timeout, signum=received if known and received is not None else signal.SIGTERM)
    return None


def finish_helpers(resources: Resources) -> None:
    """Give what the workers have left running some seconds to end, after all workers have succeeded; blocks."""
    for event in resources.warden.finish(min(HELPERS_MAX_SECONDS, resources.config.shutdown_timeout)):
        resources.group.handle(event)  # it names what was killed


def kill_workers(resources: Resources, now: float) -> None:
    """End all workers at once; if the warden does not do it within its patience, an Overdue comes."""
    resources.warden.wake()
    resources.group.stop(0.0)
    resources.loop.at(now + WARDEN_PATIENCE, Overdue())


def handle_warden_death(resources: Resources, reason: str) -> Leaving:
    """Give up the workers of a dead warden. Without a warden the node cannot keep its promises, so it leaves."""
    message = f"the process that guards the workers is gone ({reason}), and the workers with it"
    resources.publish(Event("warden_died", message, Level.ERROR))
    resources.loop.unwatch(resources.warden)
    resources.group.finish_round()
    return Leaving("the process that guards the workers is gone", ExitCode.WITHDRAWN)


@contextmanager
def open_resources(
    config: RunConfig,
    plugins: Plugins,
    publish: Publish,
    info: NodeInfo,
    run_uid: str,
    warden: Warden,
    slot: Slot,
    *,
    heard: Sequence[WardenEvent] = (),
    cpus: Sequence[frozenset[int]] = (),
) -> Iterator[Resources]:
    """Make the resources, and close them on exit. Main thread only.

    Args:
        warden: The run's warden, which is closed before the output of its workers.
        slot: It keeps the locks of temporary directories.

    Raises:
        OSError, ResourceError: No descriptor or directory could be made.
    """
    keep_a_starter()
    with ExitStack() as stack:
        signals = leave_signals(config)
        loop = EventLoop(signals)
        stack.callback(loop.close)
        for event in heard:
            loop.post(event)
        loop.watch(warden, warden.receive)
        directory, temporary = log_directory(config, run_uid)
        if temporary:
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            stack.enter_context(marked(directory, slot.keep))
            warden.sweep(str(directory))
        elif config.log_dir is None:
            publish(Event("logs", f"logs are in {directory}"))
        with suppress(OSError):  # what cannot be written there is reported later
            make_directories(directory)
        if config.program.directory:
            stack.enter_context(marked(Path(config.program.directory), slot.keep))
            warden.sweep(config.program.directory)
        output = Output(
            redirects=config.redirects,
            tee=config.tee,
            keep=config.log_dir is not None,
            shown=config.local_ranks_filter,
            several=len(config.local_ranks_filter or range(config.nproc_per_node)) > 1,
            filters={Stream.OUT: config.duplicate_stdout_filters, Stream.ERR: config.duplicate_stderr_filters},
            report=lambda message: publish(Event("output", message, Level.WARNING)),
        )
        stack.callback(output.close)
        stack.enter_context(_window_changes(output.resize))

        plugins.host_end.heard_by(lambda why, seconds, at: loop.post(HostEnds(why, seconds, at)))
        reports = Reports(loop.at)
        stack.callback(reports.close)
        loop.watch(reports, reports.receive)
        group = WorkerGroup(
            config, plugins, warden, output, reports, info, run_uid, directory, publish, cpus, temporary
        )
        group.post, group.progress = loop.post, ProgressTable(publish, loop.post)
        stack.callback(group.close)
        stack.callback(warden.close, CLOSING)  # the workers end before their output closes, also after an exception
        yield Resources(config, plugins, publish, info, loop, signals, warden, group, reports.fd_store)


@contextmanager
def _window_changes(follow: Callable[[], None]) -> Iterator[None]:
    """Call ``follow``, and then the handler before it, when the terminal changes its size. Main thread only."""
    before = signal.getsignal(signal.SIGWINCH)
    if before is None:  # not set from Python: it could not be restored
        yield
        return

    def changed(signum: int, frame: FrameType | None) -> None:
        follow()
        if callable(before):
            before(signum, frame)

    signal.signal(signal.SIGWINCH, changed)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


def leave_signals(config: RunConfig) -> frozenset[int]:
    """Return the signals on which the node leaves: by default not on ignored ones, such as SIGHUP under ``nohup``."""
    if config.signals_to_handle is not None:
        return frozenset(config.signals_to_handle)
    return frozenset(signum for signum in SIGNALS if signal.getsignal(signum) is not signal.SIG_IGN)
