"""Flags of torchrun's: each does what its help says, or says in one line that it does nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from rig import WARM, WORKERS, Agent, Rig, free_port

from elastic_devices.inventory import Machine
from elastic_devices.visible import gpus

SAYS = ["--no_python", "sh", "-c", "echo apple $RANK; echo pear $RANK; echo a cherry $RANK >&2"]


def environment(agent: Agent) -> list[dict[str, str]]:
    """Return the environment of each worker of ``--no_python env -0``, in order of its rank."""
    assert agent.exit_code() == 0, agent.output
    found: list[dict[str, str]] = [json.loads(line) for line in agent.lines if line.startswith("{")]
    return sorted(found, key=lambda variables: int(variables["RANK"]))


@pytest.fixture
def shows_environment(tmp_path: Path) -> Path:
    script = tmp_path / "environment.py"
    script.write_text("import json, os; os.write(1, (json.dumps(dict(os.environ)) + chr(10)).encode())")
    return script


def test_nodes_that_are_numbered_by_hand_keep_their_numbers(rig: Rig, shows_environment: Path) -> None:
    address = ["--master_addr=127.0.0.1", f"--master_port={free_port()}", "--nnodes=2"]
    second = rig.run(*address, "--node_rank=1", "--nproc_per_node=2", shows_environment)
    first = rig.run(*address, "--node_rank=0", shows_environment)
    assert [variables["RANK"] for variables in environment(first)] == ["0"]
    assert [variables["RANK"] for variables in environment(second)] == ["1", "2"]
    assert {variables["MASTER_ADDR"] for variables in environment(second)} == {"127.0.0.1"}


def test_a_second_node_of_one_number_is_refused(rig: Rig) -> None:
    address = ["--rdzv_backend=static", f"--master_port={free_port()}", "--nnodes=2", "--rdzv_conf=join_timeout=60"]
    rig.run(*address, "--node_rank=0", WORKERS / "sleeper.py").wait_for("joining job")
    rig.run(*address, "--node_rank=1", WORKERS / "sleeper.py").wait_for_report("started")
    third = rig.run(*address, "--node_rank=1", WORKERS / "sleeper.py")
    assert third.exit_code() == 76
    assert "has --node_rank=1, and so has" in third.output


def test_jobs_on_one_host_each_have_a_free_port_at_port_0(rig: Rig, shows_environment: Path) -> None:
    places: list[list[str]] = [
        ["--rdzv_endpoint=localhost:0"],
        ["--rdzv_endpoint=127.0.0.1:0", "--rdzv_conf=use_libuv=0"],
        [],
    ]
    sleepers = [rig.run("--rdzv_backend=c10d", *place, WORKERS / "sleeper.py") for place in places]
    for sleeper in sleepers:
        sleeper.wait_for_report("started")
    port_0 = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id", "mine"]
    # As TorchX writes a job of its dist.ddp.
    [worker] = environment(rig.run(*port_0, "--nnodes", "1", "--role", "", shows_environment))
    assert (worker["ROLE_NAME"], worker["TORCHELASTIC_RUN_ID"]) == ("", "mine")


def test_roles_are_counted_by_themselves_on_unequal_nodes(
    rig: Rig, file_rendezvous: list[str], shows_environment: Path
) -> None:
    command = ["--nnodes=3", *file_rendezvous]
    nodes = [("trainer", 1), ("evaluator", 2), ("trainer", 3)]
    agents = [
        rig.run(*command, f"--role={role}", f"--nproc_per_node={size}", shows_environment) for role, size in nodes
    ]
    workers = [variables for agent in agents for variables in environment(agent)]
    ranks = sorted(int(variables["RANK"]) for variables in workers)
    assert ranks == [0, 1, 2, 3, 4, 5]
    for role, size in (("trainer", 4), ("evaluator", 2)):
        of_role = sorted((w for w in workers if w["ROLE_NAME"] == role), key=lambda w: int(w["RANK"]))
        assert [int(w["ROLE_RANK"]) for w in of_role] == list(range(size)), "in the order of global ranks"
        assert {w["ROLE_WORLD_SIZE"] for w in of_role} == {str(size)}


def test_an_argument_tells_the_local_rank_to_scripts_of_torch_distributed_launch(rig: Rig, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, sys; os.write(1, f'{os.environ[\"RANK\"]} {sys.argv[1:]}\\n'.encode())")
    agent = rig.run("--nproc=2", "--pass-local-rank", script, "--lr", "1")
    assert agent.exit_code() == 0
    assert {line for line in agent.lines if line[:1].isdigit()} == {
        f"{r} ['--local-rank={r}', '--lr', '1']" for r in "01"
    }


def test_a_job_survives_three_failures_unless_told_otherwise(rig: Rig) -> None:
    agent = rig.run("--no_python", "sh", "-c", "exit $((3 + TORCHELASTIC_RESTART_COUNT))", env={"PET_MAX_RESTARTS": ""})
    assert agent.exit_code() == 1
    assert re.search("restart 3 of 3$", agent.output, re.MULTILINE)
    assert "all restarts of --max_restarts=3 are spent" in agent.output


@pytest.mark.parametrize(
    ("text", "shown", "why"),
    [
        ("import tourch\n", "No module named 'tourch'", "a restart has not mended ModuleNotFoundError"),
        (
            "import argparse\nargparse.ArgumentParser().parse_args()\n",
            "error: unrecog",
            "a restart has not mended wrong arguments",
        ),
    ],
)
def test_a_script_that_cannot_begin_gets_one_restart(rig: Rig, tmp_path: Path, text: str, shown: str, why: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    agent = rig.run("--nproc_per_node=2", script, "--lr=1", env={"PET_MAX_RESTARTS": ""})
    assert agent.exit_code() == 1
    assert shown in agent.output
    assert why in agent.output
    assert "round 3" not in agent.output


def test_only_the_ranks_that_are_asked_for_are_shown(rig: Rig, tmp_path: Path) -> None:
    flags = ["--standalone", "--nproc_per_node=2", "--local_ranks_filter=1", f"--log_dir={tmp_path}"]
    agent = rig.run(*flags, *SAYS)
    assert agent.exit_code() == 0
    assert "apple 1" in agent.lines
    assert "apple 0" not in agent.lines
    [hidden] = tmp_path.glob("*/round_1/rank_0/stdout.log")
    assert hidden.read_text() == "apple 0\npear 0\n"


def test_wanted_lines_are_copied_to_a_file(rig: Rig, tmp_path: Path) -> None:
    flags = ["--duplicate_stdout_filters=apple", "--duplicate_stderr_filters=cherry", f"--log_dir={tmp_path}"]
    agent = rig.run("--standalone", "--nproc_per_node=2", "--tee=3", *flags, *SAYS)
    assert agent.exit_code() == 0
    for name, lines in (
        ("stdout", ["[rank0]:apple 0", "[rank1]:apple 1"]),
        ("stderr", ["[rank0]:a cherry 0", "[rank1]:a cherry 1"]),
    ):
        [copied] = tmp_path.glob(f"*/round_1/filtered_{name}.log")
        assert sorted(copied.read_text().splitlines()) == lines


def test_without_a_log_directory_the_copied_lines_are_kept_in_a_temporary_one(rig: Rig) -> None:
    agent = rig.run("--standalone", "--duplicate_stdout_filters=apple", *SAYS)
    assert agent.exit_code() == 0
    logs = Path(agent.wait_for(r"logs are in ").split()[-1])
    assert (logs / "round_1" / "filtered_stdout.log").read_text() == "[rank0]:apple 0\n"
    shutil.rmtree(logs)


def test_the_prefix_of_teed_lines_follows_torchruns_template(rig: Rig) -> None:
    template = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name} ${rank} ${local_rank} ${else}> "}
    agent = rig.run("--standalone", "--tee=1", "--role=trainer", *SAYS, env=template)
    assert agent.exit_code() == 0
    assert "<trainer 0 0 ${else}> apple 0" in agent.lines


def test_a_script_run_by_path_is_the_main_program(rig: Rig, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys; print('running', __name__, sys.argv)")
    agent = rig.run("--standalone", "--run_path", script, "--gpu=${local_rank}")
    assert agent.exit_code() == 0
    assert f"running __main__ {[str(script), '--gpu=0']}" in agent.lines


def test_the_signals_to_handle_are_those_on_which_a_node_leaves(rig: Rig) -> None:
    agent = rig.run("--standalone", "--signals_to_handle=SIGUSR1,SIGTERM", WORKERS / "sleeper.py")
    agent.wait_for_report("started")
    agent.process.send_signal(signal.SIGUSR1)
    assert agent.exit_code() == 128 + signal.SIGUSR1
    assert "received SIGUSR1: leaving" in agent.output


def test_events_are_json_lines_on_demand(rig: Rig) -> None:
    agent = rig.run("--standalone", "--event_log_handler=console", "--no_python", "true")
    assert agent.exit_code() == 0
    events = [json.loads(line) for line in agent.lines if line.startswith("{")]
    names = ["joining", "round_started", "workers_started", "workers_done", "job_closed"]
    assert [event["name"] for event in events] == names


@pytest.mark.parametrize(
    ("flags", "warning"),
    [
        (["--node_rank=1"], "--node_rank has no effect"),
        (["--standalone", "--master_addr=h", "--master_port=1"], "--master_addr, --master_port have no effect"),
        (["--start_method=fork"], "--start_method has no effect: workers are no children of the agent"),
        (["--logs_specs=mine"], "--logs_specs 'mine' has no effect"),
        (["--monitor_interval=5"], "--monitor_interval has no effect: nothing is polled"),
        (["--rdzv_conf=store_type=file"], "--rdzv_conf store_type=file has no effect"),
        (["--rdzv_conf=keep_alive_interval=5"], "has no effect: say beat_interval for what it means"),
    ],
)
def test_a_flag_without_effect_warns_and_harms_nothing(rig: Rig, flags: list[str], warning: str) -> None:
    agent = rig.run(*flags, "--no_python", "true")
    assert agent.exit_code() == 0
    [said] = [line for line in agent.lines if line.startswith("elastic: warning: ")]
    assert warning in said


def test_workers_run_on_the_cpus_that_they_are_bound_to(rig: Rig) -> None:
    says = ["--no_python", "sh", "-c", "taskset -p $$"]
    agent = rig.run("--standalone", "--nproc_per_node=2", "--numa_binding=exclusive", *says)
    assert agent.exit_code() == 0, agent.output
    first, second = (int(line.split()[-1], 16) for line in agent.lines if "affinity mask" in line)
    allowed = sum(1 << cpu for cpu in os.sched_getaffinity(0))
    assert min(first, second) > 0
    assert not first & second
    assert (first | second) & ~allowed == 0


def test_every_worker_sees_one_gpu_as_the_first(rig: Rig) -> None:
    says = ["--no_python", "sh", "-c", "echo rank $RANK: $LOCAL_RANK $CUDA_VISIBLE_DEVICES"]
    here = [gpu.name for gpu in gpus({}, Machine())][-2:] or ["3", "5"]  # without any, the list is taken at its word
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(here)}
    agent = rig.run("--standalone", f"--nproc_per_node={len(here)}", "--virtual_local_rank", *says, env=visible)
    assert agent.exit_code() == 0
    assert {f"rank {rank}: 0 {gpu}" for rank, gpu in enumerate(here)} <= set(agent.lines)


def test_a_word_for_the_number_of_workers_counts_what_is_here(rig: Rig) -> None:
    agent = rig.run("--standalone", "--nproc_per_node=cpu", "--no_python", "sh", "-c", "echo $WORLD_SIZE workers")
    assert agent.exit_code() == 0
    assert f"{len(os.sched_getaffinity(0))} workers" in agent.lines
    refused = rig.run("--standalone", "--nproc_per_node=xpu", "--no_python", "true")
    assert refused.exit_code() == 2
    assert "--nproc_per_node 'xpu': none was found. Looked for Intel's in /sys/class/drm" in refused.output


def test_flags_are_checked_with_the_scheduler_s_defaults(rig: Rig, tmp_path: Path) -> None:
    """As four GPUs of a Slurm step are four workers here."""
    host = os.uname().nodename
    step = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": host, "SLURMD_NODENAME": host, "SLURM_JOB_NUM_NODES": "1"}
    step |= {"SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": host, "SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0"}
    step |= {"SLURM_PROCID": "0", "SLURM_GPUS_ON_NODE": "4", "SLURM_STEP_GPUS": "0,1,2,3"}
    script = tmp_path / "train.py"
    script.write_text("import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])")
    agent = rig.run("--tee=3:3", f"--log_dir={tmp_path / 'logs'}", script, env={**WARM, **step})
    assert agent.exit_code() == 0, agent.output
    agent.wait_for(r"rank3\]:rank 3 of 4")
