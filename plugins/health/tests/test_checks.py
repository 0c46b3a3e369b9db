"""The choice of the health checks of a run."""

from __future__ import annotations

import pytest

from elastic_core.errors import UsageError
from elastic_health.checks import Finding, NodeCheck, choose


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
        ("disk=x", "--health_check 'disk=x': 'x' is not a number.", None),
        ("shm=1", "--health_check 'shm=1': this check takes no value.", None),
        ("/opt/check 'x", '--health_check "/opt/check \'x" cannot be read as a command: No closing quotation.', None),
    ],
)
def test_an_unknown_check_is_refused_with_a_hint(part: str, message: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as refused:
        choose([part], OFFERED, which)
    assert refused.value.message.startswith(message)
    assert (hint or "") in (refused.value.hint or "")
