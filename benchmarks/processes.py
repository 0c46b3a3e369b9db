"""The resources of single processes, read from ``/proc``: CPU seconds and bytes of memory."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from rig import command_line, descendants

_CPUCLOCK_SCHED = 2
_FORK_SERVER = "elastic: fork server of "
_WARDEN = "elastic_core.warden.process"


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, dead ones too, to the nanosecond; ``/proc/PID/stat`` has only hundredths.

    The clock's number is the one that ``clock_getcpuclockid(3)`` makes; Python has no name for that function.
    """
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)


def rss(pid: int | str = "self") -> int:
    """Resident bytes of a process."""
    return _kilobytes(Path("/proc", str(pid), "status"), "VmRSS") * 1024


def rss_peak(pid: int | str = "self") -> int:
    """Return the most that :func:`rss` has been."""
    return _kilobytes(Path("/proc", str(pid), "status"), "VmHWM") * 1024


def pss(pid: int) -> int:
    """Resident bytes of a process, where each page counts only for its share among all processes that map it."""
    return _kilobytes(Path("/proc", str(pid), "smaps_rollup"), "Pss") * 1024


def _kilobytes(file: Path, name: str) -> int:
    for line in file.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0])
    raise ValueError(f"{file} has no line {name}")


@dataclass(frozen=True, slots=True)
class AgentProcesses:
    """The processes of an agent by role; None for a role without one. torchrun has only the agent."""

    agent: int
    warden: int | None
    fork_server: int | None
    others: tuple[int, ...]
    """Neither of these, nor a worker: processes that serve the job."""


def processes_of(agent: int, workers: Collection[int]) -> AgentProcesses:
    """Tell the processes below an agent apart; ``workers`` are the process ids that workers have reported."""
    helpers = [pid for pid in descendants(agent) if pid not in workers]
    warden = next((pid for pid in helpers if _WARDEN in command_line(pid)), None)
    fork_server = next((pid for pid in helpers if command_line(pid).startswith(_FORK_SERVER)), None)
    return AgentProcesses(agent, warden, fork_server, tuple(pid for pid in helpers if pid not in (warden, fork_server)))


def fork_server_of(agent: int, workers: Collection[int]) -> int | None:
    """Return the process id of an agent's fork server, if it has one."""
    return processes_of(agent, workers).fork_server
