"""A job that fails for good writes out what is only in memory, and the next run of the same command goes on from it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from full_disk import fill
from rig import WARM, WORKERS, Rig, free_port, over

TRAIN = WORKERS / "train_state.py"
QUICK = {**WARM, "PET_PRELOAD": "torch,torch._dynamo,elastic_torch.disk,elastic_torch.state.train_state"}
RUN = [sys.executable, "-m", "elastic_core", "run"]
pytestmark = pytest.mark.timeout(400)


class Small:
    """A mount namespace with a file system of 1 MiB at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        mount = f"mount -t tmpfs -o size=1m small {path} && echo mounted && exec sleep infinity"
        self._holder = subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount], stdout=subprocess.PIPE
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"mounted\n"
        pid = self._holder.pid
        self.enter = ["nsenter", f"--target={pid}", "--user", "--mount", "--preserve-credentials", "--"]
        self.inside = Path(f"/proc/{pid}/root{path}")

    def close(self) -> None:
        """Unmount it."""
        assert self._holder.stdout is not None
        self._holder.stdout.close()
        self._holder.kill()
        self._holder.wait()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    made = Small(tmp_path / "small")
    yield made
    made.close()


def rescued(directory: Path) -> dict[Path, dict[str, Any]]:
    """Return the descriptions of the snapshots in a directory, by file."""
    return {path.with_suffix(".snapshot"): json.loads(path.read_text()) for path in directory.rglob("*.json")}


def test_a_job_that_fails_while_the_disk_is_full_goes_on_from_memorys_newest_step(
    rig: Rig, tmp_path: Path, small: Small
) -> None:
    spare, hold = tmp_path / "spare", tmp_path / "hold"
    job = [str(TRAIN), "--epochs=2", "--disk", str(small.path / "disk"), "--at", "5", "--hold", str(hold)]
    command = [*small.enter, *RUN, "--standalone", "--nproc_per_node=2", "--max_restarts=1", *job]
    environment = {**QUICK, "ELASTIC_RESCUE_DIR": str(spare)}
    agent = rig.start([*command, "--fail=9"], env=environment)
    agent.wait_for_report("holding", count=2)
    fill(small.inside / "filler")
    Path(f"{hold}-5").touch()
    assert agent.exit_code() == 1, agent.output
    agent.wait_for("the job has failed")
    assert [r["tier"] for r in agent.reports("began", round="2")] == ["memory"] * 2
    [(path, described)] = rescued(spare).items()
    step = described["step"]
    assert step in (9, 10), "rank 0 may have done the step in which rank 1 fails"
    agent.wait_for(rf"the snapshot of step {step} is in {path} now; the next run")
    assert described["whole"]
    assert path.stat().st_size == described["size"]
    assert not [*spare.rglob("*.partial")]
    assert not [*(small.inside / "disk" / "rescued").rglob("*.*")], "nothing of it stays on the full disk"

    (small.inside / "filler").unlink()
    agent = rig.start(command, env=environment)
    agent.wait_for_report("began", count=2)
    assert [(r["tier"], r["step"]) for r in agent.reports("began")] == [("rescued", step)] * 2
    agent.wait_for(f"Training goes on from step {step}, whose snapshot was written to")
    agent.wait_for_report("step", step=16)
    assert agent.exit_code() == 0, agent.output
    assert len(rescued(spare)) == 1, "it stays, and a job that succeeds writes none"

    agent = rig.start([*command, "--epochs=3"], env=environment)
    agent.wait_for_report("began", count=2)
    assert [(r["tier"], r["step"]) for r in agent.reports("began")] == [("disk", 16)] * 2
    agent.wait_for("is older than the newest checkpoint of step 16: nothing reads it")
    assert agent.exit_code() == 0, agent.output


def test_where_no_directory_has_room_nothing_half_written_stays(rig: Rig, tmp_path: Path, small: Small) -> None:
    disk = tmp_path / "disk"
    job = [str(TRAIN), "--epochs=2", "--disk", str(disk), "--interval=4", "--fail=6"]
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "rescued").write_text("a file is where the folder should be")
    command = [*small.enter, *RUN, "--standalone", "--nproc_per_node=2", "--max_restarts=0", *job]
    fill(small.inside / "filler")
    (small.inside / "more").unlink()
    os.truncate(small.inside / "filler", (small.inside / "filler").stat().st_size - 8192)  # folders, and little else
    agent = rig.start(command, env={**QUICK, "ELASTIC_RESCUE_DIR": str(small.path / "spare")})
    assert agent.exit_code() == 1, agent.output
    agent.wait_for(r"the snapshot of step [67] is lost: .*disk/rescued: Not a directory; .*: No space left on device")
    assert not [path for path in (small.inside / "spare").rglob("*") if path.is_file()]


def test_a_job_that_succeeds_writes_nothing(rig: Rig, tmp_path: Path) -> None:
    job = [TRAIN, "--epochs=1", "--disk", tmp_path / "disk", "--interval=100"]
    command = [*RUN, "--standalone", "--nproc_per_node=2", *map(str, job)]
    agent = rig.start(command, env={**QUICK, "ELASTIC_RESCUE_DIR": str(tmp_path / "spare")})
    assert agent.exit_code() == 0, agent.output
    assert not (tmp_path / "disk" / "rescued").exists()
    assert not (tmp_path / "spare").exists()


@pytest.mark.variant
def test_two_nodes_that_share_a_directory_write_the_state_once_and_both_go_on_from_it(rig: Rig, tmp_path: Path) -> None:
    job = [str(TRAIN), "--epochs=2", "--disk", str(tmp_path / "disk"), "--interval=100"]
    command = [*RUN, *over("file", tmp_path), "--nnodes=2", "--nproc_per_node=1", "--max_restarts=1", *job]
    agents = [rig.start([*command, "--fail=5"], env=QUICK) for _ in range(2)]
    assert [agent.exit_code() for agent in agents] == [1, 1], agents[0].output
    for agent in agents:
        agent.wait_for(rf"the snapshot of step [56] is in {tmp_path}/disk/rescued/")
    found = {described["step"]: path for path, described in rescued(tmp_path / "disk" / "rescued").items()}
    agents = [rig.start(command, env=QUICK) for _ in range(2)]
    for agent in agents:
        agent.wait_for_report("began")
        assert [(r["tier"], r["step"]) for r in agent.reports("began")] == [("rescued", max(found))]
    assert [agent.exit_code() for agent in agents] == [0, 0], agents[0].output


@pytest.mark.parametrize("handler", [False, True], ids=["ledger", "handler"])
def test_a_run_that_is_stopped_by_a_signal_keeps_its_newest_step(rig: Rig, tmp_path: Path, handler: bool) -> None:
    job = [TRAIN, "--epochs=2", "--disk", tmp_path / "disk", "--interval=4", "--at", 7, "--hold", tmp_path / "hold"]
    endpoint = f"--rdzv_endpoint=127.0.0.1:{free_port()}"
    meeting = ["--rdzv_backend=torch-c10d", endpoint, "--rdzv_id=job"] if handler else ["--standalone"]
    command = [*RUN, *meeting, "--nproc_per_node=2", *map(str, job)]
    agent = rig.start(command, env=QUICK)
    agent.wait_for_report("holding", count=2)
    agent.signal(signal.SIGTERM)
    assert agent.exit_code() != 0, agent.output
    agent.wait_for(rf"the snapshot of step 7 is in {tmp_path}/disk/rescued/")
    (tmp_path / "hold-7").touch()
    agent = rig.start(command, env=QUICK)
    agent.wait_for_report("began", count=2)
    assert [(r["tier"], r["step"]) for r in agent.reports("began")] == [("rescued", 7)] * 2
    assert agent.exit_code() == 0, agent.output


def test_a_run_without_a_disk_that_is_stopped_by_a_signal_says_what_is_lost(rig: Rig, tmp_path: Path) -> None:
    job = [TRAIN, "--epochs=2", "--at", 7, "--hold", tmp_path / "hold"]
    agent = rig.start([*RUN, "--standalone", "--nproc_per_node=2", *map(str, job)], env=QUICK)
    agent.wait_for_report("holding", count=2)
    agent.signal(signal.SIGTERM)
    assert agent.exit_code() == 128 + signal.SIGTERM, agent.output
    agent.wait_for("the newest snapshot in memory is of step 7; no step is lost while a node of the job runs")
    agent.wait_for(r"step 7 was only in memory, and is lost with the job.* with TrainState\(disk=\.\.\.\)")


def test_a_run_whose_place_another_one_has_taken_writes_its_newest_step_first(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    meeting = [*over("file", tmp_path / "store"), "--nnodes=1:2", "--nproc_per_node=1"]
    job = [TRAIN, "--epochs=2", "--disk", tmp_path / "disk", "--interval=100", "--at=7", "--hold", tmp_path / "hold"]
    first = rig.start([*RUN, *meeting, *map(str, job)], env=QUICK)
    first.wait_for_report("holding")
    first.signal(signal.SIGSTOP)
    os.waitid(os.P_PID, first.pid, os.WSTOPPED)
    shutil.rmtree(tmp_path / "store" / "job")
    other = rig.start([*RUN, *meeting, str(WORKERS / "barrier.py"), f"--until={tmp_path / 'done'}"])
    other.wait_for_report("training", world_size=1)
    first.signal(signal.SIGCONT)
    first.wait_for("has begun there since: joining again as a new node")
    first.wait_for(rf"the snapshot of step 7 is in {tmp_path}/disk/rescued/")


@pytest.mark.everyday("all failed", "stopped together")
@pytest.mark.parametrize("how", ["stopped together", "stopped before", "killed before", "all failed"])
def test_the_last_node_that_is_stopped_keeps_the_newest_step(rig: Rig, tmp_path: Path, how: str) -> None:
    job = [TRAIN, "--epochs=2", "--disk", tmp_path / "disk", "--interval=100", "--at=7", "--hold", tmp_path / "hold"]
    spare = ["--max_restarts=3", "--rdzv_conf=beat_interval=0.5,lost_after=3"]
    command = [*RUN, *over("file", tmp_path), "--nnodes=2", "--nproc_per_node=1", *spare, *map(str, job)]
    agents = [rig.start(command, env=QUICK) for _ in range(2)]
    for agent in agents:
        agent.wait_for_report("holding")
    first, last = sorted(agents, key=lambda agent: min(agent.workers()))  # the leader has rank 0
    if how == "all failed":  # as when a collective fails because a node is lost: that is told as a failure
        first.kill_node()
        last.kill_worker(1)
        last.wait_for("waiting for .* to replace")
    else:
        first.signal(signal.SIGKILL if how == "killed before" else signal.SIGTERM)
    if how != "stopped together":
        last.wait_for(r"round \d is halted|waiting for .* to replace")
        first.exit_code()
        assert "is only in memory" not in first.output, "the other one may go on"
    last.signal(signal.SIGTERM)
    assert last.exit_code() == 143, last.output
    first.exit_code()
    assert [described["step"] for described in rescued(tmp_path / "disk" / "rescued").values()] == [7], last.output


@pytest.mark.variant
def test_the_parts_of_a_sharded_model_are_put_together_for_other_ranks_and_refused_where_one_is_missing(
    rig: Rig, tmp_path: Path
) -> None:
    hold, spare = tmp_path / "hold", tmp_path / "spare"
    job = [str(WORKERS / "fsdp_state.py"), "--steps=8", "--at=5", "--hold", str(hold)]
    environment = {**WARM, "ELASTIC_RESCUE_DIR": str(spare)}
    preload = "--preload=torch,torch._dynamo"
    two = [*RUN, preload, *over("file", tmp_path), "--nnodes=2", "--nproc_per_node=1", "--max_restarts=0", *job]
    agents = [rig.start(two, env=environment) for _ in range(2)]
    held = {report["digest"] for agent in agents for report in agent.wait_for_report("holding")}
    [(rank, _)] = agents[0].workers().items()
    agents[0].kill_worker(rank)
    assert [agent.exit_code() for agent in agents] == [1, 1], agents[0].output
    parts = {described["rank"] for described in rescued(spare).values() if described["step"] == 5}
    assert parts == {0, 1}

    hold.touch()
    agent = rig.start([*RUN, preload, "--standalone", "--nproc_per_node=3", *job], env=environment)
    assert agent.exit_code() == 0, agent.output
    assert {(r["tier"], r["step"], r["digest"]) for r in agent.reports("began")} == {("rescued", 5, *held)}

    for path, described in rescued(spare).items():
        if described["rank"] == 1:
            path.unlink()
            path.with_suffix(".json").unlink()
    agent = rig.start([*RUN, preload, "--standalone", "--nproc_per_node=2", *job], env=environment)
    assert agent.exit_code() == 0, agent.output
    agent.wait_for("step 5 in .* is incomplete: no node that is here has the part of rank 1 of 2")
    assert [(r["tier"], r["step"]) for r in agent.reports("began")] == [(None, 0)] * 2
