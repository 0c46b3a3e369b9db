from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import elastic_core
from elastic_core.incidents import (
    ENDED_EARLY,
    PEER_LOST,
    Action,
    Explanation,
    Failure,
    FailureClass,
    Incident,
    IncidentKind,
    Verdict,
    by_cause,
    describe_early_exit,
    distance_to_cause,
    ended_by_sigterm,
    is_same_step,
    repeats_after_restart,
    strictest,
)
from elastic_core.protocol.counters import as_record


def incident(**facts: object) -> Incident:
    return Incident(**{"kind": IncidentKind.WORKER_FAILED, "round": 1, "node_id": "n", "host": "h", **facts})  # type: ignore[arg-type] # a table's rows


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        pytest.param({"exit_code": 1}, "exited with code 1", id="a code"),
        pytest.param({"exit_code": -2}, "was killed by SIGINT", id="a signal"),
        pytest.param(
            {"exit_code": -9},
            "was killed by SIGKILL (kill -9 by a user, or the kernel's out-of-memory killer: see dmesg)",
            id="a signal that needs explaining",
        ),
        pytest.param({"exit_code": -77}, "was killed by signal 77", id="a signal without a name"),
        pytest.param({"message": "no such program"}, "no such program", id="never started"),
        pytest.param({"kind": IncidentKind.NODE_LOST}, "node lost", id="nothing known"),
    ],
)
def test_the_cause_is_told_in_a_few_words(facts: dict[str, object], cause: str) -> None:
    assert incident(**facts).cause() == cause


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


def test_the_longest_delay_of_all_verdicts_counts_and_says_why() -> None:
    verdicts = [
        Verdict(Action.RESTART, "restart 1 of 3"),
        Verdict(Action.RESTART, "back-off", delay=8.0),
        Verdict(Action.EXCLUDE_HOST, "flaky", delay=1.0, exclude_for=60.0),
    ]
    both = Verdict(Action.EXCLUDE_HOST, "flaky; back-off", delay=8.0, exclude_for=60.0)
    assert strictest(verdicts) == both
    assert strictest([*verdicts, Verdict(Action.GIVE_UP, "enough")]) == Verdict(Action.GIVE_UP, "enough")


@pytest.mark.parametrize(("spans", "longest"), [((60.0, 90.0), 90.0), ((60.0, None), None), ((None, 60.0), None)])
def test_of_several_exclusions_the_longest_counts(spans: tuple[float | None, ...], longest: float | None) -> None:
    verdicts = [Verdict(Action.EXCLUDE_HOST, "flaky", exclude_for=span) for span in spans]
    assert strictest(verdicts).exclude_for == longest


def test_no_verdict_at_all_is_a_defect() -> None:
    with pytest.raises(ValueError, match="no failure policy gave a verdict"):
        strictest([])


GLOO = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [10.0.0.2]:4711"
)


def test_a_cause_comes_before_what_follows_whatever_the_clocks_say() -> None:
    killed, later = incident(exit_code=-9, after=5.2), incident(exit_code=1, message="ValueError: x", after=5.3)
    peer = incident(exit_code=1, message=GLOO, follows_peer=True, after=5.0)
    terminated = incident(exit_code=-15, after=5.1)
    early = incident(kind=IncidentKind.EXITED_EARLY, exit_code=0, message=describe_early_exit(peer), after=4.9)
    order = [killed, later, early, terminated, peer]
    assert sorted([terminated, later, early, peer, killed], key=by_cause) == order
    assert [distance_to_cause(one) for one in order] == [0, 0, 1, 1, 2]


@pytest.mark.parametrize(
    ("exit_code", "sentence"),
    [
        (-15, "was killed by SIGTERM (by a person, a scheduler or an out-of-memory daemon)"),
        (143, "exited with code 143"),
        (0, "exited with code 0 after SIGTERM (by a person, a scheduler or an out-of-memory daemon)"),
    ],
)
def test_sigterm_of_unknown_origin_is_a_cause_with_its_sentence(exit_code: int, sentence: str) -> None:
    terminated = incident(exit_code=exit_code)
    assert terminated.cause() == sentence
    assert ended_by_sigterm(terminated)
    taken = incident(kind=IncidentKind.PORT_TAKEN, exit_code=exit_code)
    for other in (incident(exit_code=1, message="ValueError: x"), incident(exit_code=-9), incident(exit_code=2), taken):
        assert not ended_by_sigterm(other)
        assert by_cause(other) < by_cause(terminated) < by_cause(incident(follows_peer=True))


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({"exit_code": 1}, "exited with code 1"),
        ({"exit_code": 1, "message": "FATAL: no data"}, "exited with code 1: FATAL: no data"),
        (
            {
                "exit_code": 1,
                "message": "ValueError: x",
                "exception": "ValueError",
                "where": "train.py:4 in f: raise x",
            },
            "exited with code 1: ValueError: x, at train.py:4 in f",
        ),
        ({"kind": IncidentKind.START_FAILED, "message": "no such program"}, "no such program"),
    ],
)
def test_an_outcome_is_one_line_with_its_message_and_place(facts: dict[str, object], line: str) -> None:
    assert incident(**facts).describe() == line


def test_a_rank_that_exited_early_is_described_with_the_failure_of_its_peer() -> None:
    peer = incident(exit_code=1, message="BrokenPipeError: [Errno 32] Broken pipe", rank=0)
    early = incident(kind=IncidentKind.EXITED_EARLY, exit_code=0, message=describe_early_exit(peer))
    assert early.describe() == (
        "exited with code 0 before the other ranks: it had finished when rank 0 on h lost a connection "
        "(BrokenPipeError: [Errno 32] Broken pipe)"
    )
    silent = incident(exit_code=-2, rank=2)
    assert describe_early_exit(silent).endswith("lost a connection (was killed by SIGINT)")


@pytest.mark.parametrize(
    ("kind", "failure_class"),
    [
        (IncidentKind.WORKER_FAILED, FailureClass.PREEMPTION),
        (IncidentKind.START_FAILED, FailureClass.PREEMPTION),
        (IncidentKind.NODE_LOST, FailureClass.INFRASTRUCTURE),
        (IncidentKind.STORE_DIED, FailureClass.INFRASTRUCTURE),
        (IncidentKind.PORT_TAKEN, FailureClass.INFRASTRUCTURE),
        (IncidentKind.EXITED_EARLY, FailureClass.SCRIPT),
    ],
)
def test_a_class_is_that_of_the_kind_or_else_of_the_explanation(
    kind: IncidentKind, failure_class: FailureClass
) -> None:
    explanation = Explanation(failure_class=FailureClass.PREEMPTION, hosts_fault=True)
    failed = incident(kind=kind, explanation=explanation)
    assert failed.failure_class is failure_class
    assert as_record(failed).failure_class is failure_class
    assert as_record(failed).hosts_fault
    assert incident().failure_class is FailureClass.UNKNOWN


def test_incidents_of_each_kind_are_made() -> None:
    """A kind that only tables know is dead."""
    tables = {"incidents.py", "report.py"}
    modules = [path for path in Path(elastic_core.__file__).parent.rglob("*.py") if path.name not in tables]
    named = {
        kind for path in modules for kind in re.findall(r"\bIncidentKind\.(\w+)", path.read_text(encoding="utf-8"))
    }
    assert named == {kind.name for kind in IncidentKind}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("KeyError: 'a'", "KeyError: 'a'", True),
        ("KeyError: 'a'", "KeyError: 'b'", False),
        ("hiccup 3 after 1.5 s", "hiccup 17 after 20 s", True),
        ("object at 0x7f3a10b2", "object at 0x7f00ffee", True),
        ("request 3f2a9c01 of 10.0.0.7:4242", "request b19d77e0 of 10.0.12.1:80", True),
        ("a decade of facade", "a decade of effaced", False),
        ("", "", True),
    ],
)
def test_a_digest_leaves_out_what_differs_between_two_failures_of_one_cause(one: str, other: str, same: bool) -> None:
    digests = {incident(message=text).digest for text in (one, other)}
    assert (len(digests) == 1) is same
    assert all(len(digest) == (8 if one else 0) for digest in digests)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ({"message": "KeyError: 'a'", "exit_code": 1}, {"message": "KeyError: 'a'", "exit_code": 1, "rank": 7}, True),
        ({"message": "KeyError: 'a'", "where": "a.py:1 in f: x"}, {"message": "KeyError: 'a'"}, False),
        ({"exit_code": 1}, {"exit_code": 1, "host": "other"}, True),
        ({"exit_code": 1}, {"exit_code": -9}, False),
        ({"exit_code": 1, "exception": "KeyError"}, {"exit_code": 1, "exception": "ValueError"}, False),
        ({"follows_peer": True}, {"kind": IncidentKind.EXITED_EARLY}, False),
        (
            {"message": "RuntimeError: Connection closed by peer", "exit_code": 1, "follows_peer": True},
            {"message": "remote process exited", "exit_code": -6, "where": "a.py:9 in f", "follows_peer": True},
            True,
        ),
    ],
)
def test_failures_are_alike_on_whatever_rank(one: dict[str, object], other: dict[str, object], alike: bool) -> None:
    failures = [as_record(incident(**facts)) for facts in (one, other)]
    assert (failures[0].signature == failures[1].signature) is alike


def test_all_messages_about_a_lost_peer_have_one_digest() -> None:
    assert as_record(incident(exit_code=1, message="Broken pipe", follows_peer=True)).digest == PEER_LOST
    assert as_record(incident(kind=IncidentKind.EXITED_EARLY, exit_code=0, message="it had")).digest == ENDED_EARLY
    assert as_record(incident(exit_code=-15)).digest == ""


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (29, 29, True),
        (29, 28, False),
        (900, 891, True),
        (900, 890, False),
        (9**6, 9**6 - 11, False),
        (None, 5, False),
    ],
)
def test_rounds_ended_at_one_step(one: int | None, other: int | None, same: bool) -> None:
    assert is_same_step(one, other) is is_same_step(other, one) is same


LACKS = {
    "round": 2,
    "exit_code": 1,
    "exception": "ModuleNotFoundError",
    "message": "ModuleNotFoundError: No module named 'torchvison'",
}
LACKED = Failure(round=1, rank=1, host="h", exception="ModuleNotFoundError", exit_code=1, step=None)
REFUSED = Failure(round=1, rank=1, host="h", exception="", exit_code=2, step=None)


@pytest.mark.parametrize(
    ("facts", "failures", "why"),
    [
        pytest.param(LACKS, (LACKED,), "ModuleNotFoundError", id="the same, after the first restart"),
        pytest.param({**LACKS, "rank": 7}, (LACKED,), "ModuleNotFoundError", id="of another rank"),
        pytest.param(
            {"round": 2, "exit_code": 2, "detail": "usage: train.py"}, (REFUSED,), "wrong arguments", id="arguments"
        ),
        pytest.param({"round": 2, "exit_code": 2}, (REFUSED,), None, id="the code of wrong arguments alone"),
        pytest.param(
            {"round": 2, "exit_code": 1, "detail": "usage: train.py"},
            (replace(REFUSED, exit_code=1),),
            None,
            id="how to call it, and another code",
        ),
        pytest.param({**LACKS, "message": "No module in x.so"}, (LACKED,), None, id="a module that may be being built"),
        pytest.param(LACKS, (), None, id="a first failure in a second round"),
        pytest.param({**LACKS, "round": 3}, (LACKED,), None, id="a round has run in between"),
        pytest.param(LACKS, (REFUSED,), None, id="another one before"),
        pytest.param({**LACKS, "round": 3}, (LACKED, LACKED), None, id="not the first restart"),
        pytest.param({**LACKS, "after": 600.0}, (LACKED,), "ModuleNotFoundError", id="after ten minutes"),
        pytest.param({**LACKS, "after": 3600.0}, (LACKED,), None, id="after an hour"),
        pytest.param({**LACKS, "exception": "ImportError"}, (LACKED,), None, id="another exception"),
        pytest.param({**LACKS, "step": 5}, (LACKED,), None, id="after a step"),
        pytest.param(LACKS, (replace(LACKED, step=5),), None, id="after a step before"),
    ],
)
def test_one_restart_shows_that_a_program_can_never_begin(
    facts: dict[str, object], failures: tuple[Failure, ...], why: str | None
) -> None:
    assert repeats_after_restart(incident(**facts), failures) == why
