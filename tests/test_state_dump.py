"""SIGQUIT: the agent says what it does, and goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from rig import WARM, WORKERS, Rig, descendants, name_of, over
from simulator import decisions

HEAD = r"\[elastic\] the state of "


def test_the_leader_and_another_node_say_what_they_do_and_go_on(
    rig: Rig, file_rendezvous: list[str], tmp_path: Path
) -> None:
    command = ["--nnodes=2", "--nproc_per_node=2", "--max_restarts=1", f"--log_dir={tmp_path}", *file_rendezvous]
    agents = [rig.run(*command, WORKERS / "sleeper.py") for _ in range(2)]
    for agent in agents:
        agent.wait_for_report("started", count=2, world_size=4)
    before = [agent.workers() for agent in agents]
    for agent in agents:
        agent.signal(signal.SIGQUIT)
        agent.wait_for(r"^  Thread MainThread \(most recent call first\):")
        agent.wait_for(r"^  Thread elastic-reader ")
        agent.wait_for(HEAD + f".*, pid {agent.pid}")
        agent.wait_for(r"^  job        '.*' over file at ")
        agent.wait_for(r"^  round      1, live for \d+\.\d s \(")
        agent.wait_for(r"^  waits for  nothing: the workers run, for \d+\.\d s$")
        agent.wait_for(r"^  store      last contact \d+\.\d s ago$")
        for rank, pid in agent.workers().items():
            agent.wait_for(rf"^  rank {rank}     (pid {pid}, started \d+\.\d s ago|being started, for \d+\.\d s)$")
        path = agent.wait_for(r"^  decisions  .*/elastic_decisions_\w+\.jsonl$").split(maxsplit=1)[1]
        count, differences = decisions.replay(Path(path).read_text(encoding="utf-8"))
        assert count
        assert differences == []
    [leader] = [agent for agent in agents if "decides    this node, term 1" in agent.output]
    leader.wait_for(r"^  node       .*, (waiting|running round 1), last sign of life \d+\.\d s ago$")
    for agent in agents:
        agent.signal(signal.SIGQUIT)
        agent.wait_for(HEAD, count=2)
    assert [agent.workers() for agent in agents] == before
    assert "round 2" not in "".join(agent.output for agent in agents)


def test_an_agent_that_waits_for_its_store_shows_where(rig: Rig, tmp_path: Path) -> None:
    """Its main thread is in a call of the store's library, which does not return."""
    command = ["--nnodes=1:2", *over("c10d", tmp_path), WORKERS / "sleeper.py"]
    host = rig.run(*command)
    host.wait_for_report("started")
    [store] = [pid for pid in descendants(host.pid) if name_of(pid) == "elastic-store"]
    os.kill(store, signal.SIGSTOP)
    try:
        guest = rig.run(*command, env={"TMPDIR": str(tmp_path)})
        guest.wait_for("no store answers there yet")
        guest.signal(signal.SIGQUIT)
        guest.wait_for(r"^  waits for  the store, to join the job, for \d+\.\d s$")
        guest.wait_for(r"^  Thread MainThread ")
        guest.wait_for(r"^    File .* in make_rendezvous$")
    finally:
        os.kill(store, signal.SIGCONT)
    guest.wait_for_report("started", world_size=2)


@pytest.mark.parametrize("env", [{}, WARM], ids=["fresh", "warm"])
def test_workers_have_the_usual_sigquit(rig: Rig, tmp_path: Path, env: dict[str, str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal\n"
        "print('has', signal.getsignal(signal.SIGQUIT).name, flush=True)\n"
        "print('blocks', *signal.pthread_sigmask(signal.SIG_BLOCK, ()), flush=True)\n"
        "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "os.kill(os.getpid(), signal.SIGQUIT)\n"
    )
    agent = rig.run("--standalone", script, env=env)
    assert agent.exit_code() == 1
    assert "was killed by SIGQUIT" in agent.output
    assert "has SIG_DFL" in agent.lines
    assert "blocks" in agent.lines


def test_an_agent_with_sigquit_among_the_signals_to_handle_leaves_on_it(rig: Rig) -> None:
    agent = rig.run("--standalone", "--signals_to_handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT", WORKERS / "sleeper.py")
    agent.wait_for_report("started")
    agent.signal(signal.SIGQUIT)
    assert agent.exit_code() == 128 + signal.SIGQUIT
    assert "the state of" not in agent.output
