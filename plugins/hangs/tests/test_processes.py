"""Resources that real processes have used."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from wardens import wait_until

from elastic_core.host import run_nanoseconds, stat_fields, waits_in
from elastic_hangs.watch import bytes_written, thread_nanoseconds, uses_of

BUSY = """
import threading
def compute():
    while True:
        pass
if {in_thread}:
    threading.Thread(target=compute, daemon=True).start()
    threading.Event().wait()
compute()
"""


@pytest.mark.parametrize("in_thread", [False, True])
def test_how_long_threads_have_run_is_known(in_thread: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY.format(in_thread=in_thread)]) as process:
        assert wait_until(lambda: thread_nanoseconds(process.pid) > 10**9)
        main = run_nanoseconds(process.pid)
        assert (main < 10**9 / 2) if in_thread else (main > 10**9 / 2)
        process.kill()
    assert run_nanoseconds(process.pid) == thread_nanoseconds(process.pid) == 0


def test_bytes_that_a_process_writes_are_counted() -> None:
    command = ["sh", "-c", "read line; echo hello; read line"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        before = bytes_written(process.pid)
        process.stdin.write(b"go\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"hello\n"
        # The kernel counts after it has passed the bytes on.
        assert wait_until(lambda: bytes_written(process.pid) == before + 6)
    assert bytes_written(process.pid) == 0


def test_a_process_that_waits_in_the_kernel_uninterruptibly_is_counted() -> None:
    clone = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine)
    if clone is None:
        pytest.skip("the number of clone(2) is not known for this architecture")
    vfork = 0x4000 | 0x100 | signal.SIGCHLD  # CLONE_VFORK, CLONE_VM: its caller waits, in state D, for the child
    text = f"import ctypes, time; ctypes.PyDLL(None).syscall({clone}, {vfork}, 0, 0, 0, 0) or time.sleep(100)"
    with subprocess.Popen([sys.executable, "-c", text], start_new_session=True) as process:
        try:
            blocked = wait_until(lambda: uses_of([process.pid])[process.pid].blocked == 1)
            assert blocked, f"exit code {process.poll()}, {stat_fields(process.pid)[:2]} {waits_in(process.pid)}"
            assert uses_of([os.getpid()])[os.getpid()].blocked >= 1
        finally:
            os.killpg(process.pid, signal.SIGKILL)
