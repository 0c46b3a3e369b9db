from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from elastic_core import Assignment, RunConfig, UsageError
from elastic_core.cli.settle import count_workers
from elastic_core.config import Program, ProgramKind
from elastic_core.plugins import Plugins, load
from elastic_core.plugins.manager import worker_cpus
from elastic_core.protocol.entries import Place

CUDA = "CUDA_VISIBLE_DEVICES"
LOADED = """
import sys
import elastic_devices.plugin
show = lambda: print(sorted(name for name in sys.modules if 'elastic_d' in name))
show()
from elastic_core.config import Program, ProgramKind, RunConfig
plugin = elastic_devices.plugin.Devices()
plugin.elastic_configure(RunConfig(program=Program(ProgramKind.EXECUTABLE, 'true'), settings={'of_others': 1}))
show()
"""
PROGRAM = Program(ProgramKind.EXECUTABLE, "true")


def run(**settings: Any) -> Plugins:
    """The plugins of a run with two workers and these flags."""
    return load(RunConfig(program=PROGRAM, nproc_per_node=2, settings=settings))


def assignment(local_rank: int) -> Assignment:
    place = Place(
        first_rank=0,
        world_size=2,
        local_world_size=2,
        group_rank=0,
        group_world_size=1,
        first_role_rank=0,
        role_world_size=2,
    )
    return Assignment(
        run_id="job7",
        run_uid="run1",
        round=1,
        restart_count=0,
        max_restarts=3,
        role="default",
        place=place,
        local_rank=local_rank,
        master_addr="127.0.0.1",
        master_port=1,
        error_file="error.json",
    )


def environments(plugins: Plugins) -> list[Mapping[str, str]]:
    return [plugins.worker_environment(PROGRAM, assignment(rank)) for rank in range(2)]


def cpus(plugins: Plugins) -> list[list[int] | None]:
    return [worker_cpus(plugins, PROGRAM, assignment(rank)) for rank in range(2)]


def test_without_its_flags_workers_keep_devices_and_cpus() -> None:
    plugins = run()
    assert [env["LOCAL_RANK"] for env in environments(plugins)] == ["0", "1"]
    assert not [env for env in environments(plugins) if CUDA in env]
    assert cpus(plugins) == [None, None]


def test_every_worker_gets_the_next_of_the_visible_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CUDA, "GPU-of-nobody,GPU-of-another")
    monkeypatch.setattr("elastic_devices.visible.nvidia", lambda machine: ())
    monkeypatch.setattr("elastic_devices.visible.amd", lambda machine: ())
    found = environments(run(virtual_local_rank=True))
    assert [(env["LOCAL_RANK"], env["ELASTIC_LOCAL_RANK"], env[CUDA]) for env in found] == [
        ("0", "0", "GPU-of-nobody"),
        ("0", "1", "GPU-of-another"),
    ]
    monkeypatch.setenv(CUDA, "GPU-of-nobody")
    with pytest.raises(UsageError, match=r"--virtual_local_rank: there is no GPU for local rank 1; 1 visible"):
        run(virtual_local_rank=True)


def test_workers_are_bound_to_cpus_of_the_agent() -> None:
    allowed = os.sched_getaffinity(0)
    for found in cpus(run(numa_binding="node")):
        assert found
        assert {*found} <= allowed


def test_a_binding_that_is_impossible_is_refused_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    with pytest.raises(UsageError, match="has 2 workers and only 1 cores that the agent may use"):
        run(numa_binding="exclusive")


def test_a_flag_needs_the_plugin() -> None:
    config = RunConfig(program=PROGRAM, settings={"numa_binding": "node"}, no_plugin=("devices",))
    with pytest.raises(UsageError, match="needs the plugin 'devices', which --no_plugin switches off"):
        load(config)


@pytest.mark.parametrize("word", ["auto", "gpu", "xpu"])
def test_every_word_is_counted_in_a_launch(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setattr("elastic_devices.visible.count_workers", lambda asked, environ, machine: len(asked))
    assert count_workers(word, {}) == len(word)


def test_only_its_own_words_and_flags_import_what_looks_at_devices() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    imported, by_a_flag_of_others = done.stdout.splitlines()
    assert imported == "['elastic_devices', 'elastic_devices.plugin']"
    assert by_a_flag_of_others == "['elastic_devices', 'elastic_devices.flags', 'elastic_devices.plugin']"
