"""The jobs that this user's agents run on this host: found for commands that name no store, and listed, a line each."""

from __future__ import annotations

import json
import socket
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import wait
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from elastic_core.errors import (
    ElasticError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousStateError,
    StoreLostError,
    UsageError,
)
from elastic_core.events import describe_duration
from elastic_core.host import printable, state_of
from elastic_core.incidents import describe_limit
from elastic_core.protocol import Phase
from elastic_core.rendezvous import Cursor, RendezvousBackend, RosterRow
from elastic_core.threads import asked
from elastic_operate import job_file
from elastic_operate.job_file import BYTES, JobFile
from elastic_operate.job_view import JobStatus, WorkerStatus, look

# ruff: noqa: D102  (RendezvousBackend documents these methods)


HELLO_SECONDS = 5.0  # for the agent's first line
ANSWER_SECONDS = 30.0  # for any other answer: the agent may have to wait for the store
ANSWER_MAX_SECONDS = 10.0  # for all jobs together
_COLUMNS = ("JOB", "STATE", "BACKEND", "NODES", "RANKS", "STEP", "RESTARTS", "UP", "PID")
_HAS_WORKERS = Phase.RUNNING.value, "starting"
_ERRORS = {error.__name__: error for error in (RendezvousStateError, StoreLostError)}


class SilentAgentError(RendezvousConnectionError):
    """An agent of this host does not answer."""


class EndedAgentError(StoreLostError):
    """An agent of this host has ended while a command was connected to it, and its store too, if it held that."""

    exit_code = RendezvousConnectionError.exit_code


@dataclass(frozen=True, slots=True)
class HostJob:
    """A job, with all its agents on this host."""

    agents: tuple[JobFile, ...]

    @property
    def newest(self) -> JobFile:
        """The agent that started last."""
        return self.agents[-1]

    @property
    def logs(self) -> str:
        """The directory for logs of the newest agent that keeps them; '' for none."""
        return next((agent.logs for agent in reversed(self.agents) if agent.logs), "")

    def connect(self) -> AgentStore:
        """Return a connection to an agent; raise SilentAgentError if no agent answers."""
        for agent in self.agents:
            try:
                return AgentStore(agent)
            except SilentAgentError as exc:
                silent = exc
        raise silent


def host_jobs() -> list[HostJob]:
    """Return the jobs of this user on this host; the one whose agent started last comes last."""
    found: dict[tuple[str, str], list[JobFile]] = {}
    for agent in job_file.read_all():
        found.setdefault((agent.job, agent.run), []).append(agent)
    return sorted((HostJob(tuple(agents)) for agents in found.values()), key=lambda job: job.newest.started)


def find_job(name: str | None) -> HostJob | None:
    """Return the job with this id, or else with this run id, or else the one whose id begins so; None if there is none.

    ``name`` is None for the only job.

    Raises:
        UsageError: Several jobs are meant.
    """
    jobs = host_jobs()
    exact = [job for job in jobs if name in (None, job.newest.job)] or [job for job in jobs if job.newest.run == name]
    found = exact or [job for job in jobs if job.newest.job.startswith(name or "")]
    if len(found) > 1:
        each = ", ".join(f"{job.newest.job!r} (run {job.newest.run}, pid {job.newest.pid})" for job in found)
        raise UsageError(f"{len(found)} jobs of this host can be meant: {each}.", hint="Name one by its id or its run.")
    return found[0] if found else None


class AgentStore(RendezvousBackend):
    """A connection to a job's store by way of an agent on this host, with the operations that commands use.

    Attributes:
        state: The agent's state, as it describes it on SIGQUIT.
        has_store: Whether the job has a store; a rendezvous handler of others has none.
        round: The number of the agent's round; 0 before the first.
        workers: The agent's workers of that round, as they are now; () for none.
    """

    hosting = False

    def __init__(self, agent: JobFile) -> None:
        self._file, self._agent = agent, f"The agent of job {agent.job!r} with pid {agent.pid}"
        if state_of(agent.pid) == "T":
            raise SilentAgentError(f"{self._agent} is stopped.", hint=f"kill -CONT {agent.pid} lets it go on.")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(HELLO_SECONDS)
        self._replies = self._socket.makefile("rb")
        try:
            with job_file.open_directory(agent.directory) as place:
                self._socket.connect(f"{place}/{agent.node}{job_file.SOCKET_SUFFIX}")
            hello = json.loads(self._replies.readline())
        except (OSError, ValueError) as exc:
            self.close()
            raise SilentAgentError(f"{self._agent} does not answer.") from exc
        self.state, self.has_store = str(hello["state"]), bool(hello["store"])
        found = hello.get("workers") or {"round": 0, "workers": ()}
        self.round, self.workers = found["round"], tuple(WorkerStatus(*each) for each in found["workers"])

    def open(self) -> None:
        """Have the agent connect to the store. If it cannot, this connection is closed."""
        self._socket.settimeout(ANSWER_SECONDS)
        try:
            self.embedded = self._ask("open")
        except RendezvousError:
            self.close()
            raise

    def connect(self) -> AgentStore:
        other = AgentStore(self._file)
        other.open()
        return other

    def close(self) -> None:
        self._replies.close()
        self._socket.close()

    def enter(self, node_id: str, value: bytes) -> int:
        return int(self._ask("enter", node_id, value.decode(BYTES)))

    def remove(self, node_id: str) -> None:
        self._ask("remove", node_id)

    def roster(self, ids: Collection[str] | None = None) -> list[RosterRow]:
        rows = self._ask("roster", None if ids is None else list(ids))
        return [RosterRow(node, at, revision, value.encode(BYTES), *rest) for node, at, revision, value, *rest in rows]

    def read(self, index: int) -> bytes | None:
        data = self._ask("read", index)
        return None if data is None else str(data).encode(BYTES)

    def wait(self, cursor: Cursor, *, roster: bool, timeout: float) -> Cursor:
        return Cursor(*self._ask("wait", cursor.head, cursor.roster, roster, timeout))

    def amend(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("only nodes do this")

    append = heartbeat = amend

    def _ask(self, *request: Any) -> Any:
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            reply = json.loads(self._replies.readline())
        except TimeoutError as exc:
            raise RendezvousConnectionError(
                f"{self._agent} has waited for the store for {ANSWER_SECONDS:g} s."
            ) from exc
        except (OSError, ValueError) as exc:
            raise EndedAgentError(f"{self._agent} has ended.") from exc
        if "error" in reply:
            raise _ERRORS.get(reply["error"], RendezvousConnectionError)(reply["message"], hint=reply["hint"])
        return reply["result"]


def with_own_workers(seen: JobStatus, job: HostJob) -> JobStatus:
    """Return the status with the workers of this host as its agents know them now, and not as they wrote last."""
    own: dict[str, tuple[WorkerStatus, ...]] = {}
    for file in job.agents:
        with suppress(SilentAgentError), closing(AgentStore(file)) as agent:
            if agent.workers and agent.round == seen.round:
                own[file.node] = agent.workers
    nodes = (
        replace(node, workers=own[node.node_id]) if node.node_id in own and node.phase in _HAS_WORKERS else node
        for node in seen.nodes
    )
    return replace(seen, nodes=tuple(nodes))


def agent_state(job: HostJob) -> str:
    """Return how an agent of the job describes its state; '' if none answers."""
    with suppress(SilentAgentError), closing(job.connect()) as agent:
        return agent.state
    return ""


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
        **{name: getattr(agent, name) for name in ("job", "run", "backend", "endpoint")},
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
