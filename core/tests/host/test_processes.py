"""Real processes, as ``/proc`` shows them: who descends from whom, and what is known of one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic_core.host.processes import descendants, name_of, waits_in
from elastic_core.warden.linux import kill

PYTHON = (sys.executable, "-I", "-S", "-c")
NOBODY = 2**22 + 1
"""Greater than any process id."""


def pids(root: int) -> list[int]:
    return [pid for pid, _ in descendants(root)]


def test_descendants_are_listed_parents_before_children() -> None:
    chain = """
import os
for _ in range(3):
    if os.fork():
        break
else:
    os.write(1, b"ready")
os.read(0, 1)
"""
    with subprocess.Popen([*PYTHON, chain], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(5) == b"ready"
        family = pids(process.pid)
        assert len(family) == 3
        assert [pids(pid) for pid in family] == [family[1:], family[2:], []]
        assert set(family) < set(pids(os.getpid()))


@pytest.mark.parametrize("root", ["childless", "nobody"])
def test_a_process_without_children_has_no_descendants(sleeper: subprocess.Popen[bytes], root: str) -> None:
    assert descendants(sleeper.pid if root == "childless" else NOBODY) == []


def test_a_process_that_has_ended_is_no_descendant_even_before_it_is_reaped() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process.pid not in pids(os.getpid())


def test_a_process_whose_main_thread_alone_has_ended_still_runs() -> None:
    """It looks like a zombie, and its other threads may hold a GPU."""
    script = """
import ctypes, os, threading
def wait():
    while os.read(0, 1): pass
    os._exit(0)
main = f"/proc/self/task/{os.getpid()}/stat"
def watch():
    while open(main).read().rpartition(")")[2].split()[0] != "Z": pass
    os.write(1, b"ready")
    wait()
threading.Thread(target=watch).start()
ctypes.CDLL(None).pthread_exit(None)
"""
    with subprocess.Popen([*PYTHON, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(5) == b"ready"
        assert process.pid in pids(os.getpid())
        assert kill(next(one for one in descendants(os.getpid()) if one[0] == process.pid))
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("name", ["a b", ") R 1 (", "))) Z 1", "(x\ny)", "ü\\)"])
def test_a_process_may_have_any_name(tmp_path: Path, name: str) -> None:
    program = tmp_path / name
    program.write_text("#!/bin/sh\necho\nread line\n")
    program.chmod(0o755)
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"\n"
        assert process.pid in pids(os.getpid())
        assert name_of(process.pid) == name


@pytest.mark.parametrize("tell", [name_of, waits_in])
def test_nothing_is_told_of_a_process_that_is_gone(tell: Callable[[int], str]) -> None:
    assert tell(NOBODY) == ""


def test_the_kernels_function_in_which_a_process_waits_is_a_plain_name(sleeper: subprocess.Popen[bytes]) -> None:
    where = waits_in(sleeper.pid)
    assert where == "" or where.isidentifier()  # '' where the kernel keeps it to itself
