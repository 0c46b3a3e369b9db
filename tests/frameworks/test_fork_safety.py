"""The threads that a fork server may have: forks without them allocate and free memory, whatever the threads did."""

from __future__ import annotations

import os
import subprocess
import sys

from elastic_warmstart.checks import FORK_SAFE_THREADS

FORKS = """
import os, signal
import pyarrow
def threads():
    names = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as file:
            names.append(file.read().strip())
    return sorted(names)
pool = pyarrow.jemalloc_memory_pool()
def churn():
    for size in (100, 5000, 1 << 16, 1 << 20, 8 << 20):
        kept = [pyarrow.allocate_buffer(size, memory_pool=pool) for _ in range(20)]
        del kept[::2]
        more = [pyarrow.allocate_buffer(2 * size, memory_pool=pool) for _ in range(10)]
churn()
print(threads())
for _ in range(200):
    churn()  # so that the thread has memory to give back
    if (pid := os.fork()) == 0:
        signal.alarm(60)
        churn()
        os._exit(len(threads()) != 1)
    assert os.waitpid(pid, 0)[1] == 0
"""


def test_jemallocs_thread_may_be_missing_in_a_fork() -> None:
    """The fork handlers of jemalloc take its locks before a fork, and renew them in the child."""
    done = subprocess.run(
        [sys.executable, "-c", FORKS],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    [name] = FORK_SAFE_THREADS
    assert name in done.stdout
