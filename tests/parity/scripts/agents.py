"""One node of jobs of several nodes, launched from Python: ``agents.py torch|elastic NODE PLACES FILE FOLDER``.

Each node is a process of its own, and takes part in one job after the other. PLACES is JSON: for each job the backend
and the endpoint at which its nodes meet; a job that has none is left out. What came of each job on this node is
written to FILE, as JSON. FOLDER is shared by the nodes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

NAMES = [
    "RANK",
    "LOCAL_RANK",
    "ROLE_RANK",
    "ROLE_NAME",
    "GROUP_RANK",
    "LOCAL_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
]


def adds_ranks() -> dict[str, Any]:
    """Return the settings of a worker, and the sum of all ranks."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor(int(os.environ["RANK"]))
    dist.all_reduce(total)
    dist.destroy_process_group()
    return {name: os.environ[name] for name in NAMES} | {"sum": total.item()}


def wait_for(path: Path) -> None:
    """Wait until another worker has made a file."""
    while not path.exists():
        time.sleep(0.01)


def finishes_late(folder: str) -> int:
    """Rank 1 returns only when rank 0's process is gone."""
    rank, told = int(os.environ["RANK"]), Path(folder, "first")
    if rank == 0:
        scratch = told.with_suffix(".new")
        scratch.write_text(str(os.getpid()))
        scratch.rename(told)
    else:
        wait_for(told)
        while Path("/proc", told.read_text()).exists():
            time.sleep(0.01)
    return rank


def is_killed_once(folder: str) -> str:
    """Rank 1 is killed once, when rank 0 has started."""
    started, killed = Path(folder, "started"), Path(folder, "killed")
    if not killed.exists():
        if os.environ["RANK"] == "0":
            started.touch()
            signal.pause()
        wait_for(started)
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.environ["TORCHELASTIC_RESTART_COUNT"]


def fails_on_odd_ranks() -> None:
    """The others wait."""
    if int(os.environ["RANK"]) % 2:
        raise RuntimeError("sad")
    signal.pause()


def echo(word: str) -> str:
    """Return the answer of one worker to a call from another."""
    return f"{word} of {os.environ['ROLE_NAME']}"


def join_rpc() -> Any:
    """Meet the other workers for remote procedure calls; each is named after its role."""
    from torch.distributed import rpc

    rpc.init_rpc(os.environ["ROLE_NAME"], rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    return rpc


def asks(word: str) -> Any:
    """The worker of the role ``asker``."""
    rpc = join_rpc()
    answer = rpc.rpc_sync("answerer", echo, args=(word,))
    rpc.shutdown()
    return answer


def answers() -> None:
    """The worker of the role ``answerer``."""
    join_rpc().shutdown()


class Node:
    """One node of each job, which this process is."""

    def __init__(self, side: str, number: int, places: dict[str, tuple[str, str]], folder: str) -> None:
        self.side, self.number, self.places, self.folder = side, number, places, folder
        self.came: dict[str, Any] = {}

    def run(self, job: str, nodes: list[tuple[str, int, Any, tuple[Any, ...]]], **given: Any) -> None:
        """Run this node of a job, for which ``nodes`` has role, number of workers, function and its arguments."""
        if job not in self.places or self.number >= len(nodes):
            return
        backend, endpoint = self.places[job]
        result = (self._of_torch if self.side == "torch" else self._of_ours)(
            job, backend, endpoint, len(nodes), *nodes[self.number], **given
        )
        failures = {rank: str(failure.message).partition("\n")[0] for rank, failure in result.failures.items()}
        self.came[job] = [result.state.name, result.is_failed(), dict(result.return_values), failures]

    def _of_ours(
        self,
        job: str,
        backend: str,
        endpoint: str,
        nnodes: int,
        role: str,
        size: int,
        function: Any,
        args: Any,
        max_restarts: int = 0,
        exit_barrier: float = 5,
    ) -> Any:
        from elastic_torchrun.launch import LaunchConfig
        from elastic_torchrun.local_agent import LocalElasticAgent, WorkerSpec

        meeting = LaunchConfig(nnodes, nnodes, run_id=job, rdzv_backend=backend, rdzv_endpoint=endpoint)
        spec = WorkerSpec(role, size, None, None, function, args, max_restarts, launch=meeting)
        return LocalElasticAgent(spec, exit_barrier_timeout=exit_barrier).run()

    def _of_torch(
        self,
        job: str,
        backend: str,
        endpoint: str,
        nnodes: int,
        role: str,
        size: int,
        function: Any,
        args: Any,
        max_restarts: int = 0,
        exit_barrier: float = 5,
    ) -> Any:
        from torch.distributed.elastic.agent.server.api import WorkerSpec
        from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
        from torch.distributed.elastic.rendezvous import RendezvousParameters
        from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

        handler = get_rendezvous_handler(
            RendezvousParameters(backend, endpoint, job, nnodes, nnodes, "127.0.0.1", is_host=self.number == 0)
        )
        spec = WorkerSpec(role, size, handler, None, function, args, max_restarts, 0.05)
        agent = LocalElasticAgent(spec, DefaultLogsSpecs(self.folder), exit_barrier_timeout=exit_barrier)
        try:
            return agent.run()
        finally:
            handler.shutdown()


def main() -> None:
    """Take part in all jobs."""
    side, number, places, file, folder = sys.argv[1:]
    node = Node(side, int(number), json.loads(places), folder)
    node.run("sum", [("master", 1, adds_ranks, ()), ("trainer", 2, adds_ranks, ()), ("trainer", 3, adds_ranks, ())])
    node.run("late", [("default", 1, finishes_late, (folder,))] * 2, exit_barrier=0)
    node.run("killed", [("default", 1, is_killed_once, (folder,))] * 2, max_restarts=3)
    node.run("failed", [("default", 2, fails_on_odd_ranks, ())] * 2, exit_barrier=300)
    node.run("rpc", [("asker", 1, asks, ("a word",)), ("answerer", 1, answers, ())])
    Path(file).write_text(json.dumps(node.came))


if __name__ == "__main__":
    main()
