"""Which health checks a run has, and what the output of a command means."""

from __future__ import annotations

import json

import pytest

from elastic_core.errors import UsageError
from elastic_core.node_checks import Finding, NodeCheck, choose, judge_output


def healthy(value: str) -> Finding | None:
    return None


OFFERED = {
    "disk": NodeCheck(look=healthy, on=True, parse=int, form="a number"),
    "shm": NodeCheck(look=healthy, on=True),
    "gpu": NodeCheck(command=["gpu-check"], parse=int, form="a number"),
}


def which(name: str) -> str | None:
    return f"/bin/{name}" if name in ("mine", "/opt/check") else None


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ([], ["disk", "shm"]),
        (["gpu"], ["disk", "shm", "gpu"]),
        (["none"], []),
        (["gpu", "none", "disk"], ["gpu", "disk"]),
        (["mine"], ["disk", "shm", "mine"]),
        (["/opt/check --fast 'a b'"], ["disk", "shm", "/opt/check --fast 'a b'"]),
    ],
)
def test_the_checks_are_those_that_are_on_and_those_that_are_named(given: list[str], names: list[str]) -> None:
    assert [one.name for one in choose(given, OFFERED, which)] == names


def test_a_value_is_the_last_argument_of_a_command() -> None:
    *_, gpu = choose(["gpu=7"], OFFERED, which)
    assert gpu.command == ["gpu-check", "7"]
    disk, _ = choose(["disk=7"], OFFERED, which)
    assert (disk.name, disk.value) == ("disk", "7")
    *_, command = choose(["/opt/check --fast 'a b'"], OFFERED, which)
    assert command.command == ["/opt/check", "--fast", "a b"]


@pytest.mark.parametrize(
    ("part", "message", "hint"),
    [
        (
            "gpus",
            "--health_check 'gpus' is neither a check nor a command that is found here. Did you mean 'gpu'?",
            "gpu",
        ),
        ("matmul", "--health_check 'matmul' is neither a check nor a command that is found here.", "elastic-health"),
        ("disk=x", "--health_check 'disk=x': 'x' is not a number.", None),
        ("shm=1", "--health_check 'shm=1': this check takes no value.", None),
        ("/opt/check 'x", '--health_check "/opt/check \'x" cannot be read as a command: No closing quotation.', None),
    ],
)
def test_what_is_neither_is_refused_with_the_way_out(part: str, message: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as refused:
        choose([part], OFFERED, which)
    assert refused.value.message.startswith(message)
    assert (hint or "") in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("code", "stdout", "stderr", "found"),
    [
        (0, "", "", None),
        (0, "all is well\n", "", None),
        (3, "", "warming up\nGPU 3: row remap failure\n\n", "exited with code 3: GPU 3: row remap failure"),
        (1, "link is down\n", "", "exited with code 1: link is down"),
        (-11, "", "", "was killed by SIGSEGV: it wrote nothing"),
        (0, json.dumps({"fail_count": 0, "failed_checks": []}), "", None),
        (
            0,
            'starting\n{"fail_count": 2, "failed_checks": ["ecc", "nvlink"]}\n',
            "",
            "found 2 faults: ecc; nvlink",
        ),
        (1, '{"fail_count": 1, "messages": ["GPU 0 is lost"], "error": "x"}', "", "found 1 fault: GPU 0 is lost; x"),
        (1, '{"fail_count": 1}', "last words", "found 1 fault: last words"),
        (2, '{"fail_count": 0}', "", "exited with code 2, although its fail_count is 0: it gave no message"),
        (0, '{"fail_count": null}', "", "found None faults: it gave no message"),
        (0, '{"fail_count": [', "", None),
        (
            0,
            json.dumps({"fail_count": 1, "failed_checks": [{"name": "ib"}]}, indent=1),
            "",
            'found 1 fault: {"name": "ib"}',
        ),
    ],
)
def test_the_exit_code_and_the_fail_count_decide(code: int, stdout: str, stderr: str, found: str | None) -> None:
    assert judge_output(code, stdout, stderr) == found
