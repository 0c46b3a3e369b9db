"""One job of many simulated agents: its store, its processes, and what happens to it, step by step."""

from __future__ import annotations

import math
import multiprocessing
import resource
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.counting import HEARTBEAT, OPERATIONS, REQUESTS
from benchmarks.crowd import CrowdJob, serve

TORCH, C10D, REDIS, ETCD = "torch", "c10d", "redis", "etcd"
PEERS = (TORCH, C10D, REDIS, ETCD)
FORM, RESTART, LEAVE, JOIN = "all arrive at once", "one reports a failed worker", "one leaves", "one joins"
EVENTS = (FORM, RESTART, LEAVE, JOIN)
PROCESSES = 4
"""Among which a job's agents are divided, but for the first one."""
PATIENCE = 60.0
"""Seconds after which an event counts as never over."""
FORGETFUL = (REDIS, ETCD)
SETTLING = 4.5
"""Seconds for which a run on a store that may forget has been open when the others come: it waits 4 s itself (S3)."""
SETTLE = 1.0
"""Seconds of quiet before something happens, and before it is counted what that has cost."""
RESTARTS = 3
CONNECTIONS = 300.0
"""Seconds that making connections may take: every 25th to a TCPStore costs 1 s where a resolver drops questions."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One event in one job.

    Attributes:
        seconds: Until all hold their rank; None for never. Of arrivals, from that of the last.
        ordered: The same from the order to arrive, fail or leave. Others arrive meanwhile, and take the machine's time.
        requests: Requests of a node to the store, the mean of all nodes but the leader; heartbeats not counted.
        leader: The same of the leader; of torch's, which have none, NaN.
        size: Bytes of a node, both ways, the mean of all nodes; heartbeats included.
        kinds: The operations of the nodes but the leader, by name, one for each node.
    """

    seconds: float | None
    ordered: float | None
    requests: float = 0.0
    leader: float = math.nan
    size: float = 0.0
    kinds: dict[str, float] = field(default_factory=dict)


def raise_descriptors() -> int:
    """As many descriptors as this user may have, for this process and those that it starts; how many that is."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


@contextmanager
def store(peer: str) -> Iterator[str]:
    """Yield the endpoint of an empty store for one job. The agent that hosts a TCPStore starts it."""
    with tempfile.TemporaryDirectory(prefix="elastic-bench-") as folder, ExitStack() as stack:
        match peer:
            case "redis":
                from redis_servers import redis_server

                yield stack.enter_context(redis_server(Path(folder) / "redis")).endpoint
            case "etcd":
                from etcd_servers import running

                yield stack.enter_context(running(Path(folder) / "etcd")).endpoint
            case _:
                with socket.create_server(("127.0.0.1", 0)) as probe:
                    endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
                yield endpoint


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests to a store: by each agent, by the leader, and the bytes of all connections."""

    by_agent: dict[int, Counter[tuple[str, str]]]
    leaders: list[int]
    size: int


class Crowds:
    """The processes of one job, and orders to all of them.

    Args:
        job: What its agents have in common.
        size: How many there are.
        stack: Ends them.
    """

    def __init__(self, job: CrowdJob, size: int, stack: ExitStack) -> None:
        self.job, self.size = job, size
        shared = [list(range(first, size, PROCESSES)) for first in range(1, min(PROCESSES, size - 1) + 1)]
        self.numbers = [[0], *shared]  # who decides, or hosts the store, has a process to itself, as all nodes have
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["benchmarks.crowd", "elastic_rdzv_c10d.backend", "elastic_rdzv_c10d.server"])
        self._pipes: list[Connection] = []
        for _ in self.numbers:
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(job, theirs), daemon=True)
            process.start()
            theirs.close()
            stack.callback(process.join)
            stack.callback(process.kill)
            self._pipes.append(ours)

    def ask(self, which: int, name: str, *arguments: Any, patience: float = CONNECTIONS) -> Any:
        """One process does something, and says what came of it."""
        return self._call([(which, arguments)], name, patience)[0]

    def ask_all(self, name: str, *arguments: Any, patience: float = CONNECTIONS) -> list[Any]:
        """All do the same."""
        return self._call([(which, arguments) for which in range(len(self._pipes))], name, patience)

    def ask_each(self, name: str, numbers: Sequence[int], *arguments: Any, patience: float = CONNECTIONS) -> list[Any]:
        """Those do something that have some of these agents, each with its own."""
        chosen = set(numbers)
        each = [(which, [n for n in mine if n in chosen]) for which, mine in enumerate(self.numbers)]
        return self._call([(which, (mine, *arguments)) for which, mine in each if mine], name, patience)

    def requests(self) -> Requests:
        """Return what all have asked so far."""
        by_agent: dict[int, Counter[tuple[str, str]]] = {}
        leaders, size = [], 0
        for counts, chairing, traffic in self.ask_all("requests"):
            by_agent.update(counts)
            leaders += chairing
            size += traffic
        return Requests(by_agent, leaders, size)

    def _call(self, requests: Sequence[tuple[int, tuple[Any, ...]]], name: str, patience: float) -> list[Any]:
        for which, arguments in requests:
            self._pipes[which].send((name, arguments))
        deadline = time.monotonic() + patience
        answers = []
        for which, _ in requests:
            if not self._pipes[which].poll(max(0.0, deadline - time.monotonic())):
                raise TimeoutError(f"process {which} of {self.job.peer} with {self.size} agents does not answer {name}")
            answer = self._pipes[which].recv()
            if isinstance(answer, BaseException):
                raise answer
            answers.append(answer)
        return answers


def play(peer: str, size: int, patience: float) -> Iterator[tuple[str, Sample]]:
    """Jobs of so many agents, from forming to their last event; each event with what was measured of it.

    Of ours it is one job. torch's handler must know how many it waits for: a job of a fixed size forms and restarts,
    and another one has room for one more. Nobody can leave it, but by being lost.
    """
    everybody, rest, spare = range(size), range(1, size), size
    if peer == TORCH:
        with _job(peer, size, (size, size)) as job:
            yield FORM, (found := _event(job, "arrive", everybody, everybody, patience, pause=0.0))
            for _ in range(RESTARTS if found.seconds is not None else 0):
                yield RESTART, (found := _event(job, "fail", everybody, everybody, patience))
        if found.seconds is not None:
            with _job(peer, size, (size - 1, size)) as job:
                if _event(job, "arrive", rest, rest, patience, pause=0.0).seconds is not None:
                    yield JOIN, _event(job, "arrive", [0], everybody, patience)
        return
    with _job(peer, size + 1, (size - 1, size)) as job:
        job.ask_each("arrive", [0])
        pause = SETTLING if peer in FORGETFUL else SETTLE
        others = [0, *range(2, size)]
        for event, order, whom, who, wait in (
            (FORM, "arrive", rest, everybody, pause),
            *[(RESTART, "fail", [size - 1], everybody, SETTLE)] * RESTARTS,
            (LEAVE, "leave", [1], others, SETTLE),
            (JOIN, "arrive", [spare], [*others, spare], SETTLE),
        ):
            found = _event(job, order, whom, who, patience, pause=wait)
            yield event, found
            if found.seconds is None:
                return


def _event(
    job: Crowds, order: str, whom: Sequence[int], who: Sequence[int], patience: float, *, pause: float = SETTLE
) -> Sample:
    """After a pause, something happens to the agents ``whom``; then all of ``who`` are to hold a rank."""
    time.sleep(pause)
    before = job.requests()
    begin = min(job.ask_each(order, whom))
    ends = job.ask_each("held", who, begin, len(who), begin + patience)
    last = max(job.ask_each("came", whom)) if order == "arrive" else begin
    time.sleep(SETTLE)  # what is written after it belongs to it, too
    after = job.requests()
    requests = {number: counts - before.by_agent[number] for number, counts in after.by_agent.items() if number in who}
    others = [counts for number, counts in requests.items() if number not in after.leaders]
    kinds = sum((Counter({name: n for (what, name), n in c.items() if what == OPERATIONS}) for c in others), Counter())
    return Sample(
        seconds=None if None in ends else max(ends) - last,
        ordered=None if None in ends else max(ends) - begin,
        requests=sum(map(_requests, others)) / len(others),
        leader=sum(_requests(requests[number]) for number in after.leaders if number in requests)
        if after.leaders
        else math.nan,
        size=(after.size - before.size) / len(who),
        kinds={name: count / len(others) for name, count in kinds.items()},
    )


def _requests(counts: Counter[tuple[str, str]]) -> int:
    return sum(count for (what, name), count in counts.items() if what == REQUESTS and name != HEARTBEAT)


@contextmanager
def _job(peer: str, size: int, nodes: tuple[int, int]) -> Iterator[Crowds]:
    """Yield the processes of a job, with all their connections made."""
    with ExitStack() as stack:
        job = CrowdJob(peer, stack.enter_context(store(peer)), nodes)
        crowds = Crowds(job, size, stack)
        if peer == TORCH:
            crowds.ask(0, "host")
        if peer == C10D:
            crowds.ask(0, "connect", crowds.numbers[0], True)
        crowds.ask_each("connect", [n for mine in crowds.numbers[peer == C10D :] for n in mine], False)
        yield crowds
