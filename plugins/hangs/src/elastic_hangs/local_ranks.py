"""The places of the ranks of a job on this host, for ``elastic stacks`` of a job that has no store to ask over.

Workers are found by the environment with which they were started, in ``/proc``. No agent takes part.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from elastic_core.cli import NoStoreError
from elastic_core.config import DEFAULT_ID
from elastic_core.errors import UsageError
from elastic_core.warden import running_process
from elastic_hangs.judgement import report_alone
from elastic_hangs.py_spy import PySpy
from elastic_hangs.request import Located
from elastic_hangs.stacks import LocalRank, Wanted, locate

_ELSEWHERE = "Run elastic stacks on each host of the job, as the user who runs it, with the job's id."


@dataclass(frozen=True, slots=True)
class LocalProcess:
    """A process that has the environment of a worker: the worker itself, or one that it started."""

    run_uid: str
    round: int
    rank: int
    world_size: int
    started: int  # clock ticks since the boot
    pid: int


def locate_local(named: str | None, why: NoStoreError, *, full: bool) -> tuple[Located, str]:
    """Return where the ranks of a job on this host are, and what to say if it has others. No worker is stopped.

    ``why`` says why the job cannot be asked as a whole. If no job is named, it is the one without an id.

    Raises:
        UsageError: No worker of the job runs here as this user, or several jobs of that id have workers here.
    """
    job = named or DEFAULT_ID
    if not (workers := workers_of(job, _processes(job))):
        searched = f" No worker of job {job!r} was found on this host, among this user's processes." if named else ""
        message = f"{why.message}{searched}"
        raise UsageError(message, hint="\n".join(filter(None, [_ELSEWHERE, why.hint]))) from why
    ranks = [LocalRank(worker.rank, worker.pid) for worker in workers]
    found = locate(Wanted(full=full), ranks, None, spy=PySpy())
    report = report_alone(found, max(worker.round for worker in workers))
    shown, world_size = len(workers), workers[0].world_size
    store = "If the job has a store, name it: --rdzv_backend, --rdzv_endpoint and --rdzv_id."
    note = f"{shown} of {world_size} ranks run on this host. {why.message} {_ELSEWHERE} {store}"
    texts = {int(rank): text for rank, text in found.texts.items()}
    return Located(report, texts), note if shown < world_size else ""


def workers_of(job: str, processes: Iterable[LocalProcess]) -> list[LocalProcess]:
    """Return the workers of the newest round of each agent's run, by rank: of a rank's processes the first one.

    Raises:
        UsageError: Several jobs of that id have workers here.
    """
    newest: dict[str, int] = {}
    for process in (known := list(processes)):
        newest[process.run_uid] = max(process.round, newest.get(process.run_uid, 0))
    workers: dict[int, LocalProcess] = {}
    for process in sorted(known, key=lambda one: (one.started, one.pid)):
        if process.round != newest[process.run_uid]:
            continue  # left over from a round before
        first = workers.setdefault(process.rank, process)
        if first.run_uid != process.run_uid:
            raise UsageError(
                f"Several jobs with the id {job!r} have a rank {process.rank} on this host, for example processes "
                f"{first.pid} and {process.pid}.",
                hint="Give each job an --rdzv_id that no other job on its hosts has.",
            )
    return [workers[rank] for rank in sorted(workers)]


def _processes(job: str) -> Iterator[LocalProcess]:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError, KeyError, ValueError):  # it has ended, is another user's, or is no worker
            environ = _environment(pid)
            if environ["TORCHELASTIC_RUN_ID"] == job and (running := running_process(int(pid))) is not None:
                number, rank, world_size = (int(environ[name]) for name in ("ELASTIC_ROUND", "RANK", "WORLD_SIZE"))
                yield LocalProcess(environ["ELASTIC_RUN_UID"], number, rank, world_size, running[1], int(pid))


def _environment(pid: str) -> Mapping[str, str]:
    with open(f"/proc/{pid}/environ", "rb") as file:
        pairs = (os.fsdecode(variable).partition("=") for variable in file.read().split(b"\0"))
    return {name: value for name, _, value in pairs}
