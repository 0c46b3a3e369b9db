"""The record of how an interpreter ends, the reports of that, and programs that must not notice the recorder."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from elastic_causes import failure_recorder
from elastic_core.warden.spawn import STAGE, prepare_worker
from elastic_core.worker.channel import KIND

PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a program, its report, and its record."""

    code: int
    stdout: str
    stderr: str
    reports: tuple[str, ...]
    record: dict[str, Any]

    @property
    def by(self) -> str | None:
        """The origin of the record; None without one."""
        by: str | None = self.record.get("elastic", {}).get("by")
        return by


@contextlib.contextmanager
def running(
    program: str, folder: Path, argv: Sequence[str] = ("program.py",), *, prepared: bool = True
) -> Iterator[tuple[subprocess.Popen[str], socket.socket]]:
    """Have a program that runs as a worker which starts fresh, and the agent's end of its channel."""
    (folder / "program.py").write_text(program)
    command = [sys.executable, *argv]
    ours, theirs = socket.socketpair(*KIND)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"ELASTIC_CONTROL_FD": str(theirs.fileno()), "TORCHELASTIC_ERROR_FILE": str(folder / "error.json")}
    if prepared:
        prepare_worker(command, env, [failure_recorder.__file__])
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with ours, subprocess.Popen(command, cwd=folder, env=env, pass_fds=[theirs.fileno()], **pipes) as process:  # type: ignore[call-overload] # its overloads take no dict
        theirs.close()
        ours.settimeout(PATIENCE)
        yield process, ours


def end_of(program: str, folder: Path, argv: Sequence[str] = ("program.py",), *, prepared: bool = True) -> Ended:
    with running(program, folder, argv, prepared=prepared) as (process, ours):
        stdout, stderr = process.communicate(timeout=PATIENCE)
        ours.setblocking(False)
        reports = []
        with contextlib.suppress(BlockingIOError):
            while packet := ours.recv(4096):
                told = json.loads(packet)
                reports.append("terminated" if told.get("terminated") else told["type"])
    file = folder / "error.json"
    record = json.loads(file.read_text()) if file.exists() else {}
    return Ended(process.returncode, stdout, stderr, tuple(reports), record)


FAILED, OVER = ("recording", "failed"), ("recording", "over")


@pytest.mark.parametrize(
    ("program", "code", "reports", "by"),
    [
        pytest.param("raise ValueError", 1, FAILED, "exception", id="an exception"),
        pytest.param("def f():\n    raise ValueError\nf()", 1, FAILED, "exception", id="an exception in a function"),
        pytest.param("assert not 'syntax', 1 +", 1, FAILED, "exception", id="a syntax error"),
        pytest.param("", 0, OVER, None, id="the end"),
        pytest.param("import sys; sys.exit(0)", 0, OVER, None, id="sys.exit"),
        pytest.param("import sys; sys.exit(3)", 3, OVER, "exit", id="sys.exit with a code"),
        pytest.param("import sys; sys.exit('why')", 1, OVER, "exit", id="sys.exit with a text"),
        pytest.param("import os; os._exit(1)", 1, OVER[:1], "exit", id="os._exit"),
        pytest.param("import os; os._exit(0)", 0, OVER, None, id="os._exit without a failure"),
        pytest.param("raise KeyboardInterrupt", -2, OVER, None, id="Ctrl-C"),
        pytest.param(
            "try:\n    raise ValueError\nexcept ValueError:\n    pass", 0, OVER, None, id="a caught exception"
        ),
        pytest.param(
            "import code; code.interact(readfunc=lambda _: 1 / 0)",
            1,
            FAILED,
            "exception",
            id="an exception of a console",
        ),
        pytest.param(
            "import code; code.InteractiveInterpreter().runsource('1 / 0')",
            0,
            OVER,
            None,
            id="an exception in a console",
        ),
        pytest.param(
            "import threading; threading.Thread(target=lambda: 1 / 0).start()", 0, OVER, "thread", id="in a thread"
        ),
        pytest.param(
            "import sys, threading; threading.Thread(target=sys.exit, args=(3,)).start()",
            0,
            OVER,
            None,
            id="sys.exit there",
        ),
        pytest.param("import os\nif os.fork() == 0:\n    1 / 0\nos.wait()", 0, OVER, None, id="an exception in a fork"),
        pytest.param(
            "import os\nif os.fork() == 0:\n    os._exit(3)\nos.wait()", 0, OVER, None, id="os._exit in a fork"
        ),
        pytest.param(
            "import os\nos.closerange(3, 256)\nraise ValueError", 1, OVER[:1], "exception", id="a closed channel"
        ),
        pytest.param(
            "import os, socket\nos.closerange(3, 256)\na = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
            "for n in range(3, 20):\n    a[0].fileno() != n != a[1].fileno() and os.dup2(a[0].fileno(), n)\n"
            "raise ValueError",
            1,
            OVER[:1],
            "exception",
            id="another file has the number of the channel",
        ),
    ],
)
def test_an_end_is_reported_and_recorded(
    program: str, code: int, reports: tuple[str, ...], by: str | None, tmp_path: Path
) -> None:
    ended = end_of(program, tmp_path)
    assert (ended.code, ended.reports, ended.by) == (code, reports, by), ended.stderr


@pytest.mark.parametrize("argv", [("-m", "program"), ("-c", "import program"), (".",)], ids=["-m", "-c", "a directory"])
def test_a_program_may_be_started_in_any_way(argv: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "__main__.py").write_text("import program")
    ended = end_of("raise ValueError", tmp_path, argv)
    assert (ended.code, ended.reports, ended.by) == (1, FAILED, "exception"), ended.stderr


def test_a_record_is_the_error_file_of_torch_with_the_chain_of_exceptions(tmp_path: Path) -> None:
    load = "def load(path):\n    open(path)\n"
    program = f"{load}try:\n    load('/none/a')\nexcept OSError as e:\n    raise ValueError('x') from e"
    record = end_of(program, tmp_path).record
    assert (record["message"]["message"], record["message"]["errorCode"]) == ("ValueError: x", 1)
    assert record["message"]["extraInfo"]["py_callstack"].startswith("Traceback (most recent call last):\n")
    member = record["elastic"]
    assert (member["by"], member["code"], member["text"]) == ("exception", 1, "")
    assert "/none/a" in member["paths"]
    file = str(tmp_path / "program.py")
    assert [(one["type"], one["text"], one["group"]) for one in member["exceptions"]] == [
        ("ValueError", "x", False),
        ("FileNotFoundError", "[Errno 2] No such file or directory: '/none/a'", False),
    ]
    assert member["exceptions"][1]["frames"] == [
        [file, 4, "<module>", "load('/none/a')"],
        [file, 2, "load", "open(path)"],
    ]


@pytest.mark.parametrize(
    "raised",
    [
        "class Odd(Exception):\n    def __str__(self): raise RuntimeError\nraise Odd",
        "class Odd(Exception):\n    exceptions = (1, None)\nraise Odd('x')",
        "class Odd(Exception):\n    @property\n    def exceptions(self): raise RuntimeError\nraise Odd('x')",
        "e = ValueError('x')\ne.__context__ = e2 = KeyError(1)\ne2.__context__ = ValueError(2)\nraise e",
        "raise ValueError('x' * 10_000_000)",
        "raise ValueError('\\ud800')",
        "def f(): f()\nf()",
        "import sys\nsys.stderr = None\nraise ValueError",
        "import os\nos.close(2)\nraise ValueError",
        "import sys\nsys.stdout.close()\nraise ValueError",
    ],
)
def test_an_odd_exception_is_reported_and_does_not_change_the_end(raised: str, tmp_path: Path) -> None:
    ended, plain = end_of(raised, tmp_path), end_of(raised, tmp_path, prepared=False)
    assert ended.reports == FAILED
    assert ended.code == plain.code
    assert len(json.dumps(ended.record)) < 1 << 20


def test_a_failure_is_reported_at_once_though_threads_and_atexit_functions_go_on(tmp_path: Path) -> None:
    """The agent stops the round meanwhile. An ``atexit`` function finishes, and the process ends by SIGTERM then."""
    os.mkfifo(tmp_path / "gate")
    program = """
import atexit, signal, threading
atexit.register(print, "the tracker has finished")
threading.Thread(target=lambda: open("gate").read()).start()
raise ValueError("bad batch")
"""
    with running(program, tmp_path) as (process, ours):
        assert [json.loads(ours.recv(4096))["type"] for _ in FAILED] == [*FAILED]
        assert process.poll() is None
        assert json.loads((tmp_path / "error.json").read_text())["elastic"]["by"] == "exception"
        process.send_signal(signal.SIGTERM)
        (tmp_path / "gate").write_text("go on\n")
        stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGTERM
    assert stdout == "the tracker has finished\n"
    assert stderr.endswith("ValueError: bad batch\n")


def test_a_traceback_is_there_when_the_failure_is_reported(tmp_path: Path) -> None:
    program = "import sys\nsys.stdout.write('unfinished ')\nraise ValueError('x')"
    with running(program, tmp_path) as (process, ours):
        assert [json.loads(ours.recv(4096))["type"] for _ in FAILED] == [*FAILED]
        assert process.stdout is not None
        assert process.stderr is not None
        for stream in (process.stdout, process.stderr):
            assert select.select([stream], [], [], 0.0)[0]
        process.communicate(timeout=PATIENCE)


ADDRESS = re.compile(r"0x[0-9a-f]+")
UNTOUCHED = {
    "hooks": "import sys, threading\nassert sys.excepthook is sys.__excepthook__\n"
    "assert threading.excepthook is threading.__excepthook__\nprint(1)",
    "a hook of its own": "import sys\nsys.excepthook = lambda *args: print('mine', args[1])\nraise ValueError(7)",
    "a hook that calls the one before": "import sys\nbefore = sys.excepthook\n"
    "def hook(*args):\n    print('mine')\n    before(*args)\nsys.excepthook = hook\nraise ValueError(7)",
    "an exception": "def f():\n    raise ValueError('x')\nf()",
    "a chain": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e",
    "atexit functions": "import atexit\nfor n in range(3):\n    atexit.register(print, n)\nraise ValueError",
    "atexit functions of a good end": "import atexit\nfor n in range(3):\n    atexit.register(print, n)",
    "an atexit function that raises": "import atexit\natexit.register(lambda: 1 / 0)\nprint(2)",
    "a destructor": "class A:\n    def __del__(self): print('gone')\na = A()\nraise ValueError",
    "a destructor, and sys.exit in an except": "import sys\nclass A:\n    def __del__(self): print('gone')\na = A()\n"
    "try:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.exit(1)",
    "sys.exit": "import sys\nsys.exit(259)",
    "sys.exit with a text": "import sys\nsys.exit('why')",
    "sys.exit with a tuple": "import sys\nsys.exit((1, 2))",
    "sys.exit with no argument": "import sys\nsys.exit()",
    "exit": "exit(4)",
    "quit": "quit('why')",
    "SystemExit is caught": "import sys\ntry:\n    sys.exit(3)\nexcept SystemExit as e:\n    print(e.code)",
    "os._exit": "import os\nprint(1, flush=True)\nos._exit(status=9)",
    "SystemExit in a thread": "import sys, threading\nt = threading.Thread(target=lambda: sys.exit('no word'))\n"
    "t.start()\nt.join()\nprint(1)",
    "an exception in a thread": "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='t')\n"
    "t.start()\nt.join()\nprint(1)",
    "multiprocessing": "import multiprocessing as m\np = m.get_context('fork').Process(target=exit, args=(3,))\n"
    "p.start()\np.join()\nprint(p.exitcode)",
    "a pool": "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(2)\n"
    "print(pool.submit(pow, 2, 3).result())",
    "a subprocess": "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'import sys; sys.exit(3)']))",
    "pickles": "import os, pickle, sys\nassert pickle.loads(pickle.dumps(sys.exit)) is sys.exit\n"
    "assert pickle.loads(pickle.dumps(os._exit)) is os._exit\nprint(sys.exit.__name__, sys.exit.__doc__[:9])",
    "SIGTERM": "import os, signal\nprint(signal.getsignal(signal.SIGTERM), flush=True)\nos.kill(os.getpid(), 15)",
    "SIGTERM with a handler": "import os, signal, sys\nsignal.signal(15, lambda *_: sys.exit(5))\n"
    "os.kill(os.getpid(), 15)\nsignal.pause()",
    "the environment": "import os\nprint({k: v for k, v in os.environ.items() if k != 'ELASTIC_CONTROL_FD'})",
    "a warning": "import warnings\nwarnings.warn('w')",
    "a module of the same name": "import site, sys\nprint([n for n in sys.modules if 'elastic' in n or 'custom' in n])",
}


@pytest.mark.parametrize("options", [(), ("-X", "dev"), ("-O", "-B", "-u")], ids=["plain", "-X dev", "-O"])
@pytest.mark.parametrize("name", UNTOUCHED)
def test_a_program_ends_as_without_the_recorder(name: str, options: tuple[str, ...], tmp_path: Path) -> None:
    argv = (*options, "program.py")
    ended, plain = (end_of(UNTOUCHED[name], tmp_path, argv, prepared=prepared) for prepared in (True, False))
    assert ended.reports
    assert not plain.reports
    texts = [(one.code, ADDRESS.sub("", one.stdout), ADDRESS.sub("", one.stderr)) for one in (ended, plain)]
    assert texts[0] == texts[1]


HANDLES = "import os, signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: None)\n"
ITSELF = HANDLES + "os.kill(os.getpid(), signal.SIGTERM)\n"
OUTSIDE = HANDLES + "import subprocess\nsubprocess.run(['kill', '-TERM', str(os.getpid())], check=True)\n"


@pytest.mark.parametrize(
    ("program", "terminated"),
    [
        pytest.param(OUTSIDE, True, id="SIGTERM"),
        pytest.param(OUTSIDE + "sys.exit(0)", True, id="sys.exit"),
        pytest.param(OUTSIDE + "os._exit(0)", True, id="os._exit"),
        pytest.param(OUTSIDE + "os.kill(os.getpid(), 0)", True, id="it signals after that"),
        pytest.param(HANDLES, False, id="no signal"),
        pytest.param(OUTSIDE.replace("-TERM", "-CHLD"), False, id="another signal"),
        pytest.param(OUTSIDE.replace("lambda *_: None", "signal.SIG_IGN"), False, id="ignored"),
        pytest.param(
            OUTSIDE + "import time\nnow = time.monotonic()\ntime.monotonic = lambda: now + 590", True, id="590 s"
        ),
        pytest.param(
            OUTSIDE + "import time\nnow = time.monotonic()\ntime.monotonic = lambda: now + 610", False, id="610 s"
        ),
        pytest.param(ITSELF, False, id="it signals itself"),
        pytest.param(HANDLES + "os.setsid()\nos.killpg(0, signal.SIGTERM)", False, id="it signals its group"),
        pytest.param(
            HANDLES + "if os.fork() == 0:\n    os.kill(os.getpid(), signal.SIGTERM)\n    sys.exit(0)\nos.wait()",
            False,
            id="a fork",
        ),
        pytest.param(
            HANDLES + "import multiprocessing, time\n"
            "child = multiprocessing.get_context('fork').Process(target=time.sleep, args=(1,))\n"
            "child.start()\nchild.terminate()\nchild.join()",
            False,
            id="a child that is terminated",
        ),
        pytest.param(
            "import asyncio, os, signal, subprocess\nasync def main():\n"
            "    loop, seen = asyncio.get_running_loop(), asyncio.Event()\n"
            "    loop.add_signal_handler(signal.SIGTERM, seen.set)\n"
            "    subprocess.run(['kill', '-TERM', str(os.getpid())], check=True)\n    await seen.wait()\n"
            "asyncio.run(main())",
            True,
            id="asyncio",
        ),
    ],
)
def test_the_end_of_a_program_that_handled_sigterm_is_reported_as_such(
    program: str, terminated: bool, tmp_path: Path
) -> None:
    ended = end_of(program, tmp_path)
    assert (ended.code, ended.stderr) == (0, "")
    assert ("terminated" in ended.reports) is terminated


def test_a_program_finds_its_own_handler_of_sigterm(tmp_path: Path) -> None:
    program = """
import os, pickle, signal
def handler(number, frame):
    seen.append((number, frame is not None))
seen = []
assert signal.signal(signal.SIGTERM, handler) is signal.SIG_DFL
for _ in range(2000):
    assert signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM)) is handler
os.kill(os.getpid(), signal.SIGTERM)
assert seen == [(15, True)]
assert signal.signal(signal.SIGTERM, signal.SIG_IGN) is handler
assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
assert signal.signal(signal.SIGUSR1, handler) is signal.SIG_DFL
assert signal.getsignal(signal.SIGUSR1) is handler
assert pickle.loads(pickle.dumps(os.kill)) is os.kill
for wrong in (None, "x"):
    try:
        signal.signal(signal.SIGTERM, wrong)
    except TypeError:
        continue
    raise AssertionError(wrong)
"""
    ended = end_of(program, tmp_path)
    assert (ended.code, ended.stderr) == (0, "")


def test_a_fatal_signal_leaves_the_python_stack_on_stderr(tmp_path: Path) -> None:
    ended = end_of("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", tmp_path)
    assert ended.code == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in ended.stderr
    assert "program.py" in ended.stderr


SEEN = """
import json, os, sys
print(json.dumps([sorted(sys.modules), sys.path, dict(os.environ), sorted(sys.path_importer_cache)]))
"""


def test_a_worker_that_records_finds_no_trace_but_threading() -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", STAGE)}
    command, ours = [sys.executable, "-c", SEEN], dict(env)
    prepare_worker(command, ours, [failure_recorder.__file__])
    plain, prepared = (
        subprocess.run(command, env=given, capture_output=True, text=True, check=True) for given in (env, ours)
    )
    assert prepared.stderr == ""
    (usual, *others), (modules, *rest) = json.loads(plain.stdout), json.loads(prepared.stdout)
    command = [sys.executable, "-c", "import sys, threading; print(*sys.modules)"]
    with_threading = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert {*usual} < {*modules} <= {*usual, *with_threading, "atexit"}
    assert rest == others
