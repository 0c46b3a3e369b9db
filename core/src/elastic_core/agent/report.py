"""The texts that users read: a round starts, a job ends, and the root cause of a failure.

Every node prints the same root cause, because it comes from the ledger's last entry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from elastic_core.events import Event, Field, Level
from elastic_core.exit_codes import ExitCode, describe_exit
from elastic_core.gates import RunSummary
from elastic_core.incidents import PEER_LOST, Failure, Incident, IncidentKind, describe_limit
from elastic_core.plugins.manager import Plugins
from elastic_core.protocol.entries import Closed, Entry, Halt, HaltReason, Plan, Resume, Round, StopAt
from elastic_core.protocol.ledger import Ledger, advance
from elastic_core.protocol.node_events import Work
from elastic_core.protocol.roster import NodeInfo
from elastic_core.session.join import Arrival, FormerNode
from elastic_core.warden import messages

Publish = Callable[[Event], None]

MOST_PAST_FAILURES = 5  # of earlier rounds, that a failed job's last message names
ROOT_CAUSE_MAX_LINES = 13  # with the lines before it, a failed job's last message has 15
FIRST_OF_ALL, FIRST_HERE = "the first failure across all nodes", "the first failure on this node"
FENCED = {
    Work.RUNNING: "no contact with the store for too long: the workers are stopped",
    Work.STOPPING: "the workers had not stopped {:.0f} s after their round was over, and were killed "
    "(80 % of fence_after; others may go on then)",
}  # what a fence does that goes off (rule S4), with the seconds until then


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an agent."""

    exit_code: int  # one of ``ExitCode``, or 128 and the number of a signal
    why: str
    incident: Incident | None = None  # the root cause of a failed job, if it was a worker's failure
    rejoin: bool = False  # whether the agent must begin again, as a new node
    former: FormerNode | None = None  # the node that it was, if it begins again
    recorded: Mapping[str, Any] | None = None  # the error file of the worker that failed, if it was on this node


def no_place(ledger: Ledger, info: NodeInfo) -> Event | None:
    """Return the event that a running job does not take this node; None if it does."""
    if not ledger.is_live or ledger.round is None or info.node_id in ledger.round.group_ranks:
        return None
    training, agreement = len(ledger.round.members), ledger.settings.agreement
    if training >= agreement.max_nodes and not agreement.spares:
        message = (
            f"the job has all {training} node(s) that it takes: this node is a spare of the job that "
            f"{ledger.settings.host} opened, starts no worker until one of them leaves, and ends when the job does. "
            "(Another job needs an --rdzv_id of its own.)"
        )
        return Event("spare", message, Level.WARNING)
    if training >= agreement.max_nodes:
        message = f"{agreement.describe_sizes(training)}: this node waits as a spare, to take the place of a lost one"
        return Event("spare", message)
    counters, host, age = ledger.counters, info.host_id, ledger.head.age
    excluded = counters.excluded_at(age)
    if host not in counters.bad_hosts(age):
        why = agreement.describe_sizes(training)
        return Event("spare", f"{why}; this node waits as a spare") if why else None
    why = "excluded by a failure policy, or not reached by others"
    if host not in excluded:
        why = f"lost {counters.losses[host].count} times"
    message = f"this host was {why}: waiting as long as nodes of other hosts are enough"
    return Event("left_out", message, Level.WARNING)


def publish_as(plugins: Plugins, info: NodeInfo, event: Event) -> None:
    """Publish an event of this node; agents that share a host are told apart by their slots."""
    plugins.publish(replace(event, fields={"node": str(info), **event.fields}))


TOO_LATE = "the run has ended before this node had joined it"
SPARE = "the job needed no more nodes"


def under_way(arrival: Arrival, modules: Iterable[str]) -> Event:
    """Return the event of a live round that the node joins once its starter is ready."""
    imports = ", ".join(modules) or "modules"
    message = f"round {arrival.round} of run {arrival.run} is under way: joining it after the import of {imports}"
    return Event("under_way", message, fields={"run": arrival.run, "round": arrival.round})


def finish(
    publish: Publish, closed: Closed, summary: RunSummary | None = None, *, known: str = FIRST_OF_ALL, idle: str = ""
) -> Ending:
    """Report how the job ended, with the root cause of a failure.

    ``summary`` is None where this node had no part in the run. ``known`` says how far the incident is known to be the
    root cause, and ``idle`` why this node has started no worker; '' if it has.
    """
    if idle:
        publish(Event("idle", f"this node started no worker: {idle}", Level.WARNING))
    level = Level.INFO if closed.success else Level.ERROR
    fields: dict[str, Field] = {"success": closed.success, "exit_code": closed.exit_code, "requeue": closed.requeue}
    if summary is not None:
        fields |= {"restarts": summary.restarts, "run_s": summary.seconds}
        fields |= {"interrupted_s": summary.interrupted_seconds, "nodes_lost": summary.nodes_lost}
    publish(Event("job_closed", describe_verdict(closed, known, summary), level, fields))
    return Ending(closed.exit_code, closed.why, closed.incident)


def starter(event: messages.StarterEvent) -> Event:
    """Return the event of a starter that is ready, has failed, or is dead."""
    match event:
        case messages.StarterReady(pid, text, more):
            return Event("starter_ready", text, Level.DEBUG, {"pid": pid, **more})
        case messages.StarterFailed(reason):
            message = f"the warm start is off, so each worker imports everything by itself:\n{reason}"
            return Event("starter_failed", message, Level.WARNING)
        case messages.StarterDied(how):
            return Event(
                "starter_died", f"the process that forks workers {how}; another one is being started", Level.WARNING
            )


def describe_verdict(closed: Closed, known: str = FIRST_OF_ALL, summary: RunSummary | None = None) -> str:
    """Return the closing message, several lines for a failure; arguments as for :func:`finish`."""
    if closed.success:
        told = "" if summary is None else summary.describe()
        return f"the job is done: {closed.why}" + (f" ({told})" if told else "")
    lines = [f"the job has failed: {closed.why}"]
    if closed.incident is not None:
        lines += ["", *root_cause(closed.incident, known)]
        past = () if summary is None else [one for one in summary.failures if one.round < closed.incident.round]
        lines += [f"  before  {_describe_past(one)}" for one in past[-MOST_PAST_FAILURES:]]
    if closed.exit_code == ExitCode.TOO_FEW_NODES:
        lines += ["", "Start the missing nodes with the same command, or lower the minimum of --nnodes=MIN:MAX."]
    return "\n".join(lines)


def _describe_past(failure: Failure) -> str:
    """Return a failure of an earlier round in one line."""
    who = f"rank {failure.rank} on {failure.host}" if failure.rank is not None else failure.host
    what = failure.exception or ("" if failure.exit_code is None else describe_exit(failure.exit_code))
    what = "the loss of a peer" if failure.digest == PEER_LOST else what or "a start that failed"
    where = f", at {failure.place}" if failure.place else ""
    return f"round {failure.round}: {who}: {what}{where}"


def leave(publish: Publish, exit_code: int, why: str, incident: Incident | None) -> Ending:
    """Report that a node leaves without a verdict on the job: why, and what failed here, if anything did."""
    lines = [f"this node is out: {why}"]
    if incident is not None:
        lines += ["", *root_cause(incident, "as far as this node knows")]
    level = Level.WARNING if exit_code else Level.INFO
    if exit_code == ExitCode.STORE_LOST:  # without a store, no node closes the job: this is its summary
        level = Level.ERROR
    publish(Event("left", "\n".join(lines), level))
    return Ending(exit_code, why, incident)


def root_cause(incident: Incident, known: str = FIRST_OF_ALL) -> list[str]:
    """Return the lines that describe a failure."""
    consequence = ", which follows from the loss of a peer" if incident.follows_peer else ""
    facts = {
        "who": _who(incident),
        "what": f"{incident.cause()}{consequence}",
        "error": "" if incident.message == incident.cause() else incident.message,
        "where": incident.where,
        "others": incident.others,
        "hint": _hint(incident),
        "log": incident.log and f"{incident.log} on {incident.host}",
    }
    lines = [f"Root cause ({known})", *(f"  {name:<7} {text}" for name, text in facts.items() if text)]
    if incident.detail:
        traceback = incident.exception and incident.exit_code is not None and incident.exit_code > 0
        lines.append("  its traceback:" if traceback else "  the last lines of its stderr:")
        tail = _without_bars(incident.detail)[-(ROOT_CAUSE_MAX_LINES - len(lines)) :]
        lines += [f"    | {line}" for line in tail]
    return lines


def _without_bars(text: str) -> list[str]:
    """Return the lines of a text as a terminal shows them in the end, without frames of bars if there are others."""
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.rstrip().split("\n")]
    return [line for line in lines if not _BAR.search(line)] or lines


_BAR = re.compile(r"\d+%\|.*\| *\S+/\S+ \[")  # as tqdm draws it
_HINTS: Mapping[IncidentKind, str] = {
    IncidentKind.EXITED_EARLY: "All ranks must take the same number of steps: compare the number of batches by rank.",
    IncidentKind.NODE_LOST: "Look there for what ended the agent or the host: its kernel's log, the scheduler's, the "
    "network.",
}


def _hint(incident: Incident) -> str:
    """Return what to do about a failure in one sentence; '' where nothing is known."""
    if known := incident.explanation.advice or _HINTS.get(incident.kind):
        return known
    silent = not (incident.message or incident.detail or incident.where)
    if silent and incident.exit_code is not None and incident.exit_code > 0:
        code = incident.exit_code
        return f"It wrote nothing to stderr: look for sys.exit({code}) or os._exit({code}) in the program."
    return ""


def _who(incident: Incident) -> str:
    """Return the worker and when it failed; or only the node, since a loss is found later than it happens."""
    if incident.rank is None:
        return f"node {incident.host}, round {incident.round}"
    where = [f"host {incident.host}"]
    if incident.local_rank is not None:
        where.append(f"local rank {incident.local_rank}")
    if incident.pid is not None:
        where.append(f"pid {incident.pid}")
    at = f"round {incident.round}, {incident.after:.1f} s after its start"
    if incident.step is not None:
        at += f", at step {incident.step}"
    return f"rank {incident.rank} ({', '.join(where)}), {at}"


def ledger_events(
    ledger: Ledger, entries: Iterable[Entry], now: float, node_id: str, own: Incident | None = None
) -> Iterator[Event]:
    """Yield the events of entries after ``ledger``, read at ``now``, for node ``node_id``, whose newest failure is own.

    Raises:
        RendezvousStateError: An entry does not follow.
    """
    for entry in entries:
        if ledger.closed is not None:
            return  # what follows CLOSED is another run's
        before, ledger = ledger, advance(ledger, entry, now)
        if isinstance(entry.body, Resume):
            continue  # everything is as it was
        match entry.body:
            case Plan(round=number, why=why, deadline=deadline):
                message = f"the workers of round {number} are to stop together within {deadline:g} s: {why}"
                yield Event("stop_planned", message, fields={"round": number, "why": why, "deadline_s": deadline})
            case StopAt(round=number, step=at):
                message = f"the workers of round {number} stop at step {at}"
                yield Event("stop_at", message, fields={"round": number, "step": at})
        if ledger.halt is not None and ledger.halt is not before.halt:
            yield round_halted(ledger.halt)
        if ledger.round is not None and ledger.round is not before.round:
            yield round_started(before, ledger, ledger.round, node_id, own)


def warden_silent(pid: int, seconds: float) -> Event:
    """Return the event of a warden that does not run, so that nothing of the workers is noticed."""
    message = (
        f"the parent process of this node's workers (pid {pid}) has not run for {seconds:.0f} s, so that no "
        f"failure of a worker is noticed. If it was stopped, let it go on (kill -CONT {pid}); else look whether its "
        "cgroup is frozen"
    )
    return Event("warden_silent", message, Level.WARNING, {"pid": pid, "silence_s": round(seconds, 1)})


def round_halted(halt: Halt) -> Event:
    """Return the event of a round that is over, and whose workers are stopped.

    People read of a worker's failure where it happens, and in what follows: the next round, or the end of the job.
    """
    fields: dict[str, Field] = {"round": halt.round, "reason": halt.reason.value}
    level = Level.DEBUG if halt.reason in (HaltReason.FAILURE, HaltReason.GIVING_UP) else Level.INFO
    ends = "ends for a resize" if halt.reason is HaltReason.RESIZE else "is halted"
    return Event("round_halted", f"round {halt.round} {ends}: {halt.why}", level, fields)


def round_started(before: Ledger, ledger: Ledger, current: Round, node_id: str, own: Incident | None = None) -> Event:
    """Return the event of a new round for node ``node_id``, which has known the ledger as ``before`` until now.

    ``own`` is the failure that this node has published in the round before.
    """
    restarts, note = ledger.counters.restarts, ""
    if current.charged:
        note = f", restart {restarts}{describe_limit(ledger.settings.agreement.max_restarts)}"
    elif restarts < before.counters.restarts:
        note = f", restart {before.counters.restarts} is given back"
    published = "" if own is None else f"rank {own.rank} on {own.host} {own.describe()}"
    told = own is not None and own.exit_code != 0 and not own.follows_peer and current.why == published
    member = ledger.is_member(node_id)
    nodes, workers = len(current.members), sum(each.local_world_size for each in current.members)
    out, why = "" if member else "; this node is not in it and waits", "" if told else f" ({current.why})"
    message = f"round {current.number}: {workers} worker(s) on {nodes} node(s){note}{why}{out}"
    fields: dict[str, Field] = {
        "round": current.number,
        "nodes": nodes,
        "world_size": workers,
        "restarts": restarts,
        "why": current.why,
        "verdict": current.verdict,
        "cause": _cause(before, current),
        "member": member,
    }
    return Event("round_started", message, fields=fields)


def _cause(before: Ledger, current: Round) -> str | None:
    """Return a word for what led from the ledger ``before`` to the round after it; None for the first round."""
    if before.round is None:
        return None
    halt = before.halt
    if halt is None:  # the same members again, without a HALT
        return "failure" if current.charged else "store"
    if halt.incident is not None and halt.incident.kind in (IncidentKind.PORT_TAKEN, IncidentKind.STORE_DIED):
        return "store"
    given_up = halt.reason is HaltReason.GIVING_UP  # a round follows only where a node turned out to be gone
    reason: str = HaltReason.NODE_LOST.value if given_up else halt.reason.value
    return reason


@dataclass(slots=True)
class Recovery:
    """From the first trouble until the workers of the next round train: instants of the monotonic clock, in seconds.

    The parts overlap, since the leader decides while the old workers are being stopped. So each part is reported by its
    end, counted from the beginning.
    """

    began: float  # when the worker ended that failed first; else when this node learned that the round is over
    detected: float  # when this node knew
    decided: float | None = None  # when it read of the next round
    stopped: float | None = None  # when no process of the old round was left
    running: float | None = None  # when the programs of all workers of the next round ran

    def parts(self, **ends: float) -> dict[str, float]:
        """Return the seconds until the end of each part, and until ``ends``."""
        instants = {**asdict(self), **ends}
        began = instants.pop("began")
        return {f"{name}_s": round(at - began, 6) for name, at in instants.items() if at is not None}


@dataclass(slots=True)
class Interruptions:
    """The interruptions of training on this node."""

    current: Recovery | None = None
    seconds: float = 0.0  # how long no workers ran between two rounds, all interruptions together

    def begin(self, now: float, began: float | None = None) -> None:
        """Begin an interruption that is detected now and ``began`` then, by default now; unless one goes on."""
        if self.current is None:
            self.current = Recovery(began=now if began is None else began, detected=now)

    def end(self, now: float) -> Recovery | None:
        """End the interruption, since the workers of the next round run, and return it; None if there was none."""
        recovery, self.current = self.current, None
        if recovery is not None:
            recovery.running = now
            self.seconds += now - recovery.began
        return recovery


def restarted(number: int, recovery: Recovery, fresh: str, unlearned: int = 0) -> Event:
    """Return what the restart cost on this node until the programs of round ``number`` run.

    ``recovery`` is the interruption that led to it. ``fresh`` says why workers started fresh; '' if the starter forked
    all of them. A worker imports ``unlearned`` modules itself that the starter has not imported.
    """
    took = round((recovery.running or recovery.began) - recovery.began, 6)
    how = f"its workers import all modules themselves ({fresh})" if fresh else "its workers started warm"
    if unlearned and not fresh:
        how += f", and import {unlearned:,} module(s) themselves"
    message = f"round {number} runs {took:.3f} s after the interruption, and {how}"
    fields: dict[str, Field] = {"round": number, "took_s": took, "warm": not fresh, "why": fresh}
    return Event("restarted", message, fields={**fields, "unlearned": unlearned, **recovery.parts()})


def initialized(number: int, workers: int, took: float, recovery: Recovery | None, now: float) -> Event:
    """Return the event that all local workers of round ``number`` are in the process group.

    They were started ``took`` seconds ago; ``recovery`` is the interruption that led to the round, if one did.
    """
    parts = {} if recovery is None else recovery.parts(initialized=now)
    fields: dict[str, Field] = {"round": number, "workers": workers, "took_s": took, **parts}
    told = ", ".join(f"{name.removesuffix('_s')} after {seconds:.3f}" for name, seconds in parts.items())
    message = f"the process group of round {number} is there: {told or f'after {took:.3f}'} s"
    return Event("initialized", message, Level.DEBUG, fields)
