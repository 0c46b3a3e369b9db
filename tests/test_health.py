"""Health checks before a node enters its job, and the wait for GPU memory: whole jobs, with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
from hosts import hosts
from rig import WARM, WORKERS, Agent, Rig, free_port

from elastic_core.config.run import DEFAULT_ID
from elastic_core.exit_codes import ExitCode
from elastic_core.protocol.codec import decode_row
from elastic_rdzv_file.backend import FileBackend

HANGS = """#!/bin/sh
# A check that waits for ever, with a process in a session of its own that its parent does not wait for.
setsid sh -c 'sleep 3600 & echo hanging; wait' &
wait
"""
ONCE = """#!/bin/sh
# Unhealthy as long as the file is not there; each call leaves a line.
echo called >> {folder}/calls
[ -e {folder}/mended ] || {{ echo "the link is down" >&2; exit 5; }}
"""
SMI = """#!/bin/sh
case "$1" in
--query-gpu=*) echo "0, GPU-d0180485-9584-433c-6782-c335d5df2cb3, 81559, 1024";;
--query-compute-apps=*) cat {folder}/apps;;
esac
"""


def being_checked(
    rig: Rig, folder: Path, *arguments: object, name: str = "", env: Mapping[str, str] | None = None
) -> Agent:
    """Start an agent, on a host of this name, whose check never ends, and wait for the check."""
    check = script(folder / "check", f"#!/bin/sh\ntouch {folder}/began\n" + HANGS)
    command = ["-m", "elastic_core", "run", f"--health_check={check}", "--health_timeout=3600", *map(str, arguments)]
    agent = rig.start([sys.executable, *command], env={**(env or {}), **({"ELASTIC_HOST_NAME": name} if name else {})})
    while not (folder / "began").exists():
        assert agent.process.poll() is None, agent.output
    return agent


def drain(host: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "elastic_core", "drain", host, *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_node_whose_check_fails_does_not_enter_and_the_others_are_not_held_up(
    rig: Rig, file_rendezvous: list[str], tmp_path: Path
) -> None:
    check = script(tmp_path / "check", "#!/bin/sh\necho 'GPU 3: row remap failure' >&2\nexit 4\n")
    flags = ["--nnodes=1:2", *file_rendezvous, "--rdzv_conf=last_call_timeout=0.1"]
    sick = rig.run(*flags, f"--health_check={check}", "--event_log_handler=console", "--no_python", "true")
    assert sick.exit_code() == ExitCode.UNHEALTHY, sick.output
    assert f"the health check '{check}' exited with code 4: GPU 3: row remap failure." in sick.output
    assert "elastic: error: This node does not enter job 'job', because of the health check" in sick.output
    (event,) = [json.loads(line) for line in sick.lines if '"node_check_failed"' in line]
    assert event["fields"]["check"] == str(check)
    assert event["fields"]["found"] == "exited with code 4: GPU 3: row remap failure"
    healthy = rig.run(*flags, "--no_python", "true")
    assert healthy.exit_code() == 0, healthy.output
    assert "round 1: 1 worker(s) on 1 node(s)" in healthy.output


def test_nodes_that_all_check_themselves_meet(rig: Rig, rendezvous: list[str]) -> None:
    flags = ["--nnodes=2", *rendezvous, "--health_check=true", "--health_retry=1", "--no_python", "true"]
    agents = [rig.run(*flags), rig.run(*flags)]
    assert [agent.exit_code() for agent in agents] == [0, 0], agents[0].output
    assert all("round 1: 2 worker(s) on 2 node(s)" in agent.output for agent in agents)


def test_json_with_a_fail_count_is_understood_whatever_the_exit_code(rig: Rig, tmp_path: Path) -> None:
    answer = '{"fail_count": 1, "failed_checks": ["bcm_healthcheck"]}'
    check = script(tmp_path / "check", f"#!/bin/sh\nprintf '{answer}\\n'\n")
    agent = rig.run("--standalone", f"--health_check={check} --no-slurm", "--no_python", "true")
    assert agent.exit_code() == ExitCode.UNHEALTHY, agent.output
    assert f"the health check '{check} --no-slurm' found 1 fault: bcm_healthcheck." in agent.output


def test_a_check_that_hangs_is_ended_with_its_whole_process_tree(rig: Rig, tmp_path: Path) -> None:
    check = script(tmp_path / "check", HANGS)
    agent = rig.run("--standalone", f"--health_check={check}", "--health_timeout=0.5", "--no_python", "true")
    assert agent.exit_code() == ExitCode.UNHEALTHY, agent.output
    assert f"the health check '{check}' did not end within 0.5 s, and was killed with all its processes" in agent.output
    assert "--health_timeout=SECONDS" in agent.output
    assert rig.processes() == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_a_check_ends_the_agent_at_once_and_leaves_nothing(
    rig: Rig, file_rendezvous: list[str], tmp_path: Path, signum: signal.Signals
) -> None:
    """The agent waits neither for the check, nor for the processes that have left the check's session."""
    agent = being_checked(rig, tmp_path, "--nnodes=1:2", *file_rendezvous, "--no_python", "true")
    agent.signal(signum)
    assert agent.exit_code() == 128 + signum, agent.output
    assert f"this node is out: received {signum.name}, before this node had entered the job" in agent.output
    assert "node_check_failed" not in agent.output
    assert rig.processes() == []


def test_a_signal_during_the_checks_of_a_latecomer_announces_no_import(
    rig: Rig, file_rendezvous: list[str], tmp_path: Path
) -> None:
    flags = ["--nnodes=1:2", *file_rendezvous, "--rdzv_conf=last_call_timeout=0.1", "--preload=json"]
    job = [WORKERS / "sleeper.py"]
    rig.run(*flags, *job, env=WARM).wait_for_report("started")
    agent = being_checked(rig, tmp_path, *flags, *job, env=WARM)
    agent.signal(signal.SIGTERM)
    assert agent.exit_code() == 128 + signal.SIGTERM, agent.output
    assert "is under way" not in agent.output


@pytest.mark.parametrize(
    "signums", [(signal.SIGKILL,), (signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT)]
)
def test_a_killed_agent_and_one_that_is_told_twice_leave_nothing(
    rig: Rig, file_rendezvous: list[str], tmp_path: Path, signums: list[int]
) -> None:
    """The fixture holds that nothing is left."""
    agent = being_checked(rig, tmp_path, "--nnodes=1:2", *file_rendezvous, "--no_python", "true")
    for signum in signums:
        agent.signal(signum)
    codes = {*(128 + signum for signum in signums), *(-signum for signum in signums)}
    assert agent.exit_code() in codes, agent.output
    assert "Traceback" not in agent.output


def test_a_signal_between_two_runs_of_failed_checks_ends_the_agent(rig: Rig, tmp_path: Path) -> None:
    check = script(tmp_path / "check", ONCE.format(folder=tmp_path))
    agent = rig.run("--standalone", f"--health_check={check}", "--health_retry=3600", "--no_python", "true")
    agent.wait_for("its checks run again in 3600 s")
    agent.signal(signal.SIGTERM)
    assert agent.exit_code() == 128 + signal.SIGTERM, agent.output


def test_a_signal_during_a_check_over_a_foreign_handler_ends_the_agent(rig: Rig, tmp_path: Path) -> None:
    flags = ["--nnodes=1", "--rdzv_backend=torch-c10d", f"--rdzv_endpoint=127.0.0.1:{free_port()}"]
    agent = being_checked(rig, tmp_path, *flags, "--no_python", "true")
    agent.signal(signal.SIGTERM)
    assert agent.exit_code() == 128 + signal.SIGTERM, agent.output
    assert "this node is out: received SIGTERM" in agent.output


def test_a_node_that_is_drained_while_it_is_checked_does_not_enter(
    rig: Rig, rendezvous: list[str], tmp_path: Path
) -> None:
    flags = ["--nnodes=1:2", *rendezvous, "--rdzv_conf=last_call_timeout=0.1"]
    command = [*flags, WORKERS / "barrier.py", "--until", tmp_path / "done"]
    healthy = rig.run(*command)
    healthy.wait_for_report("training", world_size=1)
    checked = being_checked(rig, tmp_path, *command, name="checked")
    answer = drain("checked", *rendezvous)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "1 agent" in answer.stdout
    assert checked.exit_code() == 128 + signal.SIGTERM, checked.output
    assert "this node is out: asked to leave by elastic drain" in checked.output
    again = drain("checked", *rendezvous)
    assert again.returncode == ExitCode.USAGE, again.stdout
    assert "No agent of job 'job' runs on 'checked'." in again.stderr
    (tmp_path / "done").touch()
    assert healthy.exit_code() == 0, healthy.output
    assert len(healthy.reports("training")) == 1, "its round went on"


def test_failed_checks_are_run_again_after_a_pause(rig: Rig, tmp_path: Path) -> None:
    check = script(tmp_path / "check", ONCE.format(folder=tmp_path))
    agent = rig.run("--standalone", f"--health_check={check}", "--health_retry=0.1", "--no_python", "true")
    agent.wait_for("its checks run again in 0.1 s", count=2)
    (tmp_path / "mended").touch()
    assert agent.exit_code() == 0, agent.output
    assert "this node is healthy: disk, memory, shm, " in agent.output


def test_a_job_that_ends_while_a_node_checks_itself_is_not_run_again_by_it(
    rig: Rig, rendezvous: list[str], tmp_path: Path
) -> None:
    check = script(tmp_path / "check", ONCE.format(folder=tmp_path))
    flags = ["--nnodes=1:2", *rendezvous, "--rdzv_conf=last_call_timeout=0.1"]
    job = rig.run(*flags, WORKERS / "sleeper.py")
    job.wait_for_report("started")
    sick = rig.run(*flags, f"--health_check={check}", "--health_retry=3600", WORKERS / "sleeper.py")
    sick.wait_for("its checks run again in 3600 s")
    job.kill_worker(0)
    assert job.exit_code() == ExitCode.JOB_FAILED, job.output
    assert sick.exit_code() == ExitCode.JOB_FAILED, sick.output
    assert "this node started no worker: the run has ended before this node had joined it" in sick.output


def test_an_ordinary_restart_runs_no_check(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "mended").touch()
    check = script(tmp_path / "check", ONCE.format(folder=tmp_path))
    agent = rig.run("--standalone", "--max_restarts=1", f"--health_check={check}", WORKERS / "sleeper.py")
    agent.wait_for_report("started")
    agent.kill_worker(0)
    agent.wait_for("round 2: ")
    agent.wait_for_report("started", count=2)
    assert (tmp_path / "calls").read_text() == "called\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.parametrize("mended", [True, False])
def test_a_host_in_quarantine_enters_again_through_its_checks(rig: Rig, tmp_path: Path, mended: bool) -> None:
    (tmp_path / "mended").touch()
    check = script(tmp_path / "check", ONCE.format(folder=tmp_path))
    job = [WORKERS / "barrier.py", "--deaf", "--until", tmp_path / "done"]
    flags = ["--nnodes=1:2", "--rdzv_backend=file", f"--rdzv_endpoint={tmp_path}", "--max_restarts=3"]
    flags += ["--failure_policy=quarantine=1/1h:1h", "--rdzv_conf=last_call_timeout=30"]
    with hosts(2) as (one, two):
        commands = [
            host.command(sys.executable, "-m", "elastic_core", "run", *map(str, [*flags, *more, *job]))
            for host, more in ((one, []), (two, [f"--health_check={check}"]))
        ]
        healthy, suspected = (rig.start(command) for command in commands)
        for agent in (healthy, suspected):
            agent.wait_for_report("training", world_size=2)
        if not mended:
            (tmp_path / "mended").unlink()
        (rank,) = suspected.workers()
        suspected.kill_worker(rank)
        healthy.wait_for_report("training", world_size=1)
        suspected.wait_for("this host was excluded: this node leaves, and enters again through its health checks")
        if mended:
            suspected.wait_for("this node is healthy: ", count=2)
            suspected.wait_for("waiting as long as nodes of other hosts are enough", count=2)
        else:
            assert suspected.exit_code() == ExitCode.UNHEALTHY, suspected.output
        (tmp_path / "done").touch()
        assert healthy.exit_code() == 0, healthy.output
        if mended:
            assert suspected.exit_code() == 0, suspected.output


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_node_that_is_preempted_while_it_is_checked_again_does_not_enter(rig: Rig, tmp_path: Path) -> None:
    second = f"#!/bin/sh\n[ -e {tmp_path}/again ] || exit 0\ntouch {tmp_path}/began\nexec sleep 3600\n"
    check = script(tmp_path / "check", second)
    job = [WORKERS / "barrier.py", "--deaf", "--until", tmp_path / "done"]
    flags = ["--nnodes=1:2", "--rdzv_backend=file", f"--rdzv_endpoint={tmp_path}", "--max_restarts=3"]
    flags += ["--failure_policy=quarantine=1/1h:1h", "--rdzv_conf=last_call_timeout=30"]
    with hosts(2) as (one, two):
        commands = [
            host.command(sys.executable, "-m", "elastic_core", "run", *map(str, [*flags, *more, *job]))
            for host, more in ((one, []), (two, [f"--health_check={check}"]))
        ]
        healthy, suspected = (rig.start(command) for command in commands)
        for agent in (healthy, suspected):
            agent.wait_for_report("training", world_size=2)
        (tmp_path / "again").touch()
        (rank,) = suspected.workers()
        suspected.kill_worker(rank)
        suspected.wait_for("this host was excluded: this node leaves, and enters again through its health checks")
        suspected.signal(signal.SIGTERM)
        code = suspected.exit_code()
        assert code in (128 + signal.SIGTERM, -signal.SIGTERM), suspected.output
        assert "waiting as long as nodes of other hosts are enough" not in suspected.output.partition("excluded: ")[2]
        (tmp_path / "done").touch()
        assert healthy.exit_code() == 0, healthy.output


CLOSING = """
import os, signal, sys
from elastic_core.agent import event_loop
from elastic_core.cli.main import main

class Late(event_loop.EventLoop):
    def close(self):
        os.kill(os.getpid(), signal.SIGTERM)
        super().close()

event_loop.EventLoop = Late
sys.exit(main())
"""
"""An agent that receives SIGTERM while its resources are closed."""


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_node_that_is_preempted_as_it_leaves_for_its_checks_does_not_enter_again(rig: Rig, tmp_path: Path) -> None:
    job = [WORKERS / "barrier.py", "--deaf", "--until", tmp_path / "done"]
    flags = ["--nnodes=1:2", "--rdzv_backend=file", f"--rdzv_endpoint={tmp_path}", "--max_restarts=3"]
    flags += ["--failure_policy=quarantine=1/1h:1h", "--rdzv_conf=last_call_timeout=30,lost_after=120"]
    with hosts(2) as (one, two):
        healthy, suspected = (
            rig.start(host.command(sys.executable, *code, "run", *map(str, [*flags, *more, *job])))
            for host, code, more in (
                (one, ["-m", "elastic_core"], []),
                (two, ["-c", CLOSING], ["--health_check=true"]),
            )
        )
        for agent in (healthy, suspected):
            agent.wait_for_report("training", world_size=2)
        (rank,) = suspected.workers()
        suspected.kill_worker(rank)
        assert suspected.exit_code() == 128 + signal.SIGTERM, suspected.output
        assert "this node is out: received SIGTERM" in suspected.output
        with closing(FileBackend.open(tmp_path, DEFAULT_ID)) as store:
            rows = [decode_row(seen.value) for seen in store.roster()]
        assert [row.returns for row in rows if row.leaving] == [True], "it stays, and the leader removes it"
        (tmp_path / "done").touch()
        assert healthy.exit_code() == 0, healthy.output


METADATA = """
import sys
from clouds import cloud

with cloud() as service:
    print(service.url, flush=True)
    sys.stdin.readline()
    service.interrupt_aws(60)
    sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.parametrize("asked", ["drain", "notice"])
@pytest.mark.parametrize("when", ["leaving", "checked"])
def test_a_node_that_is_asked_to_leave_while_it_is_checked_again_does_not_enter(
    rig: Rig, tmp_path: Path, asked: str, when: str
) -> None:
    """Before its checks have begun, or while they run."""
    second = f"#!/bin/sh\n[ -e {tmp_path}/again ] || exit 0\ntouch {tmp_path}/began\nexec sleep 3600\n"
    check = script(tmp_path / "check", second)
    job = [WORKERS / "barrier.py", "--deaf", "--until", tmp_path / "done"]
    rendezvous = ["--rdzv_backend=file", f"--rdzv_endpoint={tmp_path}"]
    flags = ["--nnodes=1:2", *rendezvous, "--max_restarts=3", "--health_timeout=3600"]
    flags += ["--failure_policy=quarantine=1/1h:1h", "--rdzv_conf=last_call_timeout=30"]
    with (
        hosts(2) as (one, two),
        subprocess.Popen(
            two.command(sys.executable, "-c", METADATA),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        ) as metadata,
    ):
        assert metadata.stdin is not None
        assert metadata.stdout is not None
        env = {
            "ELASTIC_NOTICES_INTERVAL": "0.05",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata.stdout.readline().strip(),
        }
        agents = [
            rig.start(
                host.command(sys.executable, "-m", "elastic_core", "run", *map(str, [*flags, *more, *job])),
                env=env | name,
            )
            for host, name, more in (
                (one, {}, []),
                (two, {"ELASTIC_HOST_NAME": "checked"}, [f"--health_check={check}", "--notices=aws"]),
            )
        ]
        healthy, suspected = agents
        for agent in agents:
            agent.wait_for_report("training", world_size=2)
        (tmp_path / "again").touch()
        (rank,) = suspected.workers()
        suspected.kill_worker(rank)
        suspected.wait_for("this host was excluded: this node leaves, and enters again through its health checks")
        while when == "checked" and not (tmp_path / "began").exists():
            assert suspected.process.poll() is None, suspected.output
        if asked == "drain":
            answer = drain("checked", *rendezvous)
            assert answer.returncode == 0, answer.stdout + answer.stderr
            why = "asked to leave by elastic drain"
        else:
            metadata.stdin.write("\n")
            metadata.stdin.flush()
            why = "AWS "
        assert suspected.exit_code() == 128 + signal.SIGTERM, suspected.output
        assert f"this node is out: {why}" in suspected.output
        (tmp_path / "done").touch()
        assert healthy.exit_code() == 0, healthy.output
        metadata.stdin.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_host_in_quarantine_that_the_job_needs_stays_in_it_unchecked(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "mended").touch()
    check = script(tmp_path / "check", ONCE.format(folder=tmp_path))
    job = [WORKERS / "barrier.py", "--deaf", "--until", tmp_path / "done"]
    flags = ["--nnodes=2", "--rdzv_backend=file", f"--rdzv_endpoint={tmp_path}", "--max_restarts=3"]
    flags += ["--failure_policy=quarantine=1/1h:1h"]
    with hosts(2) as (one, two):
        commands = [
            host.command(sys.executable, "-m", "elastic_core", "run", *map(str, [*flags, *more, *job]))
            for host, more in ((one, []), (two, [f"--health_check={check}"]))
        ]
        healthy, suspected = (rig.start(command) for command in commands)
        for agent in (healthy, suspected):
            agent.wait_for_report("training", world_size=2)
        (rank,) = suspected.workers()
        suspected.kill_worker(rank)
        for agent in (healthy, suspected):
            agent.wait_for_report("training", count=2, world_size=2)
        (tmp_path / "done").touch()
        assert [agent.exit_code() for agent in (healthy, suspected)] == [0, 0], suspected.output
    assert (tmp_path / "calls").read_text() == "called\n"


def test_checks_run_before_a_foreign_handler_is_asked(rig: Rig, tmp_path: Path) -> None:
    check = script(tmp_path / "check", "#!/bin/sh\nexit 3\n")
    flags = ["--nnodes=1", "--rdzv_backend=torch-c10d", f"--rdzv_endpoint=127.0.0.1:{free_port()}"]
    agent = rig.run(*flags, f"--health_check={check}", "--no_python", "true")
    assert agent.exit_code() == ExitCode.UNHEALTHY, agent.output
    healthy = rig.run(*flags, "--health_check=true", "--no_python", "true")
    assert healthy.exit_code() == 0, healthy.output
    assert "this node is healthy: disk, memory, shm, true" in healthy.output


def test_over_a_foreign_handler_failed_checks_are_run_again_for_its_join_timeout(rig: Rig) -> None:
    flags = ["--nnodes=1", "--rdzv_backend=torch-c10d", f"--rdzv_endpoint=127.0.0.1:{free_port()}"]
    flags += ["--rdzv_conf=join_timeout=1", "--health_check=false", "--health_retry=0.3"]
    agent = rig.run(*flags, "--no_python", "true")
    assert agent.exit_code() == ExitCode.UNHEALTHY, agent.output
    assert "its checks run again in 0.3 s" in agent.output
    assert "because of the health check false, which ran again for 1 s at most." in agent.output


@pytest.mark.parametrize(
    ("flag", "message", "hint"),
    [
        (
            "--health_check=gpus",
            "'gpus' is neither a check nor a command that is found here. Did you mean 'gpu'?",
            "shm",
        ),
        ("--health_check=disk=much", "'disk=much': 'much' is not a size, such as 500M or 10G.", ""),
        ("--health_check=--fast", "'--fast' has '--fast', which is neither the name of a check nor a command.", ""),
        ("--health_timeout=0", "--health_timeout '0' is not more than 0 seconds.", ""),
    ],
)
def test_a_wrong_flag_is_refused_before_anything_is_started(rig: Rig, flag: str, message: str, hint: str) -> None:
    agent = rig.run("--standalone", flag, "--no_python", "true")
    assert agent.exit_code() == ExitCode.USAGE, agent.output
    assert message in agent.output
    assert hint in agent.output


@pytest.mark.parametrize("check", ["disk", "/opt/check --fast"])
def test_checks_need_their_plugin(rig: Rig, check: str) -> None:
    agent = rig.run("--standalone", "--no_plugin=health", f"--health_check={check}", "--no_python", "true")
    assert agent.exit_code() == ExitCode.USAGE, agent.output
    assert f"--health_check={check} needs the plugin 'health', which --no_plugin switches off." in agent.output


def test_a_host_that_has_too_little_is_refused_by_the_checks_that_are_on(rig: Rig) -> None:
    agent = rig.run("--standalone", "--health_check=memory=1000T,shm=1000T", "--no_python", "true")
    assert agent.exit_code() == ExitCode.UNHEALTHY, agent.output
    assert "the health check 'memory' found " in agent.output
    assert "of memory available to this host, less than 1000.0 TiB." in agent.output
    assert "because of the health checks memory, shm." in agent.output


@pytest.mark.parametrize("foreign", [False, True], ids=["ledger", "foreign handler"])
def test_workers_wait_for_gpu_memory_that_another_process_holds_and_it_is_named(
    rig: Rig, tmp_path: Path, foreign: bool
) -> None:
    """With an nvidia-smi that answers in its form: there is no GPU here."""
    (tmp_path / "bin").mkdir()
    script(tmp_path / "bin" / "nvidia-smi", SMI.format(folder=tmp_path))
    holder = subprocess.Popen(["sleep", "3600"], env={**os.environ, "ELASTIC_RUN_UID": "another"})
    gpu = "GPU-d0180485-9584-433c-6782-c335d5df2cb3"
    (tmp_path / "apps").write_text("")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    flags = ["--rdzv_backend=torch-c10d", f"--rdzv_endpoint=127.0.0.1:{free_port()}"] if foreign else ["--standalone"]
    flags += [
        "--nproc_per_node=2",
        "--max_restarts=1",
        "--shutdown_timeout=1",
    ]  # the other worker takes --failure_grace to stop
    agent = rig.run(*flags, WORKERS / "stubborn.py", env={"PATH": path})
    try:
        agent.wait_for_report("started", count=2)
        (tmp_path / "apps").write_text(f"{gpu}, {holder.pid}, 78430, python\n")
        agent.kill_worker(0)
        told = agent.wait_for("the workers of round 2 wait for up to 10 s")
        assert f"pid {holder.pid} (sleep 3600, user " in told
        assert f"holds 76.6 GiB of {gpu}" in told
        (tmp_path / "apps").write_text("")
        agent.wait_for("the workers of round 2 start after a wait of")
        agent.wait_for_report("started", count=4)
    finally:
        holder.kill()
        holder.wait()
