from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import click
import pytest

from elastic_core.cli.commands import run
from elastic_core.cli.run import RunCommand
from elastic_core.errors import RendezvousTimeoutError, UsageError


def raising(error: BaseException) -> Callable[[], int]:
    def command() -> int:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (UsageError("--nnodes 'x' is wrong."), 2, "elastic: error: --nnodes 'x' is wrong.\n"),
        (
            RendezvousTimeoutError("1 of 2 nodes came.", hint="Start the other one."),
            75,
            "elastic: error: 1 of 2 nodes came.\n\nStart the other one.\n",
        ),
        (UsageError("No \x1b[31mcolour.\nTwo lines."), 2, "elastic: error: No \\x1b[31mcolour.\nTwo lines.\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_is_told_and_becomes_its_exit_code(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, told: str
) -> None:
    assert run(click.Command("c", callback=raising(error)), []) == code
    assert capsys.readouterr() == ("", told)


@pytest.mark.parametrize("error", [KeyError("rank"), BrokenPipeError("the agent's, not stdout's")])
def test_anything_else_is_a_defect_with_its_traceback(capfd: pytest.CaptureFixture[str], error: Exception) -> None:
    assert run(click.Command("c", callback=raising(error)), []) == 70
    told = capfd.readouterr().err
    assert told.startswith("Traceback (most recent call last):\n")
    assert told.endswith(
        f"elastic: error: {type(error).__name__}: {error}\n\n"
        "This is a defect of Elastic, not of your program. Please report it with the lines above.\n"
    )


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (1, 1)])
def test_the_value_that_a_command_returns_is_the_exit_code(returned: int | None, code: int) -> None:
    assert run(click.Command("c", callback=lambda: returned), []) == code


def test_help_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(click.Command("c", help="What it does."), ["--help"]) == 0
    assert "What it does." in capsys.readouterr().out


def test_a_switch_from_the_environment_is_refused_with_its_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PET_STANDALONE", "maybe")
    assert run(RunCommand(lambda: 0), ["train.py"]) == 2
    said = (
        "elastic: error: --standalone 'maybe' is neither 1 (yes) nor 0 (no).\n\nThe value comes from PET_STANDALONE.\n"
    )
    assert capsys.readouterr().err == said


def test_on_a_terminal_texts_are_wrapped_between_words_and_commands_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere each paragraph stays one line."""
    reader, writer = os.openpty()
    monkeypatch.setenv("COLUMNS", "40")
    with open(writer, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        error = UsageError("An agent leaves on SIGTERM, as it should.", hint=f"Install it:\n  pip install {'x' * 40}")
        assert run(click.Command("c", callback=raising(error)), []) == 2
    with open(reader, "rb") as shown:
        assert shown.read1().decode().splitlines() == [
            "elastic: error: An agent leaves on",
            "SIGTERM, as it should.",
            "",
            "Install it:",
            f"  pip install {'x' * 40}",
        ]


def test_a_closed_stdout_ends_the_command_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    listing = subprocess.run(
        [sys.executable, "-m", "elastic_core", "--help"], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (listing.returncode, listing.stderr) == (141, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_told_without_a_traceback(unbuffered: str) -> None:
    command, environ = [sys.executable, "-m", "elastic_core", "--help"], {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        listing = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environ)
    said = "elastic: error: This machine has no room on a disk left: [Errno 28] No space left on device.\n\n"
    assert (listing.returncode, listing.stderr.startswith(said)) == (71, True)
    assert "Exception" not in listing.stderr
