"""The jobs of this host for ``elastic status``: one line each, or one object each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from elastic_core.config import describe_limit
from elastic_core.errors import ElasticError
from elastic_core.events import describe_duration
from elastic_core.host import printable
from elastic_core.threads import asked
from elastic_operate.host_jobs import HostJob, with_own_workers
from elastic_operate.job_view import JobStatus, look

ANSWER_MAX_SECONDS = 10.0  # for all jobs together
_COLUMNS = ("JOB", "STATE", "BACKEND", "NODES", "RANKS", "STEP", "RESTARTS", "UP", "PID")


@dataclass(frozen=True, slots=True)
class Answer:
    """A job of this host, and its status; None, and the reason, if it is not known."""

    job: HostJob
    status: JobStatus | None
    why: str = ""


def ask(job: HostJob) -> Answer:
    """Return the answer of one job."""
    try:
        with closing(job.connect()) as store:
            if not store.has_store:
                return Answer(job, None, "runs over a rendezvous handler of others")
            store.open()
            seen = look(store, job.newest.job)
        return Answer(job, None if seen is None else with_own_workers(seen, job))
    except ElasticError as exc:
        return Answer(job, None, exc.message)


def ask_all(jobs: Sequence[HostJob], patience: float = ANSWER_MAX_SECONDS) -> list[Answer]:
    """Return the answers of all jobs, which are asked at once, for ``patience`` seconds at most."""
    questions = [asked(partial(ask, job)) for job in jobs]
    answered = wait(questions, patience).done
    late = f"did not answer within {patience:g} s"
    return [
        question.result() if question in answered else Answer(job, None, late)
        for job, question in zip(jobs, questions, strict=True)
    ]


def as_object(answer: Answer) -> dict[str, Any]:
    """Return an answer for JSON."""
    agent = answer.job.newest
    return {
        "job": agent.job,
        "run": agent.run,
        "backend": agent.backend,
        "endpoint": agent.endpoint,
        "logs": answer.job.logs,
        "pids": [each.pid for each in answer.job.agents],
        "status": None if answer.status is None else asdict(answer.status),
        "why": answer.why,
    }


def table(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield the lines for people."""
    rows = [_COLUMNS, *(_row(answer) for answer in answers)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
    for answer in answers:
        if answer.why:
            yield printable(f"{answer.job.newest.job}: {answer.why}")
    yield "elastic status JOB shows one of them whole; the beginning of its id is enough."


def _row(answer: Answer) -> tuple[str, ...]:
    agent, seen = answer.job.newest, answer.status
    pids = ",".join(str(each.pid) for each in answer.job.agents)
    if seen is None:
        return (printable(agent.job), "unknown", agent.backend, "-", "-", "-", "-", "-", pids)
    steps = [worker.step for node in seen.nodes for worker in node.workers if worker.step is not None]
    return (
        printable(agent.job),
        seen.state,
        agent.backend,
        str(sum(node.ranks is not None for node in seen.nodes)),
        str(seen.world_size),
        str(max(steps)) if steps else "-",
        f"{seen.restarts}{describe_limit(seen.max_restarts)}",
        describe_duration(seen.age_s),
        pids,
    )
