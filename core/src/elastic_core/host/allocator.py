"""The memory allocator of the C library."""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8  # of glibc's malloc.h; other libraries take another number or none, and ignore this one


def use_one_arena() -> None:
    """Have the threads that start from now on share one arena.

    glibc gives each its own, whose free memory no other thread uses: 2 MB in an agent, which has about 15 threads and
    seldom runs two at once. Not for a process that runs other code too.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
