"""The hook in an interpreter's start, where it must do nothing: what a stray process finds of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_core.warden.linux import catches
from elastic_core.warden.startup import PREPARE_WORKER, STAGE, STARTUP, prepare_worker
from elastic_core.worker.stack_dump import SIGNAL, SIGNAL_ALL, SIGNAL_RUNNING

REPORT = """
import json, os, sys
print(json.dumps({
    "module": getattr(sys.modules.get("sitecustomize"), "MINE", None) if "sitecustomize" in sys.modules else "none",
    "path": [entry for entry in sys.path if "startup" in entry or "own" in entry],
    "PYTHONPATH": os.environ.get("PYTHONPATH"),
    "ours": "elastic_core" in sys.modules,
}))
"""


def report(**environment: str) -> dict[str, object]:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "ELASTIC_STARTUP")}
    command = [sys.executable, "-c", REPORT]
    done = subprocess.run(command, env={**env, **environment}, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_process_that_is_no_starter_finds_nothing_of_it() -> None:
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


SEEN = """
import json, os, sys
print(json.dumps([sorted(sys.modules), sys.path, dict(os.environ), sorted(sys.path_importer_cache)]))
"""


@pytest.mark.parametrize("before", [{}, {"PYTHONPATH": "/one:/two"}])
def test_a_worker_that_is_prepared_finds_no_trace(before: dict[str, str]) -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", STAGE)} | before
    command, ours = [sys.executable, "-c", SEEN], dict(env)
    prepare_worker(command, ours)
    assert ours[STAGE] == PREPARE_WORKER
    plain, prepared = (
        subprocess.run(command, env=given, capture_output=True, text=True, check=True) for given in (env, ours)
    )
    assert prepared.stderr == ""
    (usual, *others), (modules, *rest) = json.loads(plain.stdout), json.loads(prepared.stdout)
    assert {*usual} <= {*modules} <= {*usual, "atexit"}
    assert rest == others


def test_a_worker_that_prepares_has_handlers_for_the_requests_for_its_stacks() -> None:
    script = "import sys\nprint('ready', flush=True)\nsys.stdin.read()"
    command, env = [sys.executable, "-c", script], dict(os.environ)
    prepare_worker(command, env)
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert catches(process.pid, SIGNAL, SIGNAL_ALL, SIGNAL_RUNNING)
        process.communicate(b"")
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("command", "prepared"),
    [
        (["/usr/bin/python3.11", "-u", "train.py", "-S"], True),
        (["python", "-W", "-S", "-Xdev", "-m", "train"], True),
        (["python", "-uI", "train.py"], False),
        (["python", "-E", "train.py"], False),
        (["python", "-S", "-c", "pass"], False),
        (["./train.sh"], False),
        (["pypy3", "train.py"], False),
    ],
    ids=str,
)
def test_only_python_programs_that_take_a_sitecustomize_are_prepared(command: list[str], prepared: bool) -> None:
    environment: dict[str, str] = {}
    prepare_worker(command, environment)
    assert (STAGE in environment) is prepared


def test_an_empty_module_path_is_left_alone() -> None:
    environment = {"PYTHONPATH": ""}
    prepare_worker(["python"], environment)
    assert environment == {"PYTHONPATH": ""}
