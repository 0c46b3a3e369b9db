"""Places of processes, found without stopping them: real processes that hang in each of the usual ways."""

from __future__ import annotations

import contextlib
import os
import random
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_core.host.processes import descendants
from elastic_core.warden.spawn import prepare_worker
from elastic_hangs import stack_dump, stacks
from elastic_hangs.stack_dump import SIGNAL, SIGNAL_ALL, SIGNAL_RUNNING
from elastic_hangs.stacks import LocalRank, ProcessStacks, Wanted, collect, locate, main_stack
from elastic_hangs.watch import pauses, uses_of

HANGS = {
    "a queue": ("import queue\nprint('ready', flush=True)\nqueue.Queue().get()", r"in get \(queue.py:\d+\) > wait"),
    "a lock": (
        "import threading\nlock = threading.Lock()\nlock.acquire()\nprint('ready', flush=True)\nlock.acquire()",
        r"in <module> \(train.py:\d+\)",
    ),
    "the interpreter's lock is held in native code": (
        "import re\nprint('ready', flush=True)\nre.match(r'(a+)+b', 40 * 'a')",
        r"in match \(re.*:\d+\), called at train.py:\d+",
    ),
    "a child that does not end": (
        "import subprocess, sys\nprint('ready', flush=True)\n"
        "subprocess.run([sys.executable, '-c', 'import sys; sys.stdin.read()'], stdin=sys.stdin)",
        r"in run \(subprocess.py:\d+\) > _try_wait",
    ),
    "another thread has the work": (
        "import queue, threading\nthread = threading.Thread(target=queue.Queue().get, name='loader')\nthread.start()\n"
        "print('ready', flush=True)\nthread.join()",
        r"in join \(threading.py:\d+\)",
    ),
}
PREPARE = "import atexit\nfrom elastic_hangs.stack_dump import prepare\nprepare(atexit.register)\n"


@contextlib.contextmanager
def running(program: str, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs ``program`` and has printed that it is ready."""
    script = directory / "train.py"
    script.write_text(program)
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=directory,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("hang", HANGS)
def test_the_place_of_a_process_that_hangs(hang: str, tmp_path: Path) -> None:
    program, place = HANGS[hang]
    with running(PREPARE + program, tmp_path) as process:
        reached = ""
        for _ in range(100):  # it may not have come to the call by which it hangs
            reached = collect([process.pid])[process.pid].place
            if re.search(place, reached):
                break
        assert re.search(place, reached), reached
        assert process.poll() is None, "it goes on"


def test_a_worker_that_prepares_answers_when_it_is_asked_for_its_stacks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint('ready', flush=True)\nsys.stdin.read()")
    command, env = [sys.executable, "-u", str(tmp_path / "train.py")], dict(os.environ)
    prepare_worker(command, env, [stack_dump.__file__])
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert "train.py" in collect([process.pid], seconds=60.0)[process.pid].place
        process.communicate(b"")
    assert process.returncode == 0


def test_a_process_that_is_stopped_is_named_so_and_answers_when_it_goes_on(tmp_path: Path) -> None:
    program = PREPARE + "import sys\nprint('ready', flush=True)\nsys.stdin.read()"
    with running(program, tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        found = collect([process.pid], 0.2)[process.pid]
        assert found.text == ""
        assert "SIGSTOP" in found.place
        process.send_signal(signal.SIGCONT)
        assert "train.py" in collect([process.pid])[process.pid].place


def test_a_process_that_waits_for_a_signal_waits_on(tmp_path: Path) -> None:
    with running(PREPARE + "import signal\nprint('ready', flush=True)\nsignal.pause()", tmp_path) as process:
        while not pauses(process.pid):  # it may not have come there yet
            assert process.poll() is None
        assert collect([process.pid])[process.pid].place.startswith("no Python stack: sleeping")
        assert process.stdout is not None
        assert not select.select([process.stdout], [], [], 0)[0], "its end would be readable"


def test_a_process_that_was_not_prepared_is_sent_nothing(tmp_path: Path) -> None:
    with running("import sys\nprint('ready', flush=True)\nsys.stdin.read()", tmp_path) as process:
        assert process.stdout is not None
        found = collect([process.pid])[process.pid]
        assert found.place.startswith("no Python stack: sleeping")
        assert not select.select([process.stdout], [], [], 0)[0], "its end would be readable"
        assert process.poll() is None


def test_a_process_that_has_replaced_its_program_is_sent_nothing(tmp_path: Path) -> None:
    replaced = "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', "
    program = PREPARE + replaced + "\"import sys; print('ready', flush=True); sys.stdin.read()\"])"
    with running(program, tmp_path) as process:
        assert collect([process.pid])[process.pid].text == ""
        assert process.poll() is None


ENDS_SLOWLY = """
import os
class Slow:
    def __del__(self, write=os.write, read=os.read):
        write(1, b"ready\\n")  # the interpreter is being torn down, and has restored the default actions
        read(0, 1)
slow = Slow()
"""
"""A program whose interpreter stays in its teardown until its input ends."""
CHECKED = """
import os, signal, sys
from elastic_hangs.stack_dump import SIGNAL_RUNNING
atexit.register(lambda: os.write(2, b"" if callable(signal.getsignal(SIGNAL_RUNNING)) else b"too early"))
"""
PREPARED_FIRST = PREPARE + CHECKED
PREPARED_LATE = f"""
import atexit
from elastic_hangs.stack_dump import prepare
at_end = []
atexit.register(lambda: [at_end.pop()() for _ in at_end[:]])  # as in a fork server, before its imports
{CHECKED}
prepare(at_end.append)
{CHECKED}
"""


@pytest.mark.parametrize("signum", [SIGNAL, SIGNAL_ALL, SIGNAL_RUNNING])
@pytest.mark.parametrize("prepare", [PREPARED_FIRST, PREPARED_LATE], ids=["fresh", "warm"])
def test_a_request_during_the_teardown_of_the_interpreter_ends_no_process(
    prepare: str, signum: int, tmp_path: Path
) -> None:
    with running(prepare + ENDS_SLOWLY, tmp_path) as process:
        assert collect([process.pid], 0.1)[process.pid].text == "", "it is not asked any more"
        process.send_signal(signum)
        assert process.communicate()[1] == b""
        assert process.returncode == 0


@pytest.mark.parametrize("how", ["os.fork", "multiprocessing"])
def test_a_request_during_the_teardown_of_a_fork_does_not_end_it(how: str, tmp_path: Path) -> None:
    program = {
        "os.fork": "if (pid := os.fork()):\n    _, status = os.waitpid(pid, 0)\n    del Slow.__del__\n"
        "    sys.exit(os.waitstatus_to_exitcode(status))\n",
        "multiprocessing": "import multiprocessing.util\nchild = multiprocessing.get_context('fork').Process("
        "target=lambda: multiprocessing.util.Finalize(None, Slow.__del__, (None,), exitpriority=1))\nchild.start()\n"
        "child.join()\ndel Slow.__del__\nsys.exit(child.exitcode)\n",
    }[how]
    with running(PREPARED_FIRST + ENDS_SLOWLY + program, tmp_path) as process:
        (child,) = [pid for pid, _ in descendants(process.pid)]
        for signum in (SIGNAL, SIGNAL_ALL, SIGNAL_RUNNING):
            os.kill(child, signum)
        process.communicate()
        assert process.returncode == 0


REQUESTS = 170
"""For stacks; 500 in everyday runs, which have three seeds, and 17,000 in ``make soak``."""


def test_requests_until_the_end_of_processes_end_none(tmp_path: Path, seed: int) -> None:
    pause, asked = random.Random(seed), 0
    while asked < REQUESTS:
        with contextlib.ExitStack() as stack:
            processes = []
            for _ in range(4):
                program = PREPARED_FIRST + "import time\nprint('ready', flush=True)\n"
                program += f"time.sleep({pause.uniform(0.0, 0.4)})\nclass Slow:\n"
                program += "    def __del__(self, sleep=time.sleep):\n"
                program += f"        sleep({pause.uniform(0.0, 0.3)})\nslow = Slow()\n"
                processes.append(stack.enter_context(running(program, tmp_path)))
            while living := [process.pid for process in processes if process.poll() is None]:
                collect(living, pause.uniform(0.01, 0.1))
                asked += len(living)
            assert [process.returncode for process in processes] == [0] * 4


def test_a_handler_that_is_gone_between_look_and_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that becomes another program after it was looked at is sent nothing."""
    program = "import sys\nprint('ready', flush=True)\nsys.stdin.read()"
    with running(program, tmp_path) as process, tempfile.TemporaryFile() as file:
        descriptor = os.dup(file.fileno())
        monkeypatch.setattr(stacks, "_open_file", lambda _: descriptor)
        assert collect([process.pid], 0.1)[process.pid].text == ""
        assert process.poll() is None


def test_a_process_that_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert collect([process.pid])[process.pid].place == "the process is gone"


def test_the_signal_is_one_that_would_end_a_process_without_a_handler() -> None:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        process.send_signal(SIGNAL)
        assert process.wait() == -SIGNAL


@pytest.mark.parametrize(
    ("text", "frames"),
    [
        ("", []),
        ("Current thread 0x01 (most recent call first):\n  <no Python frame>\n", []),
        (
            'Thread 0x02 (most recent call first):\n  File "/a.py", line 1 in f\n\n'
            'Current thread 0x01 [python] (most recent call first):\n  File "/b.py", line 2 in g\n'
            '  File "/b.py", line ??? in <module>\n',
            ["/b.py:2 g", "/b.py:0 <module>"],
        ),
        ('Thread 0x02 (most recent call first):\n  File "/a b.py", line 1 in f\n', ["/a b.py:1 f"]),
        ('Stack (most recent call first):\n  File "/m.py", line 3 in wait\n', ["/m.py:3 wait"]),
        (
            "Current thread 0x01 (most recent call first):\n"
            '  File "/v/elastic_hangs/stack_dump.py", line 60 in answer\n  File "/m.py", line 3 in f\n',
            ["/m.py:3 f"],
        ),
        ('  File "/cut.py", line 1 in f\nCurrent thread', []),
    ],
    ids=["nothing", "no frame", "the current thread counts", "no current thread", "C", "Python", "cut off"],
)
def test_the_main_stack_of_a_dump(text: str, frames: list[str]) -> None:
    assert [f"{frame.file}:{frame.line} {frame.function}" for frame in main_stack(text)] == frames


def test_the_call_that_a_person_knows_is_named_and_the_line_that_made_it() -> None:
    text = """Current thread 0x01 (most recent call first):
  File "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2810 in all_reduce
  File "/v/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/me/model.py", line 7 in step
  File "/home/me/train.py", line 41 in <module>
"""
    place = ProcessStacks(1, main_stack(text), text).place
    assert place == "in all_reduce (torch/distributed/distributed_c10d.py:2810), called at model.py:7"


READY = "print('ready', flush=True)\n"
GENERATORS = """
def count():
    for number in range(100):
        yield number
while True:
    for number in count(): pass
"""


def test_a_process_that_runs_python_code_is_asked_in_a_way_that_cannot_crash_it(tmp_path: Path) -> None:
    with running(PREPARE + READY + GENERATORS, tmp_path) as process:
        places = {collect([process.pid])[process.pid].place for _ in range(30)}
        for _ in range(3000):  # faulthandler's handler in C crashes it within about a thousand
            process.send_signal(SIGNAL_RUNNING)
        assert process.poll() is None
    assert any("train.py" in place for place in places)


def test_a_stopped_process_is_not_asked_by_the_handler_in_c(tmp_path: Path) -> None:
    """It may be in the middle of Python code, and that handler would run when it goes on."""
    with running(PREPARE + READY + GENERATORS, tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert collect([process.pid], 0.2)[process.pid].text == ""
        pending = re.search(r"ShdPnd:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())
        assert pending is not None
        assert int(pending[1], 16) == 1 << (SIGNAL_RUNNING - 1)


def test_all_threads_of_a_process_that_waits_are_shown_on_request(tmp_path: Path) -> None:
    program = "import threading\ndef load():\n    threading.Event().wait()\nthread = threading.Thread(target=load)\n"
    program += "thread.start()\n" + READY + "thread.join()"
    with running(PREPARE + program, tmp_path) as process:
        text = ""
        while "in load" not in text or "in join" not in text:  # it may not have come there yet
            text = collect([process.pid], every_thread=True)[process.pid].text
        assert "in load" not in collect([process.pid])[process.pid].text


HOW_IT_GOES: dict[str, tuple[str, bool, bool]] = {
    "it waits": (READY + "import queue; queue.Queue().get()", False, False),
    "it computes in many places": (
        READY + "while True:\n  x = sum(range(90))\n  y = max(range(90))\n  z = 1",
        True,
        True,
    ),
    "native code holds the interpreter's lock": (READY + "import re; re.match(r'(a+)+b', 40 * 'a')", False, True),
    "it writes to a disk, mostly waiting": (
        "import os, time\nfile = open('checkpoint', 'wb')\n" + READY + "while True:\n"
        "  file.seek(0); file.write(os.urandom(200_000)); file.flush(); os.fsync(file.fileno()); time.sleep(0.3)",
        True,
        True,
    ),
    "it writes a line to a file now and then": (
        "import time\nlog = open('log', 'w')\n"
        + READY
        + "while True: print('x', file=log, flush=True); time.sleep(0.1)",
        False,
        True,
    ),
    "it receives data slowly": (
        "import os, socket, time\none, other = socket.socketpair()\nif not os.fork():\n"
        "  while True: one.send(b'x'); time.sleep(0.1)\n" + READY + "while True: other.recv(9)",
        False,
        True,
    ),
    "a child computes now and then": (
        "import subprocess, sys\n" + READY + "subprocess.run([sys.executable, '-c', "
        "'import time\\nwhile True:\\n  end = time.time() + 0.2\\n  while time.time() < end: pass\\n"
        "  time.sleep(0.8)'])",
        False,
        True,
    ),
    "it asks again and again": (READY + "import time\nwhile True: time.sleep(0.05)", False, False),
    "a child computes": (
        "import subprocess, sys\n" + READY + "subprocess.run([sys.executable, '-c', 'while True: pass'])",
        False,
        True,
    ),
}


@pytest.mark.parametrize("case", HOW_IT_GOES)
def test_whether_a_rank_moves_and_computes(case: str, tmp_path: Path) -> None:
    program, moves, computes = HOW_IT_GOES[case]
    with running(PREPARE + program, tmp_path) as process:
        try:
            for _ in range(20):  # it may not have come there yet
                quiet = uses_of([process.pid])[process.pid]
                time.sleep(1.5)
                found = locate(Wanted(judge=True), [LocalRank(3, process.pid, quiet=quiet)], 12)
                if (found.moved, found.busy) == (moves, computes):
                    break
        finally:
            for pid, _ in descendants(process.pid):
                os.kill(pid, signal.SIGKILL)
    assert (found.moved, found.busy) == (moves, computes)
    assert (found.step, found.texts) == (12, {})
    assert list(found.places.values()) == [(3,)]


@pytest.mark.parametrize("case", ["it waits", "it computes in many places", "it writes a line to a file now and then"])
def test_a_rank_that_has_shown_nothing_for_a_window_is_behind_if_it_does_not_work(case: str, tmp_path: Path) -> None:
    program, moves, computes = HOW_IT_GOES[case]
    with running(PREPARE + program, tmp_path) as process:
        time.sleep(0.5)
        quiet = uses_of([process.pid])[process.pid]
        time.sleep(1.5)
        silent = LocalRank(3, process.pid, quiet=quiet, silent_at=7)
        found = locate(Wanted(judge=True), [silent], 12)
        assert found.behind == ({} if moves or computes else {"3": 7})
        assert locate(Wanted(judge=True), [LocalRank(3, process.pid, quiet=quiet)], 12).behind == {}


def test_a_rank_that_is_not_silent_may_be_working(tmp_path: Path) -> None:
    with running(PREPARE + READY + "import queue; queue.Queue().get()", tmp_path) as process:
        assert locate(Wanted(judge=True), [LocalRank(3, process.pid)], 12).busy
        assert not locate(Wanted(), [LocalRank(3, process.pid)], 12).busy


def test_the_whole_stacks_come_on_request_and_ranks_without_a_process_are_named(tmp_path: Path) -> None:
    with running(PREPARE + READY + "import queue; queue.Queue().get()", tmp_path) as process:
        ranks = [LocalRank(0, process.pid), LocalRank(1, None), LocalRank(2, 1, finished=True)]
        found = locate(Wanted(full=True), ranks, None)
    assert "train.py" in found.texts["0"]
    assert {rank: where for where, ranks in found.places.items() for rank in ranks if rank} == {
        1: "being started",
        2: "finished",
    }
