"""The resources of an agent that has joined its run: opened at the start, closed at the end."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from elastic_core.agent import probing
from elastic_core.agent.directories import Slot, log_directory, make_directories, marked
from elastic_core.agent.event_loop import EventLoop
from elastic_core.agent.output import Output, Routes
from elastic_core.agent.report import Publish, warden_silent
from elastic_core.agent.worker import Node
from elastic_core.agent.worker_channels import Reports
from elastic_core.agent.workers import WorkerGroup
from elastic_core.config.run import RunConfig
from elastic_core.events import Event, Level
from elastic_core.exit_codes import ExitCode
from elastic_core.host.processes import run_nanoseconds
from elastic_core.incidents import Incident
from elastic_core.monitors import MonitorCallbacks
from elastic_core.plugins.manager import Plugins
from elastic_core.progress_table import ProgressTable
from elastic_core.protocol.node_events import AnswerFound, FindAnswer, Leaving, Stop, WorkerFailed
from elastic_core.protocol.roster import Answer, NodeInfo, Slots
from elastic_core.session.join import FormerNode
from elastic_core.threads import keep_spare_thread
from elastic_core.warden.client import CLOSING, Warden
from elastic_core.warden.messages import WardenEvent

LEAVE_SIGNALS = signal.SIGTERM, signal.SIGINT, signal.SIGHUP  # by default, unless they are ignored
HELPERS_MAX_SECONDS = 5.0  # for what successful workers have left running
WARDEN_SILENCE_SECONDS, WARDEN_LOOKS = 10.0, 4  # for which a warden may not run, at this many heartbeats at least


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


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The parts of an agent that are there before it joins its job."""

    config: RunConfig
    plugins: Plugins
    slot: Slot
    warden: Warden
    former: FormerNode | None = None  # that this agent was before, in this run, or in one that it has replaced (S3)


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of one run on one node."""

    node: Node
    loop: EventLoop
    signals: frozenset[int]  # the signals on which the node leaves
    warden: Warden
    group: WorkerGroup
    look: Callable[[], Slots]  # returns which slots of this host are held (rule S8)
    unreachable: probing.Unreachable = probing.unreachable  # probes the node's peers; the simulator has its own
    warden_watch: WardenWatch = field(default_factory=WardenWatch)

    def fence(self, seconds: float | None) -> None:
        """Have the warden stop all workers in so many seconds, as of :meth:`Warden.fence`, and see that it runs."""
        self.warden.fence(seconds)
        if silence := self.warden_watch.look(run_nanoseconds(self.warden.pid), self.node.now()):
            self.node.publish(warden_silent(self.warden.pid, silence))

    def find_answer(self, asked: FindAnswer, number: int) -> None:
        """Have a monitor answer a question to round ``number``, on another thread, which posts an AnswerFound.

        While the workers of that round have yet to start, the monitors are those of the round before: none answers.
        """
        current = self.group.round
        callbacks = current.callbacks if current.number == number else MonitorCallbacks(self.node.publish)
        self._ask(asked.index, lambda: callbacks.find(asked.name, asked.value))

    def say_last(self, halt: int) -> bool:
        """Have monitors say what a failed rank may have waited for, as :meth:`find_answer`; False for none to ask."""
        callbacks = self.group.round.callbacks
        if not callbacks.last_words or not any(worker.is_running for worker in self.group.workers):
            return False
        self._ask(halt, callbacks.say_last)
        return True

    def _ask(self, index: int, find: Callable[[], str]) -> None:
        self.node.runtime.ask(lambda: AnswerFound(Answer(index, find())), then=self.loop.post, name="elastic-answer")

    def stop_workers(self, stop: Stop, received: int | None, failure: Incident | None) -> WorkerFailed | None:
        """Stop the workers of a round; return the one that exited early, if that explains the round's ``failure``.

        ``received`` is the signal for which this node leaves. The workers get it, or SIGTERM (:meth:`Warden.stop`).
        """
        config, group = self.node.config, self.group
        if not stop.planned:
            early = group.early_exit(failure)
            group.stop(config.failure_grace, broken=True, failure=failure)
            return early
        group.stop(config.shutdown_timeout, signum=signal.SIGTERM if received is None else received)
        return None

    def finish_helpers(self) -> None:
        """Give what the workers have left running some seconds to end, after all have succeeded; blocks."""
        for event in self.warden.finish(min(HELPERS_MAX_SECONDS, self.node.config.shutdown_timeout)):
            self.group.handle(event)  # it names what was killed

    def handle_warden_death(self, reason: str) -> Leaving:
        """Give up the workers of a dead warden. Without a warden the node cannot keep its promises, so it leaves."""
        message = f"the process that guards the workers is gone ({reason}), and the workers with it"
        self.node.publish(Event("warden_died", message, Level.ERROR))
        self.loop.unwatch(self.warden)
        self.group.finish_round()
        return Leaving("the process that guards the workers is gone", ExitCode.WITHDRAWN)


@contextmanager
def open_resources(
    launch: Launch, publish: Publish, info: NodeInfo, run_uid: str, *, heard: Sequence[WardenEvent] = ()
) -> Iterator[Resources]:
    """Make the resources, and close them on exit. Main thread only. ``heard`` has the warden's events so far.

    Raises:
        OSError, ResourceError: No descriptor or directory could be made.
    """
    keep_spare_thread()
    config, plugins, warden = launch.config, launch.plugins, launch.warden
    with ExitStack() as stack:
        signals = leave_signals(config)
        loop = EventLoop(signals)
        stack.callback(loop.close)
        for event in heard:
            loop.post(event)
        loop.watch(warden, warden.receive)
        directory, temporary = _open_directory(stack, launch, publish, run_uid)
        output = Output(Routes.of(config), lambda message: publish(Event("output", message, Level.WARNING)))
        stack.callback(output.close)
        stack.enter_context(_window_changes(output.resize))

        reports = Reports(loop.at)
        stack.callback(reports.close)
        loop.watch(reports, reports.receive)
        node = Node(config, plugins, publish, info, run_uid, directory, temporary)
        group = WorkerGroup(node, warden, output, reports, loop.post, ProgressTable(publish, loop.post))
        stack.callback(group.close)
        stack.callback(warden.close, CLOSING)  # the workers end before their output closes, also after an exception
        yield Resources(node, loop, signals, warden, group, launch.slot.look)


def _open_directory(stack: ExitStack, launch: Launch, publish: Publish, run_uid: str) -> tuple[Path, bool]:
    """Make the directory of the run, and return it, and whether it is removed at the end."""
    config, slot, warden = launch.config, launch.slot, launch.warden
    directory, temporary = log_directory(config, run_uid, keep=launch.plugins.keep_files)
    if temporary:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        stack.enter_context(marked(directory, slot.name))
        warden.sweep(str(directory))
    elif config.log_dir is None:
        publish(Event("logs", f"logs are in {directory}"))
    with suppress(OSError):  # what cannot be written there is reported later
        make_directories(directory)
    if config.program.directory:
        stack.enter_context(marked(Path(config.program.directory), slot.name))
        warden.sweep(config.program.directory)
    return directory, temporary


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
    return frozenset(signum for signum in LEAVE_SIGNALS if signal.getsignal(signum) is not signal.SIG_IGN)
