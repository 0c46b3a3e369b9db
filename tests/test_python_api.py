"""The Python API from plain scripts, as its users write them: nothing guards the main program."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from stage import Stage, free_port

AGENT = """
import os
import elastic_core as elastic

def train_loop():
    return int(os.environ["RANK"]) * 10

spec = elastic.agent.server.WorkerSpec(role="trainer", local_world_size=4, entrypoint=train_loop)
agent = elastic.agent.server.LocalElasticAgent(spec)
print(dict(agent.run().return_values))
"""

STD = """
import elastic_core as elastic

def train_loop():
    import torch
    elastic.init_process_group()
    ones = torch.ones(1)
    torch.distributed.all_reduce(ones)
    return ones.item()

mp = elastic.multiprocessing.Std(entrypoint=train_loop, log_dir="./logs", monitor_interval=5, max_restarts=3)
result = mp.run()
print(dict(result.return_values))
"""

RESTARTED = """
import os
import elastic_core as elastic

@elastic.record
def train_loop(name):
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("not the first time")
    return name + os.environ["RANK"]

if __name__ == "__main__":
    Std = elastic.multiprocessing.Std
    once = Std(train_loop, ("w",), nproc_per_node=2, max_restarts=1).run()
    never = Std(train_loop, ("w",), nproc_per_node=1).run()
    print([dict(once.return_values), never.is_failed(), never.failures[0].message])
"""

LAUNCH = """
import sys
from elastic_core.launch import ChildFailedError, LaunchConfig, elastic_launch

def double(number):
    return 2 * number

returned = [elastic_launch(LaunchConfig(nproc_per_node=2), double)(21)]
returned.append(elastic_launch(LaunchConfig(), sys.executable)("-c", "print('a command')"))
try:
    elastic_launch(LaunchConfig(max_restarts=0), sys.executable)("-c", "raise SystemExit(3)")
except ChildFailedError as exc:
    returned.append((exc.returncode, exc.incident.exit_code))
print(returned)
"""

REGISTERED = """
import elastic_core as elastic
from elastic_core import RendezvousHandler

store, rank, world_size = None, 0, 1

class CustomRendezvous(RendezvousHandler):
    def next_rendezvous(self):
        return store, rank, world_size

elastic.rendezvous.registry.register("custom", CustomRendezvous)

def train_loop():
    return "met"

from elastic_core.launch import LaunchConfig, elastic_launch

print(elastic_launch(LaunchConfig(rdzv_backend="custom", nproc_per_node=2), train_loop)())
"""

HANDLER = """
import sys
import elastic_core as elastic
import torch.distributed.elastic.rendezvous.registry
from torch.distributed.elastic.rendezvous import RendezvousParameters

def train_loop():
    import torch
    elastic.init_process_group()
    ones = torch.ones(1)
    torch.distributed.all_reduce(ones)
    return ones.item()

if __name__ == "__main__":
    node, port = sys.argv[1:]
    parameters = RendezvousParameters("c10d", "127.0.0.1:" + port, "job", 2, 2, "127.0.0.1", is_host=node == "0")
    handler = torch.distributed.elastic.rendezvous.registry.get_rendezvous_handler(parameters)
    spec = elastic.agent.server.WorkerSpec(local_world_size=2, entrypoint=train_loop, rdzv_handler=handler)
    result = elastic.agent.server.LocalElasticAgent(spec).run()
    print("RETURNED", sorted(set(result.return_values.values())))
"""

PROCESSES = """
from elastic_core.multiprocessing import Std, start_processes

def add(a, b=1):
    if a == 3:
        raise ValueError("three is bad")
    return a + b

with start_processes("adders", add, {0: (1, 2), 1: (5,)}, {0: {}, 1: {}}) as adders:
    pids, done = adders.pids(), adders.wait()
with start_processes("adders", add, {0: (3,), 1: (5,)}, {0: {}, 1: {}}, "logs", redirects=Std.ALL) as adders:
    failed = adders.wait()
failure = failed.failures[0]
print([len(set(pids.values())), dict(done.return_values), failure.exitcode, failure.message])
"""


def run(script: str, folder: Path) -> object:
    """What a plain script prints in its last line."""
    (folder / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("script", "said"),
    [
        pytest.param(AGENT, {0: 0, 1: 10, 2: 20, 3: 30}, id="LocalElasticAgent"),
        pytest.param(STD, {0: 1.0}, id="Std"),
        pytest.param(RESTARTED, [{0: "w0", 1: "w1"}, True, "ValueError: not the first time"], id="restarts"),
        pytest.param(LAUNCH, [{0: 42, 1: 42}, {}, (1, 3)], id="elastic_launch"),
        pytest.param(REGISTERED, {0: "met", 1: "met"}, id="a registered handler"),
        pytest.param(PROCESSES, [2, {0: 3, 1: 6}, 1, "ValueError: three is bad"], id="start_processes"),
    ],
)
def test_it_runs_from_a_plain_script(tmp_path: Path, script: str, said: object) -> None:
    assert run(script, tmp_path) == said


def test_logs_of_the_workers_are_kept_where_the_caller_said(tmp_path: Path) -> None:
    run(STD, tmp_path)
    assert list((tmp_path / "logs").glob("*/round_1/rank_0/stderr.log"))


def test_nodes_started_from_python_and_from_the_command_line_form_one_job(stage: Stage, tmp_path: Path) -> None:
    script = tmp_path / "launch.py"
    script.write_text(
        "import sys\n"
        "from elastic_core.launch import LaunchConfig, elastic_launch\n"
        "config = LaunchConfig(min_nodes=2, max_nodes=2, run_id='job', rdzv_backend='file', max_restarts=0,\n"
        f"                      rdzv_endpoint={str(tmp_path / 'store')!r})\n"
        "elastic_launch(config, 'env')()\n"
    )
    first = stage.start([sys.executable, str(script)])
    flags = ["--nnodes=2", "--rdzv_backend=file", f"--rdzv_endpoint={tmp_path / 'store'}", "--rdzv_id=job"]
    second = stage.run(*flags, "--no_python", "env")
    assert (first.exit_code(), second.exit_code()) == (0, 0), first.output
    assert all("WORLD_SIZE=2" in agent.output for agent in (first, second))


def test_nodes_meet_over_torchs_handler_that_a_spec_brings(stage: Stage, tmp_path: Path) -> None:
    script, port = tmp_path / "agent.py", free_port()
    script.write_text(HANDLER)
    agents = [stage.start([sys.executable, str(script), str(node), str(port)]) for node in (0, 1)]
    for agent in agents:
        assert agent.exit_code() == 0, agent.output
        assert "RETURNED [4.0]" in agent.lines


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("Std(lambda: 1).run()", "cannot be sent to another process"),
        ("Std.from_str('7')", "which is none of 0 (none), 1 (stdout), 2 (stderr), 3 (both)"),
        ("start_processes('p', 'true', {1: ()}, {1: {}})", "p: args has the local ranks [1]"),
        ("elastic.init_process_group()", "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set"),
        ("LocalElasticAgent(WorkerSpec(entrypoint='true', rdzv_handler=7)).run()", "7 is no rendezvous handler"),
        ("elastic_launch(LaunchConfig(rdzv_backend='redsi'), 'true')()", "There is no rendezvous backend 'redsi'"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(tmp_path: Path, script: str, said: str) -> None:
    (tmp_path / "script.py").write_text(
        "import elastic_core as elastic\n"
        "from elastic_core.agent.server import LocalElasticAgent, WorkerSpec\n"
        "from elastic_core.launch import LaunchConfig, elastic_launch\n"
        f"from elastic_core.multiprocessing import Std, start_processes\n{script}\n"
    )
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 1
    assert said in done.stderr
