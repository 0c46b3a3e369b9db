"""The hook in an interpreter's start: what a worker executes there, and that a stray process finds nothing of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_core.warden.spawn import PREPARE_WORKER, STAGE, STARTUP, prepare_worker
from elastic_core.warden.starter import ENTRY, ROOTS
from elastic_core.worker.channel import CONTROL_VARIABLE

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


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A file of a plugin that a worker executes before its program."""
    path = tmp_path / "at_start.py"
    path.write_text("import os\n\ndef prepare(at_end):\n    at_end(lambda: os.write(1, b'at the end\\n'))\n")
    return str(path)


SEEN = """
import json, os, sys
print(json.dumps([sorted(sys.modules), sys.path, dict(os.environ), sorted(sys.path_importer_cache)]), flush=True)
"""


@pytest.mark.parametrize("before", [{}, {"PYTHONPATH": "/one:/two"}])
def test_a_worker_that_is_prepared_finds_no_trace(before: dict[str, str], file: str) -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", STAGE)} | before
    command, ours = [sys.executable, "-c", SEEN], dict(env)
    prepare_worker(command, ours, [file])
    assert ours[STAGE] == os.pathsep.join([PREPARE_WORKER, file])
    plain, prepared = (
        subprocess.run(command, env=given, capture_output=True, text=True, check=True) for given in (env, ours)
    )
    assert prepared.stderr == ""
    seen, last = prepared.stdout.splitlines()
    assert last == "at the end"
    (usual, *others), (modules, *rest) = json.loads(plain.stdout), json.loads(seen)
    assert {*usual} <= {*modules} <= {*usual, "atexit"}
    assert rest == others


STARTER = """
import atexit, os

def enter(control, usual, execute):
    if child := os.fork():
        os.waitpid(child, 0)
        os._exit(0)
    atexit.register(lambda: os.write(1, b"a module's\\n"))
    execute([os.environ["FILE"]])
"""
ENDS = """
import atexit, os
atexit.register(lambda: os.write(1, b"its own\\n"))
if child := os.fork():
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize("forked", [False, True], ids=["fresh", "forked"])
def test_a_file_has_functions_called_after_those_of_atexit_also_in_a_fork_of_the_worker(
    forked: bool, file: str, tmp_path: Path
) -> None:
    command, env = [sys.executable, "-c", ENDS], dict(os.environ)
    if forked:
        (tmp_path / "starts.py").write_text(STARTER)
        env |= {STAGE: "starter", ENTRY: "starts:enter", ROOTS: str(tmp_path), CONTROL_VARIABLE: "0", "FILE": file}
        env["PYTHONPATH"] = STARTUP
    else:
        prepare_worker(command, env, [file])
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    expected = ["its own", *(["a module's"] if forked else []), "at the end"]
    assert (done.stdout.splitlines(), done.stderr) == (2 * expected, "")


def test_a_function_that_raises_at_the_end_keeps_no_other_from_its_call(tmp_path: Path, file: str) -> None:
    (bad := tmp_path / "bad.py").write_text("def prepare(at_end):\n    at_end(lambda: 1 / 0)\n")
    command, env = [sys.executable, "-c", "pass"], dict(os.environ)
    prepare_worker(command, env, [file, str(bad), file])
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert (done.stdout.splitlines(), done.stderr) == (2 * ["at the end"], "")


def test_a_file_that_raises_is_left_out(tmp_path: Path, file: str) -> None:
    (bad := tmp_path / "bad.py").write_text("raise SystemExit(3)")
    command, env = [sys.executable, "-c", "print('the program', flush=True)"], dict(os.environ)
    prepare_worker(command, env, [file, str(bad), str(tmp_path / "missing.py"), file])
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert (done.stdout.splitlines(), done.stderr) == (["the program", *2 * ["at the end"]], "")


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
    prepare_worker(command, environment, ["/a.py"])
    assert (STAGE in environment) is prepared


def test_an_empty_module_path_is_left_alone() -> None:
    environment = {"PYTHONPATH": ""}
    prepare_worker(["python"], environment, ["/a.py"])
    assert environment == {"PYTHONPATH": ""}


def test_without_files_nothing_is_prepared() -> None:
    environment: dict[str, str] = {}
    prepare_worker(["python"], environment, [])
    assert environment == {}
