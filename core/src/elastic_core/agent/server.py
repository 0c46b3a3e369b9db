"""An agent as an object, with torchelastic's names: ``LocalElasticAgent(WorkerSpec(...)).run()``."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from elastic_core.config import MONITOR_INTERVAL
from elastic_core.incidents import Incident
from elastic_core.launch import ChildFailedError, LaunchConfig, elastic_launch
from elastic_core.rendezvous import registry
from elastic_core.rendezvous.api import RendezvousHandler

__all__ = ["LocalElasticAgent", "RunResult", "WorkerSpec", "WorkerState"]


class WorkerState(str, enum.Enum):
    """How a run ended."""

    SUCCEEDED = "SUCCEEDED"
    """The job is done."""
    FAILED = "FAILED"
    """It has failed, or this node could not stay in it."""


@dataclass(kw_only=True)
class WorkerSpec:
    """What the workers of one node are.

    Args:
        role: Their role.
        local_world_size: How many on this node.
        entrypoint: A function that is defined at the top level of a module or of the main program, or a command.
        args: What it is called with.
        rdzv_handler: A handler of yours or of torch's to meet the other nodes with; what ``launch`` says of a
            rendezvous does not count then.
        max_restarts: How many failures of workers the job survives.
        monitor_interval: Seconds between two looks at a rendezvous handler of others; nothing else is polled.
        local_addr: The address at which other nodes reach this one.
        launch: Everything else, such as the rendezvous; one node by itself when it is not given.
    """

    role: str = "default"
    local_world_size: int = 1
    entrypoint: Callable[..., Any] | str
    args: tuple[Any, ...] = ()
    rdzv_handler: RendezvousHandler | None = None
    max_restarts: int = 3
    monitor_interval: float = MONITOR_INTERVAL
    local_addr: str | None = None
    launch: LaunchConfig = field(default_factory=LaunchConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended, as seen on this node.

    A failed run is a failed job, on all nodes, where ``returncode`` is ``ExitCode.JOB_FAILED`` or ``TOO_FEW_NODES``.
    With ``WITHDRAWN`` only this node has left the job, and with ``STORE_LOST`` it has lost the store: the others may
    go on. (There is no result for a node that has left because of a signal: that raises.)
    """

    state: WorkerState
    returncode: int = 0
    """What ``elastic run`` would have exited with (:class:`elastic_core.exit_codes.ExitCode`)."""
    return_values: Mapping[int, Any] = field(default_factory=dict)
    """What this node's workers returned, by global rank."""
    failures: Mapping[int, Incident] = field(default_factory=dict)
    """The root cause, under the rank that it struck."""
    why: str = ""

    def is_failed(self) -> bool:
        """Whether the job failed, or this node could not stay in it."""
        return self.state is WorkerState.FAILED


class LocalElasticAgent:
    """Runs the workers of ``spec`` on this node, as ``elastic run`` would.

    Args:
        spec: What to run.
        log_dir: Where to keep the workers' output, by round and rank; nowhere when it is None.
    """

    def __init__(self, spec: WorkerSpec, *, log_dir: str | None = None) -> None:
        self.spec = spec
        self._log_dir = log_dir

    def run(self, role: str | None = None) -> RunResult:
        """Run to the end, on the main thread.

        Raises:
            UsageError: The spec cannot be meant, or what a worker returned cannot be sent back.
            KeyboardInterrupt: SIGINT has come; the workers are stopped.
            SignalException: Another signal that ends a run has come; the workers are stopped.
            PluginError: Its ``rdzv_handler`` is none.
            ElasticError: The rendezvous does not let this node in.
        """
        spec = self.spec
        settings = {
            **vars(spec.launch),
            "role": role or spec.role,
            "nproc_per_node": spec.local_world_size,
            "max_restarts": spec.max_restarts,
            "monitor_interval": spec.monitor_interval,
            "local_addr": spec.local_addr or spec.launch.local_addr,
            "log_dir": self._log_dir or spec.launch.log_dir,
        }
        with ExitStack() as stack:
            if spec.rdzv_handler is not None:
                settings["rdzv_backend"] = stack.enter_context(registry.using(spec.rdzv_handler))
            try:
                values = elastic_launch(LaunchConfig(**settings), spec.entrypoint)(*spec.args)
            except ChildFailedError as exc:
                incident = exc.incident
                failures = {} if incident is None or incident.rank is None else {incident.rank: incident}
                return RunResult(
                    state=WorkerState.FAILED, returncode=exc.returncode, failures=failures, why=exc.message
                )
        return RunResult(state=WorkerState.SUCCEEDED, return_values=values)
