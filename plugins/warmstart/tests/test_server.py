"""The fork server below a warden, with real processes and signals: its forks, fresh starts, and what it leaves."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from wardens import PATIENCE, Listener, gone, wait_until

from elastic_core.warden.client import SpawnRequest, Warden
from elastic_core.warden.linux import become_subreaper
from elastic_core.warden.messages import (
    Exited,
    Fenced,
    ServiceEnded,
    Signalled,
    Spawned,
    SpawnFailed,
    StartedFresh,
    StarterDied,
    StarterFailed,
    StarterReady,
    StopCompleted,
)
from elastic_core.worker.channel import KIND
from elastic_warmstart.process import LARGE, collapse
from elastic_warmstart.starter import fork_server

HUNDRED_YEARS = 3e9
PYTHON = (sys.executable, "-u")

REPORT = """
import json, os, sys
def children():
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return file.read().split()
print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "rank": os.environ.get("RANK"), "control":
    os.environ.get("ELASTIC_CONTROL_FD"), "parent": os.getppid(), "leads": os.getpid() == os.getsid(0) == os.getpgid(0),
    "preloaded": "preloaded" in sys.modules, "ours": [name for name in sys.modules if name.startswith("elastic_core")],
    "hidden": [name for name in os.environ if name == "PYTHONPATH" or name.startswith("ELASTIC_START")],
}))
"""
SLEEP = "import signal; print(); signal.pause()"
STUBBORN = "import signal; signal.signal(15, signal.SIG_IGN); print()\nwhile True: signal.pause()"
ESCAPE = """
import os, signal
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid())
        import sys, time
        open("/tmp/say.log","a").write(f"{message}  x")
        time.sleep(1000)
    os._exit(0)
os.wait()
signal.pause()
"""


class Workers(Listener):
    """A warden with a fork server, as an agent has it: a script to run, a module to preload."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(Warden())
        self.script = folder / "script" / "train.py"
        self.script.parent.mkdir()
        self.modules = folder / "modules"
        self.modules.mkdir()
        (self.modules / "preloaded.py").write_text("")
        self.env = {**os.environ, "PYTHONPATH": str(self.modules)}

    def preload(
        self, *modules: str, program: str = REPORT, args: Sequence[str] = (), later: Sequence[str] = ()
    ) -> None:
        """Ask for a fork server."""
        self.script.write_text(program)
        names = modules or ("preloaded",)
        starter = fork_server(names, later=tuple(later), python=PYTHON, program=[str(self.script), *args], env=self.env)
        self.warden.begin_starter(starter)

    def fork_server(self, *modules: str, program: str = REPORT, args: Sequence[str] = ()) -> StarterReady:
        """Have a fork server."""
        self.preload(*modules, program=program, args=args)
        return self.wait(StarterReady)

    def spawn(
        self,
        *args: str,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        ignored: Sequence[int] = (),
        cpus: Sequence[int] | None = None,
        **streams: int,
    ) -> int:
        """Start a worker, warm if that can be, and return its tag."""
        tag = self.tag()
        environment = {**self.env, **(env or {})}
        argv = [*PYTHON, str(self.script), *args]
        self.warden.spawn(tag, SpawnRequest(argv, environment, cwd, cpus, ignored, warm=True), **streams)
        return tag

    def output(self, *args: str, env: Mapping[str, str] | None = None, **more: Any) -> tuple[int, str]:
        """Start a worker; its tag, and all that it writes to its stdout."""
        reading, writing = os.pipe()
        tag = self.spawn(*args, env=env, stdout=writing, **more)
        os.close(writing)
        with open(reading) as file:
            return tag, file.read()

    def running(self) -> tuple[Spawned, str]:
        """Start a worker that writes a line when it is ready, and that line."""
        reading, writing = os.pipe()
        tag = self.spawn(stdout=writing)
        os.close(writing)
        with open(reading) as file:
            line = file.readline()
        return self.wait(Spawned, lambda event: event.tag == tag), line.strip()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Workers]:
    """A warden of this process, which ends with the test."""
    become_subreaper()
    listener = Workers(tmp_path)
    yield listener
    listener.warden.close(PATIENCE)


def slow(listener: Workers) -> Callable[[], None]:
    """Ask for a fork server whose import takes until the answer is called."""
    gate = listener.folder / "gate"
    os.mkfifo(gate)
    (listener.modules / "slow.py").write_text(f"open({str(gate)!r}).read()")
    listener.preload("slow")
    return lambda: gate.open("w").close()


def large_pages(pid: int) -> int:
    """Return the size of a process's memory in large pages, in kB."""
    found = re.search(r"AnonHugePages: +(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text())
    assert found is not None
    return int(found[1])


def open_files(pid: int) -> set[str]:
    """The files that a process has open; one that it closes meanwhile may be missing."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(entry))
    return found


def alive(pid: int) -> bool:
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


# Forking -------------------------------------------------------------------------------------------------------------


def test_a_worker_is_forked_from_the_fork_server_and_is_the_wardens_child(listener: Workers) -> None:
    fork_server = listener.fork_server(args=["--lr", "1"])
    assert "has imported preloaded in " in fork_server.text
    tag, said = listener.output("--lr", "2", env={"RANK": "3"})
    report = json.loads(said)
    assert listener.end(tag).returncode == 0
    assert listener.wait(Spawned).warm
    assert report == {
        "argv": [str(listener.script), "--lr", "2"],
        "orig_argv": [*PYTHON, str(listener.script), "--lr", "2"],
        "rank": "3",
        "control": None,
        "parent": listener.warden.pid,
        "leads": True,
        "preloaded": True,
        "ours": [],
        "hidden": ["PYTHONPATH"],
    }
    assert listener.all_of(StartedFresh) == []


@pytest.mark.parametrize(
    ("program", "returncode"),
    [
        ("", 0),
        ("raise SystemExit(7)", 7),
        ("1 / 0", 1),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM),
        ("import os, signal; os.kill(os.getpid(), 2); signal.pause()", -signal.SIGINT),
    ],
)
def test_the_end_of_a_warm_worker_is_known_as_exactly_as_that_of_a_fresh_one(
    listener: Workers, program: str, returncode: int
) -> None:
    listener.fork_server(program=program)
    null = os.open(os.devnull, os.O_WRONLY)
    for tag, warm in ((1, False), (2, True)):
        listener.warden.spawn(tag, SpawnRequest([*PYTHON, str(listener.script)], listener.env, warm=warm), stderr=null)
    os.close(null)
    assert [listener.end(tag).returncode for tag in (1, 2)] == [returncode] * 2
    assert [event.warm for tag in (1, 2) for event in listener.all_of(Spawned) if event.tag == tag] == [False, True]


def test_workers_that_are_asked_for_together_are_all_forked_and_told_apart(listener: Workers) -> None:
    listener.fork_server(program="import os, sys; sys.exit(int(os.environ['RANK']))")
    tags = [listener.spawn(env={"RANK": str(rank)}) for rank in range(8)]
    assert [listener.end(tag).returncode for tag in tags] == list(range(8))
    assert all(event.warm for event in listener.all_of(Spawned))


def test_a_worker_waits_for_a_fork_server_that_still_imports(listener: Workers) -> None:
    go_on = slow(listener)
    tag = listener.spawn()
    listener.warden.spawn(100, SpawnRequest(["true"], listener.env))  # others need not wait for it
    listener.end(100)
    assert [event.tag for event in listener.all_of(Spawned)] == [100]
    go_on()
    assert listener.end(tag).returncode == 0
    assert listener.wait(Spawned, lambda event: event.tag == tag).warm


def test_a_fork_server_makes_its_next_forks_cheap_although_workers_waited_for_it(listener: Workers) -> None:
    with mmap.mmap(-1, 4 * LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[:] = b"x" * len(memory)
        assert collapse(lambda: False)
        expected = 5 * LARGE // 1024 if large_pages(os.getpid()) else 0  # before Linux 6.1
    finish = slow(listener)
    waits = (listener.modules / "slow.py").read_text()
    module(listener, "slow", f"{waits}\nmemory = bytearray(b'x') * {8 * LARGE}")
    tag = listener.spawn()
    finish()
    assert listener.end(tag).returncode == 0
    fork_server = listener.wait(StarterReady).pid
    assert wait_until(lambda: large_pages(fork_server) >= expected)


def test_a_warm_worker_finds_its_control_channel(listener: Workers) -> None:
    listener.fork_server(program="import os; os.write(int(os.environ['ELASTIC_CONTROL_FD']), b'step 1')")
    ours, theirs = socket.socketpair(*KIND)
    with ours:
        with theirs:
            listener.spawn(control=theirs.fileno())
        ours.settimeout(PATIENCE)
        said = []
        while packet := ours.recv(100):  # until the end: no other process has this channel
            said.append(packet)
        assert said[-1] == b"step 1"


def test_a_warm_worker_has_no_descriptor_but_its_streams(listener: Workers) -> None:
    listener.fork_server(program="import os, sys; sys.stdout.write(f'{os.listdir(\"/proc/self/fd\")}\\n')")
    reading, writing = os.pipe()
    tags = [listener.spawn(stdout=writing) for _ in range(3)]  # read as one batch by the fork server
    os.close(writing)
    with open(reading) as file:
        assert set(file.read().splitlines()) == {"['0', '1', '2', '3']"}  # 3 is the listing
    assert [listener.end(tag).returncode for tag in tags] == [0] * 3


def test_a_warm_worker_inherits_a_copy_of_the_slot_and_the_fork_server_does_not_keep_one(listener: Workers) -> None:
    """The fork server may outlive its node for a moment, and must not keep the slot taken then (rule S8)."""
    reading, writing = os.pipe()
    listener.warden.hold(writing)
    os.close(writing)
    slot = os.readlink(f"/proc/self/fd/{reading}")
    fork_server = listener.fork_server(program="import os; os.write(1, os.readlink('/proc/self/fd/200').encode())")
    shown, shows = os.pipe()
    tag = listener.spawn(stdout=shows)
    os.close(shows)
    assert os.read(shown, 100).decode() == slot
    assert listener.end(tag).returncode == 0
    assert wait_until(lambda: slot not in open_files(fork_server.pid)), "its copy is closed once the worker is forked"
    os.close(reading)
    os.close(shown)


def test_the_fork_server_does_not_run_the_program(listener: Workers, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    listener.fork_server(program=f"open({str(witness)!r}, 'a').write('run ')")
    assert listener.end(listener.spawn()).returncode == 0
    assert witness.read_text() == "run "


# Fresh instead -------------------------------------------------------------------------------------------------------


def test_without_a_fork_server_a_worker_starts_fresh_and_says_so_first(listener: Workers) -> None:
    listener.script.write_text(REPORT)
    tag, said = listener.output()
    listener.end(tag)
    assert listener.heard[0] == StartedFresh(tag, "there is no process that forks workers")
    assert listener.wait(Spawned).warm is False
    assert json.loads(said)["preloaded"] is False


def test_a_preload_that_raises_is_told_with_its_traceback_and_workers_start_fresh(listener: Workers) -> None:
    (listener.modules / "broken.py").write_text("def fail():\n    1 / 0\nfail()\n")
    listener.preload("preloaded", "broken")
    tag = listener.spawn()
    file = listener.modules / "broken.py"
    lines = listener.wait(StarterFailed).reason.splitlines()
    assert [line for line in lines if "^" not in line] == [
        "Traceback (most recent call last):",
        f'  File "{file}", line 3, in <module>',
        "    fail()",
        f'  File "{file}", line 2, in fail',
        "    1 / 0",
        "ZeroDivisionError: division by zero",
    ]
    assert listener.end(tag).returncode == 0
    assert listener.all_of(StartedFresh) == [StartedFresh(tag, "the process that forks workers could not be made")]
    assert listener.all_of(StarterDied) == []


@pytest.mark.parametrize("exception", ["SystemExit", "KeyboardInterrupt"])
def test_a_preload_that_exits_does_not_get_to_the_program(listener: Workers, tmp_path: Path, exception: str) -> None:
    witness = tmp_path / "witness"
    (listener.modules / "leaves.py").write_text(f"raise {exception}")
    listener.preload("leaves", program=f"open({str(witness)!r}, 'w')")
    fork_server = listener.wait(StarterFailed)
    assert fork_server.reason.splitlines()[-1] == exception
    listener.warden.close(PATIENCE)
    assert not witness.exists()


def test_a_fork_server_that_dies_while_it_imports_has_a_second_chance_and_no_third(listener: Workers) -> None:
    (listener.modules / "deadly.py").write_text("import os; os.kill(os.getpid(), 9)")
    listener.preload("deadly")
    tag = listener.spawn()
    reason = "it died twice while it imported deadly (it was killed by SIGKILL)"
    assert listener.wait(StarterFailed) == StarterFailed(reason)
    assert listener.all_of(StarterDied) == [StarterDied("was killed by SIGKILL")]
    assert listener.end(tag).returncode == 0


def test_an_interpreter_that_does_not_look_at_pythonpath_is_no_fork_server(listener: Workers, tmp_path: Path) -> None:
    """It would run the program at once, as no agent's worker."""
    witness = tmp_path / "witness"
    listener.script.write_text(f"open({str(witness)!r}, 'w')")
    python, program = [*PYTHON, "-E"], [str(listener.script)]
    listener.warden.begin_starter(fork_server(("json",), python=python, program=program, env=listener.env))
    assert "exited with code 1" in listener.wait(StarterFailed).reason
    assert not witness.exists()


def test_an_interpreter_that_is_not_there_is_no_fork_server(listener: Workers) -> None:
    listener.warden.begin_starter(fork_server(("json",), python=["/no/python"], program=["train.py"], env=listener.env))
    assert listener.wait(StarterFailed).reason == "[Errno 2] No such file or directory: '/no/python'"


@pytest.mark.parametrize(
    ("preload", "env", "reason"),
    [
        ("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()", {}, "has 2 threads"),
        ("", {"OMP_NUM_THREADS": "5"}, "OMP_NUM_THREADS differs from the preloaded process's"),
        ("", {"PYTHONHASHSEED": "5"}, "PYTHONHASHSEED differs from the preloaded process's"),
        ("", {"KMP_AFFINITY": "compact"}, "KMP_AFFINITY is set"),
    ],
)
def test_a_worker_to_which_a_check_objects_starts_fresh_with_the_reason_in_one_line(
    listener: Workers, preload: str, env: dict[str, str], reason: str
) -> None:
    (listener.modules / "preloaded.py").write_text(preload)
    listener.fork_server()
    tag, said = listener.output(env=env)
    assert listener.end(tag).returncode == 0
    assert json.loads(said)["preloaded"] is False
    [fresh] = listener.all_of(StartedFresh)
    assert reason in fresh.why
    assert "\n" not in fresh.why
    assert listener.all_of(Spawned) == [Spawned(tag, listener.end(tag).pid, warm=False)]


def test_a_script_whose_folder_hides_a_preloaded_module_gets_its_own(listener: Workers) -> None:
    own = listener.script.with_name("preloaded.py")
    own.write_text("MINE = True")
    listener.fork_server(program="import preloaded; print(preloaded.MINE)")
    tag, said = listener.output()
    assert said == "True\n"
    listener.end(tag)
    assert listener.all_of(StartedFresh) == [
        StartedFresh(tag, f"{own} takes the place of the preloaded module preloaded")
    ]


def test_another_program_than_the_fork_servers_starts_fresh(listener: Workers, tmp_path: Path) -> None:
    listener.fork_server()
    other = tmp_path / "other.py"
    other.write_text("raise SystemExit(3)")
    listener.warden.spawn(1, SpawnRequest([*PYTHON, str(other)], listener.env, warm=True))
    assert listener.end(1).returncode == 3
    assert "the preloaded process is for" in listener.wait(StartedFresh).why


def test_a_worker_that_cannot_be_forked_nor_started_is_a_failed_start(listener: Workers) -> None:
    listener.fork_server()
    tag = listener.spawn(cwd="/no/such/place")
    failure = listener.wait(SpawnFailed)
    assert failure == SpawnFailed(tag, "[Errno 2] No such file or directory: '/no/such/place'")


# Its successor -------------------------------------------------------------------------------------------------------

IMPORTED = "import sys\nprint('late' in sys.modules, flush=True)\nimport signal\nsignal.pause()\n"


def complete(listener: Workers) -> StarterReady:
    """Wait until the fork server has imported all, or cannot; the event of it."""
    return listener.wait(StarterReady, lambda event: event.complete)


def hastened(listener: Workers) -> StarterReady:
    """Wait for the first imports of a fork server that has forked no worker, and have it import the rest at once."""
    ready = listener.wait(StarterReady)
    listener.warden.complete_starter()
    return ready


def module(listener: Workers, name: str, text: str) -> None:
    (listener.modules / f"{name}.py").write_text(text)


def test_a_fork_server_with_nothing_to_do_imports_the_rest_and_those_that_live_know_nothing_of_it(
    listener: Workers,
) -> None:
    module(listener, "late", "")
    listener.preload(program=IMPORTED, later=["late"])
    first = listener.wait(StarterReady)
    worker, imported = listener.running()
    assert imported == "False"
    grown = complete(listener)
    assert "has imported late besides" in grown.text
    gone(first.pid)
    other, imported = listener.running()
    assert (imported, other.warm) == ("True", True)
    assert alive(worker.pid)
    assert listener.all_of(StarterDied) == []
    listener.warden.stop(grace=0.0)
    listener.wait(StopCompleted)
    assert alive(grown.pid)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("raise ValueError('not today')", "ValueError: not today", id="raises"),
        pytest.param("import os\nos._exit(3)", "the process that imported it exited with code 3", id="exits"),
        pytest.param(
            "import threading, time\nthreading.Thread(target=time.sleep, args=[1000], daemon=True).start()",
            "2 threads",
            id="starts a thread",
        ),
    ],
)
def test_a_fork_server_stays_if_that_comes_to_nothing(listener: Workers, text: str, reason: str) -> None:
    module(listener, "late", text)
    listener.preload(program=IMPORTED, later=["late"])
    hastened(listener)
    assert reason in complete(listener).text
    worker, imported = listener.running()
    assert (imported, worker.warm) == ("False", True)
    assert listener.all_of(StarterDied) == []


def test_a_fork_server_serves_while_its_successor_imports_and_either_may_die_then(listener: Workers) -> None:
    started, go = listener.folder / "started", listener.folder / "go"
    for fifo in (started, go):
        os.mkfifo(fifo)
    module(
        listener, "late", f"open({str(started)!r}, 'w').write(str(__import__('os').getpid()))\nopen({str(go)!r}).read()"
    )
    listener.preload(program=IMPORTED, later=["late"])
    first = hastened(listener)
    successor = int(started.read_text())
    worker, imported = listener.running()
    assert (imported, worker.warm) == ("False", True)
    os.kill(first.pid, signal.SIGKILL)
    listener.wait(StarterDied)
    gone(successor)
    second = listener.wait(StarterReady, lambda event: event.pid != first.pid)
    listener.warden.complete_starter()
    successor = int(started.read_text())
    go.write_text("")
    grown = complete(listener)
    assert grown.pid == successor
    gone(second.pid)
    _, imported = listener.running()
    assert imported == "True"
    os.kill(grown.pid, signal.SIGKILL)
    listener.wait(StarterReady, lambda event: event.pid not in (first.pid, second.pid, grown.pid))
    _, imported = listener.running()
    assert imported == "False"


PATIENT = """
import sys
frame = sys._getframe()
while "Growth" not in frame.f_globals:
    frame = frame.f_back
frame.f_globals["Growth"].deadline.__globals__["DELAYS_SECONDS"] = (3e9,) * 5
"""


def test_a_fork_server_that_is_told_that_no_worker_is_to_start_imports_the_rest_at_once(listener: Workers) -> None:
    module(listener, "patient", PATIENT)
    module(listener, "late", "")
    listener.preload("patient", program=IMPORTED, later=["late"])
    assert not hastened(listener).complete
    assert "has imported late besides" in complete(listener).text
    listener.warden.complete_starter()
    _, imported = listener.running()
    assert imported == "True"


def test_a_thread_in_the_fork_server_is_not_lost_in_its_successor(listener: Workers) -> None:
    thread = "import threading, time\nthreading.Thread(target=time.sleep, args=[1000], daemon=True).start()"
    module(listener, "threaded", thread)
    module(listener, "late", "")
    listener.preload("threaded", program=IMPORTED, later=["late"])
    hastened(listener)
    assert "2 threads" in complete(listener).text
    worker, _ = listener.running()
    assert not worker.warm


def test_a_request_that_meets_the_hand_over_is_fulfilled_once(listener: Workers) -> None:
    go = listener.folder / "go"
    os.mkfifo(go)
    module(listener, "late", f"open({str(go)!r}).read()")
    listener.preload(program=IMPORTED, later=["late"])
    first = hastened(listener)
    with go.open("w"):  # the successor has begun to import
        os.kill(first.pid, signal.SIGSTOP)
        tags = [listener.spawn() for _ in range(3)]
        listener.warden.spawn(100, SpawnRequest(["true"], listener.env))
        listener.end(100)  # the requests are on their way by now
    (successor,) = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    os.kill(first.pid, signal.SIGCONT)
    assert complete(listener).pid == int(successor)
    spawned = [listener.wait(Spawned, lambda event: event.tag == tag) for tag in tags]  # noqa: B023
    assert all(event.warm for event in spawned)
    assert sorted(event.tag for event in listener.all_of(Spawned)) == [*tags, 100]
    gone(first.pid)
    assert listener.all_of(StarterDied) == []


HELD = """
import os
end, held = os._exit, os.getpid()

def hold(code):
    if os.getpid() == held:
        open({release!r}).read()
    end(code)

os._exit = hold
"""


def test_requests_that_come_between_the_end_of_a_fork_server_and_its_successor_are_fulfilled_once(
    listener: Workers,
) -> None:
    release = listener.folder / "release"
    os.mkfifo(release)
    module(listener, "held", HELD.format(release=str(release)))
    module(listener, "late", "")
    listener.preload("held", program=IMPORTED, later=["late"])
    first = hastened(listener)
    assert complete(listener).pid != first.pid
    reading, writing = os.pipe()
    tags = [listener.spawn(stdout=writing) for _ in range(3)]
    os.close(writing)
    assert alive(first.pid), "it reads nothing more"
    release.write_text("")
    with open(reading) as file:
        lines = "".join(file.readline() for _ in tags)  # the workers write at the same time
    assert lines.replace("\n", "") == "True" * 3, "the successor has forked them"
    spawned = [listener.wait(Spawned, lambda event: event.tag == tag) for tag in tags]  # noqa: B023
    assert all(event.warm for event in spawned)
    assert sorted(event.tag for event in listener.all_of(Spawned)) == tags
    assert listener.all_of(StarterDied) == []


SILENT = """
import signal, sys
frame = sys._getframe()
while "Growth" not in frame.f_globals:
    frame = frame.f_back
Channel = frame.f_globals["Channel"]
send = Channel.send

def say(channel, message, descriptors=()):
    if "step" in message:
        signal.pause()
    send(channel, message, descriptors)

Channel.send = say
"""


def test_a_fork_server_that_is_killed_before_its_successor_may_go_on_is_replaced(listener: Workers) -> None:
    module(listener, "silent", SILENT)
    module(listener, "late", "")
    listener.preload("silent", program=IMPORTED, later=["late"])
    first = hastened(listener)
    grown = complete(listener)
    os.kill(first.pid, signal.SIGKILL)
    listener.wait(StarterReady, lambda event: event.pid not in (first.pid, grown.pid))
    gone(grown.pid)
    _, imported = listener.running()
    assert imported == "False"


def test_a_stalled_fork_server_ends_with_its_successor(listener: Workers) -> None:
    go = listener.folder / "go"
    os.mkfifo(go)
    module(listener, "late", f"open({str(go)!r}).read()")
    listener.preload(program=IMPORTED, later=["late"])
    first = hastened(listener)
    with go.open("w"):  # the successor has begun to import
        (successor,) = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
        os.kill(first.pid, signal.SIGSTOP)
        listener.spawn()
        listener.warden.stop(grace=0.0)
        listener.wait(StopCompleted)
        gone(int(successor))
    gone(first.pid)
    listener.wait(StarterReady, lambda event: event.pid not in (first.pid, int(successor)))


def test_a_fork_that_fails_is_one_workers_and_not_the_fork_servers_end(listener: Workers) -> None:
    failing = """
import os
fork = os.fork
def fail():
    os.fork = fork
    raise BlockingIOError(11, "Resource temporarily unavailable")
os.fork = fail
"""
    module(listener, "failing", failing)
    listener.fork_server("failing", program=IMPORTED)
    worker, _ = listener.running()
    assert not worker.warm
    assert "Resource temporarily unavailable" in listener.wait(StartedFresh).why
    worker, _ = listener.running()
    assert worker.warm
    assert listener.all_of(StarterDied) == []


# The death of the fork server


def test_a_worker_is_known_though_what_was_to_tell_of_it_is_killed_just_before(listener: Workers) -> None:
    text = """
import os, signal
write = os.write
def killed(fd, data):
    if data.startswith(b"pid "):
        os.kill(os.getpid(), signal.SIGKILL)
    return write(fd, data)
os.write = killed
"""
    module(listener, "deadly", text)
    listener.fork_server("deadly", program="import os; os._exit(7)")
    tag = listener.spawn()
    assert listener.end(tag).returncode == 7
    spawned = listener.wait(Spawned)
    assert (spawned.warm, spawned.pid) == (True, listener.end(tag).pid)


def test_a_dead_fork_server_is_made_again_and_its_workers_live_on(listener: Workers) -> None:
    first = listener.fork_server(program=SLEEP)
    worker, _ = listener.running()
    os.kill(first.pid, signal.SIGKILL)
    assert listener.wait(StarterDied) == StarterDied("was killed by SIGKILL")
    second = listener.wait(StarterReady, lambda event: event.pid != first.pid)
    assert alive(worker.pid)
    other, _ = listener.running()
    assert other.warm
    listener.warden.stop(grace=HUNDRED_YEARS)
    listener.wait(StopCompleted)
    assert alive(second.pid)


def test_a_worker_that_is_asked_for_while_the_fork_server_is_dead_waits_for_the_next(listener: Workers) -> None:
    fork_server = listener.fork_server()
    os.kill(fork_server.pid, signal.SIGKILL)
    gone(fork_server.pid)
    tag = listener.spawn()
    assert listener.end(tag).returncode == 0
    warm = listener.wait(Spawned).warm
    assert warm or listener.all_of(StartedFresh) == [
        StartedFresh(tag, "the process that forks workers died, or what it had forked")
    ]


def test_a_request_that_a_dying_fork_server_has_not_answered_is_started_fresh(listener: Workers) -> None:
    fork_server = listener.fork_server()
    os.kill(fork_server.pid, signal.SIGSTOP)
    tag = listener.spawn()
    listener.warden.spawn(100, SpawnRequest(["true"], listener.env))
    listener.end(100)  # the request is on its way by now
    os.kill(fork_server.pid, signal.SIGKILL)
    assert listener.end(tag).returncode == 0
    assert listener.all_of(StartedFresh) == [
        StartedFresh(tag, "the process that forks workers died, or what it had forked")
    ]


# Stopping ------------------------------------------------------------------------------------------------------------


def test_a_stop_leaves_the_fork_server_alone_and_the_next_round_starts_warm(listener: Workers) -> None:
    fork_server = listener.fork_server(program=ESCAPE)
    worker, escaped = listener.running()
    listener.warden.stop(grace=HUNDRED_YEARS)
    listener.wait(StopCompleted)
    gone(int(escaped))
    assert alive(fork_server.pid)
    assert listener.all_of(Signalled)[0] == Signalled(signal.SIGTERM, (worker.pid,))
    assert all(fork_server.pid not in event.pids for event in listener.all_of(Signalled))
    again, _ = listener.running()
    assert again.warm


def test_a_warm_worker_that_ignores_sigterm_is_killed_after_the_grace(listener: Workers) -> None:
    listener.fork_server(program=STUBBORN)
    worker, _ = listener.running()
    listener.warden.stop(grace=0.05)
    listener.wait(StopCompleted)
    assert listener.all_of(Exited) == [Exited(worker.tag, worker.pid, -signal.SIGKILL)]


def test_a_stop_while_workers_are_being_forked_leaves_none_of_them(listener: Workers) -> None:
    reading, writing = os.pipe()
    listener.fork_server(program=STUBBORN)
    for _ in range(4):
        listener.spawn(stdout=writing)
    os.close(writing)
    listener.warden.stop(grace=0)
    listener.wait(StopCompleted)
    with open(reading, "rb") as file:
        file.read()  # the end comes when no process has the other end any more
    started = {event.tag for event in listener.all_of(Spawned)}
    failed = {event.tag for event in listener.all_of(SpawnFailed)}
    assert started | failed == {1, 2, 3, 4}
    assert {event.tag for event in listener.all_of(Exited)} == started
    assert listener.all_of(StarterDied) == []


def test_a_worker_that_waits_for_the_fork_server_is_not_started_after_a_stop(listener: Workers) -> None:
    go_on = slow(listener)
    tag = listener.spawn()
    listener.warden.stop(grace=HUNDRED_YEARS)
    listener.wait(StopCompleted)
    assert listener.all_of(SpawnFailed) == [SpawnFailed(tag, "the workers of this node are being stopped")]
    go_on()
    listener.wait(StarterReady)
    assert listener.end(listener.spawn()).returncode == 0
    assert [event.tag for event in listener.all_of(Spawned)] == [tag + 1]


def test_a_fork_server_that_does_not_answer_does_not_hold_up_a_stop(listener: Workers) -> None:
    fork_server = listener.fork_server()
    os.kill(fork_server.pid, signal.SIGSTOP)
    tag = listener.spawn()
    listener.warden.stop(grace=0)
    listener.wait(StopCompleted)
    gone(fork_server.pid)
    assert listener.all_of(SpawnFailed) == [SpawnFailed(tag, "the workers of this node are being stopped")]
    listener.wait(StarterReady, lambda event: event.pid != fork_server.pid)
    assert listener.end(listener.spawn()).returncode == 0


def test_a_fence_kills_warm_workers_and_spares_the_fork_server(listener: Workers) -> None:
    fork_server = listener.fork_server(program=SLEEP)
    worker, _ = listener.running()
    listener.warden.fence(0)
    listener.wait(Fenced)
    gone(worker.pid)
    assert listener.all_of(Exited) == []
    assert alive(fork_server.pid)


def test_a_fence_does_not_blame_a_worker_that_a_silent_fork_server_was_asked_for(listener: Workers) -> None:
    fork_server = listener.fork_server(program=SLEEP)
    worker, _ = listener.running()
    os.kill(fork_server.pid, signal.SIGSTOP)
    listener.spawn()
    listener.warden.fence(0)
    gone(worker.pid)
    listener.wait(Fenced)
    listener.wait(StarterReady, lambda event: event.pid != fork_server.pid)
    listener.running()
    assert (listener.all_of(Fenced), listener.all_of(SpawnFailed)) == ([Fenced()], [])


def test_nothing_of_a_fork_server_outlives_the_warden(listener: Workers) -> None:
    fork_server = listener.fork_server(program=SLEEP)
    worker, _ = listener.running()
    os.kill(listener.warden.pid, signal.SIGKILL)
    for pid in (worker.pid, fork_server.pid):
        gone(pid)


def test_closing_ends_workers_services_and_the_fork_server(listener: Workers) -> None:
    fork_server = listener.fork_server(program=SLEEP)
    worker, _ = listener.running()
    listener.warden.serve(1, "signal:pause", {})
    children = Path(f"/proc/{listener.warden.pid}/task/{listener.warden.pid}/children")
    assert wait_until(lambda: len(children.read_text().split()) == 3)
    pids = {int(word) for word in children.read_text().split()}
    assert pids > {worker.pid, fork_server.pid}
    listener.warden.close(PATIENCE)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_ctrl_c_before_the_program_begins_ends_the_worker_without_a_traceback(listener: Workers) -> None:
    hook = "lambda: os.kill(os.getpid(), signal.SIGINT)"  # comes when the fork lets signals through
    (listener.modules / "interrupted.py").write_text(f"import os, signal\nos.register_at_fork(after_in_child={hook})\n")
    listener.fork_server("interrupted", program=SLEEP)
    reading, writing = os.pipe()
    tag = listener.spawn(stderr=writing)
    os.close(writing)
    with open(reading) as file:
        assert file.read() == ""
    ended = listener.wait(Exited, lambda event: event.tag == tag)
    assert ended.returncode == -signal.SIGINT


# Services ------------------------------------------------------------------------------------------------------------


SERVICE = """
import json, os, sys
def serve(fd, greeting, code):
    facts = {"greeting": greeting, "parent": os.getppid(), "leads": os.getpid() == os.getsid(0), "pid": os.getpid()}
    os.write(fd, json.dumps(facts).encode() + b"\\n")
    while os.read(fd, 1) == b"+":
        os.write(fd, b"ok\\n")
    sys.exit(code)
"""


@pytest.fixture
def service(listener: Workers) -> Iterator[socket.socket]:
    """A service, and a socket to it that has a line of facts to read."""
    (listener.modules / "preloaded.py").write_text(SERVICE)
    listener.fork_server(program=SLEEP)
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            arguments = {"greeting": "hello", "code": 5}
            listener.warden.serve(7, "preloaded:serve", arguments, descriptors={"fd": theirs.fileno()})
        ours.settimeout(PATIENCE)
        yield ours


def test_a_service_is_a_function_in_a_process_of_the_wardens_own(listener: Workers, service: socket.socket) -> None:
    facts = json.loads(service.recv(1000))
    del facts["pid"]
    assert facts == {"greeting": "hello", "parent": listener.warden.pid, "leads": True}
    service.send(b"-")
    assert listener.wait(ServiceEnded) == ServiceEnded(7, 5)


def test_a_service_outlives_a_stop_and_ends_when_it_is_told_to(listener: Workers, service: socket.socket) -> None:
    pid = json.loads(service.recv(1000))["pid"]
    worker, _ = listener.running()
    listener.warden.stop(grace=0)
    listener.wait(StopCompleted)
    gone(worker.pid)
    os.kill(pid, signal.SIGTERM)  # as a scheduler sends it to all processes of a job
    service.send(b"+")
    assert service.recv(100) == b"ok\n"
    assert listener.all_of(ServiceEnded) == []
    listener.warden.end_service(7)
    assert listener.wait(ServiceEnded) == ServiceEnded(7, -signal.SIGKILL)
    gone(pid)


def test_a_service_starts_fresh_where_the_fork_server_must_not_fork(listener: Workers) -> None:
    thread = "import threading, time\nthreading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()\n"
    (listener.modules / "preloaded.py").write_text(SERVICE)
    (listener.modules / "threaded.py").write_text(thread)
    listener.fork_server("threaded", program=SLEEP)
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            arguments = {"greeting": "hello", "code": 5}
            listener.warden.serve(7, "preloaded:serve", arguments, descriptors={"fd": theirs.fileno()})
        ours.settimeout(PATIENCE)
        facts = json.loads(ours.recv(1000))
        pid = facts.pop("pid")
        assert facts == {"greeting": "hello", "parent": listener.warden.pid, "leads": True}
        worker, _ = listener.running()
        listener.warden.stop(grace=0)
        listener.wait(StopCompleted)
        gone(worker.pid)
        os.kill(pid, signal.SIGTERM)
        ours.send(b"+")
        assert ours.recv(100) == b"ok\n", "a stop leaves it alone"
        ours.send(b"-")
        assert listener.wait(ServiceEnded) == ServiceEnded(7, 5)
    gone(pid)


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ("nowhere:f", "ModuleNotFoundError: No module named 'nowhere'"),
        ("preloaded:nothing", "AttributeError: module 'preloaded' has no attribute 'nothing'"),
    ],
)
def test_a_service_that_is_not_there_is_reported(listener: Workers, entry: str, error: str) -> None:
    listener.fork_server()
    listener.warden.serve(1, entry, {})
    assert listener.wait(ServiceEnded) == ServiceEnded(1, None, error)


def test_without_a_fork_server_there_is_no_service(listener: Workers) -> None:
    listener.warden.serve(1, "signal:pause", {})
    assert listener.wait(ServiceEnded) == ServiceEnded(1, None, "there is no process that forks workers")
