"""The cost of an idle agent: CPU seconds per hour, and resident memory.

The workers sleep (``tests/workers/sleeper.py``), so all that is used is the launcher's own. All kinds of agents are up
at the same time, since none of them disturbs another.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rig import WORKERS, Agent, Rig, free_port

from benchmarks.jobs import Launcher
from benchmarks.processes import AgentProcesses, cpu_seconds, processes_of, pss, rss

CALM = 4.0
"""Seconds from the last import to the first look: first heartbeats are over."""
WINDOW = 10.0
"""Seconds that an idle agent is watched."""
MOST_WINDOWS = 10
"""Windows in a row in which a process may be replaced; they do not count."""
CPU, CPU_FORK_SERVER = "agent and warden", "its fork server"
RSS_AGENT, RSS_WARDEN, RSS_FORK_SERVER, RSS_OTHERS = "agent", "warden", "fork server", "stores (PSS)"
CPUS, RSSES = (CPU, CPU_FORK_SERVER), (RSS_AGENT, RSS_WARDEN, RSS_FORK_SERVER, RSS_OTHERS)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of agent: a launcher, and where its nodes would meet."""

    launcher: Launcher
    backend: str

    @property
    def name(self) -> str:
        """As tables show it."""
        return f"{self.launcher.name}, `{self.backend}`"

    def command(self, folder: Path) -> list[str]:
        """One node with two sleeping workers."""
        where = {
            "c10d": ["--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{free_port()}"],
            "file": ["--rdzv_backend=file", f"--rdzv_endpoint={folder / 'meeting'}"],
            "local": ["--standalone"],
        }[self.backend]
        verbose = ["-v"] if self.grows else []
        return [*self.launcher.command, *verbose, "--nproc_per_node=2", *where, str(WORKERS / "sleeper.py")]

    @property
    def grows(self) -> bool:
        """Return True if its fork server imports more once the workers run."""
        return "--warm_start" in self.launcher.command


def kinds(torchrun: Launcher, elastic: Launcher) -> list[Kind]:
    """All kinds that are watched."""
    return [Kind(torchrun, "c10d"), *(Kind(elastic, backend) for backend in ("c10d", "local", "file"))]


def watch(kinds: Sequence[Kind], times: int) -> Iterator[dict[str, dict[str, float]]]:
    """Start one agent of each kind and watch them for so many windows.

    Yields:
        Figures of one window by the kind's name; CPU in seconds per hour, RSS in bytes.
    """
    with tempfile.TemporaryDirectory(prefix="elastic-bench-") as folder:
        rig = Rig(Path(folder))
        try:
            agents = {kind.name: rig.start(kind.command(rig.folder)) for kind in kinds}
            for kind in kinds:
                agents[kind.name].wait_for_report("started", count=2)
                if kind.grows:
                    agents[kind.name].wait_for("the fork server has imported .* besides")
            time.sleep(CALM)
            for _ in range(times):
                yield _window(agents)
        finally:
            rig.destroy()


def _window(agents: Mapping[str, Agent]) -> dict[str, dict[str, float]]:
    """Return the figures of one window in which no process ended or started.

    A fork server is replaced by a successor that has imported more, up to twice in the first half minute.
    """
    for _ in range(MOST_WINDOWS):
        by_name = {name: _processes(agent) for name, agent in agents.items()}
        before = {name: _spent(processes) for name, processes in by_name.items()}
        begin = time.monotonic()
        time.sleep(WINDOW)
        if {name: _processes(agent) for name, agent in agents.items()} == by_name:
            break
    else:
        raise RuntimeError(f"in each of {MOST_WINDOWS} windows of {WINDOW:g} s a process of an idle agent was replaced")
    after = {name: _spent(processes) for name, processes in by_name.items()}
    hours = (time.monotonic() - begin) / 3600
    return {
        name: {key: (after[name][key] - before[name][key]) / hours for key in before[name]} | _memory(processes)
        for name, processes in by_name.items()
    }


def _processes(agent: Agent) -> AgentProcesses:
    return processes_of(agent.pid, {report["pid"] for report in agent.reports("started")})


def _spent(processes: AgentProcesses) -> dict[str, float]:
    """CPU seconds so far."""
    spent = {CPU: sum(cpu_seconds(pid) for pid in (processes.agent, processes.warden) if pid is not None)}
    if processes.fork_server is not None:
        spent[CPU_FORK_SERVER] = cpu_seconds(processes.fork_server)
    return spent


def _memory(processes: AgentProcesses) -> dict[str, float]:
    """Resident bytes of all who are there; of stores only their share."""
    who = {RSS_AGENT: processes.agent, RSS_WARDEN: processes.warden, RSS_FORK_SERVER: processes.fork_server}
    held = {key: float(rss(pid)) for key, pid in who.items() if pid is not None}
    if processes.others:
        held[RSS_OTHERS] = float(sum(map(pss, processes.others)))  # they share nearly all with the fork server
    return held
