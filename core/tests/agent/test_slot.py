"""Slots among real processes (rule S8)."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from elastic_core.agent.directories import Slot
from elastic_core.host import identity
from elastic_core.host.identity import host_id
from elastic_core.protocol.roster import SLOTS

PATIENCE = 30.0
TAKE = """
import sys
from elastic_core.agent.directories import Slot
{before}
slot = Slot.take({job!r})
{after}
print(slot.number, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def job() -> str:
    """A job that no other process on this host has."""
    return f"test_slot/{uuid.uuid4()}"


def sitter(job: str, before: str = "", after: str = "") -> subprocess.Popen[str]:
    """A process that takes a slot, says which, and keeps it until its stdin is closed."""
    return subprocess.Popen(
        [sys.executable, "-c", TAKE.format(job=job, before=before, after=after)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def number(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


@contextmanager
def taken(job: str) -> Iterator[int]:
    """The number of a slot that is held for a while."""
    slot = Slot.take(job)
    try:
        yield slot.number
    finally:
        slot.close()


def test_agents_of_one_job_sit_side_by_side_from_0_and_those_of_another_do_not_matter(job: str) -> None:
    with taken(job) as first, taken(job) as second, taken(job + "'") as other, taken(job) as third:
        assert (first, second, third, other) == (0, 1, 2, 0)


def test_a_slot_that_was_given_up_is_the_next_to_be_taken(job: str) -> None:
    first, second = Slot.take(job), Slot.take(job)
    first.close()
    with taken(job) as again:
        assert (second.number, again) == (1, 0)
    second.close()


def test_of_processes_that_take_slots_at_once_each_has_a_slot_of_its_own(job: str) -> None:
    reading, writing = os.pipe()
    script = TAKE.format(job=job, before=f"import os; os.read({reading}, 1)", after="")
    command = [sys.executable, "-c", script]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[reading])
        for _ in range(5)
    ]
    os.close(reading)
    os.write(writing, b"." * len(processes))
    assert sorted(map(number, processes)) == [0, 1, 2, 3, 4]
    for process in processes:
        process.communicate()
    os.close(writing)


def test_the_slot_of_a_process_that_is_killed_is_free(job: str) -> None:
    with sitter(job) as process:
        assert number(process) == 0
        with taken(job) as mine:
            assert mine == 1
        process.kill()
    with taken(job) as mine:
        assert mine == 0


def test_a_slot_is_held_until_its_last_holder_is_gone(job: str) -> None:
    """As the warden holds its agent's: here a child that inherited the descriptor."""
    child = "import subprocess; child = subprocess.Popen(['sleep', '1000'], pass_fds=[slot.fileno()]); print(child.pid)"
    with sitter(job, after=child) as process:
        pid = number(process)
        assert number(process) == 0
        pidfd = os.pidfd_open(pid)
        process.kill()
    with taken(job) as mine:
        assert mine == 1
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    assert select.select([pidfd], [], [], PATIENCE)[0]
    os.close(pidfd)
    with taken(job) as mine:
        assert mine == 0


def test_a_node_that_takes_a_slot_sees_the_slots_that_are_held(job: str) -> None:
    before = time.monotonic_ns()
    with contextlib.closing(Slot.take(job)) as first, contextlib.closing(Slot.take(job)) as second:
        assert (first.slots.held, second.slots.held) == ((), (0,))
        assert before < first.slots.at < second.slots.at < time.monotonic_ns()
        assert (first.look().held, second.look().held) == ((1,), (0,)), "neither's own"


def test_that_somebody_looks_takes_no_slot(job: str) -> None:
    """No node that takes a slot meanwhile finds a free one taken."""
    looking, stop = Slot.take(job), threading.Event()

    def look() -> None:
        while not stop.is_set():
            looking.look()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(300):
            with taken(job) as number:
                assert number == 1
    finally:
        stop.set()
        thread.join()
        looking.close()


def test_a_slot_is_free_to_see_when_its_last_holder_is_gone(job: str) -> None:
    child = "import subprocess; child = subprocess.Popen(['sleep', '1000'], pass_fds=[slot.fileno()]); print(child.pid)"
    with sitter(job, after=child) as process:
        pid = number(process)
        assert number(process) == 0
        pidfd = os.pidfd_open(pid)
        with contextlib.closing(Slot.take(job)) as mine:
            process.kill()
            process.wait()
            assert mine.look().held == (0,)
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            assert select.select([pidfd], [], [], PATIENCE)[0]
            assert mine.look().held == ()
    os.close(pidfd)


def test_where_too_many_files_are_open_what_was_seen_last_stands_and_at_first_all_slots_are_held(job: str) -> None:
    limit = "import resource; hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]"
    few = "resource.setrlimit(resource.RLIMIT_NOFILE, ({}, hard))"
    look = "print(*slot.slots.held, '|', *slot.look().held, slot.look() == slot.slots)"
    with taken(job):
        with sitter(job, before=limit, after=f"{few.format(0)}; {look}") as late:
            assert late.communicate()[0].splitlines()[0] == "0 | 0 True"
        free = "import os; free = os.dup(0); os.close(free)"
        with sitter(job, before=f"{limit}; {free}; {few.format('free + 1')}", after=look) as early:
            others = " ".join(str(number) for number in range(SLOTS) if number != 1)
            assert early.communicate()[0].splitlines()[0] == f"{others} | {others} True"


def test_where_nobody_says_when_the_machine_was_booted_looks_prove_nothing(
    job: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(identity, "_BOOT_ID", tmp_path / "missing")
    with contextlib.closing(Slot.take(job)) as mine:
        assert (mine.slots.at, mine.look().at) == (0, 0)
    assert host_id() == host_id()


def test_a_job_may_have_any_name(job: str) -> None:
    names = [f"{job}\udcff", f"{job}/ü \0", f"{job}{'x' * 1000}"]  # the name of a socket has 107 bytes at most
    with taken(names[0]) as one, taken(names[1]) as two, taken(names[2]) as three, taken(names[2] + "x") as four:
        assert (one, two, three, four) == (0, 0, 0, 0)
