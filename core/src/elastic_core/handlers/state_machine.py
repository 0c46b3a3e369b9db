"""The node's state machine over a rendezvous handler, which keeps no ledger: what torchrun's agent does, as a function.

Without a ledger, each node decides for itself from what it observes: its own workers, and how many nodes the handler
says are waiting. :func:`step` adds an event to the state and returns the effects; ``handlers.agent`` runs them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TypeAlias

from elastic_core.exit_codes import ExitCode
from elastic_core.incidents import Action, Incident, IncidentKind, Verdict, distance_to_cause
from elastic_core.protocol.entries import Closed, HaltReason, Round
from elastic_core.protocol.node_events import Exit, Grace, Leaving, Start, Stop, WorkerFailed, WorkersDone, WorkersGone


class HandlerWork(enum.Enum):
    """What this node is doing."""

    MEETING = "meeting"  # the handler was asked for a round and has not answered yet
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHING = "finishing"  # the workers here have exited with 0; those of other nodes may not have
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerState:
    """The state of such a node."""

    work: HandlerWork = HandlerWork.MEETING
    round: Round | None = None  # the newest round that it was in
    restarts: int = 0  # restarts spent on this node, of ``--max_restarts``; each node counts for itself
    why: str = "the first round"  # why the round began, or why the next one will
    reason: HaltReason | None = None  # why the last round ended; None before the first one has
    incident: Incident | None = None  # the failure that ended the round, if one did
    alike: int = 0  # how many workers here failed with the message of that failure
    verdict: Verdict | None = None  # the verdict of the failure policies on it; None until they answer
    gone: bool = False  # whether the stop is complete
    leaving: Leaving | None = None


@dataclass(frozen=True, slots=True)
class Met:
    """The handler sealed a round with this node in it."""

    round: Round
    restarts: int  # the most restarts that any node of the round has spent, which the workers of all nodes are told


@dataclass(frozen=True, slots=True)
class Counted:
    """The handler said how many nodes wait."""

    waiting: int


@dataclass(frozen=True, slots=True)
class Judged:
    """The failure policies answered."""

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class OthersFinished:
    """The wait for the other nodes is over; ``missing`` are the ranks of nodes that did not say that they finished."""

    missing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Absent:
    """Where the ranks here were that may be what a failed one waited for; '' for none."""

    others: str


HandlerEvent: TypeAlias = (
    "Met | Counted | Judged | OthersFinished | WorkerFailed | Absent | WorkersDone | WorkersGone | Leaving"
)


@dataclass(frozen=True, slots=True)
class AskHandler:
    """Ask the handler for the next round."""


@dataclass(frozen=True, slots=True)
class Judge:
    """Ask the failure policies about a failure, or about the one that has turned out to be its cause."""

    incident: Incident
    restarts: int


@dataclass(frozen=True, slots=True)
class AwaitOthers:
    """Tell the other nodes that this one has finished, and wait until they have."""


@dataclass(frozen=True, slots=True)
class Close:
    """The job is over as far as this node knows: shut the handler down and end."""

    closed: Closed


HandlerEffect: TypeAlias = "AskHandler | Start | Stop | Judge | AwaitOthers | Close | Exit"
Step: TypeAlias = "tuple[HandlerState, tuple[HandlerEffect, ...]]"


def step(state: HandlerState, event: HandlerEvent) -> Step:
    """Return the state after an event, and the effects to run. An event that comes too late changes nothing."""
    match event, state.work:
        case Met(found, restarts), HandlerWork.MEETING:
            state = replace(state, work=HandlerWork.RUNNING, round=found, gone=False, alike=0)
            return replace(state, incident=None, verdict=None), (Start(found, restarts),)
        case Counted(waiting), HandlerWork.RUNNING if waiting > 0:
            why = f"{waiting} node(s) wait to join"
            return _stop(replace(state, why=why, reason=HaltReason.RESIZE), Grace.PLANNED)
        case WorkerFailed(incident), HandlerWork.RUNNING:
            why = f"rank {incident.rank} {incident.describe()}"
            state = replace(state, why=why, reason=HaltReason.FAILURE, incident=incident)
            state, effects = _stop(state, Grace.BROKEN)
            return state, (*effects, Judge(as_judged(incident), state.restarts))
        case WorkerFailed(incident), HandlerWork.STOPPING if _is_better_cause(state, incident):
            return replace(state, why=f"rank {incident.rank} {incident.describe()}", incident=incident), ()
        case Absent(others), HandlerWork.STOPPING if others and state.incident is not None:
            return replace(state, why=f"{state.why}; {others}", incident=replace(state.incident, others=others)), ()
        case WorkersDone(), HandlerWork.RUNNING:
            return replace(state, work=HandlerWork.FINISHING), (AwaitOthers(),)
        case OthersFinished(missing), HandlerWork.FINISHING:
            return _end(state, Close(_success(missing)))
        case Judged(verdict), HandlerWork.STOPPING:
            return _go_on(replace(state, verdict=verdict))
        case WorkersGone(alike), HandlerWork.STOPPING:
            return _go_on(replace(state, gone=True, alike=alike))
        case Leaving() as leaving, HandlerWork.RUNNING:
            state = replace(state, leaving=leaving, why=leaving.why, reason=HaltReason.NODE_LEFT)
            return _stop(state, Grace.PLANNED)
        case Leaving() as leaving, HandlerWork.STOPPING:
            return _go_on(replace(state, leaving=leaving))
        case Leaving(why, exit_code), HandlerWork.MEETING | HandlerWork.FINISHING:
            return _end(state, Exit(exit_code, why))
    return state, ()


def _stop(state: HandlerState, grace: Grace) -> Step:
    return replace(state, work=HandlerWork.STOPPING), (Stop(grace, state.why),)


def _go_on(state: HandlerState) -> Step:
    """Go on after a stop, once no process is left and the failure policies have answered."""
    if not state.gone:
        return state, ()
    if state.leaving is not None:
        return _end(state, Exit(state.leaving.exit_code, state.leaving.why))
    if state.incident is None:
        return replace(state, work=HandlerWork.MEETING), (AskHandler(),)
    match state.verdict:
        case None:
            return state, ()
        case Verdict(Action.RESTART) | Verdict(Action.EXCLUDE_HOST, exclude_for=float()):  # no ledger keeps the end
            return replace(state, work=HandlerWork.MEETING, restarts=state.restarts + 1), (AskHandler(),)
        case Verdict(Action.EXCLUDE_HOST, reason):  # a node can exclude only itself
            return _end(state, Exit(ExitCode.WITHDRAWN, reason))
        case Verdict(_, reason, requeue):
            if state.alike > 1:
                reason += f"; {state.alike} ranks of this node failed alike"
            requeue = requeue and state.incident.kind is not IncidentKind.EXITED_EARLY  # another try would not help
            code = ExitCode.REQUEUE if requeue else ExitCode.JOB_FAILED
            failed = Closed(success=False, why=reason, exit_code=code, incident=state.incident, requeue=requeue)
            return _end(state, Close(failed))


def _is_better_cause(state: HandlerState, incident: Incident) -> bool:
    """Whether a failure that was found while workers were being stopped is closer to the root cause."""
    known = state.incident
    return known is not None and distance_to_cause(incident) < distance_to_cause(known)


def as_judged(incident: Incident) -> Incident:
    """Return the incident as policies see it: here only the budget ends a job whose port is always taken."""
    if incident.kind is IncidentKind.PORT_TAKEN:
        return replace(incident, kind=IncidentKind.WORKER_FAILED)
    return incident


def _success(missing: tuple[int, ...]) -> Closed:
    why = "every worker of the last round exited with 0"
    if missing:
        why = f"every worker here exited with 0; of node {', '.join(map(str, missing))} nothing was heard in time"
    return Closed(success=True, why=why, exit_code=ExitCode.SUCCESS)


def _end(state: HandlerState, effect: Close | Exit) -> Step:
    return replace(state, work=HandlerWork.OVER), (effect,)
