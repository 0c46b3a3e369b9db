"""A job goes on and fails as ever after its environment was upgraded or removed under it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from rig import WARM, WORKERS, Rig

import elastic_core

OBSERVER = """
import sys
import threading
import time

from elastic_core import hookimpl


def watch():
    while not {"elastic_torchrun.error_file", "elastic_core.plugins.verdicts"} <= sys.modules.keys():
        time.sleep(0.01)
    print("all is imported", file=sys.stderr, flush=True)


@hookimpl
def elastic_observe(event):
    if event.name == "workers_started":
        threading.Thread(target=watch, daemon=True).start()
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A copy of core, which is imported in the place of the one that is tested, and an observer that says when."""
    folder = tmp_path / "site"
    shutil.copytree(Path(elastic_core.__file__).parent, folder / "elastic_core")
    (folder / "imports_observer.py").write_text(OBSERVER)
    information = folder / "imports_observer-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: imports-observer\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[elastic.autoload]\nimports = imports_observer\n")
    return folder


@pytest.mark.parametrize("start", [{}, WARM], ids=["fresh", "warm"])
def test_the_root_cause_of_a_failure_is_told_though_core_was_removed(
    rig: Rig, installed: Path, tmp_path: Path, start: dict[str, str]
) -> None:
    agent = rig.run(
        *("--standalone", f"--log_dir={tmp_path / 'logs'}", WORKERS / "sleeper.py"),
        env={"PYTHONPATH": str(installed), "TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json"), **start},
    )
    agent.wait_for_report("started")
    agent.wait_for("all is imported")
    shutil.rmtree(installed)
    agent.kill_worker(0)
    assert agent.exit_code() == 1
    agent.wait_for(r"what +was killed by SIGKILL")
    assert "Error" not in agent.output
    assert [*tmp_path.glob("logs/*/verdict.json")]
    assert (tmp_path / "error.json").exists()
