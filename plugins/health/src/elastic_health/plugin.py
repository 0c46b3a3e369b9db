"""The plugin: it checks the node before it joins a job, and looks for processes that hold memory of its GPUs.

Every run imports it, so what a check needs is imported when it runs.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from elastic_core import hookimpl

if TYPE_CHECKING:
    from elastic_core import JoinedRun, JoinGate, StartGate
    from elastic_core.config import RunConfig
    from elastic_core.events import Event
    from elastic_health.checks import ChosenChecks, NodeCheck


class NodeHealth:
    """The checks of one node."""

    def __init__(self) -> None:
        self._wait: Any = None
        self._publish: Callable[[Event], None] | None = None  # None until this node has joined a run
        self._notes: list[str] = []  # what is to be published then: processes that are not waited for
        self._silent: list[str] = []  # and why the GPUs are not asked any more

    @hookimpl
    def elastic_configure(self, config: RunConfig) -> None:
        """Look at the flags before anything is started."""
        if config.settings:
            chosen_checks(config)

    @hookimpl
    def elastic_before_join(self, gate: JoinGate) -> None:
        """Add the checks of this run."""
        from elastic_health.runner import HealthChecks

        HealthChecks(chosen_checks(gate.config), gate).add_to_gate()

    @hookimpl
    def elastic_run_starts(self, run: JoinedRun) -> None:
        """Keep the function that publishes events."""
        self._publish = run.publish
        self._publish_notes()

    @hookimpl
    def elastic_before_start(self, gate: StartGate) -> str | None:
        """Return which other processes hold memory of this node's GPUs; None at once on a node without GPUs."""
        if self._wait is None:
            if not _may_have_gpus():
                return None
            from elastic_health.gpu_memory import MemoryWait

            self._wait = MemoryWait(note=self._notes.append, give_up=self._silent.append)
        reason: str | None = self._wait.reason(gate.round, gate.run_uid, gate.waited)
        self._publish_notes()
        return reason

    def _publish_notes(self) -> None:
        from elastic_core.events import Event, Level

        if self._publish is None:
            return
        if why := _taken(self._notes):
            message = f"workers share GPUs with processes that are not waited for: {why}"
            self._publish(Event("gpu_shared", message, Level.WARNING, {"why": why}))
        if why := _taken(self._silent):
            message = f"workers do not wait for GPU memory any more: {why}"
            self._publish(Event("gpu_silent", message, Level.WARNING, {"why": why}))


def _taken(notes: list[str]) -> str:
    """Take all notes, and return them in one line."""
    why, notes[:] = "; ".join(notes), []
    return why


def _may_have_gpus() -> bool:
    """Return True if there is a way to find GPUs here; takes microseconds."""
    return bool(shutil.which("nvidia-smi") or os.path.isdir("/sys/class/kfd/kfd/proc") or find_spec("pynvml"))


def all_checks(config: RunConfig) -> Mapping[str, NodeCheck]:
    """Return all checks; those of the host itself are on by themselves."""
    from elastic_health.checks import NodeCheck
    from elastic_health.host import check_disk, check_memory, check_shm, directories
    from elastic_health.sizes import SHARE_FORM, SIZE_FORM, parse_share, parse_size

    def process(name: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", f"elastic_health.{name}", *arguments]

    of_host = partial(NodeCheck, parse=parse_size, form=SIZE_FORM, on=True)
    allreduce = process("allreduce", str(config.nproc_per_node))
    return {
        "disk": of_host(look=lambda least: check_disk(directories(config, least), least)),
        "memory": of_host(look=check_memory),
        "shm": of_host(look=check_shm),
        "gpu": NodeCheck(command=process("gpu"), advice=_GPU, parse=parse_share, form=SHARE_FORM),
        "matmul": NodeCheck(command=process("matmul"), advice=_MATMUL),
        "allreduce": NodeCheck(command=allreduce, advice=_ALLREDUCE),
    }


def chosen_checks(config: RunConfig) -> ChosenChecks:
    """Return the checks that are on, and those of ``--health_check``; raise UsageError if that is wrong."""
    from elastic_health.checks import ChosenChecks, choose
    from elastic_health.flags import HEALTH_CHECK, HEALTH_RETRY, HEALTH_TIMEOUT

    chosen = choose(config.of(HEALTH_CHECK), all_checks(config))
    return ChosenChecks(chosen, config.of(HEALTH_TIMEOUT), config.of(HEALTH_RETRY))


_GPU = "Look at nvidia-smi (or rocm-smi) on this host: end what holds memory, reset the GPU, or drain the host."
_MATMUL = "Drain this host: a device that computes wrong results spoils the model without an error."
_ALLREDUCE = "Look at the loopback interface, NVLink and PCIe of this host; NCCL_DEBUG=INFO says more."
