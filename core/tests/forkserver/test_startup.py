"""The hook in an interpreter's start, where it must do nothing: what a stray process finds of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_core.warden.fork_server import STARTUP

REPORT = """
import json, os, sys
print(json.dumps({
    "module": getattr(sys.modules.get("sitecustomize"), "MINE", None) if "sitecustomize" in sys.modules else "none",
    "path": [entry for entry in sys.path if "startup" in entry or "own" in entry],
    "PYTHONPATH": os.environ.get("PYTHONPATH"),
    "ours": "elastic_core.forkserver" in sys.modules,
}))
"""


def report(**environment: str) -> dict[str, object]:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "ELASTIC_FORK_SERVER")}
    command = [sys.executable, "-c", REPORT]
    done = subprocess.run(command, env={**env, **environment}, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_process_that_is_no_fork_server_finds_nothing_of_it() -> None:
    plain = report()
    assert plain["PYTHONPATH"] is None
    assert report(PYTHONPATH=STARTUP) == plain


@pytest.mark.parametrize("source", ["MINE = 1", "MINE = 2\nimport json"])
def test_the_sitecustomize_that_is_there_besides_is_not_lost(tmp_path: Path, source: str) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(source)
    alone = report(PYTHONPATH=str(own))
    assert alone["module"] in (1, 2)
    assert report(PYTHONPATH=f"{STARTUP}{os.pathsep}{own}") == alone
