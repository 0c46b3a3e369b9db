from __future__ import annotations

import pytest

from elastic_core.incidents import Action, Incident, IncidentKind, Verdict, signal_name, strictest


def incident(**facts: object) -> Incident:
    return Incident(**{"kind": IncidentKind.WORKER_FAILED, "round": 1, "node_id": "n", "host": "h", **facts})  # type: ignore[arg-type] # a table's rows


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        pytest.param({"exit_code": 1}, "exited with code 1", id="a code"),
        pytest.param({"exit_code": -15}, "was killed by SIGTERM", id="a signal"),
        pytest.param(
            {"exit_code": -9},
            "was killed by SIGKILL (somebody's kill -9, or the kernel's out-of-memory killer: see dmesg)",
            id="a signal that needs explaining",
        ),
        pytest.param({"exit_code": -77}, "was killed by signal 77", id="a signal without a name"),
        pytest.param({"message": "no such program"}, "no such program", id="never started"),
        pytest.param({"kind": IncidentKind.NODE_LOST}, "node lost", id="nothing known"),
    ],
)
def test_the_cause_is_told_in_a_few_words(facts: dict[str, object], cause: str) -> None:
    assert incident(**facts).cause() == cause


def test_signals_go_by_their_names() -> None:
    assert [signal_name(9), signal_name(77)] == ["SIGKILL", "signal 77"]


@pytest.mark.parametrize(
    ("actions", "winner"),
    [
        ([Action.RESTART], 0),
        ([Action.RESTART, Action.GIVE_UP, Action.EXCLUDE_HOST], 1),
        ([Action.RESTART, Action.EXCLUDE_HOST], 1),
        ([Action.GIVE_UP, Action.GIVE_UP], 0),
    ],
)
def test_the_strictest_verdict_wins_and_among_equals_the_first(actions: list[Action], winner: int) -> None:
    verdicts = [Verdict(action, f"reason {place}") for place, action in enumerate(actions)]
    assert strictest(verdicts) is verdicts[winner]


def test_no_verdict_at_all_is_a_defect() -> None:
    with pytest.raises(ValueError, match="no failure policy gave a verdict"):
        strictest([])
