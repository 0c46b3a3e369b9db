"""Rule S8 among real agents of one host: no node waits ten minutes for the fence of one that has gone from its slot."""

from __future__ import annotations

import os
import select
import signal
import sys
import uuid
from contextlib import closing
from pathlib import Path

import pytest
from live_rounds import lives, two_alive
from rig import WORKERS, Agent, Rig, command_line, descendants, name_of

from elastic_core.agent.directories import Slot


@pytest.fixture
def name() -> str:
    """A job that no other process on this host has, and so with all its slots free."""
    return f"slots-{uuid.uuid4().hex}"


@pytest.fixture
def command(name: str, tmp_path: Path) -> list[object]:
    """One node at a time, and any other one waits."""
    rendezvous = ["--rdzv_backend=file", f"--rdzv_endpoint={tmp_path / 'rdzv'}", f"--rdzv_id={name}"]
    return [*rendezvous, WORKERS / "barrier.py", "--until", tmp_path / "done"]


def trains(agent: Agent) -> None:
    agent.wait_for_report("training", world_size=1)


def finishes(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "done").touch()
    assert agent.exit_code() == 0, agent.output


def test_of_a_slot_that_it_finds_free_a_new_agent_says_so(
    rig: Rig, name: str, command: list[object], tmp_path: Path
) -> None:
    """It gets a lower one than the agent had that is gone, where others had those at that time."""
    with closing(Slot.take(name)):
        first = rig.run(*command)
        trains(first)
    first.kill_node()
    second = rig.run(*command)
    trains(second)
    assert "(agent 2)" in first.output
    assert f"as {os.uname().nodename}\n" in second.output, "it has the first slot"
    finishes(second, tmp_path)


def test_a_new_agent_goes_on_when_the_last_process_of_the_old_one_is_gone(
    rig: Rig, command: list[object], tmp_path: Path
) -> None:
    """The warden takes its time; until then its workers may be training."""
    first = rig.run(*command)
    trains(first)
    [warden] = [pid for pid in descendants(first.pid) if name_of(pid) == "elastic-warden"]
    os.kill(warden, signal.SIGSTOP)
    first.signal(signal.SIGKILL)
    second = rig.run(*command)
    second.wait_for("which may still be training, to answer, or to stop by itself")
    assert not second.reports("training")
    os.kill(warden, signal.SIGCONT)
    trains(second)
    finishes(second, tmp_path)


BRISK = ["--rdzv_conf=beat_interval=0.5,lost_after=6"]
WRAPPER = """#!/bin/sh
"$@"
exit $?
"""


def kill_agent_and_warden(agent: Agent) -> None:
    """As ``pkill -9 elastic`` does it: the agent cannot adopt what its warden leaves behind."""
    [warden] = [pid for pid in descendants(agent.pid) if name_of(pid) == "elastic-warden"]
    agent.signal(signal.SIGSTOP)
    os.kill(warden, signal.SIGKILL)
    agent.signal(signal.SIGKILL)
    agent.process.wait()


def test_no_round_begins_while_a_child_of_a_killed_nodes_worker_trains_on(rig: Rig, name: str, tmp_path: Path) -> None:
    """The agent and its warden are killed at once. The kernel ends the worker, a shell, and not what it has started."""
    (wrapper := tmp_path / "wrap.sh").write_text(WRAPPER)
    wrapper.chmod(0o755)
    (folder := tmp_path / "lives").mkdir()
    rendezvous = ["--rdzv_backend=file", f"--rdzv_endpoint={tmp_path / 'rdzv'}", f"--rdzv_id={name}"]
    job = [sys.executable, WORKERS / "barrier.py", "--until", tmp_path / "done", "--lives", folder]
    command = [*rendezvous, "--no_python", wrapper, *job]
    first = rig.run(*command)
    trains(first)
    [orphan] = [pid for pid in first.named("barrier.py") if "wrap.sh" not in command_line(pid)]
    kill_agent_and_warden(first)
    second = rig.run(*command)
    second.wait_for("which may still be training, to answer, or to stop by itself")
    os.kill(orphan, signal.SIGKILL)
    trains(second)
    finishes(second, tmp_path)
    assert two_alive(lives(folder)) == []


def test_the_next_agent_removes_the_files_of_a_killed_agent_and_its_warden(rig: Rig, tmp_path: Path) -> None:
    """Not before the last process of that node is gone, nor the logs that a user wanted."""
    (temporary := tmp_path / "tmp").mkdir()
    (wrapper := tmp_path / "wrap.sh").write_text(WRAPPER)
    wrapper.chmod(0o755)
    environment, logs = {"TMPDIR": str(temporary)}, temporary / "elastic_logs"
    sleeps = [sys.executable, WORKERS / "sleeper.py"]
    first = rig.run("--standalone", "--no_python", wrapper, *sleeps, env=environment)
    second = rig.run("--standalone", f"--log_dir={logs}", *sleeps[1:], env=environment)
    for agent in (first, second):
        agent.wait_for_report("started")
    [orphan] = [pid for pid in first.named("sleeper.py") if "wrap.sh" not in command_line(pid)]
    [left] = [path for path in temporary.iterdir() if path != logs]
    for agent in (first, second):
        kill_agent_and_warden(agent)
    assert {*temporary.iterdir()} == {left, logs}

    def after_another() -> set[Path]:
        assert rig.run("--standalone", "--no_python", "true", env=environment).exit_code() == 0
        return {*temporary.iterdir()}

    assert after_another() == {left, logs}
    pidfd = os.pidfd_open(orphan)
    os.kill(orphan, signal.SIGKILL)
    select.select([pidfd], [], [])
    os.close(pidfd)
    assert after_another() == {logs}


def test_a_spare_beside_a_node_that_vanishes_takes_its_place(rig: Rig, command: list[object], tmp_path: Path) -> None:
    first = rig.run(*command)
    trains(first)
    spare = rig.run(*command)
    spare.wait_for("the job has all 1 node")
    first.kill_node()
    trains(spare)
    finishes(spare, tmp_path)


TWIN = """
import sys
from elastic_core.agent import membership
from elastic_core.agent import start

machine, take = sys.argv.pop(1), membership.Slot.take
membership.host_id = lambda: "of both"
membership.Slot.take = lambda job: take(f"{job} on {machine}")  # its slots, and those of the other, are two machines'

from elastic_core.cli.main import main
sys.exit(main())
"""


def on_machine(rig: Rig, machine: str, *command: object) -> Agent:
    """An agent on a machine that has the same host id as another one, which was started from the same image."""
    return rig.start([sys.executable, "-c", TWIN, machine, "run", *map(str, command)])


def test_two_machines_with_one_host_id_do_not_take_each_others_nodes_for_gone(
    rig: Rig, command: list[object], tmp_path: Path
) -> None:
    command = [*BRISK, *command, "--tell=0.2"]
    first = on_machine(rig, "one", *command)
    trains(first)
    others = [on_machine(rig, machine, *command) for machine in ("two", "three")]
    for agent in others:
        agent.wait_for("the job has all 1 node")
    first.wait_for_report("step", count=len(first.reports("step")) + 20)  # eight heartbeats
    finishes(first, tmp_path)
    assert [agent.exit_code() for agent in others] == [0, 0]
    assert len(first.reports("training")) == 1, "its round was never halted"
    assert [agent.reports("training") for agent in others] == [[], []]


def as_host(rig: Rig, host: str, *command: object, env: dict[str, str] | None = None) -> Agent:
    """An agent on a machine of this name."""
    script = f"from elastic_core.agent import membership\nmembership.host_name = lambda: {host!r}\n{TWIN}"
    argv = [sys.executable, "-c", script.replace('"of both"', repr(host)), host, "run", *map(str, command)]
    return rig.start(argv, env=env)


@pytest.mark.everyday("an operator")
@pytest.mark.parametrize("by", ["an operator", "a plugin"])
def test_when_all_nodes_are_replaced_at_once_the_job_goes_on_when_somebody_vouches_for_one(
    rig: Rig, name: str, tmp_path: Path, by: str
) -> None:
    where = ["--rdzv_backend=file", f"--rdzv_endpoint={tmp_path / 'rdzv'}", f"--rdzv_id={name}"]
    command = ["--nnodes=2", *where, WORKERS / "barrier.py", "--until", tmp_path / "done"]
    (gone := tmp_path / "gone").mkdir()
    plugin = {} if by == "an operator" else {"ELASTIC_PLUGINS": "gone-hosts", "ELASTIC_GONE_HOSTS": str(gone)}
    old = [as_host(rig, host, *command, env=plugin) for host in ("pod-1", "pod-2")]
    for agent in old:
        agent.wait_for_report("training", world_size=2)
    for agent in old:
        agent.signal(signal.SIGSTOP)  # or the second would say that its worker has lost the first one's
    for agent in old:
        agent.vanish()
    new = [as_host(rig, host, *command, env=plugin) for host in ("pod-3", "pod-4")]
    told = rig.wait_until(lambda: any("elastic release pod-" in agent.output for agent in new))
    assert told, "\n".join(agent.output for agent in new)
    assert not any(agent.reports("training") for agent in new)
    if by == "an operator":
        releasing = rig.start([sys.executable, "-m", "elastic_core", "release", *map(str, where), "pod-1"])
        assert releasing.exit_code() == 0, releasing.output
        assert "The job goes on without the 1 agent that pod-1 had." in releasing.output
    else:
        (gone / "pod-2").touch()
    for agent in new:
        agent.wait_for_report("training", world_size=2)
    (tmp_path / "done").touch()
    assert [agent.exit_code() for agent in new] == [0, 0]
