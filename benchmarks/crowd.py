"""A process full of agents, which does what it is told over a pipe; several of them make a job."""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.agents import TICK, Agent, ElasticAgent, TorchAgent, warm_up
from benchmarks.counting import Traffic, count_requests
from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_core.rendezvous.guard import GuardedBackend
from elastic_core.rendezvous.options import RendezvousParameters

LOOK = 0.05
"""Seconds between two looks whether all hold a rank; when they did, each has noted."""
FAIR = 1.0
"""Seconds that a thread may run while others of its process wait. Each of those wakes up so often to ask for its turn,
which a thousand that are woken at once do for most of the time; the turn ends with every request anyway."""
DIALLERS = 16
"""Threads that make connections: a resolver that drops questions costs a connection to a TCPStore 5 s."""


@dataclass(frozen=True, slots=True)
class CrowdJob:
    """The shared state of the agents of one job.

    Attributes:
        peer: ``torch``, or one of our backends: ``c10d``, ``redis``, ``etcd``.
        endpoint: Where its store is, or will be (c10d).
        nodes: The least and the most of the job.
        run_id: Its id.
    """

    peer: str
    endpoint: str
    nodes: tuple[int, int]
    run_id: str = "bench"

    @property
    def port(self) -> int:
        """The store's."""
        return int(self.endpoint.rpartition(":")[2])


@dataclass(slots=True)
class NodeViews:
    """The nodes that were seen: number, time and size of the world."""

    seen: list[tuple[int, float, int]] = field(default_factory=list)

    def add(self, number: int, at: float, world: int) -> None:
        """One more."""
        self.seen.append((number, at, world))

    def wait(self, who: Collection[int], since: float, world: int, deadline: float) -> float | None:
        """Return when the last of ``who`` held a rank after ``since`` in a world of ``world``; None for never."""
        first: dict[int, float] = {}
        looked = 0
        while True:
            new = self.seen[looked:]
            looked += len(new)
            for number, at, size in new:
                if at > since and size == world and number in who:
                    first.setdefault(number, at)
            if len(first) == len(who):
                return max(first.values(), default=since)
            if time.monotonic() >= deadline:
                return None
            time.sleep(LOOK)  # and be woken by none of so many


class Crowd:
    """Some of a job's agents. Its public methods are what it can be told; times are seconds, monotonic."""

    def __init__(self, job: CrowdJob) -> None:
        self._job = job
        self._agents: dict[int, Agent] = {}
        self._node_views = NodeViews()
        self._traffic = Traffic(job.port)
        self._store: object = None

    def host(self) -> None:
        """Serve a TCPStore, in a process of its own, where the store is torch's alone. Before there are threads."""
        from elastic_rdzv_c10d.server import StoreServer

        self._store = StoreServer.start(socket.create_server(("127.0.0.1", self._job.port), backlog=4096))

    def connect(self, numbers: Sequence[int], hosting: bool) -> None:
        """Make all connections of these agents; the first one hosts the store, if it is hosted."""
        if self._job.peer == "torch":
            from elastic_rdzv_c10d.quiet_torch import TCPStore

            stores = [TCPStore("127.0.0.1", self._job.port, is_master=False, wait_for_workers=False) for _ in numbers]
            for number, store in zip(numbers, stores, strict=True):
                agent = TorchAgent(number, self._node_views.add, store, self._job.run_id, self._job.nodes)
                self._agents[number] = agent
            return
        self._count()
        warm_up()
        # Each agent has one to begin with, as everywhere: what its own connections tell each other, others' must not.
        roots = [self._open(hosting=hosting and number == numbers[0]) for number in numbers]
        with ThreadPoolExecutor(DIALLERS) as pool:
            more = list(pool.map(lambda root: root.connect(), 3 * roots))
        for at, (number, root) in enumerate(zip(numbers, roots, strict=True)):
            mine = [root, *more[at :: len(roots)]]
            self._agents[number] = ElasticAgent(number, self._node_views.add, mine, self._job.nodes)
        threading.Thread(target=self._tick, daemon=True).start()

    def arrive(self, numbers: Sequence[int]) -> float:
        """All of these at once; returns when that began."""
        gate = threading.Event()

        def come(agent: Agent) -> None:
            gate.wait()
            agent.arrive()

        threads = [threading.Thread(target=come, args=(self._agents[n],), daemon=True) for n in numbers]
        for thread in threads:
            thread.start()
        begin = time.monotonic()
        gate.set()
        return begin

    def came(self, numbers: Sequence[int]) -> float:
        """Return when the last of these began to take part."""
        return max(self._agents[number].came for number in numbers)

    def fail(self, numbers: Sequence[int]) -> float:
        """Workers of these have failed."""
        begin = time.monotonic()
        for number in numbers:
            self._agents[number].fail()
        return begin

    def leave(self, numbers: Sequence[int]) -> float:
        """Have the nodes with these numbers leave; return the instant before that."""
        begin = time.monotonic()
        for number in numbers:
            self._agents[number].leave()
        return begin

    def held(self, who: Sequence[int], since: float, world: int, deadline: float) -> float | None:
        """Return when the last of these held a rank in a world of so many nodes; None if not by ``deadline``."""
        return self._node_views.wait(set(who), since, world, deadline)

    def requests(self) -> tuple[dict[int, Counter[tuple[str, str]]], list[int], int]:
        """Return what each agent has asked so far, who of them decides, and the bytes of all of their connections."""
        leaders = [n for n, agent in self._agents.items() if isinstance(agent, ElasticAgent) and agent.leaders]
        return {n: agent.requests() for n, agent in self._agents.items()}, leaders, self._traffic.total()

    def _open(self, *, hosting: bool) -> RendezvousBackend:
        job = self._job
        conf = {"is_host": str(hosting).lower()} if job.peer == "c10d" else {}
        least, most = job.nodes
        parameters = RendezvousParameters(
            backend=job.peer, endpoint=job.endpoint, run_id=job.run_id, min_nodes=least, max_nodes=most, config=conf
        )
        plugin = importlib.import_module(f"elastic_rdzv_{job.peer}.plugin")
        return GuardedBackend(plugin.elastic_make_rendezvous(parameters), job.peer)

    def _count(self) -> None:
        match self._job.peer:
            case "c10d":
                from elastic_rdzv_c10d.client import StoreClient

                count_requests(StoreClient, "_asking")
            case "redis":
                from elastic_rdzv_redis.connect import Client as RedisClient

                count_requests(RedisClient, "_ask")
            case "etcd":
                from elastic_rdzv_etcd.client import Client as EtcdClient

                count_requests(EtcdClient, "_using_it")

    def _tick(self) -> None:
        while True:
            time.sleep(TICK)
            for agent in self._agents.values():
                if isinstance(agent, ElasticAgent):
                    agent.tick()


def serve(job: CrowdJob, orders: Connection) -> None:
    """Run a process of the benchmark: execute orders, each a method's name and its arguments, until the pipe ends."""
    sys.setswitchinterval(FAIR)
    gc.disable()  # each collection would look through what all agents of the process know
    crowd = Crowd(job)
    while True:
        try:
            name, arguments = orders.recv()
        except EOFError:
            os._exit(0)  # without an orderly end of the agents: no process reads their last messages
        try:
            answer: Any = getattr(crowd, name)(*arguments)
        except BaseException:
            answer = RuntimeError(traceback.format_exc())
        orders.send(answer)
