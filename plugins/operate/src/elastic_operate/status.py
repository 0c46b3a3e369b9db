"""``elastic status``: what a job does, from any host that reaches its store."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from elastic_core.cli import FlagCommand
from elastic_core.errors import RendezvousConnectionError, UsageError
from elastic_core.events import describe_duration
from elastic_core.exit_codes import ExitCode, describe_exit
from elastic_core.host import GREEN, RED, YELLOW, Paint, painter, plain, printable
from elastic_core.incidents import describe_limit
from elastic_operate.job_store import STORE_FLAGS, NoStoreError, is_store_named, open_store

if TYPE_CHECKING:
    from elastic_core.incidents import Failure
    from elastic_operate.host_jobs import HostJob
    from elastic_operate.job_view import JobStatus, NodeStatus, SavedStatus, WorkerStatus

NAMED = "Name it as its nodes do: JOB or --rdzv_id, with their --rdzv_backend and --rdzv_endpoint."
WATCH_INTERVAL_SECONDS = 2.0
_STATES = {"forming": YELLOW, "running": GREEN, "restarting": YELLOW, "succeeded": GREEN, "failed": RED}
BEHIND_SECONDS = 10.0  # by which the last progress of a rank is older than that of the others of its node
FAILURES_SHOWN = 5  # of those that spent a restart, the newest


def status(*, job: str | None, watch: bool, as_json: bool, **given: Any) -> int:
    """Print what the job does, or what the jobs of this host do, once or every two seconds; return the exit code."""
    from elastic_operate.host_jobs import (
        as_object,
        ask_all,
        host_jobs,  # none of this for --help
        table,
    )

    if job is not None:
        given["rdzv_id"] = job
    if given["rdzv_id"] is not None or is_store_named(given):
        return _status_of(given, watch=watch, as_json=as_json)
    while True:
        jobs = host_jobs()
        if not as_json and len(jobs) < 2:
            return _status_of(given, watch=watch, as_json=False)
        answers = ask_all(jobs)
        text = json.dumps([as_object(answer) for answer in answers]) if as_json else "\n".join(table(answers))
        _show(text, watch and not as_json)
        if not watch:
            return int(ExitCode.SUCCESS)
        time.sleep(WATCH_INTERVAL_SECONDS)


def _status_of(given: dict[str, Any], *, watch: bool, as_json: bool) -> int:
    """Print what one job does. If only its agent's own state is known, print that."""
    from elastic_core.config import LOCAL
    from elastic_operate.host_jobs import EndedAgentError, agent_state, find_job, with_own_workers
    from elastic_operate.job_view import look

    paint, named = painter(sys.stdout), is_store_named(given)
    found = None if named else find_job(given["rdzv_id"])
    has_store = found is None or found.newest.backend != LOCAL
    try:
        with open_store(given) as (store, job_id):
            while True:
                if (seen := look(store, job_id)) is None:
                    raise UsageError(f"There is no job {job_id!r} in this store.", hint=NAMED)
                if found is not None:
                    seen = with_own_workers(seen, found)
                lines = [*describe(seen, paint, has_store=has_store), *(() if found is None else [_here(found)])]
                _show(json.dumps(asdict(seen)) if as_json else "\n".join(lines), watch and not as_json)
                if not watch or seen.state in ("succeeded", "failed"):
                    return int(ExitCode.SUCCESS)
                time.sleep(WATCH_INTERVAL_SECONDS)
    except EndedAgentError as exc:
        if not watch:
            raise
        click.echo(f"{exc.message} Its own output says how.")
        return int(ExitCode.SUCCESS)
    except (NoStoreError, RendezvousConnectionError) as exc:
        if found is None and not named and (ended := _describe_ended(given["rdzv_id"])):
            raise UsageError(f"{exc.message} {ended}", hint=exc.hint) from exc
        if as_json or found is None or not (state := agent_state(found)):
            raise
        click.echo(state, nl=False)
        if isinstance(exc, NoStoreError):
            return int(ExitCode.SUCCESS)  # it is all that is known of such a job
        raise


def _here(job: HostJob) -> str:
    agent, pids = job.newest, ", ".join(str(each.pid) for each in job.agents)
    at = f" at {agent.endpoint}" if agent.endpoint else ""
    logs = f"; logs in {job.logs}" if job.logs else ""
    return printable(f"  here      agent pid {pids}, over {agent.backend}{at}{logs}")


def _describe_ended(name: str | None) -> str:
    """Return which job of this host ended last, and how; '' if none is known, or if it is not the one of that name."""
    from elastic_operate.job_file import read_last

    last = read_last()
    if last is None or not (last.run == name or last.job.startswith(name or "")):
        return ""
    if not last.ended:
        return printable(f"The agent of the last one, job {last.job!r}, was killed.")
    ago = describe_duration(max(0.0, time.time() - last.ended))
    if not last.end:
        return printable(f"The last one, job {last.job!r}, ended with an error {ago} ago, which its own output names.")
    return printable(f"The last one, job {last.job!r}, ended {ago} ago: {last.end}.")


def _show(text: str, clear: bool) -> None:
    if clear:
        click.clear()
    click.echo(text)


def describe(seen: JobStatus, paint: Paint = plain, *, has_store: bool = True) -> Iterator[str]:
    """Yield the lines for people. Other nodes, and strangers who reach the store, have written most of the texts."""
    seen = all_printable(seen)
    runs = seen.state == "running"  # then the reason is that of the newest round
    why = f": {seen.why}" if seen.why and not runs else ""
    yield f"job {seen.job!r} is {paint(seen.state, _STATES[seen.state])}{why}"
    yield f"  run       {seen.run}, for {describe_duration(seen.age_s)}"
    if seen.round:
        members = sum(node.ranks is not None for node in seen.nodes)
        after = f", after: {seen.why}" if runs and seen.round > 1 else ""
        yield f"  round     {seen.round}: {seen.world_size} worker(s) on {members} node(s){after}"
    yield f"  restarts  {seen.restarts}{describe_limit(seen.max_restarts)} spent" + (":" if seen.failures else "")
    for failure in seen.failures[-FAILURES_SHOWN:]:
        yield paint(f"            {_failure(failure)}", YELLOW)
    if lost := sum(seen.host_losses.values()):
        yield f"  lost      {lost} node(s), on {len(seen.host_losses)} host(s)"
    yield from _saved("snapshot", "in memory", [node.snapshot for node in seen.nodes])
    yield from _saved("saved", "the newest checkpoint", [node.checkpoint for node in seen.nodes])
    for node in seen.nodes:
        line = f"  node      {_node(node)}"
        yield paint(line, RED) if node.phase == "silent" else line
        for several in _alike(node.workers):
            yield f"            {_workers(several)}"
        if node.notes:
            yield f"            {', '.join(f'{name} {value}' for name, value in node.notes.items())}"
    if seen.why_waiting:
        yield f"  waiting   {seen.waiting} node(s): {seen.why_waiting}"
    if seen.spares and seen.state == "running":
        yield f"  spares    {seen.waiting} of --spares={seen.spares}"
    if has_store:
        yield f"  store     answers in {1000 * seen.store_s:.0f} ms{_slowest(seen.nodes)}"


def _failure(failure: Failure) -> str:
    what = failure.exception or ("no start" if failure.exit_code is None else describe_exit(failure.exit_code))
    who = "" if failure.rank is None else f"rank {failure.rank} on "
    step = "" if failure.step is None else f" at step {failure.step}"
    return f"round {failure.round}: {what}, {who}{failure.host}{step}, {describe_duration(failure.seconds_ago)} ago"


def _node(node: NodeStatus) -> str:
    ranks = "" if node.ranks is None else f", ranks {node.ranks[0]} to {node.ranks[1]}"
    if node.ranks is not None and node.ranks[0] == node.ranks[1]:
        ranks = f", rank {node.ranks[0]}"
    marks = [*(["decides"] if node.leads else []), *(["leaves"] if node.leaving else [])]
    return f"{node.host}{ranks}: {node.phase}" + (f" ({', '.join(marks)})" if marks else "")


def _saved(label: str, what: str, found: Sequence[SavedStatus | None]) -> Iterator[str]:
    if saved := [each for each in found if each is not None]:
        newest = min(saved, key=lambda each: each.age_s)
        step = "" if newest.step is None else f"of step {newest.step}, "
        yield f"  {label:<9} {step}{describe_duration(newest.age_s)} ago, {what}"


def _alike(workers: Sequence[WorkerStatus]) -> Iterator[list[WorkerStatus]]:
    """Yield the ranks of a node in lists of ranks that follow each other and go on alike."""
    newest = min((worker.age_s for worker in workers if worker.age_s is not None), default=0.0)

    def progress(worker: WorkerStatus) -> tuple[bool, bool]:
        behind = worker.age_s is not None and worker.age_s > newest + BEHIND_SECONDS
        return worker.age_s is None, behind

    for _, several in itertools.groupby(workers, key=progress):
        yield list(several)


def _workers(several: list[WorkerStatus]) -> str:
    """Describe ranks that go on alike; the age is the greatest of them."""
    first, last = several[0], several[-1]
    ranks = f"rank {first.rank}" if first is last else f"ranks {first.rank} to {last.rank}"
    ages = [worker.age_s for worker in several if worker.age_s is not None]
    steps = [worker.step for worker in several if worker.step is not None]
    to = f" to {max(steps)}" if len({*steps}) > 1 else ""
    reached = f" at step {min(steps)}{to}" if steps else ""
    progress = f"{reached}, last progress {describe_duration(max(ages))} ago" if ages else ""
    pids = ", ".join("none yet" if worker.pid is None else str(worker.pid) for worker in several)
    return f"{ranks}{progress}; pid {pids}"


def _slowest(nodes: Sequence[NodeStatus]) -> str:
    slowest = max(nodes, key=lambda node: node.store_s or 0.0, default=None)
    if len(nodes) < 2 or slowest is None or not slowest.store_s:
        return ""
    return f" here, and in {1000 * slowest.store_s:.0f} ms on {slowest.host}, which waits longest"


command = FlagCommand(
    "status",
    callback=status,
    params=[
        click.Argument(["job"], required=False),
        *STORE_FLAGS,
        click.Option(["--watch"], is_flag=True, help="Look again every 2 s, until the job is over or Ctrl-C."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON: an object for JOB, else a list of jobs."),
    ],
    help="Show what JOB does: its nodes, its ranks, and the cause of each restart.\n\nJOB is the job's --rdzv_id. The "
    "flags of `elastic run` name its store; without them JOB is one of your jobs on this host, and the beginning of "
    "its id is enough. Without JOB the command lists the jobs of this host, or shows the only one. It changes nothing.",
    epilog="It works on any host that reaches the store. The exit code is 0 if the job exists, even if it has failed.",
)


def all_printable(value: Any) -> Any:
    """Return a dataclass, dict, list or tuple with each text in it as of :func:`printable`, and others as they are."""
    if isinstance(value, str):
        return printable(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{item.name: all_printable(getattr(value, item.name)) for item in fields(value)})
    if isinstance(value, dict):
        return {all_printable(key): all_printable(each) for key, each in value.items()}
    return type(value)(map(all_printable, value)) if isinstance(value, (list, tuple)) else value
