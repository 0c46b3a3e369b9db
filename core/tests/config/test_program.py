"""The fields of their programs that two nodes of one job compare."""

from __future__ import annotations

import pytest

from elastic_core.config.program import Program, ProgramKind, arguments_digest, name


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (Program(ProgramKind.SCRIPT, "/home/a/exp/train.py"), "train.py"),
        (Program(ProgramKind.SCRIPT, "project/"), "project"),
        (Program(ProgramKind.RUN_PATH, "app.pyz"), "app.pyz"),
        (Program(ProgramKind.MODULE, "package.train"), "-m package.train"),
        (Program(ProgramKind.MODULE, "package.call", ("/tmp/call_1",), name="package:train"), "package:train"),
        (Program(ProgramKind.MODULE, "package.call", name=""), ""),
        (Program(ProgramKind.EXECUTABLE, "/usr/bin/true"), "true"),
        (Program(ProgramKind.EXECUTABLE, "/usr/bin/python3.11", ("-u", "x/train.py", "--lr=1")), "python3.11 train.py"),
        (Program(ProgramKind.EXECUTABLE, "/bin/bash", ("run.sh",)), "bash run.sh"),
    ],
)
def test_a_program_has_one_name_on_all_nodes(program: Program, expected: str) -> None:
    assert name(program) == expected


@pytest.mark.parametrize(
    ("here", "there", "equal"),
    [
        (("--lr", "1"), ("--lr", "1"), True),
        (("--lr", "1"), ("--lr", "2"), False),
        (("--lr=1",), ("--lr=2",), False),
        (("--rank", "0", "--lr=1"), ("--rank", "1", "--lr=1"), True),
        (("--node_rank=0",), ("--node_rank=1",), True),
        (("--master-addr", "h1", "--lr=1"), ("--master-addr", "h1", "--lr=2"), False),
        (("--log", "/logs/h1/x"), ("--log", "/logs/h2/x"), True),
        (("--log", "/logs/1"), ("--log", "/logs/2"), False),
        (("--log=job_h1.example.log",), ("--log=job_h2.example.log",), True),
        (("--config", "h100.yaml"), ("--config", "h100.yaml"), True),
        (("--no_rank", "--lr=1"), ("--no_rank", "--lr=2"), False),
        (("a", "b"), ("ab",), False),
        ((), ("--resume",), False),
    ],
)
def test_arguments_are_compared_without_what_differs_between_nodes(
    here: tuple[str, ...], there: tuple[str, ...], equal: bool
) -> None:
    digests = [
        arguments_digest(Program(ProgramKind.SCRIPT, "train.py", args), host)
        for args, host in ((here, "h1"), (there, "h2"))
    ]
    assert (digests[0] == digests[1]) is equal


def test_the_arguments_of_a_program_with_a_name_are_not_compared() -> None:
    assert arguments_digest(Program(ProgramKind.MODULE, "package.call", ("/tmp/call_1",), name="f"), "h1") == ""
