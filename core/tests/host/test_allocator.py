from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys, threading
from elastic_core.host.own_process import use_one_arena

if sys.argv[1] == "one":
    use_one_arena()
allocated = threading.Barrier(5)
seen = threading.Event()

def allocate():
    kept = bytearray(10_000)
    allocated.wait()
    seen.wait()

threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
allocated.wait()
libc = ctypes.CDLL(None)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
seen.set()
"""


@pytest.mark.parametrize(("arenas", "count"), [("each", 5), ("one", 1)])
def test_threads_share_an_arena_once_told_to(arenas: str, count: int) -> None:
    command = [sys.executable, "-c", PROGRAM, arenas]
    described = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert described.count("<heap nr=") == count
