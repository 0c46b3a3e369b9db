"""One node: what runs, with which environment, and what happens when it fails."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from rig import EXAMPLES, WORKERS, Rig
from wardens import wait_until


def test_four_workers_meet_and_finish(rig: Rig, tmp_path: Path) -> None:
    done = tmp_path / "done"
    agent = rig.run("--standalone", "--nproc_per_node=4", WORKERS / "barrier.py", "--until", done)
    agent.wait_for_report("training", count=4, world_size=4)
    done.touch()
    assert agent.exit_code() == 0
    assert sorted(report.rank for report in agent.reports("done")) == [0, 1, 2, 3]


def test_a_module_is_found_in_the_working_directory(rig: Rig, tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "train.py").write_text("import sys; print('running', __name__, sys.argv[1:])")
    agent = rig.run("--standalone", "-m", "package.train", "--lr", "0.1")
    assert agent.exit_code() == 0
    assert "running __main__ ['--lr', '0.1']" in agent.lines


def test_any_program_is_a_worker(rig: Rig) -> None:
    agent = rig.run("--standalone", "--nproc_per_node=2", "--no_python", WORKERS / "shell.sh", "finish", "--nnodes=7")
    assert agent.exit_code() == 0
    assert {(r.rank, r["arguments"]) for r in agent.reports("started")} == {(r, "finish --nnodes=7") for r in (0, 1)}


def test_torch_takes_the_environment_as_torchrun_gives_it(rig: Rig, tmp_path: Path) -> None:
    script = EXAMPLES / "digits" / "train.py"
    agent = rig.run("--standalone", "--nproc_per_node=2", script, "--epochs=1", f"--checkpoint={tmp_path / 'a'}")
    assert agent.exit_code() == 0
    assert "2 workers train from epoch 1, step 1" in agent.lines


def test_a_failure_restarts_all_workers_until_the_restarts_are_spent(rig: Rig) -> None:
    flags = ["--standalone", "--nproc_per_node=3", "--max_restarts=2"]
    agent = rig.run(*flags, WORKERS / "crasher.py", "--ranks=1,1,1")
    assert agent.exit_code() == 1
    starts = [(r.rank, r["restart_count"]) for r in agent.reports("started")]
    assert [start for start in starts if start[0] == 1] == [(1, 0), (1, 1), (1, 2)]
    assert {(0, 0), (2, 0)} <= set(starts)


def test_a_job_that_recovers_succeeds(rig: Rig) -> None:
    flags = ["--standalone", "--nproc_per_node=2", "--max_restarts=3"]
    agent = rig.run(*flags, WORKERS / "crasher.py", "--ranks=0,1")
    assert agent.exit_code() == 0


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("raise ValueError('no such layer')", ["exited with code 1", "ValueError: no such layer"]),
        ("import os; os.kill(os.getpid(), 11)", ["SIGSEGV"]),
        ("import os; os.kill(os.getpid(), 9)", ["SIGKILL", "out-of-memory"]),
        ("import sys; print('wrong data', file=sys.stderr); sys.exit(7)", ["exited with code 7", "wrong data"]),
        ("raise RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')", ["hint    Lower the batch size"]),
    ],
    ids=["exception", "segfault", "killed", "exit", "known"],
)
def test_a_failed_job_says_who_failed_and_why(rig: Rig, tmp_path: Path, script: str, cause: list[str]) -> None:
    train = tmp_path / "train.py"
    train.write_text(f"import os, signal\nif os.environ['RANK'] != '1': signal.pause()\n{script}\n")
    agent = rig.run("--standalone", "--nproc_per_node=2", train)
    assert agent.exit_code() == 1
    verdict = agent.output[agent.output.index("Root cause") :]
    assert "rank 1" in verdict
    for words in cause:
        assert words in verdict


def test_the_error_that_torchs_record_keeps_is_the_cause(rig: Rig, tmp_path: Path) -> None:
    train = tmp_path / "train.py"
    train.write_text(
        "import sys\n"
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\n"
        "def main():\n"
        "    sys.stderr = open('/dev/null', 'w')\n"
        "    raise KeyError('embedding')\n"
        "main()\n"
    )
    agent = rig.run("--standalone", train)
    assert agent.exit_code() == 1
    assert "KeyError: 'embedding'" in agent.output[agent.output.index("Root cause") :]


def test_logs_are_kept_by_round_and_rank(rig: Rig, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    flags = [
        "--standalone",
        "--nproc_per_node=2",
        "--max_restarts=1",
        f"--log_dir={logs}",
        "--redirects=3",
        "--tee=0:2",
    ]
    agent = rig.run(*flags, WORKERS / "crasher.py", "--ranks=0")
    assert agent.exit_code() == 0
    kept = {str(path.relative_to(logs)).split(os.sep, 1)[1] for path in logs.rglob("*.log")}
    assert kept >= {f"round_{round}/rank_{rank}/stderr.log" for round in (1, 2) for rank in (0, 1)}
    assert any(line.startswith("[rank0]:") and "ValueError" in line for line in agent.lines)
    assert not agent.reports("started"), "redirected output must not be on the console"


def test_nothing_of_a_run_stays_in_the_temporary_directory(rig: Rig, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    env = {"TMPDIR": str(temporary)}
    agent = rig.run("--standalone", "--nproc_per_node=2", WORKERS / "crasher.py", "--ranks=1", env=env)
    assert agent.exit_code() == 1
    assert list(temporary.iterdir()) == []


FULL_FOR_A_MOMENT = """
import os, sys, threading
start = threading.Thread.start
def starts(thread):
    if os.path.exists("full"):
        open("refused", "w").close()
        raise RuntimeError("can't start new thread")
    start(thread)
threading.Thread.start = starts
from elastic_core.cli.main import main
sys.exit(main())
"""


def test_a_machine_that_has_no_thread_left_for_a_moment_ends_no_agent(rig: Rig) -> None:
    flags = ["run", "--nproc_per_node=2", "--max_restarts=1", str(WORKERS / "sleeper.py")]
    agent = rig.start([sys.executable, "-c", FULL_FOR_A_MOMENT, *flags])
    agent.wait_for_report("started", count=2)
    full, refused = Path(rig.folder, "full"), Path(rig.folder, "refused")
    full.touch()
    os.kill(agent.workers()[1], signal.SIGKILL)
    assert wait_until(refused.exists)
    full.unlink()
    agent.wait_for("restart 1 of 1")
    agent.wait_for_report("started", count=4)
    agent.process.send_signal(signal.SIGINT)
    assert agent.exit_code() == 130


@pytest.mark.parametrize("entry", ["module", "script"])
def test_the_threads_of_an_agent_are_not_unwound_at_its_end(rig: Rig, tmp_path: Path, entry: str) -> None:
    """The finalization of the interpreter does that before Python 3.14: an object in ``sys`` tells that it comes."""
    tells = "import os, sys\nclass Late:\n    def __del__(self, write=os.write): write(2, b'finalized')\n"
    (tmp_path / "sitecustomize.py").write_text(f"{tells}if 'elastic' in ' '.join(sys.orig_argv): sys.late = Late()\n")
    module, installed = [sys.executable, "-m", "elastic_core"], [str(Path(sys.executable).with_name("elastic"))]
    command, env = module if entry == "module" else installed, {"PYTHONPATH": str(tmp_path)}
    agent = rig.start([*command, "run", "--no_python", "false"], env=env)
    assert agent.exit_code() == 1
    assert ("finalized" in agent.output) is (sys.version_info >= (3, 14))
    listing = rig.start([*command, "--version"], env=env)
    assert listing.exit_code() == 0
    assert "finalized" in listing.output
