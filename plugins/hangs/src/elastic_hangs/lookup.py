"""``elastic stacks``: where the ranks of a job are, said by all its nodes (rule L14), or by the kernel of this host.

The nodes are asked by a request in the roster. A job without a store cannot be asked so: its workers on this host are
found by the environment with which they were started, in ``/proc``, and no agent takes part.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from elastic_core.config import DEFAULT_ID
from elastic_core.errors import RendezvousTimeoutError, UsageError
from elastic_core.host import running_process
from elastic_core.protocol import Answers, Ask, decode
from elastic_core.rendezvous import Cursor, RendezvousBackend
from elastic_core.session import peek, readable
from elastic_hangs.judgement import FULL_STACKS, STACKS, LocalStacks, Report, describe_hang, report_alone
from elastic_hangs.stacks import LocalRank, PySpy, Wanted, locate
from elastic_operate.job_request import requested, running_job
from elastic_operate.job_store import NoStoreError

WAIT_SECONDS = 30.0  # for the report: more than it takes to replace a leader that is gone
LOOK_SECONDS = 1.0  # how long one wait for the store takes


_ELSEWHERE = "Run elastic stacks on each host of the job, as the user who runs it, with the job's id."


@dataclass(frozen=True, slots=True)
class Located:
    """The places of the ranks of a job."""

    report: Report  # the leader's report
    texts: Mapping[int, str]
    """The whole stacks by rank, of the nodes whose rows had them; empty if only places were asked for."""
    note: str = ""  # what to say if the job has other ranks


def ask(store: RendezvousBackend, job: str, *, full: bool = False, patience: float = WAIT_SECONDS) -> Located:
    """Ask all nodes of a job where their ranks are. No worker is stopped.

    ``patience`` is in seconds.

    Raises:
        UsageError: There is no such job, or it has no workers now.
        RendezvousTimeoutError: No agent of the job has answered.
        RendezvousConnectionError: The store cannot be reached.
        RendezvousStateError: The store holds something invalid.
    """
    ledger = running_job(store, job)
    if not ledger.is_live:
        what = "no round has begun yet" if ledger.halt is None else f"its round was halted: {ledger.halt.why}"
        raise UsageError(f"Job {job!r} has no workers now: {what}.", hint="See elastic status.")
    deadline, index = time.monotonic() + patience, ledger.head.index
    name = FULL_STACKS if full else STACKS
    with requested(store, "stacks", asks=(Ask(name, "{}", index),), epoch=ledger.head.epoch):
        while True:
            while (entry := peek(store, index + 1)) is not None:
                index += 1
                found = entry.body
                if isinstance(found, Answers) and found.name == name:
                    if (report := decode(found.report)) is None:
                        raise RendezvousTimeoutError(
                            f"The leader of job {job!r} has summed up no answers.",
                            hint="Its node needs elastic-hangs, which is off there or failed; see its output.",
                        )
                    return Located(Report(**report), _texts(store, found.question) if full else {})
            if (left := deadline - time.monotonic()) <= 0:
                raise RendezvousTimeoutError(
                    f"No agent of job {job!r} has said within {patience:g} s where its ranks are.",
                    hint="See elastic status: its agents may be gone, or the round may have ended meanwhile.",
                )
            store.wait(Cursor(index), roster=False, timeout=min(left, LOOK_SECONDS))


def _texts(store: RendezvousBackend, question: int) -> dict[int, str]:
    """Return the whole stacks in the answers to a question, by rank; they stand in the rows for a while."""
    answers = (seen.row.answer for seen in readable(store.roster()))
    found = [LocalStacks.from_json(decode(one.text)) for one in answers if one is not None and one.to == question]
    return dict(sorted((int(rank), text) for answer in found for rank, text in answer.texts.items()))


@dataclass(frozen=True, slots=True)
class LocalProcess:
    """A process that has the environment of a worker: the worker itself, or one that it started."""

    run_uid: str
    round: int
    rank: int
    world_size: int
    started: int  # clock ticks since the boot
    pid: int


def locate_local(named: str | None, why: NoStoreError, *, full: bool) -> Located:
    """Return where the ranks of a job on this host are. No worker is stopped.

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
    return Located(report, texts, note if shown < world_size else "")


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
            variables = os.fsdecode(Path(f"/proc/{pid}/environ").read_bytes()).split("\0")
            environ = {name: value for name, _, value in (variable.partition("=") for variable in variables)}
            if environ["TORCHELASTIC_RUN_ID"] == job and (running := running_process(int(pid))) is not None:
                number, rank, world_size = (int(environ[name]) for name in ("ELASTIC_ROUND", "RANK", "WORLD_SIZE"))
                yield LocalProcess(environ["ELASTIC_RUN_UID"], number, rank, world_size, running[1], int(pid))


def describe(found: Located, *, full: bool) -> Iterator[str]:
    """Yield the lines for people."""
    yield describe_hang(found.report)
    for rank, text in found.texts.items():
        yield f"\nrank {rank}"
        yield from (f"  {line}" for line in text.rstrip().splitlines())
    if full and not found.texts:
        yield "\nThe whole stacks did not arrive: no node has answered in time."
    if found.note:
        yield found.note
