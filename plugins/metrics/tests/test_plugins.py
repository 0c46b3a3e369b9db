"""The distribution as a run sees it: found by its entry points, on once installed, off when told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import elastic_core.plugins.manager
from elastic_core import RunConfig
from elastic_core.config.program import Program, ProgramKind
from elastic_core.plugins.entry_points import Catalogue
from elastic_operate.plugin_list import inventory

OBSERVING = ("elastic_observe", "elastic_run_ends", "elastic_run_starts")
HOOK = "elastic_run_starts"

FAILS_ONCE = """
import contextlib, os, sys, urllib.request
from pathlib import Path

if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(3)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
page = ""
while 'elastic_recovery_seconds_count{cause="failure"} 1.0' not in page:  # the observer may be behind the workers
    with contextlib.suppress(OSError), opener.open(sys.argv[2], timeout=60) as reply:
        page = reply.read().decode()
Path(sys.argv[1]).write_text(page)
"""


def test_elastic_plugins_lists_both_and_their_hooks() -> None:
    listed = [row for row in inventory(Catalogue.read()) if row.distribution == "elastic-metrics"]
    assert {(row.group, row.name, row.hooks, row.error) for row in listed} == {
        ("elastic.autoload", "events", OBSERVING, None),
        ("elastic.autoload", "prometheus", OBSERVING, None),
    }


@pytest.mark.parametrize(
    ("off", "on"),
    [
        ((), {"events", "prometheus"}),
        (("events",), {"prometheus"}),
        (("events", "prometheus"), set()),
    ],
)
def test_both_are_on_once_installed_and_each_is_off_with_no_plugin(off: tuple[str, ...], on: set[str]) -> None:
    config = RunConfig(program=Program(ProgramKind.SCRIPT, "train.py"), no_plugin=off)
    ours = {impl.plugin for impl in elastic_core.plugins.manager.load(config).implementations(HOOK)}
    assert ours & {"events", "prometheus"} == on


def test_a_setting_that_is_wrong_leaves_the_plugin_off_and_the_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTIC_METRICS_PORT", "http")
    plugins = elastic_core.plugins.manager.load(RunConfig(program=Program(ProgramKind.SCRIPT, "train.py")))
    (problem,) = plugins.problems.values()
    assert "ELASTIC_METRICS_PORT='http' is not a port. Give a number" in problem.message
    assert "events" in {impl.plugin for impl in plugins.implementations(HOOK)}


def test_a_whole_run_leaves_its_events_and_tells_its_numbers(tmp_path: Path, port: int) -> None:
    script, page = tmp_path / "train.py", tmp_path / "page"
    script.write_text(FAILS_ONCE)
    logs, url = tmp_path / "logs", f"http://127.0.0.1:{port}/metrics"
    command = ["run", "--standalone", "--max_restarts=1", f"--log_dir={logs}", str(script), str(page), url]
    environ = {**os.environ, "ELASTIC_METRICS_PORT": str(port)}
    done = subprocess.run(
        [sys.executable, "-m", "elastic_core", *command], env=environ, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr

    (file,) = logs.glob("*/events_*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    names = [line["name"] for line in lines if line["level"] != "DEBUG" or line["name"] == "workers_started"]
    assert names == [
        "run_starts",
        "joining",
        "round_started",
        "workers_started",
        "worker_failed",
        "verdict",
        "round_started",
        "workers_started",
        "restarted",
        "workers_done",
        "job_closed",
    ]
    assert [line["fields"]["cause"] for line in lines if line["name"] == "round_started"] == [None, "failure"]

    told = page.read_text().splitlines()
    for sample in (
        "elastic_round 2.0",
        "elastic_world_size 1.0",
        "elastic_workers_running 1.0",
        "elastic_restarts_spent 1.0",
        'elastic_restarts_total{cause="failure"} 1.0',
        "elastic_worker_failures_total 1.0",
    ):
        assert sample in told
