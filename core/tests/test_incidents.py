from __future__ import annotations

import re
from pathlib import Path

import pytest

import elastic_core
from elastic_core.incidents import (
    Action,
    Failure,
    Incident,
    IncidentKind,
    Verdict,
    by_cause,
    describe_early_exit,
    follows_peer_loss,
    repeats_after_restart,
    strictest,
)


def incident(**facts: object) -> Incident:
    return Incident(**{"kind": IncidentKind.WORKER_FAILED, "round": 1, "node_id": "n", "host": "h", **facts})  # type: ignore[arg-type] # a table's rows


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        pytest.param({"exit_code": 1}, "exited with code 1", id="a code"),
        pytest.param({"exit_code": -15}, "was killed by SIGTERM", id="a signal"),
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
CHAINED = f"{GLOO}\n\nThe above exception was the direct cause of the following exception:\n\nTrainError: step 7"
NCCL = "terminate called after throwing 'c10::DistBackendError'\n  what(): NCCL error: remote process exited"


@pytest.mark.parametrize(
    ("facts", "follows"),
    [
        pytest.param({"exit_code": 1, "message": GLOO}, True, id="gloo, closed"),
        pytest.param({"exit_code": 1, "message": "ConnectionResetError: [Errno 104] Connection reset by peer"}, True),
        pytest.param(
            {"exit_code": 1, "message": "RuntimeError: Timed out waiting 1800000ms for recv operation to complete"},
            True,
        ),
        pytest.param({"exit_code": 1, "message": "RuntimeError: Gloo connectFullMesh failed with …"}, True),
        pytest.param(
            {
                "exit_code": 1,
                "message": "RuntimeError: Gloo connectFullMesh failed with …",
                "detail": "127.0.1.1 is the worker's own host, not a peer's",
            },
            False,
        ),
        pytest.param(
            {"exit_code": 1, "message": "DistNetworkError: …", "detail": "h:9 is not the launcher's store, which is …"},
            False,
        ),
        pytest.param(
            {
                "exit_code": 1,
                "message": "torch.distributed.DistStoreError: Timed out after 61 seconds, 1/2 clients joined.",
            },
            True,
        ),
        pytest.param({"exit_code": 1, "message": "DistNetworkError: failed to recv, got 0 bytes"}, True),
        pytest.param({"exit_code": 1, "message": "DistBackendError: NCCL communicator was aborted on rank 1."}, True),
        pytest.param({"exit_code": 1, "detail": GLOO}, True, id="no exception was found, and stderr tells"),
        pytest.param({"exit_code": 1, "message": "TrainError: step 7", "detail": CHAINED}, True, id="its cause tells"),
        pytest.param({"exit_code": -6, "message": "", "detail": NCCL}, True, id="SIGABRT of the NCCL watchdog"),
        pytest.param({"exit_code": -6, "message": "F1 abort", "detail": NCCL}, True, id="SIGABRT with a last word"),
        pytest.param({"exit_code": 0, "message": GLOO}, True, id="a recorded exception, whatever the exit code"),
        pytest.param({"message": GLOO}, True, id="a recorded exception without an exit code"),
        pytest.param({"exit_code": -15}, True, id="SIGTERM"),
        pytest.param({"exit_code": 143}, True, id="SIGTERM, as a shell says"),
        pytest.param({"exit_code": 1, "message": "ValueError: nan", "detail": f"retry: {GLOO}"}, False, id="its own"),
        pytest.param({"exit_code": -9, "detail": GLOO}, False, id="SIGKILL"),
        pytest.param({"exit_code": -11}, False, id="SIGSEGV"),
        pytest.param({"exit_code": -6, "detail": "assertion failed"}, False, id="SIGABRT of its own"),
        pytest.param({"exit_code": 1}, False, id="nothing is known"),
        pytest.param({"kind": IncidentKind.STORE_DIED, "message": "broken pipe"}, False, id="no worker's"),
    ],
)
def test_what_follows_from_a_peers_loss_is_told_from_what_does_not(facts: dict[str, object], follows: bool) -> None:
    assert follows_peer_loss(incident(**facts)) is follows


def test_a_cause_comes_before_what_follows_whatever_the_clocks_say() -> None:
    killed, later = incident(exit_code=-9, after=5.2), incident(exit_code=1, message="ValueError: x", after=5.3)
    peer, other = incident(exit_code=1, message=GLOO, after=5.0), incident(exit_code=-15, after=5.1)
    early = incident(kind=IncidentKind.EXITED_EARLY, exit_code=0, message=describe_early_exit(peer), after=4.9)
    assert sorted([other, later, early, peer, killed], key=by_cause) == [killed, later, early, peer, other]


@pytest.mark.parametrize(
    ("message", "exception"),
    [
        ("ValueError: boom", "ValueError"),
        ("torch.OutOfMemoryError: CUDA out of memory", "torch.OutOfMemoryError"),
        ("terminate called after throwing an instance of 'c10::Error': what(): boom", "c10::Error"),
        ("terminate called without an active exception", ""),
        ("free(): invalid pointer", ""),
        ("", ""),
    ],
)
def test_the_type_of_an_exception_of_python_or_c_is_known(message: str, exception: str) -> None:
    assert incident(exit_code=-6, message=message).exception == exception


def test_a_rank_that_exited_early_is_described_with_the_failure_of_its_peer() -> None:
    peer = incident(exit_code=1, message="BrokenPipeError: [Errno 32] Broken pipe", rank=0)
    early = incident(kind=IncidentKind.EXITED_EARLY, exit_code=0, message=describe_early_exit(peer))
    assert early.describe() == (
        "exited with code 0 before the other ranks: it had finished when rank 0 on h lost a connection "
        "(BrokenPipeError: [Errno 32] Broken pipe)"
    )
    silent = incident(exit_code=-15, rank=2)
    assert describe_early_exit(silent).endswith("lost a connection (was killed by SIGTERM)")


def test_incidents_of_each_kind_are_made() -> None:
    """A kind that only tables know is dead."""
    tables = {"incidents.py", "known_failures.py", "report.py"}
    modules = [path for path in Path(elastic_core.__file__).parent.rglob("*.py") if path.name not in tables]
    named = {
        kind for path in modules for kind in re.findall(r"\bIncidentKind\.(\w+)", path.read_text(encoding="utf-8"))
    }
    assert named == {kind.name for kind in IncidentKind}


LACKS = {"round": 2, "exit_code": 1, "message": "ModuleNotFoundError: No module named 'torchvison'"}
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
        pytest.param(LACKS, (), None, id="a first failure in a second round"),
        pytest.param({**LACKS, "round": 3}, (LACKED,), None, id="a round has run in between"),
        pytest.param(LACKS, (REFUSED,), None, id="another one before"),
        pytest.param({**LACKS, "round": 3}, (LACKED, LACKED), None, id="not the first restart"),
        pytest.param({**LACKS, "after": 3600.0}, (LACKED,), None, id="after an hour"),
        pytest.param({**LACKS, "message": "ValueError: boom"}, (LACKED,), None, id="another exception"),
    ],
)
def test_one_restart_shows_that_a_program_can_never_begin(
    facts: dict[str, object], failures: tuple[Failure, ...], why: str | None
) -> None:
    assert repeats_after_restart(incident(**facts), failures) == why
