"""Agents as objects, with torchelastic's names: ``LocalElasticAgent(WorkerSpec(...)).run()``, ``Std(...).run()``."""

from __future__ import annotations

import enum
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from elastic_core.config import EXIT_BARRIER, LOCAL, MAX_RESTARTS, MONITOR_INTERVAL, parse
from elastic_core.config.parse import Stream
from elastic_core.errors import UsageError
from elastic_core.incidents import Incident
from elastic_torchrun import call
from elastic_torchrun.foreign import registry
from elastic_torchrun.launch import ChildFailedError, ProcessFailure, launch
from elastic_torchrun.launch_config import (
    LaunchConfig,
    Streams,
    check_entrypoint,
    configure,
    read,
    stream_map,
    warn_no_effect,
)

__all__ = ["LocalElasticAgent", "ProcessFailure", "RunResult", "Std", "WorkerSpec", "WorkerState", "to_map"]


class WorkerState(str, enum.Enum):
    """The end of a run."""

    SUCCEEDED = "SUCCEEDED"  # the job is done
    FAILED = "FAILED"  # the job has failed, or this node could not stay in it


@dataclass
class WorkerSpec:
    """The workers of one node: torch's fields in torch's order, and ``launch``, which is ours.

    Raises:
        UsageError: The entrypoint is neither a function nor a command, or ``args`` is no tuple.
    """

    role: str = "default"  # the workers' role
    local_world_size: int = 1  # the number of workers on this node
    rdzv_handler: Any = None
    """A rendezvous handler of yours or of torch's, instead of the rendezvous of ``launch``. Without either, the job
    has one node.
    """
    fn: Callable[..., Any] | None = None  # the older name of ``entrypoint``
    entrypoint: Callable[..., Any] | str | None = None
    """A function that is defined at the top level of a module or of the main program, or a command."""
    args: tuple[Any, ...] = ()  # the entrypoint's arguments
    max_restarts: int = MAX_RESTARTS  # how many failures of workers the job survives
    monitor_interval: float = MONITOR_INTERVAL
    """Seconds between two polls of a foreign rendezvous handler; nothing else is polled."""
    master_port: int | None = None
    """The port of the workers' store in a job of one node; with several, each round has a free port."""
    master_addr: str | None = None  # the address of that store in a job of one node
    local_addr: str | None = None  # the address at which other nodes reach this one
    event_log_handler: str = "null"  # as in :class:`LaunchConfig`, and so are the four fields that follow
    numa_options: Any = None
    duplicate_stdout_filters: Sequence[str] | None = None
    duplicate_stderr_filters: Sequence[str] | None = None
    virtual_local_rank: bool = False
    launch: LaunchConfig = field(default_factory=LaunchConfig, kw_only=True)
    """All other settings, such as the rendezvous; the fields above take precedence."""

    def __post_init__(self) -> None:
        if self.fn is not None:
            warnings.warn("WorkerSpec's fn is the older name of entrypoint.", DeprecationWarning, stacklevel=3)
            self.entrypoint = self.fn
        if not self.entrypoint:
            raise UsageError("The WorkerSpec has no entrypoint.", hint="Give a function, or a command.")
        check_entrypoint(self.entrypoint)
        args: object = self.args
        if isinstance(args, str) or not isinstance(args, Iterable):
            raise UsageError(f"args={args!r} is not a tuple of arguments.", hint="For one argument: args=(value,).")

    def get_entrypoint_name(self) -> str:
        """Return the function's qualified name, or the command's without its directory."""
        if isinstance(self.entrypoint, str):
            return os.path.basename(self.entrypoint)
        return str(getattr(self.entrypoint, "__qualname__", self.entrypoint))


@dataclass(frozen=True, slots=True)
class RunResult:
    """The end of a run, as seen on this node: torch's fields in torch's order, and then ours, which are given by name.

    A failed run is a failed job, on all nodes, where ``returncode`` is ``JOB_FAILED``, ``REQUEUE`` or
    ``TOO_FEW_NODES``. With ``WITHDRAWN`` only this node has left the job, and with ``STORE_LOST`` it has lost the
    store: the others may go on. (A signal that ends the node's part raises, and gives no result.)
    """

    state: WorkerState
    return_values: Mapping[int, Any] = field(default_factory=dict)  # of this node's workers, by global rank
    failures: Mapping[int, ProcessFailure] = field(default_factory=dict)  # the root cause, under its worker's rank
    returncode: int = field(default=0, kw_only=True)  # of ``elastic run`` (:class:`elastic_core.exit_codes.ExitCode`)
    incident: Incident | None = field(default=None, kw_only=True)
    """The root cause with all its facts; also one that is no worker's failure."""
    why: str = field(default="", kw_only=True)

    def is_failed(self) -> bool:
        """Return True if the job failed, or this node could not stay in it."""
        return self.state is WorkerState.FAILED


class LocalElasticAgent:
    """Runs the workers of ``spec`` on this node, as ``elastic run`` would.

    Args:
        spec: What to run.
        logs_specs: torch's DefaultLogsSpecs, for the workers' output.
        start_method: As in :class:`LaunchConfig`.
        exit_barrier_timeout: Seconds that a finished node waits for the others, with a foreign rendezvous handler only.
        log_line_prefix_template: The prefix of a teed line.
        shutdown_timeout: Seconds between SIGTERM and SIGKILL.
        health_check_server, uninterruptible_state_timeout: Arguments of torch's, without effect.
        log_dir: The folder for the workers' output, by round and rank; without it and ``logs_specs``, none is kept.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: Any = None,
        start_method: str = "spawn",
        exit_barrier_timeout: float = EXIT_BARRIER,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: float | None = None,
        health_check_server: object = None,
        uninterruptible_state_timeout: float | None = None,
        *,
        log_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        if not isinstance(spec, WorkerSpec):
            raise UsageError(f"The spec {spec!r} is not a WorkerSpec of Elastic's.")
        self.spec = spec
        self._exit_barrier = exit_barrier_timeout
        self._given = {
            "logs_specs": logs_specs,
            "start_method": None if start_method == "spawn" else start_method,
            "log_line_prefix_template": log_line_prefix_template,
            "shutdown_timeout": shutdown_timeout,
            "log_dir": log_dir,
        }
        self._ignored = ["health_check_server"] if health_check_server is not None else []
        if uninterruptible_state_timeout:
            self._ignored.append("uninterruptible_state_timeout")

    def run(self, role: str | None = None) -> RunResult:
        """Run to the end, on the main thread.

        Raises:
            UsageError: The spec is invalid, or a worker's result cannot be sent back.
            KeyboardInterrupt: SIGINT has come; the workers are stopped.
            SignalException: Another signal that ends a run has come; the workers are stopped.
            PluginError: The spec's ``rdzv_handler`` is no rendezvous handler.
            ElasticError: The rendezvous does not admit this node.
        """
        call.launching()
        spec = self.spec
        assert spec.entrypoint is not None
        with ExitStack() as stack:
            given = {**self._of_spec(role), **{name: value for name, value in self._given.items() if value is not None}}
            if spec.rdzv_handler is not None:
                from elastic_torchrun.handlers import launch_settings

                given.update(
                    launch_settings(spec.rdzv_handler)
                    or {"rdzv_backend": stack.enter_context(registry.using(spec.rdzv_handler))}
                )
            config = replace(configure(replace(spec.launch, **given)), exit_barrier=self._exit_barrier)
            if config.rdzv_backend == LOCAL:
                address = read("master_addr", spec.master_addr or None, parse.address) or config.local_addr
                config = replace(config, master_port=spec.master_port, local_addr=address)
                of_spec: list[str] = []
            else:
                of_spec = [name for name in ("master_addr", "master_port") if getattr(spec, name) is not None]
            for name in (*self._ignored, *of_spec):
                warn_no_effect(name)
            try:
                returned = launch(config, spec.entrypoint, tuple(spec.args))
            except ChildFailedError as exc:
                return RunResult(
                    state=WorkerState.FAILED,
                    returncode=exc.returncode,
                    failures=exc.failures,
                    incident=exc.incident,
                    why=exc.message,
                )
        return RunResult(state=WorkerState.SUCCEEDED, return_values=returned)

    def _of_spec(self, role: str | None) -> dict[str, Any]:
        """Return the fields of LaunchConfig that the spec sets; the others keep the values of ``launch``."""
        spec, shared = self.spec, {item.name for item in fields(LaunchConfig)}
        values = {item.name: (getattr(spec, item.name), item.default) for item in fields(spec) if item.name in shared}
        return {
            **{name: value for name, (value, default) in values.items() if value != default},
            "role": role or spec.role,
            "nproc_per_node": spec.local_world_size,
            "max_restarts": spec.max_restarts,
            "monitor_interval": spec.monitor_interval,
        }


class Std:
    """A job on this node: ``Std(entrypoint=train, nproc_per_node=4, log_dir="./logs").run()``.

    The attributes are torch's flags of that name, for ``redirects`` and ``tee``.

    Args:
        entrypoint: A function that is defined at the top level of a module or of the main program, or a command.
        args: The entrypoint's arguments.
        nproc_per_node: The number of workers.
        log_dir: The folder for the workers' output, by round and rank.
        redirects: The streams that go to files only; one flag, or a flag for each local rank.
        tee: The streams that go to files and to the console.
        monitor_interval: An argument of torchelastic's, without effect: workers are not polled.
        max_restarts: How many failures of workers the job survives.
    """

    NONE: ClassVar = Stream.NONE
    OUT: ClassVar = Stream.OUT
    ERR: ClassVar = Stream.ERR
    ALL: ClassVar = Stream.ALL

    def __init__(
        self,
        entrypoint: Callable[..., Any] | str,
        args: tuple[Any, ...] = (),
        *,
        nproc_per_node: int = 1,
        log_dir: str | os.PathLike[str] | None = None,
        redirects: Streams = Stream.NONE,
        tee: Streams = Stream.NONE,
        monitor_interval: float = MONITOR_INTERVAL,
        max_restarts: int = MAX_RESTARTS,
    ) -> None:
        self._spec = WorkerSpec(
            entrypoint=entrypoint,
            args=args,
            local_world_size=nproc_per_node,
            max_restarts=max_restarts,
            monitor_interval=monitor_interval,
            launch=LaunchConfig(log_dir=log_dir, redirects=redirects, tee=tee),
        )

    def run(self) -> RunResult:
        """Run to the end, on the main thread.

        Raises:
            UsageError: An argument is invalid, or a worker's result cannot be sent back.
            KeyboardInterrupt: SIGINT has come; the workers are stopped.
            SignalException: SIGTERM, SIGHUP or SIGQUIT has come; the workers are stopped.
        """
        return LocalElasticAgent(self._spec).run()

    @classmethod
    def from_str(cls, text: str) -> Stream | dict[int, Stream]:
        """Return the flag of ``"3"``, or the flags by local rank of ``"0:1,1:2"``.

        Raises:
            UsageError: The text is neither.
        """
        try:
            streams = parse.stream_map(text)
        except parse.Wrong as wrong:
            raise UsageError(f"{text!r} {wrong}.{wrong.suggestion}") from None
        return dict(streams.by_rank) if streams.by_rank else streams.default


def to_map(val_or_map: Streams, local_world_size: int) -> dict[int, Stream]:
    """Return the streams of each local rank, for one flag or for flags by local rank, where the others have none.

    Raises:
        UsageError: There is no such flag or rank.
    """
    streams = stream_map(val_or_map)
    return {rank: streams[rank] for rank in range(local_world_size)}
