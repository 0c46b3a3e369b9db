"""``elastic doctor`` as a command: it is listed, and its help costs no import of what it examines with."""

from __future__ import annotations

import subprocess
import sys

import pytest

from elastic_core.cli.commands import Elastic, run


def test_it_is_listed_with_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Elastic(), ["--help"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert " doctor Check whether the nodes can reach each other, and name the obstacle if not." in words


def test_asking_for_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from elastic_core.cli.main import main; code = main(); "
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    command = [sys.executable, "-c", script, "doctor", "--help"]
    asked = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = set(asked.stderr.splitlines()[-1].split())
    assert "elastic_doctor.command" in imported
    heavy = {"torch", "numpy", "redis", "asyncio", "elastic_core.agent.start", "elastic_doctor.examination"}
    assert not imported & heavy
