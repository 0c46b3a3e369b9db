"""Plain torchrun with our rendezvous in etcd: real agents of torch's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from etcd_servers import Etcd, running
from rig import WORKERS, Agent, Rig

pytestmark = pytest.mark.timeout(300)  # every agent and every worker imports torch


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Etcd]:
    with running(tmp_path / "etcd") as etcd:
        yield etcd


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """The file that ends the job."""
    return tmp_path / "done"


@pytest.fixture
def torchrun(rig: Rig, server: Etcd, done: Path) -> Callable[[], Agent]:
    """``torchrun()`` starts a node of one or two."""

    def start() -> Agent:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--max_restarts=3"]
        where = ["--rdzv_backend=elastic-etcd", f"--rdzv_endpoint={server.endpoint}", "--rdzv_id=job"]
        return rig.start([*launcher, *where, str(WORKERS / "allreduce.py"), "--until", str(done)])

    return start


@pytest.mark.variant
def test_a_node_joins_a_job_of_torchruns_a_worker_is_killed_and_both_finish(
    torchrun: Callable[[], Agent], done: Path
) -> None:
    first = torchrun()
    first.wait_for_report("training", world_size=1)
    second = torchrun()
    for agent in (first, second):
        agent.wait_for_report("training", world_size=2)
    second.kill_worker(max(second.workers()))
    for agent in (first, second):
        agent.wait_for_report("training", count=2, world_size=2)
    done.touch()
    for agent in (first, second):
        assert agent.exit_code() == 0, agent.output


def test_torchrun_finds_the_handler_and_imports_no_client_until_it_is_used() -> None:
    script = (
        "import sys\n"
        "from importlib.metadata import entry_points\n"
        "[point] = entry_points(group='torchrun.handlers', name='elastic-etcd')\n"
        "assert callable(point.load()())\n"
        "assert not {'http.client', 'etcd', 'elastic_torchrun.handlers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
