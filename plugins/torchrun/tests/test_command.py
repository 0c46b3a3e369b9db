from __future__ import annotations

import subprocess
import sys

import pytest

from elastic_core.cli.commands import Elastic
from elastic_core.cli.render import run


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("exec", "Missing command."),
        ("exec no-such-command-here", "There is no command 'no-such-command-here'."),
    ],
)
def test_a_command_that_cannot_be_run_is_refused(capsys: pytest.CaptureFixture[str], line: str, message: str) -> None:
    assert run(Elastic(), line.split()) == 2
    assert capsys.readouterr().err.startswith(f"elastic: error: {message}\n")


def test_help_tells_what_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Elastic(), ["exec", "--help"]) == 0
    help = capsys.readouterr().out
    assert "torch.distributed.run" in help
    assert run(Elastic(), ["--help"]) == 0
    assert "below which torchrun is" in capsys.readouterr().out


def test_the_command_takes_its_own_flags_and_its_exit_code_counts() -> None:
    command = [
        sys.executable,
        "-m",
        "elastic_core",
        "exec",
        "sh",
        "-c",
        'echo "$0 $1 $ELASTIC_EXEC $$"; exit 7',
        "-m",
        "--help",
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 7
    *flags, marked, pid = done.stdout.split()
    assert flags == ["-m", "--help"]
    assert marked == pid, "elastic exec became the command"
