"""The health checks of one agent, with real threads."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Any

import pytest

from elastic_core.agent.health import HealthChecks
from elastic_core.agent.interruption import Interruption
from elastic_core.events import Event
from elastic_core.node_checks import ChosenCheck, ChosenChecks, Finding, NodeCheck
from elastic_core.plugins.host_end import HostEnd


def fail(_value: str) -> Finding | None:
    raise ValueError("no such file")


@pytest.mark.parametrize("look", [fail, sys.exit], ids=["raises", "exits"])
def test_a_check_that_itself_fails_is_reported_and_refuses_nothing(look: Any) -> None:
    said = list[Event]()
    warden: Any = None  # no check is a process
    checks = HealthChecks("job", ChosenChecks((ChosenCheck("odd", NodeCheck(look=look)),)), warden, said.append)
    with closing(Interruption([], HostEnd())) as interruption:
        checks.run(interruption)
    assert [event.name for event in said] == ["node_check_broken"]
    assert "the health check 'odd' itself failed: " in said[0].message
