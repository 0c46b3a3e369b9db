"""The Python API from plain scripts, as its users write them: nothing guards the main program."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from rig import Rig, free_port

STD = """
import elastic_core as elastic

def train_loop():
    import torch
    elastic.init_process_group()
    ones = torch.ones(1)
    torch.distributed.all_reduce(ones)
    return ones.item()

mp = elastic.multiprocessing.Std(entrypoint=train_loop, log_dir="./logs", monitor_interval=5, max_restarts=3)
result = mp.run()
print(dict(result.return_values))
"""

RESTARTED = """
import os
import elastic_core as elastic

@elastic.record
def train_loop(name):
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("not the first time")
    return name + os.environ["RANK"]

if __name__ == "__main__":
    Std = elastic.multiprocessing.Std
    once = Std(train_loop, ("w",), nproc_per_node=2, max_restarts=1).run()
    never = Std(train_loop, ("w",), nproc_per_node=1, max_restarts=0).run()
    failure = never.failures[0]
    print([dict(once.return_values), never.is_failed(), failure.message, failure.exitcode, never.incident.rank])
"""

LAUNCH = """
import sys
from elastic_torchrun.launch import ChildFailedError, LaunchConfig, elastic_launch

def double(number):
    return 2 * number

returned = [elastic_launch(LaunchConfig(nproc_per_node=2), double)(21)]
returned.append(elastic_launch(LaunchConfig(), sys.executable)("-c", "print('a command')"))
try:
    elastic_launch(LaunchConfig(max_restarts=0), sys.executable)("-c", "raise SystemExit(3)")
except ChildFailedError as exc:
    returned.append((exc.returncode, exc.incident.exit_code))
try:
    elastic_launch(LaunchConfig(max_restarts=0), double)(None)
except ChildFailedError as exc:
    rank, failure = exc.get_first_failure()
    told = [word in str(exc) for word in ("rank 0 (", "exited with code 1", "TypeError: unsupported", "return 2 *")]
    returned.append((exc.format_msg() == str(exc), told, rank, failure.exitcode, failure.message[:9]))
print(returned)
"""

FAILED = (True, [True] * 4, 0, 1, "TypeError")

HANDLER = """
import sys
import elastic_core as elastic
import torch.distributed.elastic.rendezvous.registry
from torch.distributed.elastic.rendezvous import RendezvousParameters

def train_loop():
    import torch
    elastic.init_process_group()
    ones = torch.ones(1)
    torch.distributed.all_reduce(ones)
    return ones.item()

if __name__ == "__main__":
    node, port = sys.argv[1:]
    parameters = RendezvousParameters("c10d", "127.0.0.1:" + port, "job", 2, 2, "127.0.0.1", is_host=node == "0")
    handler = torch.distributed.elastic.rendezvous.registry.get_rendezvous_handler(parameters)
    spec = elastic.agent.server.WorkerSpec(local_world_size=2, entrypoint=train_loop, rdzv_handler=handler)
    result = elastic.agent.server.LocalElasticAgent(spec).run()
    print("RETURNED", sorted(set(result.return_values.values())))
"""

RESULT = """
import dataclasses
import elastic_core as elastic

@dataclasses.dataclass
class Result:
    loss: float

def train_loop():
    return Result(0.5)

values = elastic.multiprocessing.Std(entrypoint=train_loop).run().return_values
print([isinstance(values[0], Result), values[0].loss])
"""

LEAVES_BY_EXIT = """
import sys
import elastic_core as elastic

def train_loop():
    sys.exit()

print(dict(elastic.multiprocessing.Std(entrypoint=train_loop).run().return_values))
"""

CATCHES_ALL = """
import elastic_core as elastic

def train_loop():
    return 7

try:
    result = elastic.multiprocessing.Std(entrypoint=train_loop, max_restarts=0).run()
    print([result.state.value, result.returncode, dict(result.return_values)], result.failures[0].message, sep="\\n")
except:
    raise SystemExit(0)
"""

HAS_CHILDREN = """
import multiprocessing
import elastic_core as elastic

def child():
    pass

def train_loop():
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
    return process.exitcode

print(dict(elastic.multiprocessing.Std(entrypoint=train_loop).run().return_values))
"""

SEVEN = """
import elastic_core as elastic

def train_loop():
    return 7

print(dict(elastic.multiprocessing.Std(entrypoint=train_loop).run().return_values))
"""

INTERACTIVE = """
import dataclasses
import elastic_core as elastic
from elastic_torchrun.launch import LaunchConfig, elastic_launch

SCALE = 10

@dataclasses.dataclass
class Result:
    loss: float

def scaled(number):
    return number * SCALE

def train_loop(start):
    return Result(scaled(start.loss))

values = elastic_launch(LaunchConfig(1, 1, 2, start_method="fork"), train_loop)(Result(4))
met = [value == Result(40) for value in values.values()]
print(met, elastic_launch(LaunchConfig(), lambda: SCALE)())
"""

TRIES_AGAIN = """
import sys
from elastic_torchrun.launch import LaunchConfig, SignalException, elastic_launch

WAIT = "import signal; print('WORKER', flush=True); signal.pause()"
for _ in range(2):
    try:
        elastic_launch(LaunchConfig(max_restarts=0), sys.executable)("-c", WAIT)
    except SignalException as exc:
        print("SIGNAL", exc.sigval.name, exc, flush=True)
        raise
    except Exception:
        print("AGAIN", flush=True)
"""

WAITS = """
import elastic_core as elastic

def train_loop():
    import signal
    print("READY", flush=True)
    signal.pause()

elastic.multiprocessing.Std(entrypoint=train_loop).run()
"""


def python(*argv: str, folder: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python in ``folder``, to its end."""
    return subprocess.run(
        [sys.executable, *argv], cwd=folder, input=stdin, capture_output=True, text=True, check=False, timeout=100
    )


def run(script: str, folder: Path) -> object:
    """Return the last line that a plain script prints, as a value."""
    (folder / "script.py").write_text(script)
    done = python("script.py", folder=folder)
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout.splitlines()[-1])


@pytest.mark.everyday("restarts", "elastic_launch", "Std")
@pytest.mark.parametrize(
    ("script", "said"),
    [
        pytest.param(STD, {0: 1.0}, id="Std"),
        pytest.param(RESTARTED, [{0: "w0", 1: "w1"}, True, "ValueError: not the first time", 1, 0], id="restarts"),
        pytest.param(LAUNCH, [{0: 42, 1: 42}, {}, (1, 3), FAILED], id="elastic_launch"),
        pytest.param(RESULT, [True, 0.5], id="a class of the script"),
        pytest.param(LEAVES_BY_EXIT, {0: None}, id="sys.exit"),
    ],
)
def test_it_runs_from_a_plain_script(tmp_path: Path, script: str, said: object) -> None:
    assert run(script, tmp_path) == said


@pytest.mark.everyday("-m program.other", "program.zip")
@pytest.mark.parametrize(
    "argv", [("program",), ("program.zip",), ("-m", "program"), ("-m", "program.other")], ids=" ".join
)
def test_a_program_is_found_again_however_it_was_started(tmp_path: Path, argv: tuple[str, ...]) -> None:
    (tmp_path / "program").mkdir()
    for name in ("__init__", "__main__", "other"):
        (tmp_path / "program" / f"{name}.py").write_text("" if name == "__init__" else SEVEN)
    with zipfile.ZipFile(tmp_path / "program.zip", "w") as archive:
        archive.writestr("__main__.py", SEVEN)
    done = python(*argv, folder=tmp_path)
    assert done.stdout == "{0: 7}\n", done.stderr


@pytest.mark.parametrize("argv", [("-",), ("-c", INTERACTIVE)], ids=["-", "-c"])
def test_functions_and_classes_of_a_program_that_is_no_file_travel_by_value(
    tmp_path: Path, argv: tuple[str, ...]
) -> None:
    done = python(*argv, folder=tmp_path, stdin=INTERACTIVE)
    assert done.stdout == "[True, True] {0: 10}\n", done.stderr
    assert "start_method='fork' has no effect: no worker is forked from this process." in done.stderr


def test_without_cloudpickle_such_a_function_is_refused_before_the_start(tmp_path: Path) -> None:
    without = f"import sys; sys.modules['cloudpickle'] = None\n{INTERACTIVE}"
    done = python("-", folder=tmp_path, stdin=without)
    assert "__main__.train_loop is defined where no other process can find it" in done.stderr
    assert "Install cloudpickle, or put it into a module and import it from there." in done.stderr
    assert "joining job" not in done.stderr


def test_a_program_that_ends_when_it_is_repeated_is_a_failure_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(CATCHES_ALL)
    done = python("script.py", folder=tmp_path)
    assert done.stdout.splitlines() == [
        "['FAILED', 1, {}]",
        "elastic_core.errors.UsageError: "
        "A worker ran the main program again, for what it defines, and that ended in sys.exit(0).",
    ]


def test_a_workers_own_child_launches_nothing_and_asks_for_the_guard(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(HAS_CHILDREN)
    done = python("script.py", folder=tmp_path)
    assert done.stdout == "{0: 1}\n"
    assert 'Put the launch behind `if __name__ == "__main__":`.' in done.stderr
    assert done.stderr.count("joining job") == 1


@pytest.mark.parametrize(
    ("signum", "code", "said"),
    [
        (signal.SIGTERM, 128 + signal.SIGTERM, ["SIGNAL SIGTERM received SIGTERM"]),
        (signal.SIGHUP, 128 + signal.SIGHUP, ["SIGNAL SIGHUP received SIGHUP"]),
        (signal.SIGINT, -signal.SIGINT, []),
    ],
)
def test_a_signal_ends_the_script_and_not_only_its_job(
    rig: Rig, tmp_path: Path, signum: int, code: int, said: list[str]
) -> None:
    (tmp_path / "script.py").write_text(TRIES_AGAIN)
    agent = rig.start([sys.executable, str(tmp_path / "script.py")])
    agent.wait_for("^WORKER$")
    agent.signal(signum)
    assert agent.exit_code() == code
    assert [line for line in agent.lines if line.startswith(("SIGNAL", "AGAIN"))] == said
    assert agent.lines.count("WORKER") == 1


def test_nothing_is_left_of_a_launcher_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "script.py").write_text(WAITS)
    with subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
    ) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "READY\n"
        assert list((tmp_path / "tmp").glob("elastic_call_*"))
        launcher.kill()
        assert launcher.stdout.read() == ""  # until the last process that could write there is gone
    assert list((tmp_path / "tmp").iterdir()) == []


def test_logs_of_the_workers_are_kept_where_the_caller_said(tmp_path: Path) -> None:
    run(STD, tmp_path)
    assert list((tmp_path / "logs").glob("*/round_1/rank_0/stderr.log"))


def test_nodes_started_from_python_and_from_the_command_line_form_one_job(rig: Rig, tmp_path: Path) -> None:
    script = tmp_path / "launch.py"
    script.write_text(
        "import sys\n"
        "from elastic_torchrun.launch import LaunchConfig, elastic_launch\n"
        "config = LaunchConfig(min_nodes=2, max_nodes=2, run_id='job', rdzv_backend='file', max_restarts=0,\n"
        f"                      rdzv_endpoint={str(tmp_path / 'store')!r})\n"
        "elastic_launch(config, 'env')()\n"
    )
    first = rig.start([sys.executable, str(script)])
    flags = ["--nnodes=2", "--rdzv_backend=file", f"--rdzv_endpoint={tmp_path / 'store'}", "--rdzv_id=job"]
    second = rig.run(*flags, "--no_python", "env")
    assert (first.exit_code(), second.exit_code()) == (0, 0), first.output
    assert all("WORLD_SIZE=2" in agent.output for agent in (first, second))


def test_nodes_that_are_numbered_by_hand_meet_from_python_as_notebook_launchers_have_it(
    rig: Rig, tmp_path: Path
) -> None:
    (tmp_path / "launch.py").write_text(
        "import sys\n"
        "from elastic_torchrun.launch import LaunchConfig, elastic_launch\n"
        "config = LaunchConfig(min_nodes=2, max_nodes=2, nproc_per_node=1, run_id='none', rdzv_backend='static',\n"
        "    rdzv_endpoint='127.0.0.1:' + sys.argv[2], rdzv_configs={'rank': int(sys.argv[1])}, start_method='fork')\n"
        "elastic_launch(config=config, entrypoint='env')()\n"
    )
    port = str(free_port())
    agents = [rig.start([sys.executable, str(tmp_path / "launch.py"), rank, port]) for rank in "10"]
    for agent, rank in zip(agents, "10", strict=True):
        assert agent.exit_code() == 0, agent.output
        assert {f"RANK={rank}", "WORLD_SIZE=2"} <= set(agent.lines)


@pytest.mark.parametrize("package", ["torch.distributed.elastic", "elastic_core"])
def test_nodes_meet_over_the_handler_that_a_spec_brings(rig: Rig, tmp_path: Path, package: str) -> None:
    """A handler of torch's is asked for each round; Elastic's names a backend, and the job has its ledger."""
    script, port = tmp_path / "agent.py", free_port()
    script.write_text(HANDLER.replace("torch.distributed.elastic", package))
    agents = [rig.start([sys.executable, str(script), str(node), str(port)]) for node in (0, 1)]
    for agent in agents:
        assert agent.exit_code() == 0, agent.output
        assert "RETURNED [4.0]" in agent.lines
        assert ("with a rendezvous handler of others" in agent.output) is (package != "elastic_core")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("Std(lambda: 1).run()", "cannot be sent to another process"),
        ("Std.from_str('7')", "which is none of 0 (none), 1 (stdout), 2 (stderr), 3 (both)"),
        (
            "from elastic_core.multiprocessing import start_processes",
            "elastic_core.multiprocessing.start_processes is not there: a program that starts processes itself needs",
        ),
        ("elastic.init_process_group()", "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set"),
        ("LocalElasticAgent(WorkerSpec(entrypoint='true', rdzv_handler=7)).run()", "7 is no rendezvous handler"),
        ("elastic_launch(LaunchConfig(rdzv_backend='redsi'), 'true')()", "There is no rendezvous backend 'redsi'"),
        (
            "elastic_launch(LaunchConfig(signals_to_handle='SIGFOO'), 'true')()",
            "signals_to_handle='SIGFOO' has 'SIGFOO', which is no signal.",
        ),
        ("elastic_launch(LaunchConfig(log_dir='script.py/logs'), 'true')()", "cannot be made: Not a directory"),
        ("Std(os._exit, (0,), max_restarts=0).run()", "Rank 0 has exited with 0 before its function returned"),
        ("def odd(): return Odd()\nStd(odd).run()", "What rank 0 returned cannot be read here: ValueError"),
        ("with ThreadPoolExecutor() as pool: pool.submit(Std('true').run).result()", "A job cannot be launched on the"),
    ],
)
def test_a_nonsensical_argument_is_refused_in_words(tmp_path: Path, script: str, said: str) -> None:
    (tmp_path / "script.py").write_text(
        "import os\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "import elastic_core as elastic\n"
        "from elastic_torchrun.local_agent import LocalElasticAgent, WorkerSpec\n"
        "from elastic_torchrun.launch import LaunchConfig, elastic_launch\n"
        "from elastic_torchrun.local_agent import Std\n"
        f"class Odd:\n    __reduce__ = lambda self: (int, ('x',))\n{script}\n"
    )
    done = python("script.py", folder=tmp_path)
    assert done.returncode == 1
    assert said in done.stderr
