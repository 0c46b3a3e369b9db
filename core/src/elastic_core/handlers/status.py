"""The state of an agent over a rendezvous handler, in words."""

from __future__ import annotations

from elastic_core.agent.status import Status, describe_member
from elastic_core.handlers.state_machine import AskingState, Work
from elastic_core.protocol.roster import NodeInfo


def describe_polled(state: AskingState, info: NodeInfo, status: Status) -> str:
    """The state of an agent over a rendezvous handler that keeps no ledger."""
    waits_for = {
        Work.MEETING: "the handler to give a round",
        Work.RUNNING: "nothing: the workers run",
        Work.STOPPING: "the workers to end" if state.verdict or not state.incident else "the failure policies",
        Work.FINISHING: "the other nodes to finish",
        Work.OVER: "the handler to be shut down",
    }[state.work]
    number = "none yet" if state.round is None else f"{state.round.number}, the newest that this node was in"
    rows = [
        ("round", number),
        ("restarts", f"{state.restarts} spent by this node"),
        ("waits for", status.describe_wait(waits_for)),
    ]
    members = () if state.round is None else state.round.members
    return describe_member(info, members, status, rows)
