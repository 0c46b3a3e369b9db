from __future__ import annotations

import io
import subprocess
import sys
import time
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elastic_core.config.program import Program, ProgramKind
from elastic_core.events import Event, Level, least_level
from elastic_core.incidents import (
    Action,
    Explanation,
    FailureClass,
    History,
    Incident,
    IncidentKind,
    Verdict,
)
from elastic_core.monitors import Assignment
from elastic_core.plugins.builtin import LogLineMetrics, MaxRestartsPolicy, PlainWorkerStart
from elastic_core.protocol.counters import as_record
from elastic_core.protocol.entries import Place

ASSIGNMENT = Assignment(
    run_id="job42",
    run_uid="u",
    round=3,
    restart_count=1,
    max_restarts=2,
    role="trainer",
    place=Place(
        group_rank=2,
        group_world_size=4,
        first_rank=4,
        local_world_size=2,
        world_size=8,
        first_role_rank=3,
        role_world_size=7,
    ),
    local_rank=1,
    master_addr="10.0.0.1",
    master_port=29501,
    error_file="/logs/error.json",
)


@pytest.mark.parametrize(
    ("kind", "restarts", "max_restarts", "verdict"),
    [
        (IncidentKind.WORKER_FAILED, 0, 3, Verdict(Action.RESTART, "restart 1 of --max_restarts=3")),
        (IncidentKind.START_FAILED, 2, 3, Verdict(Action.RESTART, "restart 3 of --max_restarts=3")),
        (IncidentKind.WORKER_FAILED, 3, 3, Verdict(Action.GIVE_UP, "all restarts of --max_restarts=3 are spent")),
        (
            IncidentKind.WORKER_FAILED,
            0,
            0,
            Verdict(Action.GIVE_UP, "--max_restarts is 0, so the first failure ends the job"),
        ),
        (IncidentKind.PORT_TAKEN, 0, 0, Verdict(Action.RESTART, "port taken spends no restart")),
        (IncidentKind.NODE_LOST, 3, 3, Verdict(Action.RESTART, "node lost spends no restart")),
    ],
)
def test_failures_of_workers_spend_restarts_until_none_is_left(
    kind: IncidentKind, restarts: int, max_restarts: int, verdict: Verdict
) -> None:
    incident = Incident(kind=kind, round=1, node_id="n", host="h")
    history = History(restarts=restarts, max_restarts=max_restarts, rounds_without_progress=0)
    assert MaxRestartsPolicy().elastic_judge_failure(incident, history) == verdict


IMPORT = "ModuleNotFoundError: No module named 'tourch'"
USAGE = "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --rl"


@pytest.mark.parametrize(
    ("facts", "hopeless"),
    [
        ({"message": IMPORT, "exit_code": 1}, "ModuleNotFoundError"),
        ({"message": "SyntaxError: invalid syntax", "exit_code": 1}, "SyntaxError"),
        ({"detail": USAGE, "exit_code": 2}, "wrong arguments"),
        ({"detail": "Usage: train.py [OPTIONS]\n\nError: No such option: --rl", "exit_code": 2}, "wrong arguments"),
        ({"detail": USAGE, "exit_code": 1}, None),
        ({"detail": "grep: data: No such file", "exit_code": 2}, None),
        ({"detail": "disk usage: 90 %", "exit_code": 2}, None),
        ({"message": IMPORT, "exit_code": 1, "after": 3600.0}, None),
        ({"message": "ImportError: /cache/ops.so: cannot open shared object file", "exit_code": 1}, None),
        ({"message": "RuntimeError: ImportError: of another one", "exit_code": 1}, None),
        ({"message": "ValueError: boom", "exit_code": 1}, None),
        ({"exit_code": -9}, None),
        ({"message": IMPORT, "exception": "", "kind": IncidentKind.START_FAILED}, None),
    ],
)
def test_a_program_that_cannot_begin_gets_one_restart(facts: dict[str, Any], hopeless: str | None) -> None:
    exception = facts.get("message", "").partition(":")[0]
    known = {"kind": IncidentKind.WORKER_FAILED, "round": 1, "node_id": "n", "host": "h", "exception": exception}
    first = Incident(**{**known, **facts})
    history = History(restarts=0, max_restarts=3, rounds_without_progress=0)
    assert MaxRestartsPolicy().elastic_judge_failure(first, history).reason == "restart 1 of --max_restarts=3"
    history = replace(history, restarts=1, failures=(as_record(first),))
    again = MaxRestartsPolicy().elastic_judge_failure(replace(first, round=2, rank=7), history)
    if hopeless is None:
        assert again.action is Action.RESTART
    else:
        assert again == Verdict(Action.GIVE_UP, f"a restart has not mended {hopeless}")


LOST = "RuntimeError: Connection closed by peer"
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
EXPLAINED = {
    LOST: Explanation(failure_class=FailureClass.PEER),
    ECC: Explanation(failure_class=FailureClass.INFRASTRUCTURE, hosts_fault=True),
}


@pytest.mark.parametrize(
    ("message", "steps", "hosts", "worth"),
    [
        (LOST, [29], "a", True),
        (LOST, [29, 29], "aa", False),
        (LOST, [40, 29], "aa", True),
        (LOST, [None, None], "aa", True),
        (ECC, [29, 29], "aa", True),
        (ECC, [29, 29], "ab", False),
        (ECC, [29, 29, 29], "aaa", False),
        ("ValueError: boom", [29], "a", False),  # which no plugin has explained
    ],
)
def test_a_job_that_ends_at_the_same_step_again_is_not_worth_requeueing(
    message: str, steps: list[int | None], hosts: str, worth: bool
) -> None:
    told = [
        Incident(
            kind=IncidentKind.WORKER_FAILED,
            round=1,
            node_id="n",
            host=host,
            exit_code=1,
            message=message,
            exception=message.partition(":")[0],
            follows_peer=message == LOST,
            explanation=EXPLAINED.get(message, Explanation()),
            step=step,
        )
        for step, host in zip(steps, hosts, strict=True)
    ]
    past = tuple(map(as_record, told[:-1]))
    history = History(restarts=3, max_restarts=3, rounds_without_progress=0, failures=past)
    assert MaxRestartsPolicy().elastic_judge_failure(told[-1], history).requeue is worth


def lines(*events: Event, least: Level = Level.INFO) -> list[str]:
    """Return the lines of the observer on node0 at 12:34:56."""
    noon = time.mktime((2024, 5, 17, 12, 34, 56, 0, 0, -1))
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(io.StringIO()) as stream:
        patch.setenv("ELASTIC_HOST_NAME", "node0.cluster")
        observer = LogLineMetrics(least=least, clock=lambda: noon)
        for event in events:
            observer.elastic_observe(event)
    return stream.getvalue().splitlines()


def test_an_event_is_one_line() -> None:
    assert lines(Event("round_started", "round 1: 4 workers")) == ["[elastic] 12:34:56 node0: round 1: 4 workers"]


def test_an_event_may_say_itself_which_node_it_is_of() -> None:
    assert lines(Event("e", "message", fields={"node": "node7"})) == ["[elastic] 12:34:56 node7: message"]


@pytest.mark.parametrize(
    ("least", "shown"), [(Level.INFO, ["info", "warning"]), (Level.DEBUG, ["debug", "info", "warning"])]
)
def test_details_are_for_those_who_ask(least: Level, shown: list[str]) -> None:
    events = [Event("e", level.name.lower(), level) for level in (Level.DEBUG, Level.INFO, Level.WARNING)]
    assert [line.rpartition(" ")[2] for line in lines(*events, least=least)] == shown


def test_foreign_text_can_neither_act_nor_pass_for_another_event() -> None:
    assert lines(Event("e", "rank 1 said:\n[elastic] 12:34:56 node0: all is well\x1b[2J\r")) == [
        "[elastic] 12:34:56 node0: rank 1 said:",
        r"  | [elastic] 12:34:56 node0: all is well\x1b[2J\r",
    ]


def test_without_arguments_it_writes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    LogLineMetrics().elastic_observe(Event("e", "message"))
    assert capsys.readouterr().err.endswith(": message\n")


@pytest.mark.parametrize(
    ("program", "command"),
    [
        (Program(ProgramKind.SCRIPT, "train.py", ("--lr", "1")), [sys.executable, "-u", "train.py", "--lr", "1"]),
        (Program(ProgramKind.MODULE, "pkg.train", ("x",)), [sys.executable, "-u", "-m", "pkg.train", "x"]),
        (Program(ProgramKind.EXECUTABLE, "./train.sh", ("x",)), ["./train.sh", "x"]),
        (Program(ProgramKind.EXECUTABLE, "./train.sh", ("--gpu=${local_rank}", "$$")), ["./train.sh", "--gpu=1", "$$"]),
    ],
)
def test_each_kind_of_program_is_started_in_its_way(program: Program, command: list[str]) -> None:
    assert PlainWorkerStart({}).elastic_worker_command(program, ASSIGNMENT) == command


def test_another_interpreter_is_taken_from_where_torchrun_takes_it() -> None:
    start = PlainWorkerStart({"PYTHON_EXEC": "/opt/python"})
    assert start.elastic_worker_command(Program(ProgramKind.SCRIPT, "train.py"), ASSIGNMENT)[0] == "/opt/python"


def test_a_program_run_by_path_sees_itself_as_the_main_program(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys\nprint(__name__, __file__, sys.argv)")
    command = PlainWorkerStart({}).elastic_worker_command(
        Program(ProgramKind.RUN_PATH, str(script), ("--lr", "1")), ASSIGNMENT
    )
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == f"__main__ {script} {[str(script), '--lr', '1']}\n"


def test_the_environment_is_the_contract_with_training_scripts() -> None:
    assert PlainWorkerStart({}).elastic_worker_environment(ASSIGNMENT) == {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "GROUP_RANK": "2",
        "ROLE_RANK": "4",
        "ROLE_NAME": "trainer",
        "LOCAL_WORLD_SIZE": "2",
        "WORLD_SIZE": "8",
        "GROUP_WORLD_SIZE": "4",
        "ROLE_WORLD_SIZE": "7",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29501",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "2",
        "TORCHELASTIC_RUN_ID": "job42",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": "/logs/error.json",
        "ELASTIC_RUN_UID": ASSIGNMENT.run_uid,
        "ELASTIC_ROUND": str(ASSIGNMENT.round),
        "ELASTIC_LOCAL_RANK": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "1",
    }


def test_variables_that_the_user_has_set_stay() -> None:
    theirs = {"OMP_NUM_THREADS": "4", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    assert not theirs.keys() & PlainWorkerStart(theirs).elastic_worker_environment(ASSIGNMENT).keys()


def test_a_node_with_one_worker_leaves_it_all_cores() -> None:
    alone = replace(ASSIGNMENT, place=replace(ASSIGNMENT.place, local_world_size=1))
    assert "OMP_NUM_THREADS" not in PlainWorkerStart({}).elastic_worker_environment(alone)


def test_workers_are_told_which_plugins_the_run_names() -> None:
    assert "ELASTIC_PLUGINS" not in PlainWorkerStart({}).elastic_worker_environment(ASSIGNMENT)
    start = PlainWorkerStart({}, plugins=["torch-save", "my-policy"])
    assert start.elastic_worker_environment(ASSIGNMENT)["ELASTIC_PLUGINS"] == "torch-save,my-policy"


def test_workers_do_not_ask_what_the_variable_names_and_the_run_switches_off() -> None:
    start = PlainWorkerStart({"ELASTIC_PLUGINS": "mine,theirs"}, plugins=["mine"])
    assert start.elastic_worker_environment(ASSIGNMENT)["ELASTIC_PLUGINS"] == "mine"
    none_left = PlainWorkerStart({"ELASTIC_PLUGINS": "theirs"})
    assert none_left.elastic_worker_environment(ASSIGNMENT)["ELASTIC_PLUGINS"] == ""


def test_every_variable_of_the_contract_is_listed() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "environment.md"
    listed = page.read_text(encoding="utf-8").partition("## Read by the agent")[0]
    for name in PlainWorkerStart({}).elastic_worker_environment(ASSIGNMENT):
        assert f"| `{name}` |" in listed


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("", Level.INFO),
        ("DEBUG", Level.DEBUG),
        ("info", Level.INFO),
        ("WARN", Level.WARNING),
        ("CRITICAL", Level.ERROR),
        ("NOTSET", Level.DEBUG),
        ("30", Level.WARNING),
        ("15", Level.INFO),
        ("trace", Level.INFO),
        ("-1", Level.INFO),
    ],
)
def test_loglevel_names_the_least_level(text: str, level: Level) -> None:
    assert least_level(text) is level


def test_without_a_limit_every_failure_is_restarted() -> None:
    history = History(restarts=1_000_000, max_restarts=None, rounds_without_progress=0)
    told = Incident(kind=IncidentKind.WORKER_FAILED, round=1, node_id="a", host="a", message="boom")
    assert MaxRestartsPolicy().elastic_judge_failure(told, history) == Verdict(Action.RESTART, "restart 1000001")
