"""A signal that reaches the agent reaches its workers as itself."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest
from rig import COLD, WARM, WORKERS, Agent, Rig, descendants, name_of
from terminal import Terminal

from elastic_hangs.stack_dump import SIGNAL, SIGNAL_ALL, SIGNAL_RUNNING

SIGNALS = ["SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGTERM"]
HANDLED = f"--signals_to_handle={','.join(SIGNALS)}"


def received(agent: Agent) -> list[str]:
    """Return the signals of its workers, in order."""
    return [report["name"] for report in agent.reports("signal")]


@pytest.mark.parametrize("name", SIGNALS)
def test_workers_get_the_signal_that_the_agent_got(rig: Rig, name: str) -> None:
    agent = rig.run("--standalone", "--nproc_per_node=2", HANDLED, WORKERS / "signalled.py")
    agent.wait_for_report("started", count=2)
    agent.signal(signal.Signals[name])
    assert agent.exit_code() == 128 + signal.Signals[name]
    assert received(agent) == [name, name]


def test_sigterm_follows_before_the_grace_is_over(rig: Rig) -> None:
    agent = rig.run("--standalone", "--shutdown_timeout=5", HANDLED, WORKERS / "signalled.py", "--stay")
    agent.wait_for_report("started")
    agent.signal(signal.SIGUSR1)
    assert agent.exit_code() == 128 + signal.SIGUSR1
    assert received(agent) == ["SIGUSR1", "SIGTERM"]


@pytest.mark.parametrize("name", ["SIGINT", "SIGUSR1"])
def test_only_the_workers_of_the_node_that_got_it_get_it(rig: Rig, file_rendezvous: list[str], name: str) -> None:
    command = ["--nnodes=1:2", *file_rendezvous, HANDLED, WORKERS / "signalled.py"]
    stays = rig.run(*command)
    stays.wait_for("joining job")
    leaves = rig.run(*command)
    for agent in (stays, leaves):
        agent.wait_for_report("started", world_size=2)
    leaves.signal(signal.Signals[name])
    assert leaves.exit_code() == 128 + signal.Signals[name]
    stays.wait_for(r"1 worker\(s\) on 1 node\(s\) \(.* leaves\)")
    assert received(leaves) == [name]
    assert {*received(stays)} == {"SIGTERM"}


def test_a_signal_reaches_workers_of_a_rendezvous_handler(rig: Rig) -> None:
    pytest.importorskip("torch")
    agent = rig.run("--rdzv_backend=torch-c10d", HANDLED, WORKERS / "signalled.py")
    agent.wait_for_report("started")
    agent.signal(signal.SIGINT)
    assert agent.exit_code() == 128 + signal.SIGINT
    assert received(agent) == ["SIGINT"]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("warm", ["0", "1"])
def test_ctrl_c_lets_a_worker_save_and_a_second_one_does_not(rig: Rig, again: bool, warm: str) -> None:
    """On a real terminal, which sends SIGINT to all of its foreground: the agent, and none of the workers."""
    hold = Path(rig.folder, "hold")
    hold.touch()
    command = [sys.executable, "-m", "elastic_core", "run", "--standalone", str(WORKERS / "interrupted.py")]
    with Terminal(command, rig.folder, rig.environment({"PET_WARM_START": warm})) as terminal:
        terminal.wait_for('"started"')
        terminal.type(b"\x03")
        terminal.wait_for('"saving"')
        if again:
            terminal.type(b"\x03")
            terminal.wait_for("received SIGINT again")
        else:
            hold.unlink()
            terminal.wait_for('"saved"')
        assert terminal.exit_code() == 128 + signal.SIGINT
        assert ('"saved"' in terminal.text) is not again
        assert "Traceback" not in terminal.text


def test_a_signal_that_was_ignored_at_the_start_is_not_forwarded(rig: Rig) -> None:
    agent = rig.start(
        ["nohup", sys.executable, "-m", "elastic_core", "run", "--standalone", str(WORKERS / "signalled.py")]
    )
    agent.wait_for_report("started")
    agent.signal(signal.SIGHUP)
    agent.signal(signal.SIGTERM)
    assert agent.exit_code() == 128 + signal.SIGTERM
    assert received(agent) == ["SIGTERM"]


@pytest.mark.parametrize("start", [WARM, COLD], ids=["warm", "fresh"])
def test_a_worker_that_signals_its_parent_has_its_node_leave(rig: Rig, start: dict[str, str]) -> None:
    program = "import os, signal, time\nos.kill(os.getppid(), signal.SIGTERM)\ntime.sleep(1000)\n"
    Path(rig.folder, "train.py").write_text(program)
    agent = rig.run("--standalone", "--nproc_per_node=2", "train.py", env=start)
    assert agent.exit_code() == 128 + signal.SIGTERM
    assert "the workers' parent process received SIGTERM: it counts as sent to this agent" in agent.output
    assert "again" not in agent.output.replace("once more to kill", "")


@pytest.mark.parametrize("start", [WARM, COLD], ids=["warm", "fresh"])
@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_scheduler_s_signal_to_workers_and_agent_lets_workers_save(
    rig: Rig, signum: signal.Signals, start: dict[str, str]
) -> None:
    agent = rig.run("--standalone", "--nproc_per_node=2", HANDLED, WORKERS / "saves.py", env=start)
    for report in agent.wait_for_report("started", count=2):
        os.kill(report["worker"], signum)
    agent.signal(signum)
    assert agent.exit_code() == 128 + signum
    assert len(agent.reports("saved")) == 2
    assert "restart 1" not in agent.output


def test_a_shell_can_trap_a_scheduler_s_signal(rig: Rig) -> None:
    Path(rig.folder, "train.sh").write_text(
        "trap 'echo saved; exit 0' USR1\necho started\nwhile :; do sleep 0.1; done\n"
    )
    agent = rig.run("--standalone", HANDLED, "--no_python", "sh", "train.sh")
    agent.wait_for("started")
    agent.signal(signal.SIGUSR1)
    assert agent.exit_code() == 128 + signal.SIGUSR1
    agent.wait_for("saved")


def test_a_signal_to_the_parent_of_workers_of_a_rendezvous_handler(rig: Rig) -> None:
    pytest.importorskip("torch")
    agent = rig.run("--rdzv_backend=torch-c10d", WORKERS / "signalled.py")
    agent.wait_for_report("started")
    (warden,) = [pid for pid in descendants(agent.pid) if name_of(pid) == "elastic-warden"]
    os.kill(warden, signal.SIGTERM)
    assert agent.exit_code() == 128 + signal.SIGTERM
    assert received(agent) == ["SIGTERM"]


@pytest.mark.parametrize("order", ["agent first", "warden first"])
def test_a_signal_to_all_processes_of_a_job_lets_workers_save(rig: Rig, order: str) -> None:
    """As Slurm and systemd send it. The second signal to the agent would kill the workers."""
    hold = Path(rig.folder, "hold")
    hold.touch()
    agent = rig.run("--standalone", WORKERS / "interrupted.py")
    agent.wait_for('"started"')
    (warden,) = [pid for pid in descendants(agent.pid) if name_of(pid) == "elastic-warden"]
    for pid in (agent.pid, warden) if order == "agent first" else (warden, agent.pid):
        os.kill(pid, signal.SIGINT)
    agent.wait_for('"saving"')
    hold.unlink()
    assert agent.exit_code() == 128 + signal.SIGINT
    agent.wait_for('"saved"')


def test_sigterm_to_one_worker_by_an_unknown_hand_is_the_root_cause(rig: Rig) -> None:
    program = "import report, os, time\nreport.report('started', pid=os.getpid())\ntime.sleep(1000)\n"
    Path(rig.folder, "train.py").write_text(f"import sys\nsys.path.insert(0, {str(WORKERS)!r})\n{program}")
    agent = rig.run("--standalone", "--nproc_per_node=2", "train.py")
    for report in agent.wait_for_report("started", count=2):
        if report.rank == 1:
            os.kill(report["pid"], signal.SIGTERM)
    assert agent.exit_code() == 1
    agent.wait_for(r"rank 1 .*was killed by SIGTERM \(by a person, a scheduler or an out-of-memory daemon\)")
    assert "follows from the loss of a peer" not in agent.output


RESTARTS = {"PET_MAX_RESTARTS": "2"}
AFTER_SIGTERM = r"exited with code 0 after SIGTERM \(by a person, a scheduler or an out-of-memory daemon\)"


@pytest.mark.parametrize("start", [WARM, COLD], ids=["warm", "fresh"])
@pytest.mark.parametrize("ranks", [[0, 1], [1]], ids=["all", "one"])
def test_workers_that_exit_with_0_after_sigterm_have_not_finished(
    rig: Rig, ranks: list[int], start: dict[str, str]
) -> None:
    agent = rig.run("--standalone", "--nproc_per_node=2", WORKERS / "saves.py", env={**start, **RESTARTS})
    for report in agent.wait_for_report("started", count=2):
        if report.rank in ranks:
            os.kill(report["worker"], signal.SIGTERM)
    assert agent.exit_code() == 0
    agent.wait_for(rf"restart 1 of 2 \(rank \d on .* {AFTER_SIGTERM}\)")
    assert len(agent.reports("finished", round=2)) == 2
    assert "restart 2 of 2" not in agent.output


@pytest.mark.parametrize("start", [WARM, COLD], ids=["warm", "fresh"])
@pytest.mark.parametrize("order", ["workers first", "agent first"])
@pytest.mark.parametrize("grace", ["0", "30"])
def test_a_node_is_out_when_all_processes_of_it_get_sigterm(
    rig: Rig, order: str, grace: str, start: dict[str, str]
) -> None:
    """As Slurm sends it. The workers may have ended before the agent reads its own signal."""
    env = {**start, "PET_PREEMPTION_GRACE": grace}
    agent = rig.run("--standalone", "--nproc_per_node=2", WORKERS / "saves.py", env=env)
    workers = [report["worker"] for report in agent.wait_for_report("started", count=2)]
    (warden,) = [pid for pid in descendants(agent.pid) if name_of(pid) == "elastic-warden"]
    if order == "agent first":
        for pid in (agent.pid, warden, *workers):
            with contextlib.suppress(ProcessLookupError):  # the agent may have stopped it by then
                os.kill(pid, signal.SIGTERM)
    else:
        for pid in workers:
            os.kill(pid, signal.SIGTERM)
        agent.wait_for_report("saved", count=2)
        os.kill(warden, signal.SIGTERM)
        agent.signal(signal.SIGTERM)
    assert agent.exit_code() == 128 + signal.SIGTERM
    assert "the job has failed" not in agent.output
    assert "the job is done" not in agent.output


@pytest.mark.parametrize("start", [WARM, COLD], ids=["warm", "fresh"])
@pytest.mark.parametrize("how", ["ends a child", "ends", "signals itself"])
def test_a_healthy_job_that_handles_sigterm_is_done(rig: Rig, how: str, start: dict[str, str]) -> None:
    agent = rig.run("--standalone", "--nproc_per_node=2", WORKERS / "saves.py", f"--how={how}", env=start)
    assert agent.exit_code() == 0
    assert len([*agent.reports("finished", round=1), *agent.reports("saved")]) == 2
    assert "after SIGTERM" not in agent.output


ENDS_SLOWLY = """
import os
class Slow:
    def __del__(self, write=os.write, open=os.open, read=os.read):
        write(1, b"torn down\\n")
        read(open("fifo", os.O_RDONLY), 1)
slow = Slow()
"""


@pytest.mark.parametrize("start", [WARM, COLD], ids=["warm", "fresh"])
def test_a_request_for_a_stack_does_not_end_a_worker_that_is_about_to_end(rig: Rig, start: dict[str, str]) -> None:
    Path(rig.folder, "train.py").write_text(ENDS_SLOWLY.replace("os.O_RDONLY", str(os.O_RDONLY)))
    os.mkfifo(rig.folder / "fifo")
    agent = rig.run("--standalone", "train.py", env=start)
    agent.wait_for("torn down")
    (worker,) = agent.workers().values()
    for signum in (SIGNAL, SIGNAL_ALL, SIGNAL_RUNNING):
        os.kill(worker, signum)
    Path(rig.folder, "fifo").write_bytes(b".")
    assert agent.exit_code() == 0
