"""Processes on this host, with the names of ``torch.distributed.elastic.multiprocessing``.

:class:`Std` runs a function or a command as a supervised job on one node; :func:`start_processes` only starts processes
and waits for them. The descendants of all these processes end with them.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from elastic_core.agent import Output, Routes, WorkerStreams, cpus_of_workers, find_cause, make_log_dir
from elastic_core.config import MAX_RESTARTS, MONITOR_INTERVAL, parse
from elastic_core.config.parse import Stream
from elastic_core.errors import ElasticError, UsageError
from elastic_core.warden import (
    Exited,
    Spawned,
    SpawnFailed,
    SpawnRequest,
    StopCompleted,
    Warden,
    WardenDied,
    subreaping,
)
from elastic_torchrun import call, launch_config
from elastic_torchrun.launch_config import LaunchConfig, Logs, Streams
from elastic_torchrun.local_agent import LocalElasticAgent, RunResult, WorkerSpec
from elastic_torchrun.process_failure import ProcessFailure

__all__ = ["PContext", "ProcessFailure", "RunProcsResult", "Std", "start_processes", "to_map"]


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


@dataclass(frozen=True, slots=True)
class RunProcsResult:
    """The results of all processes, by local rank; paths are '' for streams that went to the console."""

    return_values: Mapping[int, Any] = field(default_factory=dict)
    failures: Mapping[int, ProcessFailure] = field(default_factory=dict)
    stdouts: Mapping[int, str] = field(default_factory=dict)
    stderrs: Mapping[int, str] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Return True if any process failed."""
        return bool(self.failures)


def to_map(val_or_map: Streams, local_world_size: int) -> dict[int, Stream]:
    """Return the streams of each local rank, for one flag or for flags by local rank, where the others have none.

    Raises:
        UsageError: There is no such flag or rank.
    """
    streams = launch_config.stream_map(val_or_map)
    return {rank: streams[rank] for rank in range(local_world_size)}


def start_processes(
    name: str,
    entrypoint: Callable[..., Any] | str,
    args: Mapping[int, tuple[Any, ...]],
    envs: Mapping[int, Mapping[str, str]],
    logs_specs: Any = None,
    log_line_prefixes: Mapping[int, str] | None = None,
    start_method: str = "spawn",
    numa_options: Any = None,
    duplicate_stdout_filters: Sequence[str] | None = None,
    duplicate_stderr_filters: Sequence[str] | None = None,
    *,
    log_dir: str | os.PathLike[str] | None = None,
    redirects: Streams | None = None,
    tee: Streams | None = None,
) -> PContext:
    """Start one process for each local rank, and return at once.

    Args:
        name: The processes' name in messages.
        entrypoint: A function that is defined at the top level of a module or of the main program, or a command.
        args: The entrypoint's arguments by local rank, 0, 1, 2, and so on without gaps.
        envs: The variables that each process has besides those of this one, by local rank.
        logs_specs: torch's DefaultLogsSpecs; or a folder, as in older releases of torch.
        log_line_prefixes: The prefixes of teed lines by local rank; ``[name0]:`` by default.
        start_method: Others than ``spawn`` have no effect: no process is forked from this one.
        numa_options: The binding to CPUs, as in :class:`~elastic_torchrun.launch.LaunchConfig`.
        duplicate_stdout_filters, duplicate_stderr_filters: Lines of stdout, or of stderr, with one of these texts also
            go to ``filtered_stdout.log``, or ``filtered_stderr.log``.
        log_dir: The folder for files; None for a temporary one, which :meth:`PContext.close` removes.
        redirects: The streams that go to files only.
        tee: The streams that go to files and to the console.

    Raises:
        UsageError: The local ranks have gaps, an argument is of a wrong type, the function cannot be sent to other
            processes, or ``log_dir`` cannot be made.
        ElasticError: No process could be made.
    """
    call.launching()
    launch_config.check_entrypoint(entrypoint)
    for what, given in (("args", args), ("envs", envs)):
        if not isinstance(given, Mapping):
            raise UsageError(f"{name}: {what} is of the type {type(given).__name__}, not a mapping of local ranks.")
    launch_config.check_texts("duplicate_stdout_filters", duplicate_stdout_filters)
    launch_config.check_texts("duplicate_stderr_filters", duplicate_stderr_filters)
    if sorted(args) != list(range(len(args))) or set(args) != set(envs) or not args:
        raise UsageError(
            f"{name}: args has the local ranks {sorted(args)} and envs {sorted(envs)}.",
            hint="Give both for every local rank from 0.",
        )
    if start_method != "spawn":
        launch_config.warn(f"start_method={start_method!r} has no effect: no process is forked from this one.")
    if isinstance(logs_specs, str | os.PathLike):
        logs_specs, log_dir = None, log_dir or logs_specs
    logs = launch_config.logs_of(logs_specs, log_dir, redirects, tee)
    filters = {Stream.OUT: duplicate_stdout_filters or (), Stream.ERR: duplicate_stderr_filters or ()}
    cpus = cpus_of_workers(launch_config.numa_mode(numa_options), len(args))
    return PContext(name, entrypoint, args, envs, logs, log_line_prefixes or {}, filters, cpus)


class PContext:
    """Running processes. Use it as a context manager, or call :meth:`close`.

    Attributes:
        name, nprocs: The processes' name and their number.
        stdouts, stderrs: The files of these streams by local rank; '' for a stream that is not kept in one.
    """

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., Any] | str,
        args: Mapping[int, tuple[Any, ...]],
        envs: Mapping[int, Mapping[str, str]],
        logs: Logs,
        prefixes: Mapping[int, str],
        filters: Mapping[Stream, Sequence[str]],
        cpus: Sequence[frozenset[int]],
    ) -> None:
        self.name, self.nprocs = name, len(args)
        self.stdouts, self.stderrs = dict[int, str](), dict[int, str]()
        self._entrypoint, self._args, self._envs = entrypoint, args, envs
        self._redirects, self._tee, self._prefixes, self._cpus = logs.redirects, logs.tee, prefixes, cpus
        self._streams: dict[int, WorkerStreams] = {}
        self._pids: dict[int, int] = {}
        self._codes: dict[int, int] = {}
        self._errors: dict[int, str] = {}
        self._stopped: set[int] = set()  # local ranks that were stopped: their exit codes are no failures
        self._closed = self._gone = False
        self._died: str | None = None  # how the warden has ended, and all processes with it
        with ExitStack() as stack:
            stack.enter_context(subreaping())
            self._warden = Warden(alone=False)
            stack.callback(self._warden.close, 2.0)
            self._call = self._scratch("elastic_call_", stack)
            self._directory = self._scratch("elastic_processes_", stack) if logs.log_dir is None else logs.log_dir
            make_log_dir(self._directory)
            copied = {stream: needles for stream, needles in filters.items() if needles}
            routes = Routes(self._redirects, self._tee, shown=logs.local_ranks_filter, filters=copied)
            self._output = Output(routes, report=lambda problem: None)
            stack.callback(self._output.close)
            stack.callback(self._warden.close, 2.0)  # the processes before their output
            self._resources = stack.pop_all()
        try:
            if not isinstance(entrypoint, str):
                call.write(call.Call(entrypoint, by_local_rank=args), self._call)
            for local_rank in sorted(args):
                self._start(local_rank)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PContext:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def pids(self) -> dict[int, int]:
        """Return the process ids by local rank; wait until all processes have been started."""
        while len(self._pids) + len(self._errors) < len(self._args):
            self._expect(None)
        return dict(self._pids)

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """Wait until all have exited with 0, or one has failed: then the others are stopped.

        Args:
            timeout: Seconds; -1 for no limit, 0 not to wait.
            period: An argument of torch's, without effect: nothing is polled.

        Returns:
            None when processes still run after ``timeout`` seconds.

        Raises:
            ElasticError: The process that started them has died, and they with it.
            UsageError: A process's result cannot be sent back.
        """
        deadline = None if timeout < 0 else time.monotonic() + timeout
        while len(self._codes) < len(self._args) and not self._failed():
            left = None if deadline is None else deadline - time.monotonic()
            self._expect(left)
            if left is not None and left <= 0 and len(self._codes) < len(self._args) and not self._failed():
                return None
        if self._failed() and not self._gone:
            self._stop(signal.SIGTERM, 30.0)
        self._output.drain(self._streams.values(), 1.0)
        return self._result()

    def close(self, death_sig: int = signal.SIGTERM, timeout: float = 30) -> None:
        """Stop the processes that still run, and remove temporary files.

        A process gets ``death_sig``, SIGTERM shortly before ``timeout`` seconds have passed, and SIGKILL then.
        """
        if self._closed:
            return
        if len(self._codes) + len(self._errors) < len(self._streams):  # those asked for, started or not
            self._stop(death_sig, timeout)
        self._closed = True
        self._resources.close()

    def _scratch(self, prefix: str, stack: ExitStack) -> Path:
        """Return a folder that is removed with the stack, or by the warden if this process is killed before."""
        directory = tempfile.mkdtemp(prefix=prefix)
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        self._warden.sweep(directory)
        return Path(directory)

    def _start(self, local_rank: int) -> None:
        directory = self._directory / str(local_rank)
        directory.mkdir(exist_ok=True)
        prefix = self._prefixes.get(local_rank, f"[{self.name}{local_rank}]:")
        streams = self._output.open(rank=local_rank, local_rank=local_rank, directory=directory, prefix=prefix)
        self._streams[local_rank] = streams
        kept = Stream.OUT in self._redirects[local_rank] | self._tee[local_rank]
        self.stdouts[local_rank] = str(directory / "stdout.log") if kept else ""
        self.stderrs[local_rank] = streams.stderr_path or ""
        error_file = directory / "error.json"
        error_file.unlink(missing_ok=True)  # of an earlier run
        env = {
            **os.environ,
            "LOCAL_RANK": str(local_rank),
            "TORCHELASTIC_ERROR_FILE": str(error_file),
            **self._envs[local_rank],
        }
        cpus = sorted(self._cpus[local_rank]) if self._cpus else None
        try:
            request = SpawnRequest(self._command(local_rank), env, cpus=cpus)
            self._warden.spawn(local_rank, request, stdout=streams.stdout, stderr=streams.stderr)
        finally:
            streams.close()

    def _command(self, local_rank: int) -> list[str]:
        if isinstance(self._entrypoint, str):
            return [self._entrypoint, *map(str, self._args[local_rank])]
        return call.command(self._call, local_rank)

    def _failed(self) -> bool:
        return bool(self._errors) or any(self._codes.values())

    def _expect(self, timeout: float | None) -> None:
        """Receive events, ``timeout`` seconds at most; the warden's death, which ends all, raises an ElasticError."""
        if self._died is None:
            self._take(timeout)
        if self._died is not None:
            raise ElasticError(f"{self.name}: the process that started the workers is gone ({self._died}).")

    def _take(self, timeout: float | None) -> None:
        select.select([self._warden], [], [], None if timeout is None else max(0.0, timeout))
        for event in self._warden.receive():
            match event:
                case Spawned(tag, pid):
                    self._pids[tag] = pid
                case SpawnFailed(tag, error):
                    self._errors[tag] = error
                case Exited(tag, pid, code):
                    self._pids[tag], self._codes[tag] = pid, code
                case StopCompleted():
                    self._gone = self._warden.is_over(event)
                case WardenDied(reason):
                    self._died = reason

    def _stop(self, signum: int, timeout: float) -> None:
        if self._died is not None:  # the warden sends no more events
            return
        self._take(0)  # failures up to now were not caused by the stop
        self._stopped |= set(self._args) - self._codes.keys() - self._errors.keys()
        self._gone = False
        self._warden.stop(grace=timeout, signum=signum)
        while not self._gone and self._died is None:
            self._take(None)

    def _result(self) -> RunProcsResult:
        not_stopped = sorted(set(self._args) - self._stopped)
        failed = [rank for rank in not_stopped if rank in self._errors or self._codes.get(rank, 0) != 0]
        failures = {rank: self._failure(rank) for rank in failed}
        returned: dict[int, Any] = {}
        if not failures:  # commands return nothing
            by_command = isinstance(self._entrypoint, str)
            returned = dict.fromkeys(sorted(self._args)) if by_command else call.results(self._call)
        return RunProcsResult(return_values=returned, failures=failures, stdouts=self.stdouts, stderrs=self.stderrs)

    def _failure(self, rank: int) -> ProcessFailure:
        said = self._errors.get(rank) or find_cause(self._codes.get(rank, 1), {}, self._streams[rank].tail()).message
        file = self._directory / str(rank) / "error.json"
        return ProcessFailure(rank, self._pids.get(rank, 0), self._codes.get(rank, 1), str(file), message=said)
