"""Who finds the cause of a worker's failure: core alone, a plugin of others, and one that raises or never answers."""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rig import Agent, Rig

PLUGINS = """
    import os
    import threading

    from elastic_core import hookimpl
    from elastic_core.causes import Cause

    def finding(find):
        class Plugin:
            elastic_find_cause = staticmethod(hookimpl(find))

        return Plugin

    def of_a_lisp(worker):
        if worker.exit_code == 5 and "*** - " in worker.stderr:
            return Cause(message=worker.stderr.rpartition("*** - ")[2].strip(), exception="lisp-error")

    Lisp = finding(of_a_lisp)
    Slow = finding(lambda: threading.Event().wait())
    Raising = finding(lambda: {}["cause"])
    Wrong = finding(lambda: Cause(message=5))

    class Startup:
        @hookimpl
        def elastic_worker_startup(self):
            return os.path.join(os.path.dirname(__file__), "at_start.py"), "/no/such/file.py"

    class BadStartup:
        @hookimpl
        def elastic_worker_startup(self):
            raise OSError("no disk")
"""
AT_START = """
    import builtins

    def prepare(at_end):
        builtins.prepared = "prepared"
        at_end(lambda: print("at the end", flush=True))
"""
ENTRY_POINTS = """
    [elastic.plugins]
    lisp = finders:Lisp
    slow = finders:Slow
    raising = finders:Raising
    wrong = finders:Wrong
    startup = finders:Startup
    bad-startup = finders:BadStartup
"""
LISP = ("--no_python", "sh", "-c", "printf 'step 1\n*** - EVAL: no value\n' >&2; exit 5")
ALONE = ("--no_plugin=causes", "--no_plugin=policies")


@pytest.fixture
def run(rig: Rig, tmp_path: Path) -> Callable[..., Agent]:
    """Starts ``elastic run`` where the plugins are installed, with a log directory."""
    site = tmp_path / "site-packages"
    information = site / "finders-1.0.dist-info"
    information.mkdir(parents=True)
    (site / "finders.py").write_text(textwrap.dedent(PLUGINS))
    (site / "at_start.py").write_text(textwrap.dedent(AT_START))
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: finders\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(textwrap.dedent(ENTRY_POINTS))
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    logs = f"--log_dir={tmp_path / 'logs'}"
    return lambda *arguments: rig.run(logs, *arguments, env={"PYTHONPATH": path})


def root_cause(folder: Path) -> Any:
    (verdict,) = (folder / "logs").rglob("verdict.json")
    return json.loads(verdict.read_text())["incident"]


def script(folder: Path, text: str) -> Path:
    file = folder / "train.py"
    file.write_text(textwrap.dedent(text))
    return file


def test_core_alone_reports_the_exit_code_and_the_last_line_and_restarts(
    run: Callable[..., Agent], tmp_path: Path
) -> None:
    agent = run(*ALONE, "--max_restarts=1", script(tmp_path, "print('step 1')\nraise ValueError('boom')"))
    assert agent.exit_code() == 1
    agent.wait_for("restart 1 of --max_restarts=1")
    incident = root_cause(tmp_path)
    assert (incident["exit_code"], incident["message"]) == (1, "ValueError: boom")
    assert not incident["exception"]


def test_core_alone_reports_the_message_of_record(run: Callable[..., Agent], tmp_path: Path) -> None:
    text = """
        import sys
        from elastic_core import record

        @record
        def main():
            raise ValueError("no such layer")

        try:
            main()
        finally:
            print("bye", file=sys.stderr)
            sys.exit(3)
    """
    assert run(*ALONE, "--max_restarts=0", script(tmp_path, text)).exit_code() == 1
    incident = root_cause(tmp_path)
    assert (incident["exit_code"], incident["message"]) == (3, "ValueError: no such layer")


@pytest.mark.parametrize("others", [(), ("--no_plugin=causes",)], ids=["before elastic-causes", "in place of it"])
def test_a_plugin_of_others_finds_the_cause(run: Callable[..., Agent], tmp_path: Path, others: tuple[str, ...]) -> None:
    assert run("--plugin=lisp", *others, "--max_restarts=0", *LISP).exit_code() == 1
    incident = root_cause(tmp_path)
    assert (incident["exit_code"], incident["message"]) == (5, "EVAL: no value")
    assert incident["exception"] == "lisp-error"


def test_plugins_that_find_no_cause_delay_nothing(run: Callable[..., Agent], tmp_path: Path) -> None:
    agent = run("--plugin=slow", "--plugin=raising", "--plugin=wrong", *ALONE, "--max_restarts=1", *LISP)
    assert agent.exit_code() == 1
    agent.wait_for(r"The plugin 'slow' did not find a cause within 0\.5 s\.")
    agent.wait_for(r"The plugin 'raising' raised in elastic_find_cause: KeyError: 'cause'")
    agent.wait_for(r"The plugin 'wrong' raised in elastic_find_cause: .*message is 5, which is not a str")
    agent.wait_for("restart 1 of --max_restarts=1")
    incident = root_cause(tmp_path)
    assert (incident["exit_code"], incident["message"]) == (5, "*** - EVAL: no value")


@pytest.mark.parametrize("folds", [True, False], ids=["with elastic-causes", "core alone"])
def test_a_console_of_several_ranks_shows_one_line_for_a_lost_peer(
    run: Callable[..., Agent], tmp_path: Path, folds: bool
) -> None:
    text = """
        import os
        import signal

        if os.environ["RANK"] == "0":
            signal.pause()
        raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:8064")
    """
    others = () if folds else ALONE
    agent = run(*others, "--nproc_per_node=2", "--max_restarts=0", script(tmp_path, text))
    assert agent.exit_code() != 0
    told = [line for line in agent.output.splitlines() if line.startswith(("Traceback", "RuntimeError: [gloo"))]
    (log,) = (tmp_path / "logs").rglob("rank_1/stderr.log")
    printed = log.read_text().splitlines()
    folded = f"{printed[-1]} (a traceback of {len(printed)} lines, after the loss of a peer: {log} has it)"
    assert told == ([folded] if folds else [printed[0], printed[-1]])


@pytest.mark.parametrize("warm", [(), ("--warm_start",)], ids=["fresh", "warm"])
def test_each_python_worker_executes_the_files_that_plugins_name(
    run: Callable[..., Agent], tmp_path: Path, warm: tuple[str, ...]
) -> None:
    own = "import atexit\natexit.register(lambda: print('its own', flush=True))\nprint(prepared, flush=True)"
    agent = run("--plugin=startup", *warm, script(tmp_path, own))
    assert agent.exit_code() == 0
    found = re.findall("prepared|its own|at the end", agent.output)  # a line of the agent's may stand in the same line
    assert found == ["prepared", "its own", "at the end"]


def test_a_plugin_that_cannot_name_its_files_ends_the_run(run: Callable[..., Agent]) -> None:
    agent = run("--plugin=bad-startup", "--no_python", "true")
    assert agent.exit_code() == 2
    agent.wait_for(r"plugin 'bad-startup'.* raised in elastic_worker_startup: OSError: no disk")
