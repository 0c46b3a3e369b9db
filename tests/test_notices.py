"""Notices of a preemption, whole jobs: a node leaves before its machine is taken away, and the job keeps its steps."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from clouds import Cloud, cloud
from rig import WORKERS, Agent, Rig

TERM = 128 + signal.SIGTERM
PATH = {"PYTHONPATH": str(WORKERS)}
QUICK = {"ELASTIC_NOTICES_INTERVAL": "0.05"}


@pytest.fixture
def service() -> Iterator[Cloud]:
    with cloud() as running:
        yield running


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """The file that ends the job."""
    return tmp_path / "done"


@pytest.fixture
def job(done: Path, tmp_path: Path) -> list[object]:
    return [WORKERS / "graceful.py", "--until", done, "--state", tmp_path / "state"]


def environment(service: Cloud) -> dict[str, str]:
    host = service.url.removeprefix("http://")
    return {
        **QUICK,
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": service.url,
        "GCE_METADATA_HOST": host,
        "ELASTIC_NOTICES_AZURE_ENDPOINT": service.url,
    }


def announce(service: Cloud, name: str, seconds: float) -> None:
    if name == "aws":
        service.interrupt_aws(seconds)
    elif name == "gcp":
        service.announce("preempted", "TRUE")
    else:
        service.schedule_azure("Preempt", seconds)


def steps(agents: list[Agent], kind: str, world_size: int) -> set[int]:
    return {report["step"] for agent in agents for report in agent.reports(kind, world_size=world_size)}


def two_nodes(rig: Rig, service: Cloud, name: str, *command: object) -> tuple[Agent, Agent]:
    """A job of two nodes; the second one's machine gets the notices."""
    first = rig.run("--nnodes=1:2", "--max_restarts=0", "--notices=none", *command)
    first.wait_for_report("stepped", world_size=1)
    env = environment(service)
    second = rig.run("--nnodes=1:2", "--max_restarts=0", f"--notices={name}", *command, env=env)
    second.wait_for_report("stepped", world_size=2)
    return first, second


@pytest.mark.parametrize(("name", "seconds"), [("aws", 120.0), ("aws", 8.0), ("gcp", 30.0), ("azure", 120.0)])
def test_a_notice_loses_no_step(
    rig: Rig,
    file_rendezvous: list[str],
    job: list[object],
    done: Path,
    service: Cloud,
    name: str,
    seconds: float,
) -> None:
    first, second = two_nodes(rig, service, name, *file_rendezvous, *job)
    announce(service, name, seconds)
    assert second.exit_code() == TERM
    first.wait_for_report("training", count=2, world_size=1)
    stopped = steps([first, second], "stopped", 2)
    assert len(stopped) == 1, "both stop together"
    assert stopped <= steps([first], "training", 1), "and the one that stays goes on after that step"
    done.touch()
    assert first.exit_code() == 0, first.output
    assert "leaves" in first.output


SLOW = """
import os, signal, sys, time
from pathlib import Path

from report import RANK, report

from elastic_core.worker.graceful_stop import should_checkpoint

state, done, world_size = Path(sys.argv[1]), Path(sys.argv[2]), int(os.environ["WORLD_SIZE"])
step = began = int(state.read_text()) if state.exists() else 0
report("training", world_size=world_size, step=step)
while not done.exists():
    if world_size == 2 and step >= began + 30:
        report("slow", world_size=world_size, step=step)
        signal.pause()  # a step that takes longer than the notice allows, and that SIGTERM ends
    time.sleep(0.02)
    step += 1
    if RANK == 0:
        beside = state.with_suffix(".new")
        beside.write_text(str(step))
        beside.replace(state)
    if should_checkpoint(step):
        break
    if step % 10 == 0:
        report("stepped", world_size=world_size, step=step)
"""


def test_a_notice_of_five_seconds_loses_the_step_in_progress_at_most(
    rig: Rig, file_rendezvous: list[str], done: Path, tmp_path: Path, service: Cloud
) -> None:
    (script := tmp_path / "slow.py").write_text(SLOW)
    command = [*file_rendezvous, script, tmp_path / "state", done]
    first = rig.run("--nnodes=1:2", "--max_restarts=0", "--notices=none", *command, env=PATH)
    first.wait_for_report("stepped", world_size=1)
    env = {**PATH, **environment(service)}
    second = rig.run("--nnodes=1:2", "--max_restarts=0", "--notices=aws", *command, env=env)
    (stuck,) = first.wait_for_report("slow", world_size=2)
    second.wait_for_report("slow", world_size=2)
    announce(service, "aws", 5.0)
    assert second.exit_code() == TERM
    first.wait_for_report("training", count=2, world_size=1)
    assert max(steps([first], "training", 1)) == stuck["step"], "only the step in progress is lost"
    done.touch()
    assert first.exit_code() == 0, first.output
    assert re.search(r"the workers of round 2 are to stop together within [23]", first.output)


def test_a_hint_and_a_service_that_does_not_answer_disturb_nothing(
    rig: Rig, file_rendezvous: list[str], job: list[object], done: Path, service: Cloud
) -> None:
    service.announce("spot/instance-action", "<html>404</html>")
    first, second = two_nodes(rig, service, "aws", *file_rendezvous, *job)
    service.wait_for_request("/latest/meta-data/spot/instance-action", 3)
    service.announce("events/recommendations/rebalance", '{"noticeTime": "2020-10-27T08:22:00Z"}')
    service.announce("spot/instance-action", "")
    count = sum(path.endswith("spot/instance-action") for _, path in service.asked)
    service.wait_for_request("/latest/meta-data/spot/instance-action", count + 1)
    done.touch()
    assert [agent.exit_code() for agent in (first, second)] == [0, 0]
    assert second.output.count("no notices of a preemption: the metadata service of AWS (spot/instance-action)") == 1


def test_the_garbage_of_a_service_is_one_line(
    rig: Rig, file_rendezvous: list[str], job: list[object], done: Path, service: Cloud
) -> None:
    service.announce("spot/instance-action", "<html>404</html>")
    agent = rig.run("--notices=aws", *file_rendezvous, *job, env=environment(service))
    service.wait_for_request("/latest/meta-data/spot/instance-action", 3)
    agent.wait_for_report("stepped")
    done.touch()
    assert agent.exit_code() == 0
    assert agent.output.count("no notices of a preemption") == 1


def test_without_a_cloud_nothing_is_asked(
    rig: Rig, file_rendezvous: list[str], job: list[object], done: Path, service: Cloud
) -> None:
    if (vendor := Path("/sys/class/dmi/id/sys_vendor")).exists():
        assert os.access(vendor, os.R_OK)
    agent = rig.run("--notices=none", *file_rendezvous, *job, env=environment(service))
    agent.wait_for_report("stepped")
    done.touch()
    assert agent.exit_code() == 0
    assert service.asked == []
