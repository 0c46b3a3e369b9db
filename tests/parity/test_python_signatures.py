"""Python code for torch is accepted here: its arguments in its order, its fields, its objects."""

from __future__ import annotations

import dataclasses
import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.elastic.agent.server.api as torchs_server
import torch.distributed.elastic.agent.server.local_elastic_agent as torchs_agent
import torch.distributed.elastic.multiprocessing as torchs_multiprocessing
import torch.distributed.launcher.api as torchs_launcher
from rig import free_port

from elastic_torchrun import launch, local_agent

LAUNCHES = """
import dataclasses
import sys
import torch.distributed.launcher.api as torchs
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.numa.binding import AffinityMode, NumaOptions

import elastic_core as elastic
from elastic_torchrun.launch import LaunchConfig, launch_agent

def train_loop(word):
    import os
    print(word, flush=True)
    return os.environ["RANK"] if word == "hello" else os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"]

def config(of, **given):
    logs_specs = DefaultLogsSpecs("logs", tee=Std.OUT, local_ranks_filter={1})
    return of(1, 1, 2, logs_specs, "job", "trainer", **given)

given = {
    "numa_options": NumaOptions(AffinityMode.SOCKET), "metrics_cfg": {"a": "b"}, "event_log_handler": "mine",
    "rdzv_timeout": 7, "duplicate_stdout_filters": ["hello"], "shutdown_timeout": 3, "rdzv_backend": "local",
}
if __name__ == "__main__":
    theirs, ours = config(torchs.LaunchConfig, **given), config(LaunchConfig, **given)
    differ = {"signals_to_handle", "rdzv_configs"}  # torch's SIGQUIT, and its timeout in both places
    of_torch = {item.name for item in dataclasses.fields(theirs)} - differ
    print([name for name in of_torch if getattr(theirs, name) != getattr(ours, name)])
    print(launch_agent(ours, train_loop, ["hello"]))

    server = elastic.agent.server
    spec = server.WorkerSpec("trainer", 1, None, None, train_loop, ("spec",), 0, 0.1, int(sys.argv[1]), "127.0.0.1")
    logs_specs = DefaultLogsSpecs("spec_logs", tee=Std.OUT)
    agent = server.LocalElasticAgent(spec, logs_specs, "fork", 300, "[${role_name}]:", 30)
    print(agent.run().return_values[0])
"""
SAID = [
    "[]",
    "[rank1]:hello",
    "{0: '0', 1: '1'}",
    "[trainer]:spec",
]


def names(of: Callable[..., Any]) -> list[str]:
    """The arguments that can be given by place, in order, without ``self``."""
    parameters = inspect.signature(of).parameters.values()
    return [item.name for item in parameters if item.kind is item.POSITIONAL_OR_KEYWORD and item.name != "self"]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (torchs_launcher.LaunchConfig, launch.LaunchConfig),
        (torchs_launcher.elastic_launch.__init__, launch.elastic_launch.__init__),
        (torchs_launcher.launch_agent, launch.launch_agent),
        (torchs_server.WorkerSpec, local_agent.WorkerSpec),
        (torchs_agent.LocalElasticAgent.__init__, local_agent.LocalElasticAgent.__init__),
    ],
    ids=lambda function: function.__qualname__,
)
def test_arguments_have_torchs_names_in_torchs_order(theirs: Callable[..., Any], ours: Callable[..., Any]) -> None:
    assert names(ours) == names(theirs)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (torchs_server.RunResult, local_agent.RunResult),
        (torchs_multiprocessing.ProcessFailure, launch.ProcessFailure),
    ],
)
def test_results_have_torchs_fields(theirs: Any, ours: Any) -> None:
    assert {item.name for item in dataclasses.fields(theirs)} <= {item.name for item in dataclasses.fields(ours)}


def test_torchs_objects_are_understood_and_what_has_no_effect_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(LAUNCHES)
    env, port = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}, str(free_port())
    command = [sys.executable, "script.py", port]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [*SAID, f"127.0.0.1:{port}"]
    warned = [line.partition(" has no effect")[0] for line in done.stderr.splitlines() if "warning" in line]
    assert warned == [
        "elastic: warning: metrics_cfg",
        "elastic: warning: event_log_handler='mine'",
        "elastic: warning: start_method='fork'",
    ]
    (filtered,) = tmp_path.glob("logs/job_*/round_1/filtered_stdout.log")
    assert sorted(filtered.read_text().splitlines()) == ["[rank0]:hello", "[rank1]:hello"]
    assert list(tmp_path.glob("spec_logs/*/round_1/rank_0/stdout.log"))
