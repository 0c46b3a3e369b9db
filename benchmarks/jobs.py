"""Real jobs of the launchers that are compared: what runs, on which nodes, and when all of its ranks are at work.

All launchers run the same worker, ``tests/workers/allreduce.py``. Every time is taken outside of them, on one monotonic
clock: workers report ``time.monotonic()`` when their first all-reduce is done.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rig import WORKERS, Agent, Report, Rig, free_port

PATIENCE = 60.0
"""Seconds after which something counts as never coming."""
RESTARTS = 20
"""Enough for all that is done to one job."""
_ELASTIC = (sys.executable, "-m", "elastic_core", "run")
_TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


@dataclass(frozen=True, slots=True)
class Launcher:
    """One of those that are compared.

    Args:
        name: As tables show it.
        command: What starts it, up to its flags.
        conf: ``KEY=VALUE`` for ``--rdzv_conf``.
        env: What is added to its environment.
        worker: Further arguments of the worker.
    """

    name: str
    command: tuple[str, ...]
    conf: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    worker: tuple[str, ...] = ()


TORCHRUN = Launcher("torchrun", _TORCHRUN)
TUNED = Launcher("torchrun, tuned", _TORCHRUN, ("last_call_timeout=1",), {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
"""The best settings for torchrun: a short last call, and a private switch that mends joining."""
FRESH = Launcher("elastic, fresh", (*_ELASTIC, "--no_warm_start"))
WARM = Launcher("elastic, warm", (*_ELASTIC, "--warm_start"))
SEALED = Launcher("elastic, warm, token", WARM.command, env={"ELASTIC_JOB_TOKEN": secrets.token_hex()})
"""All that is written to the store is sealed with a job token."""


ALL = (TORCHRUN, TUNED, FRESH, WARM, SEALED)


def launchers() -> list[Launcher]:
    """All that can be compared here: without a warm start, ``elastic run`` is always fresh."""
    command = [*_ELASTIC, "--help"]
    described = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if "--warm_start" in described:
        return list(ALL)
    return [TORCHRUN, TUNED, Launcher(FRESH.name, _ELASTIC)]


@dataclass(frozen=True, slots=True)
class Setting:
    """The shape of a job.

    Args:
        workers: How many workers each of its nodes has.
        nnodes: ``--nnodes`` of nodes that meet over the launcher's own c10d; None for ``--standalone``.
    """

    workers: tuple[int, ...]
    nnodes: str | None = None


class Job:
    """A job of one launcher, on one host."""

    def __init__(self, launcher: Launcher, setting: Setting, rig: Rig) -> None:
        self.rig = rig
        self.setting = setting
        self.nodes: list[Agent] = []
        """Those that are up, in order of arrival."""
        self.pace = rig.folder / "pace"
        self.pace.mkdir()
        self.deaf = rig.folder / "deaf"
        """Once it is there, workers block where a collective fails, as under NCCL, and do not fail."""
        self.patience = PATIENCE
        """Seconds after which its coming back counts as never coming."""
        self._launcher = launcher
        self._port = free_port()

    def start_node(self) -> Agent:
        """Start the next node; the first hosts the store."""
        first = not self.nodes
        workers = self.setting.workers[len(self.nodes)]
        script = [str(WORKERS / "allreduce.py"), f"--until={self.rig.folder / 'never'}"]
        script += [f"--pace={self.pace}", f"--deaf={self.deaf}", *self._launcher.worker]
        command = [*self._launcher.command, f"--nproc_per_node={workers}", f"--max_restarts={RESTARTS}"]
        node = self.rig.start([*command, *self._meeting(first), *script], env=self._launcher.env)
        self.nodes.append(node)
        return node

    def _meeting(self, host: bool) -> list[str]:
        if self.setting.nnodes is None:
            return ["--standalone", *(f"--rdzv_conf={item}" for item in self._launcher.conf)]
        conf = ",".join((f"is_host={'true' if host else 'false'}", *self._launcher.conf))
        where = ["--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{self._port}", "--rdzv_id=bench"]
        return [f"--nnodes={self.setting.nnodes}", *where, f"--rdzv_conf={conf}"]

    @property
    def world_size(self) -> int:
        """The number of workers of all nodes that are up."""
        return sum(self.setting.workers[: len(self.nodes)])

    def bring_to(self, nodes: int) -> bool:
        """Start so many nodes and wait until all their workers are at work; whether that ever came."""
        begin = time.monotonic()
        while len(self.nodes) < nodes:
            self.start_node()
        return nodes == 0 or self.all_reduced(begin) is not None

    def all_reduced(self, since: float) -> float | None:
        """Seconds from ``since`` until every rank of all nodes that are up has finished an all-reduce with all others.

        None if that does not come within the job's patience, or a node is gone.
        """
        ranks = self.world_size

        def times() -> list[float]:
            return [report["at"] for report in self.latest(since).values()]

        self.rig.wait_until(lambda: len(times()) == ranks or any(node.ended for node in self.nodes), self.patience)
        return max(times()) - since if len(times()) == ranks else None

    def latest(self, since: float = 0.0) -> dict[int, Report]:
        """Each rank's newest report of a first all-reduce at the present size."""
        said = [report for node in self.nodes for report in node.reports("training", world_size=self.world_size)]
        return newest(said, since)

    def worker_of(self, node: Agent) -> int:
        """Return the process id of a worker that this node runs now."""
        here = {report["pid"] for report in node.reports("training")}
        pids = (int(report["pid"]) for report in self.latest().values())
        return max(pid for pid in pids if pid in here)


def newest(reports: Sequence[Report], since: float) -> dict[int, Report]:
    """Each rank's newest report after ``since``: a start that broke off may have got some of the ranks to report."""
    found: dict[int, Report] = {}
    for report in sorted(reports, key=lambda report: float(report["at"])):
        if report["at"] > since:
            found[report.rank] = report
    return found
