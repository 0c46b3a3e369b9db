"""Launching from Python, with torch's names: ``elastic_launch(LaunchConfig(...), entrypoint)(*args)``.

The shapes follow ``torch.distributed.launcher.api``; what is behind them is what ``elastic run`` does.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from elastic_core import conf, job_token, plugins
from elastic_core.agent import calls
from elastic_core.config import (
    DEFAULT_ID,
    LINE_PREFIX,
    MONITOR_INTERVAL,
    SHUTDOWN_TIMEOUT,
    RunConfig,
    Stream,
    StreamMap,
)
from elastic_core.errors import ElasticError, UsageError
from elastic_core.exit_codes import signal_name, signalled
from elastic_core.incidents import Incident
from elastic_core.program import Program, ProgramKind
from elastic_core.rendezvous import registry

Streams = Stream | Mapping[int, Stream]
"""One flag for all local ranks, or a flag for each."""


class ChildFailedError(ElasticError):
    """This node's part in the job has ended without success. ``returncode`` tells what became of the job.

    With ``ExitCode.JOB_FAILED`` or ``TOO_FEW_NODES`` the job itself has failed, on all nodes. With ``WITHDRAWN`` this
    node has left it, and with ``STORE_LOST`` it has lost the store: the others may go on. A node that has left because
    of a signal raises :class:`SignalException` or KeyboardInterrupt, and not this.

    Attributes:
        returncode: What ``elastic run`` would have exited with (:class:`elastic_core.exit_codes.ExitCode`).
        incident: The first failure of all, if it was a worker's; for a lost store the first that this node knows of.
    """

    def __init__(self, message: str, returncode: int, incident: Incident | None = None) -> None:
        super().__init__(message)
        self.returncode, self.incident = returncode, incident


class SignalException(SystemExit):
    """This process was told to end by a signal other than SIGINT, and its node has left the job: nothing runs any more.

    As SIGINT's KeyboardInterrupt, it is no :class:`Exception`: whoever tries again after a failure is not to go on
    after SIGTERM. And it is a SystemExit, so that a program that does not catch it ends as ``elastic run`` does, with
    128 and the signal's number.

    Attributes:
        sigval: The signal; torch's name for it.
    """

    def __init__(self, sigval: signal.Signals) -> None:
        super().__init__(signalled(sigval))
        self.sigval = sigval

    def __str__(self) -> str:
        return f"received {signal_name(self.sigval)}"


@dataclass(kw_only=True)
class LaunchConfig:
    """What ``elastic run``'s flags say, for a caller in Python. Durations are in seconds.

    Without a ``rdzv_backend`` the job has one node, and nothing needs to be reached.
    """

    min_nodes: int = 1
    max_nodes: int = 1
    nproc_per_node: int = 1
    run_id: str = ""
    """The job's id; a random one when it is '' and nobody else can join."""
    role: str = "default"
    rdzv_backend: str = "local"
    rdzv_endpoint: str = field(default="", repr=False)
    rdzv_configs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    max_restarts: int = 3
    monitor_interval: float = MONITOR_INTERVAL
    start_method: str = "spawn"
    """Only ``spawn``: every worker is a fresh interpreter."""
    log_dir: str | os.PathLike[str] | None = None
    redirects: Streams = Stream.NONE
    tee: Streams = Stream.NONE
    log_line_prefix_template: str | None = None
    local_addr: str | None = None
    shutdown_timeout: float = SHUTDOWN_TIMEOUT
    signals_to_handle: str | None = None
    """Names, separated by commas; None for SIGTERM, SIGINT and SIGHUP, except those that are ignored."""
    duplicate_stdout_filters: tuple[str, ...] = ()
    duplicate_stderr_filters: tuple[str, ...] = ()
    virtual_local_rank: bool = False
    plugins: tuple[str, ...] = ()


class elastic_launch:
    """Run ``entrypoint`` as a job, with this process as one of its agents; call it with the entrypoint's arguments.

    Args:
        config: How.
        entrypoint: A function that is defined at the top level of a module or of the main program, or a command.
    """

    def __init__(self, config: LaunchConfig, entrypoint: Callable[..., Any] | str | None) -> None:
        if entrypoint is None or not (callable(entrypoint) or isinstance(entrypoint, str)):
            raise TypeError(f"The entrypoint {entrypoint!r} is neither a function nor a command.")
        self._config, self._entrypoint = config, entrypoint

    def __call__(self, *args: Any) -> dict[int, Any]:
        """Run the job to its end, on the main thread; return what this node's workers returned, by global rank.

        A command's workers return nothing.

        Raises:
            ChildFailedError: The job has failed, or this node could not stay in it.
            KeyboardInterrupt: SIGINT has come; the workers are stopped.
            SignalException: Another signal of ``signals_to_handle`` has come; the workers are stopped.
            UsageError: The configuration cannot be meant, the function or what it returned cannot be sent from one
                process to another, or this is not the main thread.
            ElasticError: The rendezvous does not let this node in.
        """
        return launch(configure(self._config), self._entrypoint, args)


def launch(config: RunConfig, entrypoint: Callable[..., Any] | str, args: tuple[Any, ...]) -> dict[int, Any]:
    """Run a job of this entrypoint; ``config.program`` is replaced. See :class:`elastic_launch`."""
    calls.launching()
    if threading.current_thread() is not threading.main_thread():
        raise UsageError(
            f"A job cannot be launched on the thread {threading.current_thread().name!r}: signals reach the main "
            "thread only, and its agent has to hear of them.",
            hint="Launch on the main thread, or start `elastic run` as a process of its own.",
        )
    if isinstance(entrypoint, str):
        program = Program(ProgramKind.EXECUTABLE, shutil.which(entrypoint) or entrypoint, tuple(map(str, args)))
        run_program(replace(config, program=program))
        return {}
    from elastic_core.agent.scratch import remove_abandoned

    remove_abandoned()  # now: on a full disk, tempfile would choose another directory
    directory = Path(tempfile.mkdtemp(prefix="elastic_call_"))
    try:
        calls.write(calls.Call(entrypoint, args), directory)
        run_program(
            replace(config, program=Program(ProgramKind.FUNCTION, str(directory), function=_name_of(entrypoint)))
        )
        return calls.results(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def configure(config: LaunchConfig) -> RunConfig:
    """What the agent takes, from what torch's callers write.

    Raises:
        UsageError: A value cannot be meant.
    """
    from elastic_core import values  # reads texts as the command line does

    if config.start_method != "spawn":
        _warn(f"start_method={config.start_method!r} has no effect: every worker is a fresh interpreter.")
    nnodes = values.NodeRange(config.min_nodes, config.max_nodes)
    backend, endpoint = config.rdzv_backend, config.rdzv_endpoint
    if registry.find(backend) is None:
        backend, endpoint = conf.settle(backend, endpoint, nnodes)
    options = plugins.rendezvous_options(backend, named=config.plugins)
    text = ",".join(f"{key}={value}" for key, value in config.rdzv_configs.items())
    settings = conf.parse(text, backend=backend, options=options)
    conf.check_reach(backend, endpoint, nnodes, options)
    for warning in settings.without_effect:
        _warn(warning)
    alone = backend == conf.LOCAL
    return RunConfig(
        program=Program(ProgramKind.FUNCTION, ""),
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        nproc_per_node=config.nproc_per_node,
        role=config.role,
        max_restarts=config.max_restarts,
        rdzv_backend=backend,
        rdzv_endpoint=endpoint,
        rdzv_id=config.run_id or (uuid.uuid4().hex if alone else DEFAULT_ID),
        rdzv_conf=settings.backend,
        job_token=job_token.read(os.environ, settings.token_file),
        timing=settings.timing,
        run_uid=settings.run_uid or conf.scheduler_uid(os.environ),
        local_addr=config.local_addr,
        signals=_signals(config.signals_to_handle),
        shutdown_timeout=config.shutdown_timeout,
        log_dir=None if config.log_dir is None else Path(config.log_dir),
        redirects=stream_map(config.redirects),
        tee=stream_map(config.tee),
        stdout_filters=tuple(config.duplicate_stdout_filters),
        stderr_filters=tuple(config.duplicate_stderr_filters),
        line_prefix=config.log_line_prefix_template or LINE_PREFIX,
        virtual_local_rank=config.virtual_local_rank,
        monitor_interval=config.monitor_interval,
        plugins=config.plugins,
    )


def run_program(config: RunConfig) -> None:
    """Run a job of ``config.program`` with this process as one of its agents, on the main thread.

    Raises:
        ChildFailedError, KeyboardInterrupt, SignalException, ElasticError: As for :class:`elastic_launch`.
    """
    from elastic_core.agent import start

    loaded = plugins.load(config)
    try:
        ending = start.run(config, loaded, alone=False)
    finally:
        loaded.close(5.0)
    if ending.exit_code > signalled(0):
        received = signal.Signals(ending.exit_code - signalled(0))
        raise KeyboardInterrupt if received is signal.SIGINT else SignalException(received)
    if ending.exit_code != 0:
        raise ChildFailedError(ending.why, ending.exit_code, ending.incident)


def _signals(text: str | None) -> tuple[signal.Signals, ...] | None:
    from elastic_core import values

    try:
        return None if text is None else values.signals(text)
    except values.Wrong as wrong:
        raise UsageError(f"signals_to_handle={text!r} {wrong}.{wrong.suggestion}") from None


def stream_map(streams: Streams) -> StreamMap:
    """What the agent takes, from a flag or flags by local rank."""
    return StreamMap(default=streams) if isinstance(streams, Stream) else StreamMap(by_rank=dict(streams))


def _name_of(entrypoint: Callable[..., Any]) -> str:
    """The same for the same function on every node; '' where it has no name."""
    module, qualname = getattr(entrypoint, "__module__", None), getattr(entrypoint, "__qualname__", None)
    if module is None or qualname is None:
        return ""
    return f"{os.path.basename(sys.argv[0]) if module == '__main__' else module}:{qualname}"


def _warn(warning: str) -> None:
    print(f"elastic: warning: {warning}", file=sys.stderr)
