"""A distribution of a vendor, installed beside ours: it counts its accelerators, and binds workers to CPUs."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from rig import Agent, Rig

from elastic_core.exit_codes import ExitCode

PLUGIN = """
    import os
    from elastic_core import hookimpl

    class Accelerators:
        @hookimpl
        def elastic_count_workers(self, word, environ):
            return int(environ["HPUS"])

        @hookimpl
        def elastic_worker_environment(self, assignment):
            return {"HPU_VISIBLE_DEVICES": str(assignment.local_rank)}

        @hookimpl
        def elastic_worker_cpus(self, assignment):
            if "UNKNOWN_CPUS" in os.environ:
                raise ValueError("this machine has no sysfs")
            return [max(os.sched_getaffinity(0))] if assignment.local_rank else None
"""
ENTRY_POINTS = """
    [elastic.autoload]
    hpus = hpus:Accelerators

    [elastic.worker_counts]
    hpu = hpus:Accelerators
"""
SAYS = ["-c", "import os; print(os.environ['HPU_VISIBLE_DEVICES'], *sorted(os.sched_getaffinity(0)), sep='-')"]


@pytest.fixture
def run(rig: Rig, tmp_path: Path) -> Callable[..., Agent]:
    """Starts ``elastic run`` where the distribution is installed; workers print their device and CPUs."""
    site = tmp_path / "site-packages"
    information = site / "hpus-1.0.dist-info"
    information.mkdir(parents=True)
    (site / "hpus.py").write_text(textwrap.dedent(PLUGIN))
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: hpus\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(textwrap.dedent(ENTRY_POINTS))
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))

    def start(*flags: str, **variables: str) -> Agent:
        return rig.run(*flags, "--no_python", sys.executable, *SAYS, env={"PYTHONPATH": path, **variables})

    return start


def test_workers_are_counted_and_bound_by_the_plugin(run: Callable[..., Agent]) -> None:
    agent = run("--nproc_per_node=hpu", HPUS="2")
    assert agent.exit_code() == 0, agent.output
    allowed = sorted(os.sched_getaffinity(0))
    assert {f"0-{'-'.join(map(str, allowed))}", f"1-{allowed[-1]}"} <= {*agent.lines}


def test_a_plugin_that_cannot_count_ends_the_launch(run: Callable[..., Agent]) -> None:
    agent = run("--nproc_per_node=hpu")
    assert agent.exit_code() == ExitCode.USAGE
    assert "'hpu' (hpus 1.0) raised in elastic_count_workers: KeyError: 'HPUS'." in agent.output
    assert "round 1" not in agent.output


def test_a_plugin_that_cannot_bind_a_worker_fails_the_round(run: Callable[..., Agent]) -> None:
    agent = run("--nproc_per_node=1", "--max_restarts=0", UNKNOWN_CPUS="1")
    assert agent.exit_code() == ExitCode.JOB_FAILED
    assert "raised in elastic_worker_cpus: ValueError: this machine has no sysfs." in agent.output
