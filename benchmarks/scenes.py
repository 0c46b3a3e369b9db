"""The faults of a job, and the time until all ranks are at work again.

Scenes of one story share a job: each says how many nodes must be up before it, and where the last one has left the job
so, the next goes on with it. Everything that a scene returns is in seconds, but for memory.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pace
from pace import Pace

from benchmarks.jobs import PATIENCE, Job, Setting
from benchmarks.processes import fork_server_of, pss

SETTLE = 0.3
"""Seconds that a job trains before something is done to it: what it does right after a start is behind it."""
SHORT = 30.0
"""Patience where all are there who are needed, and no node waits for a last call."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Something that is done to a job.

    Args:
        figures: What is measured, as tables show it.
        nodes: How many nodes are up when it begins.
        act: Does it, and returns one number for each figure; None for what never came.
        patience: Seconds after which it counts as never coming.
        alike: Whether settings of a launcher change nothing, so that what never ends with some will not with others.
    """

    figures: tuple[str, ...]
    nodes: int
    act: Callable[[Job], tuple[float | None, ...]]
    patience: float = PATIENCE
    alike: bool = False


def launch(job: Job) -> tuple[float | None]:
    """Start all nodes at once."""
    begin = time.monotonic()
    for _ in job.setting.workers:
        job.start_node()
    return (job.all_reduced(begin),)


def kill_worker(job: Job) -> tuple[float | None]:
    """Kill a worker of the youngest node."""
    pid = job.worker_of(job.nodes[-1])
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return (job.all_reduced(killed),)


def lose_node(job: Job) -> tuple[float | None]:
    """Kill the youngest node's agent and workers at once, as a machine of its own. The others go on without it."""
    node = job.nodes.pop()
    killed = time.monotonic()
    node.vanish()
    return (job.all_reduced(killed),)


def lose_node_unheard(job: Job) -> tuple[float | None]:
    """Kill the youngest node where the collectives of the other workers block for ever."""
    job.deaf.touch()
    return lose_node(job)


def join(job: Job) -> tuple[float | None, float | None]:
    """Start one more node. Besides the time until all are up: how long the workers that were there stood still."""
    there = list(job.nodes)
    begin = time.monotonic()
    job.start_node()
    seconds = job.all_reduced(begin)
    if seconds is None:
        return None, None
    pauses = []
    for node in there:
        pids = {report["pid"] for report in node.reports("training")}
        paces = [found for file in job.pace.iterdir() if (found := pace.read(file)) and found.pid in pids]
        pauses.append(longest_pause(paces, begin))
    return seconds, max(pauses)


def longest_pause(paces: Sequence[Pace], since: float) -> float:
    """Return the longest time, in seconds, that a local rank of one node made no step.

    It may lie within a process or between one and its successor. Only what ended after ``since`` counts.
    """
    longest = 0.0
    for local_rank in {found.local_rank for found in paces}:
        row = sorted((found for found in paces if found.local_rank == local_rank), key=lambda found: found.first)
        gaps = [silence for found in row for silence in found.silences]
        gaps += [(before.last, after.first) for before, after in itertools.pairwise(row)]
        longest = max([longest, *(end - begin for begin, end in gaps if end > since)])
    return longest


def weigh(job: Job) -> tuple[float | None, ...]:
    """Return what the workers weigh together, in bytes (PSS): alone, and with the fork server that they come from."""
    workers = [report["pid"] for report in job.latest().values()]
    alone = sum(map(pss, workers))
    fork_server = fork_server_of(job.nodes[0].pid, workers)
    return float(alone), float(alone + (0 if fork_server is None else pss(fork_server)))


LAUNCH = "one node starts, two workers"
KILLED_ONE = "a worker is killed: one node, two workers"
KILLED_TWO = "a worker is killed: two nodes, `--nnodes=2`"
KILLED_FULL = "a worker is killed: two nodes, `--nnodes=1:2`"
KILLED_REST = "a worker is killed: one node, two workers, `--nnodes=1:2`"
JOINED = "a second node is launched, `--nnodes=1:2`"
PAUSE = "... and how long the running workers pause"
LOST = "a node is killed, `--nnodes=1:2`; collectives fail"
LOST_DEAF = "a node is killed, `--nnodes=1:2`; workers only block"
WEIGHT = "both workers"
WEIGHT_ALL = "both workers and the fork server"
MEMORY = (WEIGHT, WEIGHT_ALL)
TIMES = (LAUNCH, KILLED_ONE, KILLED_TWO, KILLED_FULL, KILLED_REST, JOINED, PAUSE, LOST, LOST_DEAF)

STORIES: Sequence[tuple[Setting, Sequence[Scene]]] = (
    (
        Setting((2,)),
        (
            Scene((LAUNCH,), 0, launch),
            Scene(MEMORY, 1, weigh),
            Scene((KILLED_ONE,), 1, kill_worker, SHORT),
        ),
    ),
    (Setting((1, 1), "2"), (Scene((KILLED_TWO,), 2, kill_worker, SHORT),)),
    (
        Setting((2, 1), "1:2"),
        (
            Scene((KILLED_FULL,), 2, kill_worker, SHORT),
            Scene((LOST,), 2, lose_node),
            Scene((KILLED_REST,), 1, kill_worker),
            Scene((JOINED, PAUSE), 1, join),
            Scene((LOST_DEAF,), 2, lose_node_unheard, alike=True),
        ),
    ),
)
