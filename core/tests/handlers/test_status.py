"""The state of an agent over a rendezvous handler, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from views import incident, info, members, offer

from elastic_core.agent.status import Status
from elastic_core.handlers.state_machine import HandlerState, HandlerWork
from elastic_core.handlers.status import describe_polled
from elastic_core.protocol.entries import Round


def lines(text: str, label: str) -> list[str]:
    """What is said under a label."""
    return [line[13:] for line in text.splitlines() if line[2:12].rstrip() == label]


@pytest.mark.parametrize(
    ("polled", "said"),
    [
        (HandlerState(), "the handler to give a round"),
        (HandlerState(work=HandlerWork.RUNNING), "nothing: the workers run"),
        (HandlerState(work=HandlerWork.STOPPING), "the workers to end"),
        (HandlerState(work=HandlerWork.STOPPING, incident=incident("a")), "the failure policies"),
        (HandlerState(work=HandlerWork.FINISHING), "the other nodes to finish"),
        (HandlerState(work=HandlerWork.OVER), "the handler to be shut down"),
    ],
)
def test_an_agent_over_a_handler_says_less(polled: HandlerState, said: str) -> None:
    sealed = Round(number=4, offer=offer("a"), members=members("ab"))
    status = Status(job="'j'", store="mine", pid=7, now=30.0, since=25.0)
    text = describe_polled(replace(polled, round=sealed), info("a"), status)
    assert lines(text, "job") == ["'j' over mine"]
    assert lines(text, "round") == ["4, the newest that this node was in"]
    assert lines(text, "waits for") == [f"{said}, for 5.0 s"]
    assert lines(text, "member") == ["ranks 0 to 1 on host-a, this node", "ranks 2 to 3 on node b"]
