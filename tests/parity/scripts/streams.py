"""Writes a line to both streams from Python, from a child and from C, which keeps it in a buffer of its own."""

import ctypes
import os
import sys

rank = os.environ["RANK"]
libc = ctypes.CDLL(None)
for stream, name in ((sys.stdout, "stdout"), (sys.stderr, "stderr")):
    print(f"python, {name} of {rank}", file=stream)
    os.system(f"echo child, {name} of {rank} >&{stream.fileno()}")
    libc.fprintf(ctypes.c_void_p.in_dll(libc, name), f"C, {name} of {rank}\n".encode())
