"""Rendezvous handlers of others, whole jobs: torch's own, one that a user registers, one installed for torchrun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from rig import COLD, WARM, WORKERS, Agent, Rig, free_port, variable
from wardens import wait_until

COST = "with a rendezvous handler of others"

HANDLERS = '''
    """Nodes that meet in a folder. A user's own: the agent knows nothing of it but ``next_rendezvous``."""

    import os
    from pathlib import Path

    from elastic_core import RendezvousHandler
    from elastic_core.rendezvous import registry


    class FolderStore:
        def __init__(self, folder):
            self.folder = folder
            folder.mkdir(parents=True, exist_ok=True)

        def path(self, key):
            return self.folder / key.replace("/", "-")

        def set(self, key, value):
            scratch = self.path(key).with_suffix(f".{os.getpid()}")
            scratch.write_text(value)
            scratch.rename(self.path(key))

        def get(self, key):
            try:
                return self.path(key).read_text()
            except FileNotFoundError:
                return None


    class CustomRendezvous(RendezvousHandler):
        """Two nodes, numbered by hand; every round has a folder of its own."""

        def __init__(self, params):
            self.folder, self.rank, self.round = Path(params.endpoint), int(params.get("node", "0")), 0

        def next_rendezvous(self):
            self.round += 1
            return FolderStore(self.folder / str(self.round)), self.rank, 2


    class Alone(RendezvousHandler):
        """Built without arguments, and needs nothing."""

        def next_rendezvous(self):
            return None, 0, 1


    class Nobody(RendezvousHandler):
        """Waits for a node that never comes."""

        def next_rendezvous(self):
            while True:
                print("waiting", flush=True)
                open(os.environ["GATE"]).read()


    def for_torchrun():
        return lambda params: Alone()


    registry.register("custom", CustomRendezvous)
    registry.register("nobody", Nobody)
'''

JOINING = """
    import sys

    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    from elastic_torchrun.local_agent import LocalElasticAgent, WorkerSpec

    port, script, done, is_host = sys.argv[1:]
    where = ("127.0.0.1:" + port, "job", 1, 2, "127.0.0.1")
    parameters = RendezvousParameters("c10d", *where, is_host=is_host, last_call_timeout=1)
    spec = WorkerSpec(
        entrypoint=sys.executable, args=(script, "--until", done), rdzv_handler=get_rendezvous_handler(parameters)
    )
    sys.exit(LocalElasticAgent(spec).run().is_failed())
"""

ENTRY_POINTS = """
    [elastic.plugins]
    my-handlers = my_handlers

    [elastic.rendezvous]
    alone = my_handlers:Alone

    [torchrun.handlers]
    torchruns = my_handlers:for_torchrun
"""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of an agent that has the user's distribution installed."""
    site = tmp_path / "site-packages"
    information = site / "my_handlers-1.0.dist-info"
    information.mkdir(parents=True)
    (site / "my_handlers.py").write_text(textwrap.dedent(HANDLERS))
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: my-handlers\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(textwrap.dedent(ENTRY_POINTS))
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))}


@pytest.fixture
def torch_c10d() -> list[str]:
    """The flags with which nodes meet over torch's own handler."""
    endpoint = f"--rdzv_endpoint=127.0.0.1:{free_port()}"
    return ["--rdzv_backend=torch-c10d", endpoint, "--rdzv_id=job", "--rdzv_conf=last_call_timeout=1"]


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """The file that ends the job."""
    return tmp_path / "done"


@pytest.fixture
def custom(rig: Rig, tmp_path: Path, installed: dict[str, str]) -> Callable[..., Agent]:
    """``custom(node, *arguments)`` starts a node of a job whose rendezvous is the user's."""

    def start(node: int, *arguments: object) -> Agent:
        flags = ["--plugin=my-handlers", "--rdzv_backend=custom", f"--rdzv_endpoint={tmp_path / 'meeting'}"]
        return rig.run("--nnodes=2", *flags, f"--rdzv_conf=node={node}", *arguments, env=installed)

    return start


def trains(agent: Agent, world_size: int, *, count: int = 1, **fields: object) -> None:
    agent.wait_for_report("training", count=count, world_size=world_size, **fields)


def both_finish(done: Path, *agents: Agent) -> None:
    done.touch()
    for agent in agents:
        assert agent.exit_code() == 0, agent.output


# torch's own ---------------------------------------------------------------------------------------------------------


def test_nodes_meet_and_join_a_running_job_over_torchs_own_handler(rig: Rig, torch_c10d: list[str], done: Path) -> None:
    command = ["--nnodes=1:2", "--nproc_per_node=2", *torch_c10d, WORKERS / "barrier.py", "--until", done]
    first = rig.run(*command)
    trains(first, 2, count=2)
    second = rig.run(*command)
    for agent in (first, second):
        trains(agent, 4, count=2, restart_count=0)
    both_finish(done, first, second)
    for agent in (first, second):
        assert agent.output.count(COST) == 1


def test_a_node_joins_over_a_handler_of_torchs_that_a_program_has_made(rig: Rig, done: Path) -> None:
    program, port = rig.folder / "agent.py", free_port()
    program.write_text(textwrap.dedent(JOINING))
    command = [sys.executable, str(program), str(port), str(WORKERS / "barrier.py"), str(done)]
    first = rig.start([*command, "true"])
    trains(first, 1)
    second = rig.start([*command, "false"])
    for agent in (first, second):
        trains(agent, 2, restart_count=0)
    both_finish(done, first, second)


def test_a_killed_worker_restarts_all_over_torchs_own_handler(rig: Rig, torch_c10d: list[str], done: Path) -> None:
    command = ["--nnodes=2", "--max_restarts=1", *torch_c10d, WORKERS / "barrier.py", "--until", done]
    agents = [rig.run(*command) for _ in range(2)]
    for agent in agents:
        trains(agent, 2)
    next(agent for agent in agents if 1 in agent.workers()).kill_worker(1)
    for agent in agents:
        trains(agent, 2, restart_count=1)
    both_finish(done, *agents)


def test_a_hang_is_named_on_its_node_and_ended_over_torchs_own_handler(rig: Rig, torch_c10d: list[str]) -> None:
    # Neither node looks whether the other waits, and stops for it, before it has noticed the hang itself.
    flags = ["--nnodes=2", "--nproc_per_node=2", "--hang_timeout=3", "--monitor_interval=30", "--max_restarts=2"]
    flags += torch_c10d
    agents = [rig.run(*flags, WORKERS / "hang.py", "--how=lock", env=WARM) for _ in range(2)]
    for agent in agents:
        assert agent.exit_code() == 0, agent.output
        assert len(agent.reports("done")) == 2
        agent.wait_for(r"round 1: no progress for 3 s:$")
    assert sum("lock_twice (hang.py:" in agent.output for agent in agents) == 1, "the node of rank 1 names it"


ABSENT = """
import os, time
from datetime import timedelta
import torch, torch.distributed as dist
def load():
    time.sleep(1000)
dist.init_process_group("gloo", timeout=timedelta(seconds=4))
dist.barrier()
if os.environ["RANK"] == "1": load()
dist.all_reduce(torch.ones(1))
"""


def test_a_rank_that_its_peers_waited_for_is_asked_before_it_is_stopped(
    rig: Rig, torch_c10d: list[str], tmp_path: Path
) -> None:
    """Over a handler of others, a node asks its own ranks."""
    script = tmp_path / "train.py"
    script.write_text(ABSENT)
    flags = ["--nnodes=1", "--nproc_per_node=2", "--max_restarts=1", "--hang_window=0", *torch_c10d]
    agent = rig.run(*flags, script, env=WARM)
    assert agent.exit_code() != 0
    agent.wait_for(r"  others  rank 1 is in load \(train.py:6\)")
    agent.wait_for(r"restart 1 of 1 \(.*; rank 1 is in load \(train.py:6\)\)")


WAITS = """
import os, subprocess, sys
from report import report
def wait_for_gate():
    report("started")
    open(os.environ["GATE"]).read()
with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE):
    wait_for_gate()
"""


@pytest.mark.parametrize("env", [COLD, WARM], ids=["cold", "warm"])
def test_elastic_stacks_shows_the_ranks_of_this_host(
    rig: Rig, custom: Callable[..., Agent], installed: dict[str, str], tmp_path: Path, env: dict[str, str]
) -> None:
    """Rank 2 has no process any more, as on another host. A process that a worker started is not shown."""
    script, gate, job = tmp_path / "waits.py", tmp_path / "gate", f"job-{tmp_path.name}-{os.getpid()}"
    script.write_text(WAITS)
    os.mkfifo(gate)
    installed |= {**env, "GATE": str(gate), "PYTHONPATH": os.pathsep.join([installed["PYTHONPATH"], str(WORKERS)])}
    agent = custom(0, f"--rdzv_id={job}", "--nproc_per_node=2", script)
    other = custom(1, f"--rdzv_id={job}", "--no_python", "true")
    agent.wait_for_report("started", count=2)
    other.wait_for("all local workers of round 1 exited")
    flags = ["--plugin=my-handlers", "--rdzv_backend=custom", f"--rdzv_endpoint={tmp_path}"]
    environment = rig.environment(installed)

    def stacks(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "elastic_core", "stacks", *flags, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    in_gate = f"  ranks 0-1 are in wait_for_gate ({script.name}:6)"
    assert wait_until(lambda: in_gate in stacks(job).stdout), stacks(job)
    found = stacks(job)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == [
        "round 1: where the ranks are:",
        in_gate,
        "2 of 3 ranks run on this host. The custom backend is a rendezvous handler of others, so there is no store in "
        "which other processes find the job. Run elastic stacks on each host of the job, as the user who runs it, "
        "with the job's id. If the job has a store, name it: --rdzv_backend, --rdzv_endpoint and --rdzv_id.",
    ]
    assert "rank 1\n" in stacks(job, "--full").stdout
    missing = stacks("nothing")
    assert missing.returncode == 2
    assert "No worker of job 'nothing' was found on this host" in missing.stderr
    assert "Run elastic stacks on each host of the job" in missing.stderr
    gate.open("w").close()
    assert [agent.exit_code(), other.exit_code()] == [0, 0], agent.output


FAILS_ALIKE = """
import os, signal, time
from report import report
signal.signal(signal.SIGTERM, signal.SIG_IGN)
report("started")
while not os.path.exists(os.environ["GATE"]):
    time.sleep(0.01)
raise KeyError("label")
"""
EXITS_EARLY = """
import os, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if os.environ["RANK"] == "1":
    os._exit(0)
dist.all_reduce(torch.ones(1))
"""


def test_a_rank_that_exited_early_is_named_over_torchs_own_handler(
    rig: Rig, torch_c10d: list[str], tmp_path: Path
) -> None:
    script = tmp_path / "early.py"
    script.write_text(EXITS_EARLY)
    agent = rig.run("--nnodes=1", "--nproc_per_node=2", "--max_restarts=0", *torch_c10d, script)
    assert agent.exit_code() == 1
    agent.wait_for(r"who     rank 1 .*")
    agent.wait_for(r"what    exited with code 0 before the other ranks")


def test_ranks_that_failed_alike_are_counted_over_torchs_own_handler(
    rig: Rig, torch_c10d: list[str], tmp_path: Path
) -> None:
    script, gate = tmp_path / "alike.py", tmp_path / "gate"
    script.write_text(FAILS_ALIKE)
    command = ["--nnodes=1", "--nproc_per_node=2", "--max_restarts=0", *torch_c10d, script]
    agent = rig.run(*command, env={"GATE": str(gate), "PYTHONPATH": str(WORKERS)})
    agent.wait_for_report("started", count=2)
    gate.touch()
    assert agent.exit_code() == 1
    agent.wait_for("the job has failed: .*; 2 of 2 ranks failed alike")


def test_workers_share_the_store_of_torchs_static_handler(rig: Rig, done: Path) -> None:
    where = ["--master_addr=127.0.0.1", f"--master_port={free_port()}"]
    command = ["--nnodes=2", "--rdzv_backend=torch-static", *where]
    job = [WORKERS / "allreduce.py", "--until", done]
    agents = [rig.run(*command, f"--node_rank={rank}", *job) for rank in (0, 1)]
    for agent in agents:
        agent.wait_for_report("training", world_size=2)
    shared = [worker for agent in agents for worker in agent.workers().values()]
    assert [variable(pid, "TORCHELASTIC_USE_AGENT_STORE") for pid in shared] == ["True", "True"]
    both_finish(done, *agents)


def test_a_store_that_nobody_hosts_is_said_in_one_sentence(rig: Rig) -> None:
    conf = "--rdzv_conf=is_host=false,read_timeout=1"
    endpoint = f"--rdzv_endpoint=127.0.0.1:{free_port()}"
    agent = rig.run("--nnodes=2", "--rdzv_backend=torch-c10d", endpoint, conf, WORKERS / "sleeper.py")
    assert agent.exit_code() == 69
    assert "could not be made: RendezvousConnectionError" in agent.output
    assert "Traceback" not in agent.output


# A user's own --------------------------------------------------------------------------------------------------------


def test_a_registered_handler_serves_nodes_of_unequal_size_and_roles(custom: Callable[..., Agent]) -> None:
    place = """printf '{"event": "place", "rank": %s, "role_rank": "%s of %s", "master": "%s"}\\n' \
        $RANK $ROLE_RANK $ROLE_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT"""
    program = ["--no_python", "sh", "-c", place]
    agents = [
        custom(0, "--nproc_per_node=1", "--role=actor", *program),
        custom(1, "--nproc_per_node=3", "--role=critic", *program),
    ]
    assert [agent.exit_code() for agent in agents] == [0, 0]
    reports = [report for agent in agents for report in agent.reports("place")]
    assert {report.rank: report["role_rank"] for report in reports} == {
        0: "0 of 1",
        1: "0 of 3",
        2: "1 of 3",
        3: "2 of 3",
    }
    assert len({report["master"] for report in reports}) == 1
    for agent in agents:
        assert agent.output.count(COST) == 1


def test_a_registered_handler_is_asked_again_after_a_failure(custom: Callable[..., Agent], done: Path) -> None:
    job = ["--max_restarts=1", WORKERS / "barrier.py", "--until", done]
    agents = [custom(node, *job) for node in (0, 1)]
    for agent in agents:
        trains(agent, 2)
    agents[1].kill_worker(1)
    for agent in agents:
        trains(agent, 2, restart_count=1)
    both_finish(done, *agents)


def test_a_node_that_gives_up_says_what_failed_there(custom: Callable[..., Agent]) -> None:
    agent = custom(0, WORKERS / "crasher.py", "--ranks=0")
    other = custom(1, "--no_python", "sleep", "1000")
    assert agent.exit_code() == 1
    assert "Root cause (the first failure on this node)" in agent.output
    assert "rank 0 does not like restart count 0" in agent.output
    other.wait_for("round 1:")
    other.signal(signal.SIGTERM)
    assert other.exit_code() == 128 + signal.SIGTERM


def test_an_agent_leaves_while_its_handler_waits(rig: Rig, tmp_path: Path, installed: dict[str, str]) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    command = ["--plugin=my-handlers", "--rdzv_backend=nobody", "--no_python", "true"]
    agent = rig.run(*command, env={**installed, "GATE": str(gate)})
    agent.wait_for("^waiting")
    agent.signal(signal.SIGINT)
    assert agent.exit_code() == 128 + signal.SIGINT


@pytest.mark.parametrize("backend", ["alone", "torchruns"])
def test_an_installed_handler_is_a_backend_by_its_name(rig: Rig, installed: dict[str, str], backend: str) -> None:
    agent = rig.run(
        f"--rdzv_backend={backend}",
        "--rdzv_conf=anything=goes",
        "--no_python",
        "sh",
        "-c",
        "echo rank $RANK",
        env=installed,
    )
    assert agent.exit_code() == 0, agent.output
    assert "rank 0" in agent.lines
    assert agent.output.count(COST) == 1


def test_installed_handlers_are_listed(rig: Rig, installed: dict[str, str]) -> None:
    agent = rig.start([sys.executable, "-m", "elastic_core", "plugins"], env=installed)
    assert agent.exit_code() == 0
    for name in ("my-handlers", "alone", "torchruns"):
        assert f"  {name} " in agent.output
    assert "FAILED" not in agent.output
