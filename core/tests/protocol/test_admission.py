"""Rule S6: who may join the run that is there, as a table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from views import VERSIONS, incident, live, settings, start, then

from elastic_core.errors import RendezvousRefusedError
from elastic_core.exit_codes import ExitCode
from elastic_core.protocol.admission import (
    Admission,
    admit,
    describe_differences,
    needs_liveness,
    settings_refusal,
)
from elastic_core.protocol.entries import Closed
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.settings import Command, Settings

CLOSED = Closed(success=True, why="done", exit_code=0)
TOO_FEW = Closed(success=False, why="1 of at least 2 nodes are here", exit_code=ExitCode.TOO_FEW_NODES)


def run(uid: str | None, *, closed: bool) -> Ledger:
    ledger = start(uid=uid)
    return then(ledger, CLOSED, at=1.0) if closed else ledger


def refused(opener: Settings, mine: Settings, *, allow_version_mismatch: bool = True, unnamed: bool = False) -> str:
    """Return the message of the refusal; '' where the run takes the node."""
    refusal = settings_refusal(opener, mine, allow_version_mismatch=allow_version_mismatch, unnamed=unnamed)
    return "" if refusal is None else refusal.message


REFUSED = None


@pytest.mark.parametrize(
    ("closed", "theirs", "mine", "alive", "answer"),
    [
        (False, None, None, [], Admission.JOIN),
        (False, None, None, ["host-b"], Admission.JOIN),
        (False, "s1", "s1", ["host-b"], Admission.JOIN),
        (False, "s1", None, [], Admission.JOIN),
        (False, "s1", "s2", [], Admission.CLOSE_AND_OPEN_NEXT),
        (False, "s1", "s2", ["host-b"], REFUSED),
        (False, None, "s2", ["host-b"], REFUSED),
        (True, "s1", "s1", [], CLOSED),
        (True, "s1", "s1", ["host-b"], CLOSED),
        (True, "s1", "s2", ["host-b"], Admission.OPEN_NEXT),
        (True, None, None, [], Admission.OPEN_NEXT),
        (True, "s1", None, [], Admission.OPEN_NEXT),
        (True, None, None, ["host-b"], REFUSED),
        (True, "s1", None, ["host-b"], REFUSED),
        (True, None, "s2", ["host-b"], REFUSED),
    ],
)
def test_admission(closed: bool, theirs: str | None, mine: str | None, alive: list[str], answer: object) -> None:
    ledger = run(theirs, closed=closed)
    if answer is REFUSED:
        with pytest.raises(RendezvousRefusedError, match="host-b"):
            admit(ledger, mine, alive)
    else:
        assert admit(ledger, mine, alive) == answer
    if not needs_liveness(ledger, mine):
        assert answer is not REFUSED
        assert admit(ledger, mine, []) == answer


@pytest.mark.parametrize(
    ("closed", "answer"),
    [
        pytest.param(TOO_FEW, Admission.OPEN_NEXT, id="too few nodes have come"),
        pytest.param(replace(TOO_FEW, incident=incident("a")), None, id="a worker had failed before"),
        pytest.param(replace(TOO_FEW, exit_code=1), None, id="it has failed"),
        pytest.param(replace(TOO_FEW, success=True, exit_code=0), None, id="it has succeeded"),
    ],
)
def test_a_node_that_comes_after_its_run_has_waited_in_vain_begins_the_next_one(closed: Closed, answer: object) -> None:
    ledger = then(start(uid="s1"), closed, at=1.0)
    assert admit(ledger, "s1", []) == (answer or closed)


@pytest.mark.parametrize(
    ("closed", "theirs", "mine", "needed"),
    [
        (False, None, None, False),
        (False, "s1", None, False),
        (False, "s1", "s1", False),
        (False, "s1", "s2", True),
        (False, None, "s2", True),
        (True, None, None, True),
        (True, "s1", None, True),
        (True, None, "s2", True),
        (True, "s1", "s1", False),
        (True, "s1", "s2", False),
    ],
)
def test_a_node_finds_out_who_is_alive_only_if_that_makes_a_difference(
    closed: bool, theirs: str | None, mine: str | None, needed: bool
) -> None:
    """It takes as long as losing a node."""
    assert needs_liveness(run(theirs, closed=closed), mine) is needed


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"max_nodes": 8}, "max_nodes: 8 here, 4 there"),
        ({"min_nodes": 2}, "min_nodes: 2 here, 1 there"),
        ({"max_restarts": 0}, "max_restarts: 0 here, 3 there"),
    ],
)
def test_other_settings_are_refused_by_name(change: dict[str, int], says: str) -> None:
    mine = settings(host="host-b", **change)  # type: ignore[arg-type]  # the table's values are all of the right type
    message = refused(live("a").settings, mine)
    assert message == f"host-b cannot join the run that host-a opened: they differ in {says}."


@pytest.mark.parametrize("which", ["failure_policies", "worker_plugins"])
def test_other_plugins_that_all_nodes_must_have_are_refused_by_name(which: str) -> None:
    opener = settings()
    agreement = replace(opener.agreement, **{which: ("mine",)})  # type: ignore[arg-type]  # both are tuples
    mine = replace(opener, host="host-b", agreement=agreement)
    assert f"{which}: mine here, none there" in refused(opener, mine)


def test_other_versions_are_refused_unless_allowed_and_name_both_nodes() -> None:
    opener = settings()
    mine = replace(opener, host="host-b", versions=replace(VERSIONS, torch=""))
    assert refused(opener, mine, allow_version_mismatch=False) == (
        "host-b has Python 3.11.7, no torch, but host-a, which opened the run, has Python 3.11.7, torch 2.13.0."
    )
    assert not refused(opener, mine)


A, B = Command(name="a.py", arguments="1"), Command(name="b.py", arguments="1")
OTHERWISE = Command(name="a.py", arguments="2")
OF_ANOTHER_ROLE = replace(B, role="critic")


@pytest.mark.parametrize(
    ("mine", "unnamed", "says"),
    [
        (A, True, ""),
        (B, False, "host-b is to run 'b.py', but the job with this id, which host-a opened, runs 'a.py'"),
        (OTHERWISE, False, ""),
        (OTHERWISE, True, "host-b and host-a, which opened the job, run 'a.py' with different arguments"),
        (Command(), True, ""),
        (OF_ANOTHER_ROLE, False, ""),
        (OF_ANOTHER_ROLE, True, "host-b is to run 'b.py'"),
    ],
    ids=[
        "the_same",
        "another_program",
        "other_arguments",
        "other_arguments_and_no_name",
        "not_known",
        "another_program_of_another_role",
        "another_program_of_another_role_and_no_name",
    ],
)
def test_another_command_is_refused_where_it_can_be_told_from_a_node_of_the_job(
    mine: Command, unnamed: bool, says: str
) -> None:
    opener, own = replace(settings(), command=A), replace(settings(host="host-b"), command=mine)
    message = refused(opener, own, unnamed=unnamed)
    assert message.startswith(says) if says else not message


def test_an_unknown_command_of_the_opener_keeps_no_node_out() -> None:
    for theirs in (Command(), Command(name="a.py")):
        opener, own = replace(settings(), command=theirs), replace(settings(host="host-b"), command=A)
        assert not refused(opener, own, unnamed=True)


@pytest.mark.parametrize(
    ("theirs", "mine", "differs"), [("1.0", "1.1", True), ("1.0", "1.0", False), ("", "1.1", False), ("1.0", "", False)]
)
def test_another_release_is_said_where_both_are_known(theirs: str, mine: str, differs: bool) -> None:
    said = describe_differences(replace(settings(), release=theirs), replace(settings(host="host-b"), release=mine))
    assert [text.partition(",")[0] for text in said] == (
        ["elastic-core is 1.1 here and 1.0 on host-a"] if differs else []
    )


def test_a_tolerated_difference_is_described_with_both_values_and_whose_count() -> None:
    opener = replace(settings(fence_after=300.0), command=A)
    mine = replace(settings(host="host-b", lost_after=8.0), command=OTHERWISE)
    timing, arguments = describe_differences(opener, mine)
    assert "lost_after is 8 here, 6 there; fence_after is 600 here, 300 there" in timing
    assert "The run's values count, which are those of host-a" in timing
    assert "'a.py' has other arguments here than on host-a" in arguments
    assert describe_differences(opener, replace(opener, host="host-b")) == []


def test_arguments_of_different_roles_are_expected_to_differ() -> None:
    opener = replace(settings(), command=A)
    [warning] = describe_differences(opener, replace(opener, command=OTHERWISE))
    assert "has other arguments here" in warning
    assert describe_differences(opener, replace(opener, command=replace(OTHERWISE, role="critic"))) == []


def test_durations_may_differ_and_are_the_openers() -> None:
    assert not refused(settings(), settings(join_timeout=5.0), allow_version_mismatch=False)
