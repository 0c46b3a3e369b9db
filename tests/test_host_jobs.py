"""Commands that name no store: they find the jobs of this host by the files of their agents (elastic-operate)."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from redis_servers import redis_server
from rig import WORKERS, Agent, Rig, free_port, over
from wardens import wait_until

from elastic_operate.host_jobs import ask_all, host_jobs

SLEEPER = str(WORKERS / "sleeper.py")
STANDALONE = ("--standalone", "--nproc_per_node=2")
STRANGER = 54321
"""The id of a user who has no account."""


class Shell:
    """Another shell of the user who has started the agents."""

    def __init__(self, rig: Rig, runtime: Path, **variables: str) -> None:
        self.rig, self.runtime = rig, runtime
        self.variables = {"XDG_RUNTIME_DIR": str(runtime), "TMPDIR": str(runtime), **variables}

    @property
    def files(self) -> list[str]:
        """The names of the files of agents that run."""
        folder = self.runtime / "elastic"
        return sorted(path.name for path in folder.iterdir() if path.suffix) if folder.exists() else []

    def run(self, *arguments: object) -> Agent:
        """Start an agent."""
        return self.rig.run(*arguments, env=self.variables)

    def elastic(self, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run another command of ``elastic``."""
        command, environment = (
            [sys.executable, "-m", "elastic_core", *arguments],
            self.rig.environment(self.variables),
        )
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60, **more)

    def listed(self) -> list[dict[str, Any]]:
        """Return what ``elastic status --json`` lists."""
        found: list[dict[str, Any]] = json.loads(self.elastic("status", "--json").stdout)
        return found

    def wait_for_jobs(self, *pids: set[int]) -> None:
        """Wait until exactly the jobs with these agents are listed as running."""

        def seen() -> bool:
            jobs = self.listed()
            running = all(job["status"] and job["status"]["state"] == "running" for job in jobs)
            return running and sorted(sorted(job["pids"]) for job in jobs) == sorted(map(sorted, pids))

        assert wait_until(seen), self.listed()


@pytest.fixture
def shell(rig: Rig, tmp_path: Path) -> Shell:
    """The runtime directory is the test's own."""
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    return Shell(rig, runtime)


@pytest.fixture
def no_torch(shell: Shell, tmp_path: Path) -> Shell:
    """A shell whose commands cannot import torch."""
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "torch.py").write_text("raise ImportError('no torch here')")
    return Shell(shell.rig, shell.runtime, PYTHONPATH=str(blocked))


def test_a_standalone_job_is_shown_without_a_flag(shell: Shell, no_torch: Shell) -> None:
    agent = shell.run(*STANDALONE, SLEEPER)
    agent.wait_for_report("started", count=2)
    shell.wait_for_jobs({agent.pid})
    shown = no_torch.elastic("status")
    assert shown.returncode == 0, shown.stderr
    [job] = shell.listed()
    assert shown.stdout.startswith(f"job {job['job']!r} is running")
    assert f"  here      agent pid {agent.pid}, over local\n" in shown.stdout
    assert re.search(r"  node      .*, ranks 0 to 1: running \(decides\)\n", shown.stdout)
    whole = json.loads(no_torch.elastic("status", job["job"][:8], "--json").stdout)
    assert (whole["job"], whole["world_size"]) == (job["job"], 2), "the beginning of the id is enough"
    stacks = no_torch.elastic("stacks")
    assert stacks.returncode == 0, stacks.stderr
    assert re.search(r"^round 1: .*\n  ranks 0-1", stacks.stdout)


def test_the_workers_of_this_host_are_shown_as_soon_as_they_run(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their nodes write them into their rows seconds later."""
    job = ["--nnodes=2", *over("file", tmp_path / "store"), "--max_restarts=1", SLEEPER]
    agents = [shell.run(*job) for _ in range(2)]
    shell.wait_for_jobs({agent.pid for agent in agents})
    for agent in agents:
        agent.wait_for_report("started")
    os.kill(agents[0].reports("started")[0]["pid"], signal.SIGKILL)
    for agent in agents:
        agent.wait_for_report("started", restart_count=1)
        agent.wait_for("round 2 runs")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(shell.runtime))
    [found] = ask_all(host_jobs())
    assert found.status is not None
    pids = sorted(report["pid"] for agent in agents for report in agent.reports("started") if report["restart_count"])
    assert sorted(worker.pid or 0 for node in found.status.nodes for worker in node.workers) == pids
    shown = shell.elastic("status").stdout
    assert all(re.search(rf"; pid {pid}$", shown, re.MULTILINE) for pid in pids), shown


def test_the_file_is_gone_with_the_job_whose_end_is_remembered(shell: Shell) -> None:
    agent = shell.run(*STANDALONE, SLEEPER)
    shell.wait_for_jobs({agent.pid})
    agent.signal(signal.SIGTERM)
    agent.exit_code()
    assert shell.files == []
    missing = shell.elastic("status")
    assert missing.returncode == 2
    said = "elastic: error: No running job of this user was found on this host. The last one, job '(.*)', ended "
    found = re.match(said + r"\S+ s ago: this node is out: received SIGTERM.\n", missing.stderr)
    assert found, missing.stderr
    assert f"job {found[1]!r}, ended" in shell.elastic("status", found[1]).stderr
    assert "ended" not in shell.elastic("status", "another").stderr


@pytest.mark.parametrize("backend", ["file", "c10d"])
def test_two_nodes_are_one_job_and_commands_need_neither_its_flags_nor_torch(
    shell: Shell, no_torch: Shell, tmp_path: Path, backend: str
) -> None:
    command = ["--nnodes=2", "--nproc_per_node=2", *over(backend, tmp_path / "store"), SLEEPER]
    agents = [shell.run(*command), shell.run(*command)]
    shell.wait_for_jobs({agent.pid for agent in agents})
    shown = no_torch.elastic("status")
    assert shown.returncode == 0, shown.stderr
    assert ": 4 worker(s) on 2 node(s)\n" in shown.stdout
    assert len(re.findall(r"  node  .*: running", shown.stdout)) == 2
    pids = ", ".join(str(agent.pid) for agent in agents)
    assert re.search(
        rf"  here      agent pid (?:{pids}|{agents[1].pid}, {agents[0].pid}), over {backend} at ", shown.stdout
    )
    stacks = no_torch.elastic("stacks", "job")
    assert re.search(r"^round 1: .*\n  ranks 0-3", stacks.stdout), stacks.stderr
    drained = no_torch.elastic("drain", os.uname().nodename)
    assert drained.stdout == f"2 agents on {os.uname().nodename} leave.\n", (
        drained,
        agents[0].output,
        agents[1].output,
    )
    codes = [agent.exit_code() for agent in agents]
    assert codes == [143, 143], (agents[0].output, agents[1].output)
    assert shell.files == []


def test_the_agent_that_is_drained_answers_until_the_request_is_taken_back(shell: Shell, tmp_path: Path) -> None:
    """Its workers end at once, and its end does not break off the command that goes by way of it."""
    rendezvous = over("file", tmp_path / "store")
    agent = shell.run("--nnodes=1:2", "--nproc_per_node=1", *rendezvous, SLEEPER)
    shell.wait_for_jobs({agent.pid})
    for command in ("drain", "release"):
        refused = shell.elastic(command, os.uname().nodename, "--rdzv_id=jo")
        assert refused.returncode == 2, "the beginning of an id is not enough to end anything"
        assert "No job 'jo' was found." in refused.stderr
        assert "There is the job --rdzv_id=job." in refused.stderr
    assert shell.elastic("drain", os.uname().nodename).stdout == f"1 agent on {os.uname().nodename} leaves.\n"
    assert agent.exit_code() == 143
    assert not [*(tmp_path / "store").rglob("*drain-*")], "no request is left in the store"


def test_a_command_needs_no_job_token_where_an_agent_answers(shell: Shell, tmp_path: Path) -> None:
    token = "0123456789abcdef" * 2
    rendezvous = over("file", tmp_path / "store")
    sealed = Shell(shell.rig, shell.runtime, ELASTIC_JOB_TOKEN=token)
    agent = sealed.run("--nnodes=1:2", "--nproc_per_node=1", *rendezvous, SLEEPER)
    shell.wait_for_jobs({agent.pid})
    assert shell.elastic("status").stdout.startswith("job 'job' is running")
    assert shell.elastic("status", *rendezvous).returncode == 76, "over the store itself it does"
    assert all(token not in path.read_text() for path in shell.runtime.rglob("*.json"))
    assert shell.elastic("drain", os.uname().nodename).returncode == 0
    assert agent.exit_code() == 143


def test_several_jobs_are_listed_and_one_has_to_be_named(shell: Shell) -> None:
    agents = [shell.run(*STANDALONE, f"--rdzv_id={name}", SLEEPER) for name in ("first", "second")]
    shell.wait_for_jobs(*({agent.pid} for agent in agents))
    header, *lines, hint = shell.elastic("status").stdout.splitlines()
    assert header.split() == ["JOB", "STATE", "BACKEND", "NODES", "RANKS", "STEP", "RESTARTS", "UP", "PID"]
    assert sorted(line.split()[0] for line in lines) == ["first", "second"]
    first = next(line for line in lines if line.startswith("first"))
    assert re.fullmatch(rf"first +running +local +1 +2 +\S+ +0 of 0 +.* s +{agents[0].pid}", first)
    assert "elastic status JOB" in hint
    refused = shell.elastic("stacks")
    assert refused.returncode == 2
    assert "2 jobs of this host can be meant: 'first' (run " in refused.stderr
    assert shell.elastic("status", "sec").stdout.startswith("job 'second' is running")
    same = shell.run(*STANDALONE, "--rdzv_id=first", SLEEPER)
    shell.wait_for_jobs(*({agent.pid} for agent in (*agents, same)))
    refused = shell.elastic("status", "first")
    assert "2 jobs of this host can be meant" in refused.stderr
    [run] = [job["run"] for job in shell.listed() if job["pids"] == [same.pid]]
    assert f"agent pid {same.pid}," in shell.elastic("status", run).stdout
    drained = shell.elastic("drain", os.uname().nodename, f"--rdzv_id={run}")
    assert drained.stdout == f"1 agent on {os.uname().nodename} leaves.\n", drained.stderr
    assert same.exit_code() == 143


def test_the_file_of_a_killed_agent_is_recognized_and_removed(shell: Shell) -> None:
    agent = shell.run(*STANDALONE, SLEEPER)
    shell.wait_for_jobs({agent.pid})
    agent.signal(signal.SIGKILL)
    agent.exit_code()
    assert len(shell.files) == 2
    assert shell.listed() == []
    assert shell.files == []


@pytest.mark.parametrize("backend", ["local", "file"])
def test_an_agent_that_is_stopped_does_not_stop_the_command(shell: Shell, tmp_path: Path, backend: str) -> None:
    rendezvous = ["--standalone"] if backend == "local" else over("file", tmp_path / "store")
    other = shell.run(*STANDALONE, SLEEPER)
    agent = shell.run("--nproc_per_node=1", "--rdzv_id=held", *rendezvous, SLEEPER)
    shell.wait_for_jobs({agent.pid}, {other.pid})
    [held] = [job["job"] for job in shell.listed() if job["pids"] == [agent.pid]]
    agent.signal(signal.SIGSTOP)
    try:
        assert wait_until(lambda: "is stopped." in shell.elastic("status").stdout)
        shown, stacks = shell.elastic("status", held), shell.elastic("stacks", held[:3])
    finally:
        agent.signal(signal.SIGCONT)
    if backend == "file":
        assert shown.stdout.startswith(f"job {held!r} is running"), "the file names the store"
        assert f"The agent of job {held!r} with pid {agent.pid} is stopped.\n" in shown.stderr
    else:
        assert stacks.stdout.startswith("round 1: where the ranks are:\n  rank 0"), stacks.stderr
        assert shown.returncode == 2
        assert f"The agent of job 'held' with pid {agent.pid} is stopped.\n" in shown.stderr
    assert shell.elastic("status", held).returncode == 0


def test_a_job_is_watched_until_its_agent_ends(shell: Shell) -> None:
    agent = shell.run(*STANDALONE, SLEEPER)
    shell.wait_for_jobs({agent.pid})
    watching = shell.rig.start([sys.executable, "-m", "elastic_core", "status", "--watch"], env=shell.variables)
    watching.wait_for("is running")
    agent.signal(signal.SIGTERM)
    agent.exit_code()
    watching.wait_for("The agent of job .* has ended|is failed|is succeeded")
    assert watching.exit_code() == 0, watching.output


def test_a_name_that_is_longer_than_a_socket_may_have_is_no_obstacle(rig: Rig, tmp_path: Path) -> None:
    runtime = tmp_path / ("r" * 120)
    runtime.mkdir(mode=0o700)
    shell = Shell(rig, runtime)
    agent = shell.run(*STANDALONE, SLEEPER)
    shell.wait_for_jobs({agent.pid})
    assert shell.elastic("status").stdout.startswith("job ")
    assert len(shell.files) == 2


def test_without_a_directory_that_can_be_used_the_job_runs_and_a_debug_line_says_so(rig: Rig) -> None:
    shell = Shell(rig, Path("/proc"), TMPDIR="/proc")
    agent = shell.run(*STANDALONE, "--verbose", SLEEPER)
    agent.wait_for_report("started", count=2)
    agent.wait_for("whose file cannot be kept: /proc/elastic")
    assert shell.listed() == []


def test_without_the_plugin_there_is_no_file(shell: Shell) -> None:
    off = shell.run(*STANDALONE, "--no_plugin=host-jobs", SLEEPER)
    agent = shell.run(*STANDALONE, SLEEPER)
    off.wait_for_report("started", count=2)
    shell.wait_for_jobs({agent.pid})


AS_STRANGER = f"""
import os
from elastic_operate import host_jobs, job_file, status
os.setgroups([])
os.setgid({STRANGER})
os.setuid({STRANGER})
raise SystemExit(status.status(job=None, watch=False, as_json=True, rdzv_backend=None, rdzv_endpoint="", rdzv_id=None))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_the_job_of_another_user_is_neither_shown_nor_read(rig: Rig, tmp_path: Path) -> None:
    """They share the directory for temporary files, and the one who looks even knows the other's directory."""
    tmp_path.chmod(0o777)
    shell = Shell(rig, tmp_path / "none", TMPDIR=str(tmp_path))
    agent = shell.run(*STANDALONE, SLEEPER)
    shell.wait_for_jobs({agent.pid})
    own = tmp_path / f"elastic-{os.getuid()}"
    assert own.stat().st_mode & 0o777 == 0o700
    theirs = tmp_path / f"elastic-{STRANGER}"
    shutil.copytree(own, theirs, ignore=shutil.ignore_patterns("*.sock"))
    for path in (theirs, *theirs.iterdir()):
        path.chmod(0o755)
    environment, command = rig.environment(shell.variables), [sys.executable, "-c", AS_STRANGER]
    asked = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
    assert (asked.returncode, asked.stdout) == (0, "[]\n"), asked.stderr
    os.rename(theirs, tmp_path / "copied")
    os.rename(own, theirs)  # its owner is root still
    asked = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
    assert (asked.returncode, asked.stdout) == (0, "[]\n"), asked.stderr
    os.rename(theirs, own)


def test_of_a_job_over_torchs_handler_the_state_of_the_agent_is_shown(shell: Shell, no_torch: Shell) -> None:
    rendezvous = ["--rdzv_backend=torch-c10d", f"--rdzv_endpoint=127.0.0.1:{free_port()}", "--rdzv_id=polled"]
    agent = shell.run("--nnodes=1", "--nproc_per_node=2", *rendezvous, SLEEPER)
    agent.wait_for_report("started", count=2)
    assert wait_until(lambda: [job["pids"] for job in shell.listed()] == [[agent.pid]])
    shown = no_torch.elastic("status", "polled")
    assert shown.returncode == 0, shown.stderr
    assert f"pid {agent.pid}" in shown.stdout.splitlines()[0]
    assert "  job        'polled' over torch-c10d at 127.0.0.1:" in shown.stdout
    assert re.search(r"\n  rank 1 +pid ", shown.stdout)
    assert no_torch.elastic("stacks", "polled").stdout.startswith("round 1: where the ranks are:\n  ranks 0-1")
    refused = no_torch.elastic("drain", os.uname().nodename)
    assert "Job 'polled' runs over a rendezvous handler of others, which keeps no store." in refused.stderr


def test_while_the_store_does_not_answer_the_state_of_the_agent_is_shown(shell: Shell, tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis") as server:
        assert server.process is not None
        rendezvous = ["--rdzv_backend=redis", f"--rdzv_endpoint={server.endpoint}", "--rdzv_id=job"]
        agent = shell.run("--nnodes=1:2", "--nproc_per_node=1", *rendezvous, SLEEPER)
        shell.wait_for_jobs({agent.pid})
        server.process.send_signal(signal.SIGSTOP)
        try:
            shown = shell.elastic("status")
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert shown.returncode == 69
        assert "  store      last contact " in shown.stdout
        assert shown.stderr.startswith("elastic: error: ")
        shell.wait_for_jobs({agent.pid})
        agent.signal(signal.SIGTERM)
        agent.exit_code()


TALKS = """
import os, time
print("the output of rank", os.environ["RANK"], flush=True)
time.sleep(1000)
"""


def test_logs_are_found_of_a_job_that_runs_and_of_the_last_one(shell: Shell, tmp_path: Path) -> None:
    script = tmp_path / "talks.py"
    script.write_text(TALKS)
    silent = shell.run(*STANDALONE, SLEEPER)
    shell.wait_for_jobs({silent.pid})
    assert "keeps logs" in shell.elastic("logs").stderr
    kept = ["--tee=3", f"--log_dir={tmp_path / 'logs'}", "--rdzv_id=talker"]
    agent = shell.run(*STANDALONE, *kept, script)
    agent.wait_for("the output of rank 1")
    shell.wait_for_jobs({silent.pid}, {agent.pid})
    for arguments in ([], ["talk"]):
        found = shell.elastic("logs", *arguments, "--rank=1")
        assert found.stdout == "[round 1, rank 1, stdout] the output of rank 1\n", found.stderr
        assert found.stderr.startswith("elastic: logs of job 'talker' in ")
    assert f"; logs in {tmp_path / 'logs'}/talker_" in shell.elastic("status", "talker").stdout
    agent.signal(signal.SIGTERM)
    agent.exit_code()
    assert shell.elastic("logs", "--rank=1").stdout == "[round 1, rank 1, stdout] the output of rank 1\n"
    unknown = shell.elastic("logs", "talker")
    assert unknown.returncode == 2
    assert "There is no directory 'talker', and no job of this host with that id keeps logs." in unknown.stderr
