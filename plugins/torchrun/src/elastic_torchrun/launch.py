"""Launches from Python: ``elastic_launch(LaunchConfig(...), entrypoint)(*args)``, as ``torch.distributed.launcher``."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from elastic_core.causes import MESSAGE_MAX_CHARACTERS, headline
from elastic_core.config import Program, ProgramKind, RunConfig, name as name_of
from elastic_core.errors import ElasticError, UsageError
from elastic_core.exit_codes import ExitCode, describe_exit, signal_name, signalled
from elastic_core.incidents import Incident
from elastic_core.plugins import Plugins, load as load_plugins
from elastic_core.worker import MEMBER, NO_MESSAGE, as_torchs, error_data, message_of, read_error_file
from elastic_torchrun import call
from elastic_torchrun.errors import HandlerError
from elastic_torchrun.launch_config import LaunchConfig, check_entrypoint, configure, warn_no_effect

__all__ = ["ChildFailedError", "LaunchConfig", "ProcessFailure", "SignalException", "elastic_launch", "launch_agent"]


NOT_AVAILABLE = "<N/A>"  # torch's text for the name of no signal, and of no error file
_NO_DATA: Mapping[str, Any] = MappingProxyType({"message": NO_MESSAGE})
_QUOTED = re.compile(
    r"(?:^Original |following error:\n)Traceback \(most recent call last\):\n(?:(?:[ \t].*)?\n)*(\S.*)", re.MULTILINE
)
"""The exception that a DataLoader or ``torch.multiprocessing.spawn`` quotes, of another process."""
_INNER = re.compile(r"\bgot (\w+(?:Error|Exception)\(.{0,400}\))\s*$", re.MULTILINE)  # that torch.compile quotes


@dataclass(slots=True)
class ProcessFailure:
    """The failure of one process, with torch's fields; reads its error file when it is made, as torch's does.

    ``message``, ``timestamp`` and ``error_file_data`` are for one without a valid file that explains its exit code.
    """

    local_rank: int
    pid: int  # 0 for a process that did not start
    exitcode: int  # the exit code, or a signal's number, negative
    error_file: str  # ``<N/A>`` where the process has written none
    error_file_data: Mapping[str, Any] = field(default_factory=lambda: _NO_DATA, kw_only=True)  # as torch's @record's
    message: str = field(default="", kw_only=True)  # one line: the exception, or else torch's text for a signal
    timestamp: int = field(default_factory=lambda: int(time.time()), kw_only=True)  # seconds since 1970, of the record

    def __post_init__(self) -> None:
        by_signal = f"Signal {-self.exitcode} ({self.signal_name()}) received by PID {self.pid}"
        self.message = self.message or (by_signal if self.exitcode < 0 else describe_exit(self.exitcode))
        data = read_error_file(Path(self.error_file))
        if not (shown := as_torchs(data, self.exitcode)):
            self.error_file = NOT_AVAILABLE
            return
        self.error_file_data, self.message = shown, _exception_of(data)
        with suppress(TypeError, ValueError, LookupError):  # torch's handler has not written it
            message = shown["message"]
            self.timestamp = int((message["extraInfo"] if isinstance(message, dict) else shown)["timestamp"])

    def signal_name(self) -> str:
        """``SIGKILL``; ``<N/A>`` where no signal ended it."""
        return signal_name(-self.exitcode) if self.exitcode < 0 else NOT_AVAILABLE

    def timestamp_isoformat(self) -> str:
        """Return the local time, as ``2026-05-01_12:00:00``."""
        return datetime.fromtimestamp(self.timestamp).isoformat(sep="_")


def failure_of(incident: Incident) -> ProcessFailure:
    """Return the failure of a worker of any node, without its error file, which stays on that node."""
    code, cause = incident.exit_code or 1, incident.message or incident.cause()
    return ProcessFailure(
        local_rank=-1 if incident.local_rank is None else incident.local_rank,
        pid=incident.pid or 0,
        exitcode=code,
        error_file=NOT_AVAILABLE,
        error_file_data=error_data(cause, incident.detail),
        message=incident.message if code < 0 else cause,
    )


def _exception_of(data: Mapping[str, Any]) -> str:
    """Return the exception of an error file in one line, as the report has it: with one that it quotes or follows."""
    said = message_of(data)
    message = headline(said)
    if quoted := _QUOTED.findall(said):
        message = headline(quoted[-1])
    elif "torch._" in message and (inner := _INNER.search(said)) is not None and inner[1] not in message:
        message = f"{message}: {inner[1]}"
    with suppress(LookupError, TypeError, AttributeError):  # elastic-causes has not written it
        raised, exited = data[MEMBER]["exceptions"], data[MEMBER]["text"]
        if exited:  # by ``sys.exit("the reason")`` while the exception was handled
            return headline(exited)
        others = [each for each in raised[1:] if not (each["group"] or each["type"].endswith("RemoteTraceback"))]
        lines = [headline(f"{each['type']}: {each['text']}".removesuffix(": ")) for each in others]
        message = f"{message}: {lines[0]}" if raised[0]["group"] else f"{message[:240]} (after {lines[-1][:240]})"
    return message[:MESSAGE_MAX_CHARACTERS]


class ChildFailedError(ElasticError):
    """The node's part in the job has ended without success; ``returncode`` says whether the job has.

    With ``ExitCode.JOB_FAILED``, ``REQUEUE`` or ``TOO_FEW_NODES`` the job itself has failed, on all nodes. With
    ``WITHDRAWN`` this node has left it, and with ``STORE_LOST`` it has lost the store: the others may go on. A node
    that has left because of a signal raises :class:`SignalException` or KeyboardInterrupt, and not this.

    Attributes:
        name: What has failed.
        failures: The first failure, under the worker's rank; {} where no worker is to blame.
        returncode: The exit code of ``elastic run`` (:class:`elastic_core.exit_codes.ExitCode`).
        incident: The first failure of all, if it was a worker's; for a lost store the first that this node knows of.
    """

    def __init__(
        self,
        name: str,
        failures: Mapping[int, ProcessFailure],
        *,
        why: str = "",
        returncode: int = ExitCode.JOB_FAILED,
        incident: Incident | None = None,
    ) -> None:
        failed = "; ".join(f"rank {rank}: {failure.message}" for rank, failure in failures.items())
        super().__init__(why or f"{name} has failed. {failed}")
        self.name, self.failures, self.returncode, self.incident = name, failures, returncode, incident

    def __str__(self) -> str:
        """Return the reason, and the first failure, where it is known: its rank, its cause and its traceback."""
        if self.incident is None:
            return super().__str__()
        from elastic_core.agent import root_cause

        return "\n".join([self.message, "", *root_cause(self.incident, "the first failure that this node knows of")])

    format_msg = __str__  # torch's name for it

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """Return the rank that failed first, and how; raise LookupError if no worker is to blame."""
        if not self.failures:
            raise LookupError(f"No worker is to blame: {self.message}")
        return min(self.failures.items(), key=lambda item: item[1].timestamp)


class SignalException(SystemExit):
    """The process got a signal other than SIGINT, and its node has left the job: no worker runs any more.

    As SIGINT's KeyboardInterrupt, it is no :class:`Exception`, so that a program that retries after failures does not
    go on after SIGTERM. It is a SystemExit: a program that does not catch it exits with 128 + the signal's number.
    """

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        super().__init__(signalled(sigval))
        self.msg, self.sigval = msg, sigval

    def __str__(self) -> str:
        return self.msg


class elastic_launch:
    """Run ``entrypoint`` as a job, with this process as one of its agents; call it with the entrypoint's arguments.

    Args:
        config: How.
        entrypoint: A function that is defined at the top level of a module or of the main program, or a command.
        health_check_server: An argument of torch's, without effect.

    Raises:
        UsageError: The entrypoint is neither a function nor a command.
    """

    def __init__(
        self, config: LaunchConfig, entrypoint: Callable[..., Any] | str | None, health_check_server: object = None
    ) -> None:
        if health_check_server is not None:
            warn_no_effect("health_check_server")
        self._config, self._entrypoint = config, check_entrypoint(entrypoint)

    def __call__(self, *args: Any) -> dict[int, Any]:
        """Run the job to its end, on the main thread; return what this node's workers returned, by global rank.

        A command's workers return nothing.

        Raises:
            ChildFailedError: The job has failed, or this node could not stay in it.
            KeyboardInterrupt: SIGINT has come; the workers are stopped.
            SignalException: Another signal of ``signals_to_handle`` has come; the workers are stopped.
            UsageError: The configuration is invalid, the function or its result cannot be sent from one process to
                another, or this is not the main thread.
            ElasticError: The rendezvous does not admit this node.
        """
        call.launching()  # first: a repeated main program gives no second warning
        return launch(configure(self._config), self._entrypoint, args)


def launch_agent(
    config: LaunchConfig,
    entrypoint: Callable[..., Any] | str | None,
    args: Sequence[Any],
    health_check_server: object = None,
) -> dict[int, Any]:
    """Return ``elastic_launch(config, entrypoint, health_check_server)(*args)``; torch's other name for it."""
    return elastic_launch(config, entrypoint, health_check_server)(*args)


def launch(config: RunConfig, entrypoint: Callable[..., Any] | str, args: tuple[Any, ...]) -> dict[int, Any]:
    """Run a job of this entrypoint; ``config.program`` is replaced. See :class:`elastic_launch`."""
    call.launching()
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
    config = replace(config, program=Program(ProgramKind.MODULE, call.MODULE, name=_name_of(entrypoint)))
    with (  # plugins first: they may free a full disk, on which tempfile would choose another directory
        closing(load_plugins(config)) as plugins,
        tempfile.TemporaryDirectory(prefix="elastic_call_", ignore_cleanup_errors=True) as place,
    ):
        call.write(call.Call(entrypoint, args), Path(place))
        program = replace(config.program, args=(place,), directory=place)
        _run(replace(config, program=program), plugins)
        return call.results(Path(place))


def run_program(config: RunConfig) -> None:
    """Run a job of ``config.program`` with this process as one of its agents, on the main thread.

    Raises:
        ChildFailedError, KeyboardInterrupt, SignalException, ElasticError: As for :class:`elastic_launch`.
    """
    with closing(load_plugins(config)) as plugins:
        _run(config, plugins)


def _run(config: RunConfig, plugins: Plugins) -> None:
    from elastic_core.agent import run as run_agent

    try:
        ending = run_agent(config, plugins, alone=False)
    except HandlerError as exc:
        raise exc.cause from exc.__cause__
    if ending.exit_code > signalled(0):
        received = signal.Signals(ending.exit_code - signalled(0))
        if received is signal.SIGINT:
            raise KeyboardInterrupt
        raise SignalException(f"received {signal_name(received)}", received)
    if ending.exit_code != 0:
        first = ending.incident
        failures = {} if first is None or first.rank is None else {first.rank: failure_of(first)}
        raise ChildFailedError(
            name_of(config.program), failures, why=ending.why, returncode=ending.exit_code, incident=first
        )


def _name_of(entrypoint: Callable[..., Any]) -> str:
    """Return a name that a function has on every node; '' if it has none."""
    module, qualname = getattr(entrypoint, "__module__", None), getattr(entrypoint, "__qualname__", None)
    if module is None or qualname is None:
        return ""
    return f"{os.path.basename(sys.argv[0]) if module == '__main__' else module}:{qualname}"
