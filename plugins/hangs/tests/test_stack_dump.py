"""A worker that is prepared to write its stacks: its handlers, and what its program finds of that."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from elastic_core.exit_codes import STACK_REQUESTS
from elastic_core.host import catches
from elastic_core.warden.spawn import STAGE, prepare_worker
from elastic_hangs.monitor import HangMonitor
from elastic_hangs.stack_dump import SIGNAL, SIGNAL_ALL, SIGNAL_RUNNING

FILES = HangMonitor().elastic_worker_startup()
SEEN = """
import json, os, sys
print(json.dumps([sorted(sys.modules), sys.path, dict(os.environ), sorted(sys.path_importer_cache)]))
"""


def test_a_worker_that_is_prepared_finds_no_trace() -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", STAGE)}
    command, ours = [sys.executable, "-c", SEEN], dict(env)
    prepare_worker(command, ours, FILES)
    plain, prepared = (
        subprocess.run(command, env=given, capture_output=True, text=True, check=True) for given in (env, ours)
    )
    assert prepared.stderr == ""
    (usual, *others), (modules, *rest) = json.loads(plain.stdout), json.loads(prepared.stdout)
    assert {*usual} <= {*modules} <= {*usual, "atexit"}
    assert rest == others


def test_a_worker_that_is_prepared_has_handlers_for_the_requests_for_its_stacks() -> None:
    command, env = [sys.executable, "-c", "import sys\nprint('ready', flush=True)\nsys.stdin.read()"], dict(os.environ)
    prepare_worker(command, env, FILES)
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert catches(process.pid, SIGNAL, SIGNAL_ALL, SIGNAL_RUNNING)
        process.communicate(b"")
    assert process.returncode == 0


def test_a_worker_without_a_free_descriptor_runs_all_the_same() -> None:
    script = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (9, 9))\n"
    script += f"import os, sys\nos.execv(sys.executable, [sys.executable, '-c', {SEEN!r}])"
    command, env = [sys.executable, "-I", "-c", script], dict(os.environ)
    prepare_worker([sys.executable], env, FILES)
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "faulthandler" not in json.loads(done.stdout)[0]


def test_core_describes_an_exit_by_one_of_the_three_signals() -> None:
    assert {*STACK_REQUESTS} == {SIGNAL, SIGNAL_ALL, SIGNAL_RUNNING}
