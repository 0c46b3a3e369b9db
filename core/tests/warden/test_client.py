"""The warden with real processes and signals: what it starts, and that nothing is left of it."""

from __future__ import annotations

import itertools
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from wardens import PATIENCE, Listener, gone, wait_until

from elastic_core.warden.client import SpawnRequest, Warden
from elastic_core.warden.linux import REQUESTS_TO_END, become_subreaper, subreaping
from elastic_core.warden.messages import (
    Exited,
    Fenced,
    Signalled,
    Spawned,
    SpawnFailed,
    StopCompleted,
    WardenDied,
    WardenEvent,
    WardenSignalled,
)

HUNDRED_YEARS = 3e9
PYTHON = (sys.executable, "-I", "-S", "-c")

SLEEPER = ("sh", "-c", "echo $$; exec sleep 1000")
STUBBORN = ("sh", "-c", "trap '' TERM; echo $$; while :; do sleep 1000; done")
"""Ignores SIGTERM, and so does its child."""
ESCAPE = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        sys.stdout.write(f"{os.getpid()}\\n")
        sys.stdout.flush()
        os.execve("/bin/sleep", ["sleep", "1000"], {})
    os._exit(0)
os.wait()
"""
"""Leaves a grandchild in a session of its own with an empty environment, then goes on with what follows."""

AGENT = f"""
import json, os, select, sys
from elastic_core.warden.linux import become_subreaper
from elastic_core.warden.client import SpawnRequest, Warden
from elastic_core.warden.messages import (Spawned)
become_subreaper()
warden = Warden()
def hear():
    select.select([warden], [], [])
    return warden.receive()
escape = {ESCAPE!r}
warden.sweep(sys.argv[1])
reading, writing = os.pipe()
commands = [
    ["sh", "-c", "sleep 1000 & echo $!; wait"],
    [{sys.executable!r}, "-I", "-S", "-c", escape + "import signal; signal.pause()"],
]
for tag, argv in enumerate(commands):
    warden.spawn(tag, SpawnRequest(argv, dict(os.environ)), stdout=writing)
os.close(writing)
pids = []
while len(pids) < len(commands):
    pids += [event.pid for event in hear() if isinstance(event, Spawned)]
with open(reading) as lines:
    pids += [int(lines.readline()) for _ in commands]
"""
"""An agent: its ``pids`` are two workers, the child of one, and what escaped from the other."""


class Programs(Listener):
    """A warden that starts any program."""

    def spawn(
        self,
        *argv: str,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        stdout: int | None = None,
        control: int | None = None,
    ) -> int:
        """Start a program and return its tag."""
        tag = self.tag()
        environment = dict(os.environ) if env is None else env
        self.warden.spawn(tag, SpawnRequest(argv, environment, cwd), stdout=stdout, control=control)
        return tag

    def read_from(self, *argv: str, env: dict[str, str] | None = None, control: int | None = None) -> str:
        """Everything that a program writes to its stdout."""
        reading, writing = os.pipe()
        self.spawn(*argv, env=env, stdout=writing, control=control)
        os.close(writing)
        with open(reading, "rb") as file:
            return file.read().decode()

    def started(self, *argv: str, env: dict[str, str] | None = None) -> tuple[int, list[int]]:
        """Start a program that writes one line of process ids when it is ready: its own, and those."""
        reading, writing = os.pipe()
        tag = self.spawn(*argv, env=env, stdout=writing)
        os.close(writing)
        with open(reading) as file:
            line = file.readline()
        return self.wait(Spawned, lambda event: event.tag == tag).pid, [int(word) for word in line.split()]


@pytest.fixture
def listener() -> Iterator[Programs]:
    """A warden of this process, which ends with the test."""
    become_subreaper()
    warden = Warden()
    yield Programs(warden)
    warden.close(PATIENCE)


def agent(script: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", AGENT + script, *args], stdout=subprocess.PIPE, text=True)


def say(process: subprocess.Popen[str]) -> Any:
    """Return the agent's next message."""
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


# Starting ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "returncode"),
    [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -signal.SIGKILL), ("kill -SEGV $$", -signal.SIGSEGV)],
)
def test_a_worker_is_reported_when_it_starts_and_when_it_ends(
    listener: Programs, command: str, returncode: int
) -> None:
    tag = listener.spawn("sh", "-c", command)
    ended = listener.end(tag)
    assert listener.heard == [Spawned(tag, ended.pid), Exited(tag, ended.pid, returncode)]


@pytest.mark.parametrize(
    ("argv", "cwd", "error"),
    [
        (["no-such-program"], None, "[Errno 2] No such file or directory: 'no-such-program'"),
        (["/"], None, "[Errno 13] Permission denied: '/'"),
        (["true"], "/no/such/place", "[Errno 2] No such file or directory: '/no/such/place'"),
        (["echo", "a\0b"], None, "'echo': embedded null byte"),
    ],
)
def test_a_program_that_cannot_be_started_is_reported_with_the_reason(
    listener: Programs, argv: list[str], cwd: str | None, error: str
) -> None:
    tag = listener.spawn(*argv, cwd=cwd)
    assert listener.failure(tag) == SpawnFailed(tag, error)
    listener.end(listener.spawn("true"))
    assert listener.all_of(Exited)[0].tag != tag  # it failed to start, so it has no end


def test_a_program_is_looked_for_on_the_path_of_its_own_environment(listener: Programs, tmp_path: Path) -> None:
    program = tmp_path / "hello"
    program.write_text("#!/bin/sh\necho hello from $WHERE\n")
    program.chmod(0o755)
    assert listener.read_from("hello", env={"PATH": str(tmp_path), "WHERE": "there"}) == "hello from there\n"


def test_arguments_that_are_no_text_arrive_unchanged(listener: Programs) -> None:
    shown = listener.read_from("sh", "-c", 'printf %s "$1" | od -An -tx1', "sh", os.fsdecode(b"caf\xe9"))
    assert shown.split() == ["63", "61", "66", "e9"]


def test_a_worker_inherits_no_descriptor_but_its_streams(listener: Programs) -> None:
    listener.started(*SLEEPER)  # another one, whose pipes must not leak either
    listing = listener.read_from("ls", "/proc/self/fd")
    assert listing.split() == ["0", "1", "2", "3"]  # 3 is ls, looking


def test_a_worker_starts_with_default_signal_handlers_and_an_empty_mask(listener: Programs) -> None:
    status = dict(line.split(":", 1) for line in listener.read_from("cat", "/proc/self/status").splitlines())
    ours = sum(1 << (signum - 1) for signum in signal.valid_signals())  # not those that the C library keeps to itself
    assert [int(status[name], 16) & ours for name in ("SigBlk", "SigIgn", "SigCgt")] == [0, 0, 0]


def test_a_worker_leads_a_session_of_its_own(listener: Programs) -> None:
    pid, _ = listener.started(*SLEEPER)
    assert (os.getsid(pid), os.getpgid(pid)) == (pid, pid)


def test_a_worker_dies_of_lack_of_memory_before_its_agent_does(listener: Programs) -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    assert int(listener.read_from("cat", "/proc/self/oom_score_adj")) == min(1000, own + 300)


def test_the_control_channel_reaches_the_worker_which_finds_its_number_in_the_environment(listener: Programs) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            listener.spawn(
                *PYTHON,
                "import os; os.write(int(os.environ['ELASTIC_CONTROL_FD']), b'step 1')",
                control=theirs.fileno(),
            )
        ours.settimeout(30)
        assert ours.recv(100) == b"step 1"
        assert ours.recv(100) == b""  # no other process has the other end


def test_standard_streams_that_the_agent_does_not_have_are_nobody_elses() -> None:
    """FAULTS 40: started with closed descriptors, as some schedulers do, no socket is taken for a stdin."""
    script = """
import os, select
from elastic_core.warden.client import SpawnRequest, Warden
from elastic_core.warden.messages import (Exited)
warden = Warden()
reading, writing = os.pipe()
warden.spawn(1, SpawnRequest(["readlink", "/proc/self/fd/0", "/proc/self/fd/2"], dict(os.environ)), stdout=writing)
os.close(writing)
with open(reading) as file:
    shown = file.read()
os.write(1, shown.encode())
warden.close(30)
"""
    command = ["sh", "-c", 'exec "$0" -c "$1" <&- 2>&-', sys.executable, script]
    assert subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout == "/dev/null\n/dev/null\n"


def test_requests_wait_for_a_warden_that_does_not_read(listener: Programs) -> None:
    """Environments of 8 MiB in all, to a stopped warden: the agent's loop must not notice."""
    big = {**os.environ, **{f"BIG_{n}": "x" * 100_000 for n in range(10)}}
    os.kill(listener.warden.pid, signal.SIGSTOP)
    tags = [listener.spawn("true", env=big) for _ in range(8)]
    os.kill(listener.warden.pid, signal.SIGCONT)
    assert [listener.end(tag).returncode for tag in tags] == [0] * 8


# Stopping ------------------------------------------------------------------------------------------------------------


def test_a_worker_that_obeys_is_not_killed(listener: Programs) -> None:
    pid, _ = listener.started(*SLEEPER)
    listener.warden.stop(grace=HUNDRED_YEARS)
    listener.wait(StopCompleted)
    assert listener.all_of(Signalled) == [Signalled(signal.SIGTERM, (pid,))]
    assert listener.all_of(Exited) == [Exited(1, pid, -signal.SIGTERM)]


def test_a_stop_sends_the_signal_that_it_was_given(listener: Programs) -> None:
    listener.started("sh", "-c", "trap 'exit 3' INT; echo $$; while :; do sleep 0.01; done")
    listener.warden.stop(grace=HUNDRED_YEARS, signum=signal.SIGINT)
    listener.wait(StopCompleted)
    assert listener.all_of(Exited)[0].returncode in (3, -signal.SIGINT)
    assert listener.all_of(Signalled)[0].signum == signal.SIGINT


@pytest.mark.parametrize(("trap", "sent"), [("trap 'exit 3' USR1; ", signal.SIGUSR1), ("", signal.SIGTERM)])
def test_a_notice_reaches_a_worker_that_handles_it_before_its_start_is_told(
    listener: Programs, trap: str, sent: int
) -> None:
    """The others get SIGTERM: the default action of SIGUSR1 would end them unsaved."""
    reading, writing = os.pipe()
    listener.spawn("sh", "-c", trap + "echo; while :; do sleep 0.01; done", stdout=writing)
    os.close(writing)
    with open(reading) as file:
        file.readline()
        listener.warden.stop(grace=HUNDRED_YEARS, signum=signal.SIGUSR1)
        listener.wait(StopCompleted)
    assert [event.signum for event in listener.all_of(Signalled)] == [sent]


def test_a_worker_whose_program_does_not_run_yet_handles_no_notice(listener: Programs) -> None:
    """Until then it has the handlers of the warden."""
    for _ in range(5):
        since = len(listener.heard)
        listener.spawn("sh", "-c", "while :; do sleep 0.01; done")
        listener.warden.stop(grace=HUNDRED_YEARS, signum=signal.SIGUSR1)
        listener.wait(StopCompleted, since=since)
    assert signal.SIGUSR1 not in {event.signum for event in listener.all_of(Signalled)}


def test_sigterm_follows_another_signal_before_the_grace_is_over(listener: Programs) -> None:
    listener.started("sh", "-c", "trap '' INT TERM; echo $$; while :; do sleep 1000; done")
    listener.warden.stop(grace=0.05, signum=signal.SIGINT)
    listener.wait(StopCompleted)
    assert [event.signum for event in listener.all_of(Signalled)] == [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]


def test_a_second_stop_does_not_send_another_signal(listener: Programs) -> None:
    listener.started("sh", "-c", "trap '' INT TERM; echo $$; while :; do sleep 1000; done")
    for grace, signum in ((HUNDRED_YEARS, signal.SIGINT), (0.05, signal.SIGTERM)):
        listener.warden.stop(grace=grace, signum=signum)
    listener.wait(StopCompleted)
    assert [event.signum for event in listener.all_of(Signalled)] == [signal.SIGINT, signal.SIGKILL]


def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace(listener: Programs) -> None:
    """FAULTS 8."""
    pid, _ = listener.started(*STUBBORN)
    listener.warden.stop(grace=0.05)
    listener.wait(StopCompleted)
    asked, killed = listener.all_of(Signalled)
    assert (asked.signum, asked.pids) == (signal.SIGTERM, (pid,))
    assert killed.signum == signal.SIGKILL
    assert pid in killed.pids
    assert listener.all_of(Exited) == [Exited(1, pid, -signal.SIGKILL)]


def test_without_a_grace_nobody_is_asked(listener: Programs) -> None:
    listener.started(*SLEEPER)
    listener.warden.stop(grace=0)
    listener.wait(StopCompleted)
    assert {event.signum for event in listener.all_of(Signalled)} == {signal.SIGKILL}


def test_a_stopped_worker_gets_to_handle_sigterm(listener: Programs) -> None:
    """FAULTS 3."""
    pid, _ = listener.started(
        *PYTHON,
        "import signal, sys; signal.signal(15, lambda *_: sys.exit(5)); print(); sys.stdout.flush(); signal.pause()",
    )
    os.kill(pid, signal.SIGSTOP)
    listener.warden.stop(grace=HUNDRED_YEARS)
    listener.wait(StopCompleted)
    assert listener.all_of(Exited) == [Exited(1, pid, 5)]


def test_a_second_stop_brings_the_deadline_nearer_and_both_have_one_answer(listener: Programs) -> None:
    """FAULTS 49: Ctrl-C twice."""
    listener.started(*STUBBORN)
    listener.warden.stop(grace=HUNDRED_YEARS)
    listener.warden.stop(grace=0)
    listener.wait(StopCompleted)
    listener.end(listener.spawn("true"))
    assert listener.all_of(StopCompleted) == [StopCompleted(2)]


def test_an_answer_that_a_second_stop_overtook_is_not_mistaken_for_its_own(listener: Programs) -> None:
    listener.warden.stop(grace=0)
    select.select([listener.warden], [], [])  # the answer is there, but the agent asks again before it looks
    listener.warden.stop(grace=0)
    listener.wait(StopCompleted, lambda event: event.serial == 2)
    listener.end(listener.spawn("true"))
    assert (listener.all_of(StopCompleted), listener.over) == ([StopCompleted(1), StopCompleted(2)], [StopCompleted(2)])


def test_a_later_stop_does_not_put_the_deadline_off(listener: Programs) -> None:
    listener.started(*STUBBORN)
    listener.warden.stop(grace=0.05)
    listener.warden.stop(grace=HUNDRED_YEARS)
    listener.wait(StopCompleted)


@pytest.fixture
def subreaper() -> Iterator[None]:
    """The process inherits orphans, as every agent does."""
    with subreaping():
        yield


@pytest.mark.usefixtures("subreaper")
def test_a_warden_that_is_not_alone_takes_nobody_elses_processes_with_it() -> None:
    warden = Warden(alone=False)
    other = subprocess.Popen(["sleep", "1000"])
    reading, writing = os.pipe()
    warden.spawn(1, SpawnRequest(["sh", "-c", "sleep 1000 & echo $!; wait"], dict(os.environ)), stdout=writing)
    os.close(writing)
    with open(reading) as lines:
        child = int(lines.readline())
    heard: list[WardenEvent] = []

    def hear(kind: type[WardenEvent]) -> None:
        while not any(isinstance(event, kind) for event in heard):
            assert select.select([warden], [], [], PATIENCE)[0], f"no {kind} in {heard}"
            heard.extend(warden.receive())

    try:
        hear(Spawned)  # only of those that are known is the session known
        os.kill(warden.pid, signal.SIGKILL)
        hear(WardenDied)
        gone(child)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
        warden.close(PATIENCE)


def test_a_process_that_outlives_the_last_worker_is_killed_at_once(listener: Programs) -> None:
    """FAULTS 7: a double-forked helper, in a session of its own, that cleared its environment."""
    _, [helper] = listener.started(*PYTHON, ESCAPE + "import signal; signal.pause()")
    assert wait_until(lambda: Path(f"/proc/{helper}/comm").read_text() == "sleep\n")
    listener.warden.stop(grace=HUNDRED_YEARS)
    listener.wait(StopCompleted)
    gone(helper)
    [told] = [event for event in listener.all_of(Signalled) if helper in event.pids]
    assert (told.signum, told.names[told.pids.index(helper)]) == (signal.SIGTERM, "sleep")


def test_a_process_that_an_ended_worker_left_behind_is_killed_by_the_next_stop(listener: Programs) -> None:
    reading, writing = os.pipe()
    tag = listener.spawn(*PYTHON, ESCAPE, stdout=writing)
    os.close(writing)
    with open(reading) as file:
        helper = int(file.readline())
    assert listener.end(tag).returncode == 0
    listener.warden.stop(grace=HUNDRED_YEARS)
    listener.wait(StopCompleted)
    gone(helper)


SAVES = """
import os, signal, sys, time
def save(*_):
    fifo = open(sys.argv[1])  # opens once a process writes
    print(fifo.read(), flush=True)
    os._exit(0)
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, save if sys.argv[2] == "saves" else signal.SIG_IGN)
    print(os.getpid(), flush=True)
    os.write(writing, b".")
    while True:
        time.sleep(0.01)
os.read(reading, 1)
"""
"""Leaves a helper in a session of its own that on SIGTERM prints what comes out of a FIFO, or ignores it."""


@pytest.fixture(name="fifo")
def make_fifo(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


def test_a_helper_gets_sigterm_and_saves_beside_the_next_round(listener: Programs, fifo: Path) -> None:
    reading, writing = os.pipe()
    listener.end(listener.spawn(*PYTHON, SAVES, str(fifo), "saves", stdout=writing))
    os.close(writing)
    with open(reading) as output:
        helper = int(output.readline())
        listener.warden.stop(grace=HUNDRED_YEARS)
        listener.wait(StopCompleted)
        assert listener.end(listener.spawn("true")).returncode == 0
        fifo.write_text("saved")
        assert output.readline() == "saved\n"
    gone(helper)


@pytest.mark.parametrize("end", ["the deadline", "a stop without grace", "the fence", "the end of the agent"])
def test_a_helper_that_ignores_sigterm_is_killed(listener: Programs, fifo: Path, end: str) -> None:
    reading, writing = os.pipe()
    listener.end(listener.spawn(*PYTHON, SAVES, str(fifo), "ignores", stdout=writing))
    os.close(writing)
    with open(reading) as output:
        helper = int(output.readline())
    listener.warden.stop(grace=0.2 if end == "the deadline" else HUNDRED_YEARS)
    listener.wait(StopCompleted)
    if end == "a stop without grace":
        listener.warden.stop(grace=0)
    elif end == "the fence":
        listener.warden.fence(0)
    elif end == "the end of the agent":
        listener.warden.close(PATIENCE)
    gone(helper)


def gone_from_memory(name: str) -> bool:
    return not Path("/dev/shm", name).exists()


def test_a_tracker_of_shared_memory_removes_that_of_a_killed_worker(listener: Programs) -> None:
    share = (
        "import os, signal, sys; from multiprocessing import resource_tracker, shared_memory\n"
        "segment = shared_memory.SharedMemory(create=True, size=8)\n"
        "pid = resource_tracker._resource_tracker._pid\n"
        "while b'tracker' not in open(f'/proc/{pid}/cmdline', 'rb').read(): pass\n"
        "print(segment.name, flush=True); signal.pause()"
    )
    for _ in range(5):
        since = len(listener.heard)
        reading, writing = os.pipe()
        tag = listener.spawn(sys.executable, "-c", share, stdout=writing)
        os.close(writing)
        with open(reading) as output:
            name = output.readline().strip()
        os.kill(listener.wait(Spawned, since=since).pid, signal.SIGKILL)
        listener.end(tag)
        listener.warden.stop(grace=HUNDRED_YEARS)
        listener.wait(StopCompleted, since=since)
        assert wait_until(partial(gone_from_memory, name))


def test_processes_that_successful_workers_have_left_have_a_while_to_end(listener: Programs, fifo: Path) -> None:
    reading, writing = os.pipe()
    listener.end(listener.spawn("sh", "-c", 'echo started; (cat "$0") & exit 0', str(fifo), stdout=writing))
    os.close(writing)
    with open(reading) as output:
        assert output.readline() == "started\n"
        threading.Thread(target=fifo.write_text, args=("sent",)).start()
        listener.warden.finish(HUNDRED_YEARS)
        assert output.readline() == "sent"


def test_processes_that_successful_workers_have_left_for_ever_are_named_and_killed(listener: Programs) -> None:
    listener.end(listener.spawn("sh", "-c", "trap '' TERM; sleep 1000 & exit 0"))
    events = listener.warden.finish(0.5)
    signals = [event for event in events if isinstance(event, Signalled)]
    assert [(event.signum, event.names) for event in signals] == [(15, ("sleep",)), (9, ("sleep",))]


def test_a_shell_workers_child_does_not_outlive_it(listener: Programs) -> None:
    _, [child] = listener.started("sh", "-c", "sleep 1000 & echo $!; wait")
    listener.warden.stop(grace=0)
    listener.wait(StopCompleted)
    gone(child)


def test_a_family_that_goes_on_forking_is_killed_to_the_last(listener: Programs) -> None:
    """Each generation ignores SIGTERM, in a session of its own."""
    forks = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for generation in range(20):
    if os.fork():
        break
    os.setsid()
os.write(1, b"x")
signal.pause()
"""
    reading, writing = os.pipe()
    listener.spawn(*PYTHON, forks, stdout=writing)
    os.close(writing)
    seen = b""
    while len(seen) < 21:
        seen += os.read(reading, 100)
    listener.warden.stop(grace=0.05)
    listener.wait(StopCompleted)
    assert os.read(reading, 100) == b""  # no process holds the other end any more
    os.close(reading)
    assert len({pid for event in listener.all_of(Signalled)[1:] for pid in event.pids}) == 21


def test_a_stop_with_nothing_to_stop_is_answered(listener: Programs) -> None:
    listener.warden.stop(grace=HUNDRED_YEARS)
    listener.wait(StopCompleted)
    assert listener.heard == listener.over == [StopCompleted(1)]


def test_nothing_is_started_while_a_stop_is_under_way(listener: Programs) -> None:
    listener.started(*STUBBORN)
    listener.warden.stop(grace=HUNDRED_YEARS)
    tag = listener.spawn("true")
    assert listener.failure(tag) == SpawnFailed(tag, "the workers of this node are being stopped")
    listener.warden.stop(grace=0)
    listener.wait(StopCompleted)
    assert listener.end(listener.spawn("true")).returncode == 0


def test_signals_that_end_others_do_not_end_the_warden(listener: Programs) -> None:
    assert listener.end(listener.spawn("true")).returncode == 0  # it is up
    for signum in REQUESTS_TO_END:
        os.kill(listener.warden.pid, signum)
    assert listener.end(listener.spawn("true")).returncode == 0
    assert {event.signum for event in listener.all_of(WardenSignalled)} == {*REQUESTS_TO_END}, "the agent decides"
    assert os.getsid(listener.warden.pid) != os.getsid(0)  # where Ctrl-C does not reach


# The dead-man's switch -----------------------------------------------------------------------------------------------


def test_a_fence_that_is_not_renewed_stops_everything_and_blames_nobody(listener: Programs) -> None:
    pid, [helper] = listener.started(*PYTHON, ESCAPE + "import signal; signal.pause()")
    listener.warden.fence(0.05)
    listener.wait(Fenced)
    gone(pid)
    gone(helper)
    assert listener.all_of(Exited) == []
    assert listener.end(listener.spawn("true")).returncode == 0  # it is over, and another round may start


@pytest.mark.parametrize("renewal", [HUNDRED_YEARS, None])
def test_a_fence_that_is_renewed_or_disarmed_in_time_stops_nobody(listener: Programs, renewal: float | None) -> None:
    assert listener.end(listener.spawn("true")).returncode == 0
    os.kill(listener.warden.pid, signal.SIGSTOP)  # so that it reads both at once
    listener.warden.fence(0)
    listener.warden.fence(renewal)
    os.kill(listener.warden.pid, signal.SIGCONT)
    assert listener.end(listener.spawn("true")).returncode == 0
    assert listener.all_of(Fenced) == []


def test_a_fence_ends_the_grace_of_a_stop_which_has_its_answer_too(listener: Programs) -> None:
    listener.started(*STUBBORN)
    listener.warden.stop(grace=HUNDRED_YEARS)
    listener.warden.fence(0)
    listener.wait(StopCompleted)
    listener.end(listener.spawn("true"))
    assert [event for event in listener.heard if isinstance(event, StopCompleted | Fenced)] == [
        Fenced(),
        StopCompleted(1),
    ]
    assert listener.over == [StopCompleted(1)]


def test_a_worker_asked_for_before_a_fence_was_heard_of_is_not_started(listener: Programs) -> None:
    """FAULTS 6: its round is over, though the agent, which was frozen, does not know it yet."""
    listener.warden.fence(0)
    select.select([listener.warden], [], [])
    tag = listener.spawn("true")
    assert listener.failure(tag) == SpawnFailed(tag, "the workers of this node are being stopped")
    assert listener.all_of(Fenced) == [Fenced()]


def test_a_worker_asked_for_between_hearing_that_all_are_gone_and_of_a_fence_is_not_started(
    listener: Programs,
) -> None:
    """FAULTS 16: both answers wait for an agent that was frozen, and what it does at the first crosses the second."""
    assert listener.end(listener.spawn("true")).returncode == 0
    warden = listener.warden
    warden.stop(grace=0)
    select.select([warden], [], [])
    warden.fence(0)
    news: list[WardenEvent] = []
    while Fenced() not in news:
        select.select([warden], [], [])
        news += warden.receive()
    assert news == [StopCompleted(1), Fenced()]
    assert warden.is_over(StopCompleted(1))
    tag = listener.spawn("true")
    assert warden.is_over(Fenced())
    assert listener.failure(tag) == SpawnFailed(tag, "the workers of this node are being stopped")
    assert listener.end(listener.spawn("true")).returncode == 0


def test_a_stop_that_crosses_the_end_of_all_is_over_with_its_own_answer(listener: Programs) -> None:
    """FAULTS 16: the order to stop waits for an agent that was frozen, and before the news that it was fenced off."""
    warden = listener.warden
    warden.fence(0)
    select.select([warden], [], [])
    assert warden.receive() == [Fenced()]
    warden.stop(grace=0)
    assert not warden.is_over(Fenced())
    select.select([warden], [], [])
    assert warden.receive() == [StopCompleted(1)]
    assert warden.is_over(StopCompleted(1))
    assert listener.end(listener.spawn("true")).returncode == 0


def test_the_fence_holds_while_the_agent_is_frozen(tmp_path: Path) -> None:
    """FAULTS 16."""
    script = """
print(json.dumps(pids), flush=True)
sys.stdin.readline()
warden.fence(0.05)
events = []
while "Fenced" not in events:
    os.kill(os.getpid(), 19)  # frozen, until a SIGCONT
    events += [type(event).__name__ for event in hear()]
print(json.dumps(events), flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", AGENT + script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        pids = say(process)
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        for pid in pids:
            gone(pid)
        while process.poll() is None:
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            if os.WIFSTOPPED(status):
                os.kill(process.pid, signal.SIGCONT)
            else:
                process.returncode = os.waitstatus_to_exitcode(status)
        events = say(process)
    assert events[-1] == "Fenced"
    assert "Exited" not in events


def test_a_frozen_agents_full_socket_does_not_keep_the_warden_from_its_work(listener: Programs) -> None:
    pid, _ = listener.started(*SLEEPER)
    for _ in range(200):  # 400 messages that no process reads; the socket has room for some 270
        listener.read_from("true")
    listener.warden.stop(grace=0)
    gone(pid)
    listener.wait(StopCompleted)
    assert len(listener.all_of(Exited)) == 201


# The end -------------------------------------------------------------------------------------------------------------


def test_nothing_outlives_an_agent_that_is_killed(tmp_path: Path) -> None:
    """FAULTS 5: workers, a shell worker's child, a helper that escaped; and the directory it was to remove."""
    leftover = tmp_path / "leftover"
    (leftover / "below").mkdir(parents=True)
    with agent("print(json.dumps([*pids, warden.pid]), flush=True)\nwhile True: hear()", str(leftover)) as process:
        pids = say(process)
        process.kill()
        for pid in pids:
            gone(pid)
    assert not leftover.exists()


def test_a_held_descriptor_stays_open_until_the_wardens_last_process_is_gone() -> None:
    reading, writing = os.pipe()
    warden = Warden()
    warden.hold(writing)
    os.close(writing)
    running, end = os.pipe()
    warden.spawn(1, SpawnRequest(["sleep", "1000"], dict(os.environ)), stdout=end)
    os.close(end)
    select.select([warden], [], [])
    assert select.select([reading], [], [], 0)[0] == []
    os.kill(warden.pid, signal.SIGSTOP)  # closing wakes it up
    warden.close(30)
    assert os.read(running, 1) == b""
    assert os.read(reading, 1) == b""
    os.close(running)
    os.close(reading)


def test_a_worker_inherits_a_copy_of_the_slot_out_of_its_ways(listener: Programs) -> None:
    """So the slot is taken for as long as anything runs that a worker has started (rule S8)."""
    reading, writing = os.pipe()
    listener.warden.hold(writing)
    listing = listener.read_from("ls", "-l", "/proc/self/fd")
    os.close(writing)
    assert {"0", "1", "2", "3", "200"} == {line.split()[8] for line in listing.splitlines()[1:]}
    assert f"200 -> {os.readlink(f'/proc/self/fd/{reading}')}" in listing
    os.close(reading)


def test_a_warden_that_cannot_hold_what_it_is_given_does_not_go_on(listener: Programs) -> None:
    """Else its node's slot would be free while workers run (rule S8)."""
    warden = listener.warden
    listener.spawn("true")
    listener.wait(Exited)
    used = {int(fd) for fd in os.listdir(f"/proc/{warden.pid}/fd")}
    most = next(fd for fd in itertools.count() if fd not in used)
    resource.prlimit(warden.pid, resource.RLIMIT_NOFILE, (most, most))
    reading, writing = os.pipe()
    warden.hold(writing)
    assert listener.wait(WardenDied) == WardenDied("it exited with code 1")
    os.close(reading)
    os.close(writing)


def test_nothing_outlives_a_warden_that_is_killed(listener: Programs) -> None:
    pid, [helper] = listener.started(*PYTHON, ESCAPE + "import signal; signal.pause()")
    os.kill(listener.warden.pid, signal.SIGKILL)
    assert listener.wait(WardenDied) == WardenDied("it was killed by SIGKILL")
    gone(pid)
    gone(helper)
    assert listener.warden.receive() == []
    listener.spawn("true")  # asked in vain, and without harm
    listener.warden.stop(grace=0)


def test_a_process_that_the_agent_started_itself_survives_its_wardens_death() -> None:
    own = subprocess.Popen(["sleep", "1000"])
    later = Warden()
    os.kill(later.pid, signal.SIGKILL)
    select.select([later], [], [])
    assert later.receive() == [WardenDied("it was killed by SIGKILL")]
    assert own.poll() is None
    own.kill()
    own.wait()
    later.close(30)
