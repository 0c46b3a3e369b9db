"""The health checks of a node, with real threads and processes."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest

from elastic_core import UnhealthyNodeError
from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.events import Event
from elastic_core.gates import JoinGate
from elastic_health.checks import ChosenCheck, ChosenChecks, Finding, NodeCheck
from elastic_health.runner import HealthChecks

CONFIG = RunConfig(program=Program(ProgramKind.EXECUTABLE, "true"), rdzv_id="job")


def fail(_value: str) -> Finding | None:
    raise ValueError("no such file")


def command(*argv: str) -> NodeCheck:
    return NodeCheck(command=argv, advice="Mend it.")


def gate_of(
    *checks: NodeCheck, timeout: float = 60.0, retry: float | None = None, patience: float = 0.0
) -> tuple[JoinGate, list[Event]]:
    said = list[Event]()
    gate = JoinGate(CONFIG, said.append, patience)
    chosen = tuple(ChosenCheck(f"check{number}", check) for number, check in enumerate(checks))
    HealthChecks(ChosenChecks(chosen, timeout, retry), gate).add_to_gate()
    return gate, said


@pytest.mark.parametrize("look", [fail, sys.exit], ids=["raises", "exits"])
def test_a_check_that_itself_fails_is_reported_and_refuses_nothing(look: Any) -> None:
    gate, said = gate_of(NodeCheck(look=look))
    gate.checks[0].call()
    assert [event.name for event in said] == ["node_check_broken"]
    assert "the health check 'check0' itself failed: " in said[0].message


def test_without_a_check_the_gate_has_none() -> None:
    assert gate_of()[0].checks == []


def test_a_host_is_checked_again_by_processes_only() -> None:
    looks, runs = gate_of(NodeCheck(look=lambda _: None)), gate_of(command("true"))
    assert [(one.quick, one.again) for gate, _ in (looks, runs) for one in gate.checks] == [
        (True, False),
        (False, True),
    ]
    again = gate_of(NodeCheck(look=lambda _: None), retry=1.0)
    assert [(one.quick, one.again) for one in again[0].checks] == [(False, False)]


def test_all_failed_checks_are_named() -> None:
    wrong = Finding("found no /scratch", "Mount it.")
    gate, said = gate_of(
        NodeCheck(look=lambda _: wrong), command("true"), command("sh", "-c", "echo broken >&2; exit 3")
    )
    with pytest.raises(UnhealthyNodeError) as caught:
        gate.checks[0].call()
    assert caught.value.message == "This node does not enter job 'job', because of the health checks check0, check2."
    assert caught.value.hint == "Mount it. Mend it."
    assert [(event.name, event.fields["found"]) for event in said] == [
        ("node_check_failed", "found no /scratch"),
        ("node_check_failed", "exited with code 3: broken"),
    ]


def test_failed_checks_run_again_until_they_pass() -> None:
    answers = [Finding("found no /scratch"), Finding("found no /scratch"), None]
    gate, said = gate_of(NodeCheck(look=lambda _: answers.pop(0)), retry=0.01, patience=math.inf)
    gate.checks[0].call()
    assert [event.name for event in said] == ["node_check_failed", "node_check_again"] * 2 + ["node_checked"]


def test_failed_checks_run_again_for_as_long_as_the_job_waits() -> None:
    gate, _ = gate_of(command("false"), retry=0.1, patience=0.05)
    with pytest.raises(UnhealthyNodeError, match=r"check0, which ran again for 0.05 s at most"):
        gate.checks[0].call()


def test_a_closed_gate_ends_a_check_and_tells_no_failure() -> None:
    gate, said = gate_of(command("sleep", "3600"))
    gate.closed.set()
    gate.checks[0].call()
    assert said == []
