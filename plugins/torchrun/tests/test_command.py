from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_core.cli.commands import Elastic, run
from elastic_core.errors import how_to_install
from elastic_torchrun.command import PTH, is_foreign, is_installed


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


def test_a_file_that_is_no_program_is_refused_with_the_word_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "./train.py"):
        assert run(Elastic(), ["exec", name]) == 2
        said = capsys.readouterr().err
        assert f"{name!r} is a file, and no command that can be run." in said
        assert f"elastic exec python {name} …" in said


def test_help_tells_what_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Elastic(), ["exec", "--help"]) == 0
    help = capsys.readouterr().out
    assert "torch.distributed.run" in help
    assert run(Elastic(), ["--help"]) == 0
    assert "`elastic run` replaces torchrun" in capsys.readouterr().out


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


def test_the_command_ignores_no_signals_that_python_ignores() -> None:
    command = ["grep", "SigIgn", "/proc/self/status"]
    below = subprocess.check_output([sys.executable, "-m", "elastic_core", "exec", *command])
    assert below == subprocess.check_output(command)


def test_a_script_that_names_no_interpreter_is_refused_with_advice(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("torchrun train.py\n")
    script.chmod(0o755)
    command = [sys.executable, "-m", "elastic_core", "exec", str(script)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert f"{str(script)!r} cannot be run: Exec format error." in done.stderr
    assert "#!/bin/sh" in done.stderr


def test_an_installation_that_interpreters_do_not_see_is_noticed(tmp_path: Path) -> None:
    assert not is_installed([str(tmp_path), str(tmp_path / "gone")])
    (tmp_path / PTH).touch()
    assert is_installed([str(tmp_path / "gone"), str(tmp_path)])


def test_a_torchrun_of_another_environment_is_noticed(tmp_path: Path) -> None:
    script, (mine, other) = tmp_path / "torchrun", (tmp_path / "mine" / "bin", tmp_path / "other" / "bin")
    for folder in (mine, other):
        folder.mkdir(parents=True)
    for shebang, expected in (
        (f"#!{mine}/python3.11", False),
        (f"#!{other}/python", True),
        (f"#! {other}/python3 -s", True),
        ("#!/usr/bin/env python3", False),
        ("#!/bin/sh", False),
    ):
        script.write_text(f"{shebang}\nfrom torch.distributed.run import main\n")
        assert is_foreign(str(script), str(mine)) is expected, shebang
    assert not is_foreign(str(tmp_path / "gone"), str(mine))


def test_a_torchrun_that_stays_torchs_own_is_told_before_the_command_begins(tmp_path: Path) -> None:
    (tmp_path / "torchrun").write_text("#!/other/bin/python\n")
    (tmp_path / "torchrun").chmod(0o755)
    command = [sys.executable, "-m", "elastic_core", "exec", "sh", "-c", "echo begun >&2"]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True, env=environment)
    warning, begun = done.stderr.rsplit("\n", 2)[:2]
    assert warning == (
        f"elastic: warning: {tmp_path}/torchrun belongs to another Python environment, and stays torch's own. "
        f"In that one: {how_to_install('elastic-torchrun')}"
    )
    assert begun == "begun"
