"""Jobs on a real Slurm: a controller, munge and four nodes on this machine (``slurm_cluster.py``)."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from rig import COLD, WORKERS, parse
from slurm_cluster import LOGIN, SlurmCluster, SlurmJob, slurm_cluster

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")

DEPLOY = Path(__file__).parents[1] / "deploy" / "slurm"
ELASTIC = f"{sys.executable} -m elastic_core"


@pytest.fixture(scope="module")
def cluster_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as running:
        (running.folder / "bin").mkdir()
        command = running.folder / "bin" / "elastic"
        command.write_text(f'#!/bin/sh\nexec {ELASTIC} "$@"\n')
        command.chmod(0o755)
        yield running


@pytest.fixture
def cluster(cluster_of_module: SlurmCluster) -> Iterator[SlurmCluster]:
    """The cluster, without jobs and with all of its nodes."""
    yield cluster_of_module
    cluster_of_module.clear()


@pytest.fixture
def folder(cluster: SlurmCluster, request: pytest.FixtureRequest) -> Path:
    """The folder of the test, which all nodes see."""
    folder = cluster.shared / str(request.node.name)
    folder.mkdir()
    return folder


def environment(cluster: SlurmCluster, folder: Path | None = None, **more: str) -> dict[str, str]:
    """Return the variables of a user: ``elastic`` on PATH, and perhaps a directory that is said to be shared."""
    path = f"{cluster.folder}/bin:{cluster.environ['PATH']}"
    return {**COLD, "PATH": path, "ELASTIC_SHARED_DIRECTORY": str(folder or ""), **more}


def steps(folder: Path) -> str:
    """Return the program: it counts steps, and saves and leaves when should_checkpoint() says so."""
    return f"{WORKERS}/graceful.py --until={folder}/done --state={folder}/state --pace=0.05"


def finish(folder: Path) -> None:
    """Let the program of :func:`steps` end."""
    (folder / "done").touch()


def reports(job: SlurmJob, event: str) -> list[tuple[int, int]]:
    """Return world size and step of each report of this kind, in order."""
    complete, _, _ = job.output.rpartition("\n")  # the last line may be half-written
    found = [report for line in complete.splitlines() if (report := parse(line)) is not None]
    return [(report["world_size"], report["step"]) for report in found if report.event == event]


def wait_for_reports(job: SlurmJob, event: str, world_size: int, count: int) -> None:
    """Wait for so many reports of workers in a world of this size."""
    job.cluster.wait_for(
        lambda: [size for size, _ in reports(job, event)].count(world_size) >= count,
        f"{count} reports {event!r} of {world_size} workers in job {job.number}",
    )


# What is taken from Slurm -------------------------------------------------------------------------------------------


def test_no_scontrol(cluster: SlurmCluster, folder: Path) -> None:
    """A job of fixed size, whose PATH has nothing but ``elastic``."""
    finish(folder)
    script = adapted("fixed", nodes=None).replace("gpus-per-node=8", "gpus-per-node=2")
    script = script.replace("srun ", f"srun --export=ALL,PATH={cluster.folder}/bin ")
    job = cluster.submit(with_arguments(script, steps(folder)), env=environment(cluster, folder))
    assert "done" in job.wait_for_state("COMPLETED", "FAILED"), job.output
    assert reports(job, "done").count((8, 0)) == 8
    (line,) = [line for line in job.output.splitlines() if line.startswith("elastic: Slurm job")]
    assert f"--nnodes=4 (SLURM_STEP_NODELIST), --rdzv_id={job.number}.0" in line
    assert f"--rdzv_endpoint={folder}/.elastic-{os.getuid()} (ELASTIC_SHARED_DIRECTORY)" in line
    assert "--nproc_per_node=2 (CUDA_VISIBLE_DEVICES)" in line


def test_login_node_address(cluster: SlurmCluster, folder: Path) -> None:
    """A step that is started on the login node: Slurm's variables of the submitting host name a host without a job."""
    finish(folder)
    script = f'echo "launched from $SLURM_LAUNCH_NODE_IPADDR"; exec elastic run {steps(folder)}'
    output = cluster.call("srun", "--nodes=2", "sh", "-c", script, env=environment(cluster))
    assert output.count(f"launched from {cluster.hosts[LOGIN].ipv4}") == 2
    assert re.search(
        r"--rdzv_backend=c10d \(no directory is known to be shared\), --rdzv_endpoint=node0:2\d{4} ", output
    )
    assert output.count('"event": "done"') == 2, output


def test_each_node_alone(cluster: SlurmCluster, folder: Path) -> None:
    finish(folder)
    run, alone = f"elastic run {steps(folder)}", f"elastic run --standalone {steps(folder)}"
    script = "\n".join(f'{line}; echo "exit code $?"' for line in (run, f"srun -N1 -n1 {run}", f"srun {run}", alone))
    options = ("--nodes=2", "--ntasks-per-node=2", "--gpus-per-task=1")
    job = cluster.submit(script, *options, env=environment(cluster, folder))
    output = job.wait_for_state("COMPLETED", "FAILED")
    without_srun, one_node, two_tasks, standalone, *_ = re.split(r"(?m)^exit code \d+\n", output)
    assert re.findall(r"(?m)^exit code (\d+)\n", output) == ["2", "2", "2", "0"], output
    right = "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 elastic run …"
    assert f"Slurm job {job.number} has 2 nodes, and `elastic run` was started on node0 alone" in without_srun
    assert f"Slurm job {job.number} has 2 nodes, and this step of srun has node0 alone." in one_node
    assert two_tasks.count("srun has started `elastic run` 2 times on node0, once for each task.") == 1
    assert "#SBATCH --ntasks-per-node=1 --gpus-per-node=2" in two_tasks
    assert all(right in text for text in (without_srun, one_node, two_tasks))
    assert '"event": "done"' in standalone
    output = cluster.call("salloc", "--nodes=2", *run.split(), env=environment(cluster, folder), check=False)
    assert "This host is not one of the 2 nodes of Slurm job" in output


def test_a_heterogeneous_job_has_as_many_workers_as_each_node_has_gpus(cluster: SlurmCluster, folder: Path) -> None:
    finish(folder)
    script = adapted("heterogeneous", nodes=None)
    script = script.replace("gpus-per-node=4", "gpus-per-node=1").replace("gpus-per-node=8", "gpus-per-node=2")
    job = cluster.submit(with_arguments(script, steps(folder)), env=environment(cluster, folder))
    job.wait_for_state("COMPLETED", "FAILED")
    assert reports(job, "done").count((4, 0)) == 4, job.output


# Nodes that are lost, and jobs that are queued again ------------------------------------------------------------------


def adapted(name: str, nodes: int | None = 2, **options: str) -> str:
    """Return a script of ``deploy/slurm`` for this cluster: its sizes, and no GPUs but for a heterogeneous job."""
    text = (DEPLOY / f"{name}.sbatch").read_text()
    text = text.replace("--time=24:00:00", "--time=10")
    if nodes is not None:
        text = re.sub(r"#SBATCH --gpus-per-node=\d+\n", "", text)
        text = re.sub(r"#SBATCH --nodes=4\n", f"#SBATCH --nodes={nodes}\n", text)
    for option, value in options.items():
        text, found = re.subn(rf"#SBATCH --{option}=\S+", f"#SBATCH --{option}={value}", text)
        assert found == 1, option
    return text


def with_arguments(script: str, arguments: str) -> str:
    """Return the script with these arguments in place of its own."""
    return script.replace('"$@"', arguments)


def test_a_killed_node_and_a_killed_head_node_come_back_to_an_array(cluster: SlurmCluster, folder: Path) -> None:
    script = adapted("elastic", nodes=1, array="0-3").replace("--nnodes=2:8", "--nnodes=1:4")
    script = with_arguments(script, f"--rdzv_conf=beat_interval=0.5,lost_after=2 {steps(folder)}")
    output = f"--output={folder}/out.txt"
    array = cluster.submit(script, output, env=environment(cluster, folder))
    job = SlurmJob(cluster, array.number, folder / "out.txt")
    wait_for_reports(job, "training", 4, 4)
    for killed in ("node2", "node0"):  # the second one is the first task's, with the job's first rank
        before = [size for size, _ in reports(job, "training")]
        cluster.kill_node(killed)
        wait_for_reports(job, "training", 3, before.count(3) + 3)
        cluster.down(killed)  # what Slurm finds by SlurmdTimeout: it queues the task again
        cluster.revive_node(killed)
        wait_for_reports(job, "training", 4, before.count(4) + 4)
    finish(folder)
    cluster.wait_for(lambda: [size for size, _ in reports(job, "done")].count(4) == 4, "the job is done")


def test_head_node_killed(cluster: SlurmCluster, folder: Path) -> None:
    """A step that is started on the login node outlives the first node of its list."""
    flags = "--nnodes=2:4 --rdzv_conf=beat_interval=0.5,lost_after=2"
    command = f"srun --nodes=4 --no-kill --kill-on-bad-exit=0 --wait=0 elastic run {flags} {steps(folder)}"
    output = folder / "out.txt"
    with output.open("w") as out:
        step = subprocess.Popen(
            cluster.command(LOGIN, *shlex.split(command)),
            env={**cluster.environ, **environment(cluster, folder)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        job = SlurmJob(cluster, 0, output)
        wait_for_reports(job, "training", 4, 4)
        cluster.kill_node("node0")
        wait_for_reports(job, "training", 3, 3)
        finish(folder)
        cluster.wait_for(lambda: [size for size, _ in reports(job, "done")].count(3) == 3, "the job is done")
    finally:
        with suppress(ProcessLookupError):
            step.kill()
        step.wait()


@pytest.mark.parametrize("why", ["scontrol", "node_failure"])
def test_job_requeued(cluster: SlurmCluster, folder: Path, why: str) -> None:
    """The next run has the same id and another uid, and goes on from the checkpoint, perhaps on other nodes."""
    (folder / "state").write_text("700")
    job = cluster.submit(
        with_arguments(adapted("requeue"), steps(folder)),
        *("--exclusive", f"--output={folder}/out.txt"),
        env=environment(cluster, folder),
    )
    job = SlurmJob(cluster, job.number, folder / "out.txt")
    wait_for_reports(job, "training", 2, 2)
    if why == "scontrol":
        cluster.call("scontrol", "requeue", job.number)
    else:
        cluster.kill_node("node0")  # the batch script's node
        cluster.down("node0")  # what Slurm finds by SlurmdTimeout
    wait_for_reports(job, "training", 2, 4)
    assert job.shown("Restarts") == "1"
    finish(folder)
    job.wait_for_state("COMPLETED")
    assert {step for _, step in reports(job, "training")} == {700}
    assert job.output.count(f"--rdzv_id={job.number}.0") == 2  # the id is the same in both runs


def test_preempted(cluster: SlurmCluster, folder: Path) -> None:
    """A job of a better partition takes the nodes: all workers stop at one step before, and go on at it afterwards."""
    job = cluster.submit(
        with_arguments(adapted("requeue"), f"{steps(folder)} --ignore_sigterm"),
        *("--exclusive", "--nodelist=node[0-1]", f"--output={folder}/out.txt"),
        env=environment(cluster, folder),
    )
    job = SlurmJob(cluster, job.number, folder / "out.txt")
    wait_for_reports(job, "stepped", 2, 2)
    urgent = cluster.submit("hostname", "--partition=urgent", "--nodes=2", "--exclusive", "--nodelist=node[0-1]")
    urgent.wait_for_state("COMPLETED")
    wait_for_reports(job, "training", 2, 4)
    finish(folder)
    job.wait_for_state("COMPLETED")
    assert "received SIGTERM: leaving within 20 s" in job.output
    ((_, stopped),) = {*reports(job, "stopped")}
    assert reports(job, "training")[2:] == [(2, stopped)] * 2


def test_chain(cluster: SlurmCluster, folder: Path) -> None:
    """The time limit is near: the script tells the agents, all workers save, and the script queues the job again."""
    job = cluster.submit(
        with_arguments(adapted("requeue"), steps(folder)),
        f"--output={folder}/out.txt",
        env=environment(cluster, folder),
    )
    job = SlurmJob(cluster, job.number, folder / "out.txt")
    wait_for_reports(job, "stepped", 2, 2)
    cluster.call("scancel", "--batch", "--signal=USR1", job.number)  # as Slurm does 120 s before the limit
    wait_for_reports(job, "training", 2, 4)
    finish(folder)
    job.wait_for_state("COMPLETED")
    assert "run 1 ended with 151: queued again" in job.output
    ((_, stopped),) = {*reports(job, "stopped")}
    assert reports(job, "training")[2:] == [(2, stopped)] * 2


def test_a_failure_of_the_program_ends_the_chain_and_one_of_the_machine_does_not(
    cluster: SlurmCluster, folder: Path
) -> None:
    worker = folder / "fails.py"
    worker.write_text(
        "import os, sys\n"
        "runs = int(os.environ.get('SLURM_RESTART_COUNT') or 0)\n"
        "if runs: raise ValueError('the program is wrong')\n"
        "raise RuntimeError('CUDA error: uncorrectable ECC error encountered')\n"
    )
    job = cluster.submit(
        with_arguments(adapted("requeue", nodes=1), f"--max_restarts=0 {worker}"),
        f"--output={folder}/out.txt",
        env=environment(cluster, folder),
    )
    job = SlurmJob(cluster, job.number, folder / "out.txt")
    job.wait_for_state("FAILED")
    assert "run 1 ended with 79: queued again" in job.output
    assert (job.exit_code, job.shown("Restarts")) == (1, "1")


def test_a_spare_of_one_allocation_takes_the_place_of_a_killed_node(cluster: SlurmCluster, folder: Path) -> None:
    script = re.sub(r"#SBATCH --gpus-per-node=\d+\n", "", (DEPLOY / "spares.sbatch").read_text())
    script = script.replace("--nodes=5", "--nodes=4").replace("--nnodes=4", "--nnodes=3").replace("24:00:00", "10")
    script = with_arguments(script, f"--rdzv_conf=beat_interval=0.5,lost_after=2 {steps(folder)}")
    job = cluster.submit(script, f"--output={folder}/out.txt", env=environment(cluster, folder))
    job = SlurmJob(cluster, job.number, folder / "out.txt")
    wait_for_reports(job, "training", 3, 3)
    cluster.wait_for(lambda: re.search(r"(node\d): .* as a spare", job.output), "a node waits as a spare")
    spare = re.findall(r"(node\d): .* as a spare", job.output)[0]
    cluster.kill_node(next(node for node in ("node3", "node2", "node1") if node != spare))
    wait_for_reports(job, "training", 3, 6)
    finish(folder)
    job.wait_for_state("COMPLETED")
    assert job.output.count("is lost") >= 1
    assert "queued again" not in job.output


def test_a_script_that_saves_on_sigterm_has_the_time_of_the_notice(cluster: SlurmCluster, folder: Path) -> None:
    """It takes no notices from its agent. The batch script tells the agents, as Slurm does 120 s before the limit."""
    script = folder / "saves.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "def save(signum, frame):\n"
        "    print('saving', flush=True)\n"
        "    time.sleep(10)\n"
        f"    open('{folder}/saved', 'w').close()\n"
        "    print('saved', flush=True)\n"
        "    sys.exit(0)\n"
        f"if os.path.exists('{folder}/saved'): sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('training', flush=True)\n"
        "time.sleep(600)\n"
    )
    job = cluster.submit(
        with_arguments(adapted("requeue", nodes=1), str(script)),
        f"--output={folder}/out.txt",
        env=environment(cluster, folder),
    )
    job = SlurmJob(cluster, job.number, folder / "out.txt")
    cluster.wait_for(lambda: "training" in job.output, "the script trains")
    cluster.call("scancel", "--batch", "--signal=USR1", job.number)
    job.wait_for_state("COMPLETED")
    assert "saved" in job.output
    assert "ended with 151: queued again" in job.output


def test_an_array_whose_second_node_comes_after_the_first_has_given_up_trains(
    cluster: SlurmCluster, folder: Path
) -> None:
    """As on a busy cluster, which has room for one node at a time."""
    finish(folder)
    script = adapted("elastic", nodes=1, array="0-1%1").replace("--nnodes=2:8", "--nnodes=2")
    script = with_arguments(script, f"--rdzv_conf=join_timeout=6 {steps(folder)}").replace("sleep 60", "sleep 1")
    array = cluster.submit(script, f"--output={folder}/out-%a.txt", env=environment(cluster, folder))
    first, second = (SlurmJob(cluster, array.number, folder / f"out-{task}.txt") for task in (0, 1))
    cluster.wait_for(lambda: "1 of at least 2 nodes are here after 6 s" in first.output, "the first one gives up")
    cluster.call("scontrol", "update", "ArrayTaskThrottle=2", f"JobId={array.number}")
    cluster.wait_for(
        lambda: sum(size for size, _ in [*reports(first, "done"), *reports(second, "done")]) == 4, "both have trained"
    )
