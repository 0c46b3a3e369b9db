"""Real processes: subreapers, the death of a parent, and that a signal reaches exactly those that are meant."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from elastic_core.host.processes import descendants
from elastic_core.warden.linux import kill, signal_group

OURS = (sys.executable, "-c")
"""Python that finds elastic_core."""
NOBODY = 2**22 + 1
"""Greater than any process id."""


def found(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """It as one of our descendants."""
    return next(found for found in descendants(os.getpid()) if found[0] == process.pid)


# Subreapers, and the death of a parent --------------------------------------------------------------------------------


def test_a_subreaper_sees_what_escaped_from_its_children() -> None:
    script = """
import os, signal
from elastic_core.host.processes import descendants
from elastic_core.warden.linux import become_subreaper
become_subreaper()
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        os.write(writing, b"%d" % os.getpid())
        signal.pause()
    os._exit(0)
os.waitpid(child, 0)
escaped = int(os.read(reading, 100))
print([pid for pid, _ in descendants(os.getpid())] == [escaped])
os.kill(escaped, 9)
"""
    assert subprocess.run([*OURS, script], stdout=subprocess.PIPE, check=True).stdout == b"True\n"


def test_a_process_that_shall_die_with_its_parent_does() -> None:
    script = """
import os, signal
from elastic_core.warden.linux import die_with_parent
reading, writing = os.pipe()
if os.fork() == 0:
    die_with_parent()
    os.write(writing, b".")
    signal.pause()
os.read(reading, 1)
os.close(1)
os.kill(os.getpid(), 9)
"""
    with subprocess.Popen([*OURS, script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b""  # the end comes when the child, too, is gone


def test_a_process_is_a_subreaper_for_as_long_as_it_says() -> None:
    script = """
import ctypes
from elastic_core.warden.linux import subreaping

def flag():
    value = ctypes.c_int()
    ctypes.CDLL(None).prctl(37, ctypes.byref(value), 0, 0, 0)
    return value.value

before = flag()
with subreaping():
    within = flag()
print(before, within, flag())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "0 1 0\n"


# Signals -------------------------------------------------------------------------------------------------------------


def test_a_process_is_killed(sleeper: subprocess.Popen[bytes]) -> None:
    assert kill(found(sleeper))
    assert sleeper.wait() == -signal.SIGKILL


def test_another_process_with_the_same_number_is_not_killed(sleeper: subprocess.Popen[bytes]) -> None:
    pid, start = found(sleeper)
    assert not kill((pid, start - 1))
    assert not kill((pid, start + 1))
    sleeper.terminate()
    assert sleeper.wait() == -signal.SIGTERM  # so it was alive


def test_a_process_that_is_gone_cannot_be_killed(sleeper: subprocess.Popen[bytes]) -> None:
    process = found(sleeper)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not kill(process)  # a zombie
    sleeper.wait()
    assert not kill(process)
    assert not kill((NOBODY, 1))


def test_killing_leaves_no_descriptor_behind(sleeper: subprocess.Popen[bytes]) -> None:
    pid, start = found(sleeper)
    before = os.listdir("/proc/self/fd")
    kill((pid, start + 1))
    kill((pid, start))
    assert os.listdir("/proc/self/fd") == before


def test_a_group_gets_a_signal_as_a_whole() -> None:
    with subprocess.Popen(
        ["sh", "-c", "sleep 1000 & echo; wait"], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"\n"
        signal_group(process.pid, signal.SIGTERM)
        assert process.stdout.read() == b""  # the end comes when the child, too, is gone
    assert process.returncode == -signal.SIGTERM


def test_a_child_that_was_reaped_gets_no_signal(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    sleeper.wait()
    signal_group(sleeper.pid, signal.SIGTERM)


def test_a_child_that_leads_no_group_yet_gets_the_signal_alone(sleeper: subprocess.Popen[bytes]) -> None:
    signal_group(sleeper.pid, signal.SIGTERM)  # which would end this test, too, if it went to the child's group
    assert sleeper.wait() == -signal.SIGTERM
