"""The warm start, whole jobs: workers are forked, recover at once, and lose nothing when a part of it is killed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from rig import WARM, WORKERS, Agent, Rig

TWO = ["--standalone", "--nproc_per_node=2", "--max_restarts=3", "-v"]
FORKED = "workers start warm"
BREAKDOWN = (
    r"the process group of round 2 is there: detected after \d\.\d{3}, decided after \d\.\d{3}, "
    r"stopped after \d\.\d{3}, running after \d\.\d{3}, initialized after \d\.\d{3} s$"
)
"""The phases of one recovery, as published."""


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """The file that ends the job."""
    return tmp_path / "done"


def trains(agent: Agent, restart_count: int, world_size: int = 2) -> list[int]:
    """The pids of the workers that are in an all-reduce after so many restarts."""
    reports = agent.wait_for_report("training", count=2, world_size=world_size, restart_count=restart_count)
    return [report["pid"] for report in reports]


def ends(agent: Agent, done: Path) -> None:
    done.touch()
    assert agent.exit_code() == 0, agent.output


def test_a_killed_worker_is_forked_again_and_all_meet_at_a_store_that_is_there(rig: Rig, done: Path) -> None:
    agent = rig.run(*TWO, WORKERS / "allreduce.py", "--until", done, env=WARM)
    first = trains(agent, 0)
    assert FORKED in agent.output
    os.kill(first[1], signal.SIGKILL)
    second = trains(agent, 1)
    assert not set(first) & set(second)
    assert {report["store"] for report in agent.reports("training", restart_count=0)}.isdisjoint(
        {report["store"] for report in agent.reports("training", restart_count=1)}
    )
    agent.wait_for(BREAKDOWN)
    ends(agent, done)
    assert "starts fresh" not in agent.output


def test_ps_shows_a_warm_workers_whole_command_line(rig: Rig, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(open('/proc/self/cmdline').read().split('\\0')[2:])\n")
    given = ["--lr", "0.1", "--name", "two words", "--data=" + "x" * 5000]
    agent = rig.run("--standalone", "-v", script, *given, env=WARM)
    assert agent.exit_code() == 0, agent.output
    assert FORKED in agent.output
    assert str([str(script), *given, ""]) in agent.output


def test_a_fresh_worker_reports_its_process_group_where_it_uses_our_call(rig: Rig, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import elastic_core as elastic\nelastic.init_process_group('gloo')\nprint('trained')\n")
    agent = rig.run("--standalone", "-v", script)
    assert agent.exit_code() == 0, agent.output
    assert "trained" in agent.output
    assert "the process group of round 1 is there: after" in agent.output


def test_a_preload_that_raises_is_shown_and_workers_start_fresh(rig: Rig, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "broken.py").write_text("raise ValueError('not today')\n")
    env = {**WARM, "PYTHONPATH": str(site)}
    script = tmp_path / "train.py"
    script.write_text("print('trained')\n")
    agent = rig.run("--standalone", "--preload=broken", script, env=env)
    assert agent.exit_code() == 0, agent.output
    assert "the warm start is off, so each worker imports everything by itself:" in agent.output
    assert "ValueError: not today" in agent.output
    assert "trained" in agent.lines


def test_a_preloaded_module_that_starts_a_thread_costs_no_round(rig: Rig, tmp_path: Path, done: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    start = "threading.Thread(target=threading.Event().wait, name='metronome', daemon=True).start()\n"
    (site / "threaded.py").write_text(f"import threading\n{start}")
    env = {**WARM, "PYTHONPATH": str(site)}
    agent = rig.run(*TWO, "--preload=torch,threaded", WORKERS / "allreduce.py", "--until", done, env=env)
    os.kill(trains(agent, 0)[1], signal.SIGKILL)
    trains(agent, 1)
    ends(agent, done)
    assert "round 3" not in agent.output
    why = "the preloaded process has 2 threads, which a fork does not get (MainThread, metronome)"
    assert agent.output.count(f"starts fresh, without the warm start: {why}") == 1
    agent.wait_for(
        r"round 2 runs \d+\.\d{3} s after the interruption, and its workers import all modules themselves \(the "
    )


LEARNS = """
import os, sys, time
import torch
before = {name: name in sys.modules for name in ("sqlite3", "part", "library")}
import library, part, sqlite3
from report import report
report("there", restart_count=int(os.environ["TORCHELASTIC_RESTART_COUNT"]), version=library.VERSION, **before)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


def test_after_a_restart_what_workers_imported_is_there_but_for_what_is_the_programs_own_or_has_changed(
    rig: Rig, tmp_path: Path, done: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LEARNS)
    (tmp_path / "part.py").write_text("")
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = tmp_path / "user" / "lib" / python / "site-packages" / "library.py"
    library.parent.mkdir(parents=True)
    library.write_text("VERSION = 1")
    env = {**WARM, "PYTHONUSERBASE": str(tmp_path / "user"), "PYTHONPATH": f"{WORKERS}:{library.parent}"}
    agent = rig.run("--standalone", "-v", "--max_restarts=3", script, done, env=env)
    [first] = agent.wait_for_report("there", restart_count=0)
    agent.wait_for(r"besides, in .* s, and \d+ more module\(s\) that workers have imported$")
    os.kill(first["pid"], signal.SIGKILL)
    [second] = agent.wait_for_report("there", restart_count=1)
    names = ("sqlite3", "library", "part", "version")
    assert [[r[name] for name in names] for r in (first, second)] == [[False, False, False, 1], [True, True, False, 1]]
    # ``report`` lies under PYTHONPATH: it is no library's.
    agent.wait_for(
        r"round 2 runs \d+\.\d{3} s after .*, and its workers started warm, and import 1 module\(s\) themselves"
    )
    library.with_name("new").write_text("VERSION = 2")
    library.with_name("new").rename(library)
    os.kill(second["pid"], signal.SIGKILL)
    [third] = agent.wait_for_report("there", restart_count=2)
    agent.wait_for(f"starts fresh, without the warm start: {library} has changed since it was imported$")
    agent.wait_for(FORKED, count=2)
    os.kill(third["pid"], signal.SIGKILL)
    [fourth] = agent.wait_for_report("there", restart_count=3)
    agent.wait_for(r"round 4 runs \d+\.\d{3} s after the interruption, and its workers started warm$")
    assert [third["version"], fourth["version"]] == [2, 2]
    ends(agent, done)


def test_a_restart_says_how_many_modules_are_imported_again_where_nothing_was_learned(
    rig: Rig, tmp_path: Path, done: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LEARNS)
    (tmp_path / "part.py").write_text("")
    (tmp_path / "library.py").write_text("VERSION = 1")
    env = {**WARM, "PYTHONPATH": str(WORKERS)}
    agent = rig.run("--standalone", "--preload=torch", "--max_restarts=1", script, done, env=env)  # learns nothing
    [first] = agent.wait_for_report("there", restart_count=0)
    os.kill(first["pid"], signal.SIGKILL)
    [second] = agent.wait_for_report("there", restart_count=1)
    assert (second["sqlite3"], second["part"]) == (False, False)
    agent.wait_for(r"started warm, and import [1-9]\d* module\(s\) themselves$")
    ends(agent, done)


MANY = """
import os, sys, time
import torch
from report import report
before = set(sys.modules)
import framework
report("there", restart_count=int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
       again=len([name for name in set(sys.modules) - before if name.partition(".")[0] == "framework"]))
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


def test_a_restart_counts_the_modules_of_a_framework_that_is_not_installed(
    rig: Rig, tmp_path: Path, done: Path
) -> None:
    script, source = tmp_path / "scripts" / "train.py", tmp_path / "source" / "framework"
    script.parent.mkdir()
    source.mkdir(parents=True)
    script.write_text(MANY)
    parts = "".join(f"import framework.part{number}\n" for number in range(80))
    (source / "__init__.py").write_text(f"{parts}try:\n    import framework.optional\nexcept ImportError:\n    pass\n")
    for number in range(80):
        (source / f"part{number}.py").write_text("")
    env = {**WARM, "PYTHONPATH": f"{WORKERS}:{source.parent}"}
    command = ["--standalone", "-v", "--max_restarts=3"]
    agent = rig.run(*command, script, done, env=env)
    [first] = agent.wait_for_report("there", restart_count=0)
    agent.wait_for("the fork server has imported .* besides", count=2)
    os.kill(first["pid"], signal.SIGKILL)
    [second] = agent.wait_for_report("there", restart_count=1)
    assert second["again"] == 81
    agent.wait_for(r"started warm, and import 8[1-4] module\(s\) themselves$")
    ends(agent, done)

    done.unlink()
    follows = rig.run(*command, "--preload=torch,framework", script, done, env=env)
    [third] = follows.wait_for_report("there", restart_count=0)
    os.kill(third["pid"], signal.SIGKILL)
    [fourth] = follows.wait_for_report("there", restart_count=1)
    assert fourth["again"] == 0
    follows.wait_for("its workers started warm")
    ends(follows, done)


def test_a_failed_worker_that_does_not_come_to_its_end_is_not_waited_for(rig: Rig, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal\n"
        "class Endless:\n    def __del__(self):\n        signal.pause()\n"
        "endless = Endless()\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n    raise ValueError('boom')\n"
        "os._exit(0)\n"
    )
    agent = rig.run("--standalone", "--max_restarts=1", script, env=WARM)
    assert agent.exit_code() == 0, agent.output
    assert "exited with code 1" in agent.output


def test_a_killed_fork_server_costs_its_workers_nothing_and_the_next_one_forks_again(rig: Rig, done: Path) -> None:
    """With ``--preload`` the fork server has no successor, which could replace it meanwhile."""
    agent = rig.run(*TWO, "--preload=torch", WORKERS / "allreduce.py", "--until", done, env=WARM)
    first = trains(agent, 0)
    fork_server, *_ = agent.named("elastic: fork server")  # before its forks that are not yet another process
    os.kill(fork_server, signal.SIGKILL)
    agent.wait_for("the process that forks workers was killed by SIGKILL")
    agent.wait_for(FORKED, count=2)
    assert all(os.path.exists(f"/proc/{pid}") for pid in first)
    os.kill(first[0], signal.SIGKILL)
    trains(agent, 1)
    ends(agent, done)
    assert "starts fresh" not in agent.output


def test_a_killed_store_costs_a_round_and_no_restart(rig: Rig, done: Path) -> None:
    agent = rig.run(*TWO, "--max_restarts=0", WORKERS / "allreduce.py", "--until", done, env=WARM)
    trains(agent, 0)
    stores = agent.named("elastic: service", "elastic_warmstart.worker_store")
    assert stores, [agent.named("")]
    for store in stores:
        os.kill(store, signal.SIGKILL)
    agent.wait_for("round 2: 2 worker")
    agent.wait_for_report("training", count=4, world_size=2, restart_count=0)
    ends(agent, done)
    assert "the process that holds the workers' store was killed by SIGKILL" in agent.output


def test_an_executable_has_no_fork_server(rig: Rig) -> None:
    says = ["--no_python", "sh", "-c", "echo store $TORCHELASTIC_USE_AGENT_STORE"]
    agent = rig.run("--standalone", "-v", *says, env=WARM)
    assert agent.exit_code() == 0
    assert "store False" in agent.lines
    assert FORKED not in agent.output


def test_a_newcomer_imports_before_it_is_let_in(rig: Rig, file_rendezvous: list[str], done: Path) -> None:
    command = ["--nnodes=1:2", "-v", *file_rendezvous, WORKERS / "allreduce.py", "--until", done]
    first = rig.run(*command, env=WARM)
    first.wait_for_report("training", world_size=1)
    second = rig.run(*command, env=WARM)
    for agent in (first, second):
        agent.wait_for_report("training", world_size=2)
    ends(first, done)
    ends(second, done)
    imported, let_in = second.output.index(FORKED), second.output.index("round 2: 2 worker")
    assert imported < let_in
    assert "starts fresh" not in first.output + second.output


@pytest.mark.parametrize("moment", ["importing", "running", "restarting"])
def test_a_killed_agent_leaves_nothing_behind(rig: Rig, done: Path, moment: str) -> None:
    agent = rig.run(*TWO, WORKERS / "allreduce.py", "--until", done, env=WARM)
    if moment == "importing":
        agent.wait_for("round 1:")
    else:
        pids = trains(agent, 0)
        if moment == "restarting":
            os.kill(pids[0], signal.SIGKILL)
    agent.signal(signal.SIGKILL)
    agent.process.wait()


def test_ctrl_c_while_the_fork_server_imports_ends_at_once(rig: Rig, done: Path) -> None:
    agent = rig.run(*TWO, WORKERS / "allreduce.py", "--until", done, env=WARM)
    agent.wait_for("round 1:")
    agent.signal(signal.SIGINT)
    assert agent.exit_code() == 128 + signal.SIGINT


def test_a_fork_server_leaves_no_folder_for_compiled_code_behind(rig: Rig, tmp_path: Path, done: Path) -> None:
    """Importing ``torch._dynamo`` makes one, which a job that compiles nothing left in the temporary directory."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    script = tmp_path / "train.py"
    script.write_text(f"import os, sys, time\nwhile not os.path.exists({str(done)!r}):\n    time.sleep(0.05)\n")
    agent = rig.run("--standalone", "-v", script, env={**WARM, "TMPDIR": str(temporary)})
    agent.wait_for("has imported torch._dynamo besides")
    ends(agent, done)
    assert os.listdir(temporary) == []
