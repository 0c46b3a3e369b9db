"""Which of several failures is the first cause, whatever the order in which they are known; over two nodes."""

from __future__ import annotations

import re

import pytest
from rig import WARM, Agent, Rig

EARLY = """\
import contextlib
import os
import signal
import sys
import time


class Connection:
    # The interpreter closes it in its teardown, which goes on for a second, as torch's may.

    def __init__(self, end):
        self.end = end

    def __del__(self, close=os.close, sleep=time.sleep):
        close(self.end)
        sleep(1.0)


with contextlib.suppress(FileExistsError):
    os.mkfifo(f"gradients{os.environ['TORCHELASTIC_RESTART_COUNT']}")  # stands for the network between two ranks
gradients = f"gradients{os.environ['TORCHELASTIC_RESTART_COUNT']}"
if os.environ["RANK"] == "3":
    connection = Connection(os.open(gradients, os.O_RDONLY))
    os.read(connection.end, 4096)
    END
if os.environ["RANK"] == "0":
    with open(gradients, "wb", buffering=0) as peer:
        try:
            while True:
                peer.write(bytes(4096))
        except BrokenPipeError:
            raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:8064") from None
signal.pause()
"""

IMPORTS_TOO_EARLY = """\
import os
import signal
import sys
import time

sys.path.insert(0, ".")
if os.environ["RANK"] == "1":
    try:
        import modules_of_the_model
    except ImportError:
        open("tried", "w").close()
        while not os.path.exists("modules_of_the_model.py"):  # it takes a while to come to its end
            time.sleep(0.01)
        raise
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    while not os.path.exists("tried"):
        time.sleep(0.01)
    open("modules_of_the_model.py", "w").close()
    signal.pause()  # as in init_process_group, since one rank does not come
"""

NEVER_THERE = "import os, signal\nif os.environ['RANK'] == '1':\n    import torchvison\nsignal.pause()\n"
NOWHERE_THERE = "import torchvison\n"
USAGE = "import argparse\nargparse.ArgumentParser().parse_args()\n"


WARM_ENOUGH = ["--preload=json"]
"""A warm start that needs no torch."""


def run(rig: Rig, script: str, flags: list[str], *, nodes: int = 2, env: dict[str, str] | None = None) -> list[Agent]:
    """Run a script; return the agents, which have ended, the one with the last rank at the end."""
    (rig.folder / "train.py").write_text(script)
    logs = [f"--log_dir={rig.folder}/logs{number}" for number in range(nodes)]
    agents = [rig.run(f"--nnodes={nodes}", *flags, log, "train.py", "--lr=1", env=env) for log in logs]
    for agent in agents:
        agent.exit_code()
    return agents


def field(agent: Agent, name: str) -> str:
    """One line of the last message."""
    [found] = re.findall(rf"^  \|   {name} +(.*)$", agent.output, re.MULTILINE)
    return str(found)


def test_a_rank_that_leaves_early_is_the_cause_on_every_node(rig: Rig, rendezvous: list[str]) -> None:
    """Its peer fails while its interpreter is torn down."""
    script = EARLY.replace("END", "sys.exit(0)")
    for agent in run(rig, script, [*rendezvous, *WARM_ENOUGH, "--nproc_per_node=2"], env=WARM):
        assert field(agent, "who").startswith("rank 3 ")
        assert field(agent, "what") == "exited with code 0 before the other ranks"
        assert field(agent, "error").startswith("it had finished when rank 0 on ")
        assert field(agent, "hint").startswith("All ranks must take the same number of steps")
        assert agent.exit_code() == 1


@pytest.mark.parametrize(
    ("end", "what"),
    [
        ("os._exit(0)", "exited with code 0 before the other ranks"),
        ("sys.exit(3)", "exited with code 3"),
    ],
)
def test_however_it_leaves_early(rig: Rig, file_rendezvous: list[str], end: str, what: str) -> None:
    flags = [*file_rendezvous, *WARM_ENOUGH, "--nproc_per_node=2"]
    for agent in run(rig, EARLY.replace("END", end), flags, env=WARM):
        assert field(agent, "who").startswith("rank 3 ")
        assert field(agent, "what") == what
        assert agent.exit_code() == 1


def test_the_restart_names_the_rank_that_left_early(rig: Rig, rendezvous: list[str]) -> None:
    flags = [*rendezvous, *WARM_ENOUGH, "--nproc_per_node=2", "--max_restarts=1"]
    agents = run(rig, EARLY.replace("END", "sys.exit(0)"), flags, env=WARM)
    for agent in agents:
        [restart] = re.findall(r"restart 1 of 1 \((rank \d) on .* exited with code (.*): it had finished", agent.output)
        assert restart == ("rank 3", "0 before the other ranks")
        assert field(agent, "who").startswith("rank 3 ")


def test_a_teardown_that_hangs_hides_nothing(rig: Rig, file_rendezvous: list[str]) -> None:
    """It is killed after the grace, so that its exit code stays unknown."""
    script = EARLY.replace("END", "sys.exit(0)").replace("sleep(1.0)", "sleep(3600.0)")
    flags = [*file_rendezvous, *WARM_ENOUGH, "--nproc_per_node=2", "--failure_grace=1"]
    agents = run(rig, script, flags, env=WARM)
    for agent in agents:
        assert field(agent, "who").startswith("rank 3 ")
        assert field(agent, "what").startswith("it had finished when rank 0 on ")
        assert field(agent, "hint").startswith("All ranks must take the same number of steps")
        assert agent.exit_code() == 1


# A program that cannot begin -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_rank_that_imports_a_module_before_another_has_written_it_spends_a_restart(
    rig: Rig, file_rendezvous: list[str], nodes: int
) -> None:
    flags = [*file_rendezvous, f"--nproc_per_node={2 // nodes}", "--max_restarts=3"]
    for agent in run(rig, IMPORTS_TOO_EARLY, flags, nodes=nodes):
        assert agent.exit_code() == 0, agent.output
        assert re.search(r"restart 1 of 3( \(rank 1 on .*)?$", agent.output, re.MULTILINE)
        assert "rank 1 " in agent.output


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 1), (1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize(
    ("script", "what"),
    [(NOWHERE_THERE, "ModuleNotFoundError"), (USAGE, "wrong arguments")],
    ids=["import", "arguments"],
)
def test_one_restart_shows_that_a_program_can_begin_nowhere(
    rig: Rig, file_rendezvous: list[str], script: str, what: str, nodes: int, per_node: int
) -> None:
    flags = [*file_rendezvous, f"--nproc_per_node={per_node}", "--max_restarts=3"]
    for agent in run(rig, script, flags, nodes=nodes):
        assert agent.exit_code() == 1
        assert f"a restart has not mended {what}" in agent.output
        assert ("round 2: " in agent.output, "round 3: " in agent.output) == (True, False)


def test_one_restart_shows_that_a_rank_can_never_begin(rig: Rig, file_rendezvous: list[str]) -> None:
    for agent in run(rig, NEVER_THERE, [*file_rendezvous, "--nproc_per_node=2", "--max_restarts=3"]):
        assert agent.exit_code() == 1
        assert "a restart has not mended ModuleNotFoundError" in agent.output
        assert ("round 2: " in agent.output, "round 3: " in agent.output) == (True, False)


def test_a_warm_program_that_can_begin_nowhere_gets_one_restart(rig: Rig, file_rendezvous: list[str]) -> None:
    flags = [*file_rendezvous, *WARM_ENOUGH, "--nproc_per_node=2", "--max_restarts=3"]
    for agent in run(rig, NOWHERE_THERE, flags, env=WARM):
        assert agent.exit_code() == 1
        assert "a restart has not mended ModuleNotFoundError" in agent.output


def test_without_restarts_the_first_failure_ends_the_job(rig: Rig) -> None:
    [agent] = run(rig, NEVER_THERE, ["--nproc_per_node=2", "--max_restarts=0"], nodes=1)
    assert agent.exit_code() == 1
    assert "--max_restarts is 0, so the first failure ends the job" in agent.output
