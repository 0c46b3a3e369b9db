"""The state and the rounds of an agent over a foreign rendezvous handler, in words."""

from __future__ import annotations

from elastic_core.agent.report import round_event
from elastic_core.agent.status import Status, describe_member
from elastic_core.config.run import describe_limit
from elastic_core.events import Event
from elastic_core.handlers.state_machine import HandlerState, HandlerWork
from elastic_core.protocol.entries import Round
from elastic_core.protocol.roster import NodeInfo


def describe_polled(state: HandlerState, info: NodeInfo, status: Status) -> str:
    """Return the state of an agent over a rendezvous handler that keeps no ledger."""
    waits_for = {
        HandlerWork.MEETING: "the handler to give a round",
        HandlerWork.RUNNING: "nothing: the workers run",
        HandlerWork.STOPPING: "the workers to end" if state.verdict or not state.incident else "the failure policies",
        HandlerWork.FINISHING: "the other nodes to finish",
        HandlerWork.OVER: "the handler to be shut down",
    }[state.work]
    number = "none yet" if state.round is None else f"{state.round.number}, the newest that this node was in"
    rows = [
        ("round", number),
        ("restarts", f"{state.restarts} spent by this node"),
        ("waits for", status.describe_wait(waits_for)),
    ]
    members = () if state.round is None else state.round.members
    return describe_member(info, members, status, rows)


def round_started(state: HandlerState, current: Round, max_restarts: int | None) -> Event:
    """Make the event of a new round of this node."""
    note = f", {state.restarts}{describe_limit(max_restarts)} restarts spent here" if state.restarts else ""
    return round_event(current, state.restarts, note, None if state.reason is None else state.reason.value)
