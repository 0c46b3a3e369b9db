"""What an agent works with, whoever decides: its inbox, the warden, the workers, their output and their directory.

Both loops, ``supervisor.py`` and ``polling.py``, get theirs from :func:`hands`, and give them back by leaving it.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from elastic_core.agent import probing
from elastic_core.agent.event_loop import Inbox
from elastic_core.agent.fd_store import FdStore
from elastic_core.agent.log_dir import log_directory
from elastic_core.agent.output import Output
from elastic_core.agent.report import Publish
from elastic_core.agent.slot import Slot
from elastic_core.agent.watchdog import Watchdog, kernel_limit, pipe_path
from elastic_core.agent.worker_channels import Reports
from elastic_core.agent.workers import WorkerGroup
from elastic_core.config.program import ProgramKind
from elastic_core.config.run import SIGNALS, RunConfig, Stream
from elastic_core.events import Event, Level
from elastic_core.plugins.manager import Plugins
from elastic_core.protocol.roster import NodeInfo
from elastic_core.warden.client import CLOSING, Warden
from elastic_core.warden.messages import WardenEvent

WARDEN_PATIENCE = 5.0
"""Seconds that the warden gets to kill everything, after the second signal."""


@dataclass(frozen=True, slots=True)
class Hands:
    """All of them, for one run on one node."""

    inbox: Inbox
    signals: frozenset[int]
    """Those on which the node leaves."""
    warden: Warden
    group: WorkerGroup
    fd_store: FdStore
    """What workers have left here, until the end."""
    unreachable: probing.Unreachable = probing.unreachable
    """Probes the node's peers."""


@contextmanager
def hands(
    config: RunConfig,
    plugins: Plugins,
    publish: Publish,
    info: NodeInfo,
    run_uid: str,
    warden: Warden,
    slot: Slot,
    *,
    warm: bool = False,
    heard: Sequence[WardenEvent] = (),
    cpus: Sequence[frozenset[int]] = (),
) -> Iterator[Hands]:
    """Everything else is made in here, and nothing of it is left afterwards. Main thread only.

    Args:
        config: The run's settings.
        plugins: Who is told that it starts.
        publish: Tells the observers.
        info: This node.
        run_uid: The run's.
        warden: This run's, closed here before the output of its workers is.
        slot: This agent's, on this host. The locks of temporary directories lie with it.
        warm: Whether it has a fork server.
        heard: What it has said so far.
        cpus: Of each local rank; none when workers are not bound.

    Raises:
        OSError: No directory or descriptor could be made.
    """
    with ExitStack() as stack:
        signals = handled(config)
        inbox = Inbox(signals)
        stack.callback(inbox.close)
        for event in heard:
            inbox.post(event)
        inbox.watch(warden, warden.receive)
        directory, temporary = log_directory(config, run_uid)
        if temporary:
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            stack.enter_context(marked(directory, slot.keep))
            warden.sweep(str(directory))
        elif config.log_dir is None:
            publish(Event("logs", f"logs are in {directory}"))
        if config.program.kind is ProgramKind.FUNCTION:
            stack.enter_context(marked(Path(config.program.target), slot.keep))  # what its workers are called with
            warden.sweep(config.program.target)
        output = _output(config, publish)
        stack.callback(output.close)
        stack.enter_context(_window_changes(output.resize))
        plugins.run_starts(config, run_uid, info, None if temporary else directory)
        reports = Reports(inbox.at)
        stack.callback(reports.close)
        inbox.watch(reports, reports.receive)
        group = WorkerGroup(
            config, plugins, warden, output, reports, info, run_uid, directory, publish, cpus, warm, temporary
        )
        pipe, limit = pipe_path(os.environ, directory), kernel_limit(os.environ)
        if pipe is not None or limit is not None:
            group.watchdog = stack.enter_context(closing(Watchdog(pipe, limit, inbox.at, warden.pid)))
            if pipe is not None:
                inbox.watch(group.watchdog, group.watchdog.receive)
        stack.callback(warden.close, CLOSING)  # the workers before their output, whatever went wrong
        yield Hands(inbox, signals, warden, group, reports.fd_store)


@contextmanager
def _window_changes(follow: Callable[[], None]) -> Iterator[None]:
    """Call ``follow`` when the terminal's window changes its size, and whoever was called before. Main thread only."""
    before = signal.getsignal(signal.SIGWINCH)
    if before is None:  # not set from Python: it could not be put back
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


def handled(config: RunConfig) -> frozenset[int]:
    """On which signals the node leaves: by default not on those that are ignored, as ``nohup`` has it with SIGHUP."""
    if config.signals is not None:
        return frozenset(config.signals)
    return frozenset(signum for signum in SIGNALS if signal.getsignal(signum) is not signal.SIG_IGN)


def _output(config: RunConfig, publish: Publish) -> Output:
    def report(message: str) -> None:
        publish(Event("output", message, Level.WARNING))

    return Output(
        redirects=config.redirects,
        tee=config.tee,
        keep=config.log_dir is not None,
        shown=config.local_ranks_filter,
        several=len(config.local_ranks_filter or range(config.nproc_per_node)) > 1,
        filters={Stream.OUT: config.stdout_filters, Stream.ERR: config.stderr_filters},
        report=report,
    )
