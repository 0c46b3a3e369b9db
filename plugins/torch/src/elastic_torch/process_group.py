"""``init_process_group()``: torch's, from a worker's environment, and its end.

It works under any launcher with torchrun's environment. Under ``elastic run`` the agent is told that the group is
there, which counts as progress of the round.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from elastic_core.errors import UsageError
from elastic_core.worker import INITIALIZED, report
from elastic_torch.flight_recorder.plugin import answer_requests

PATIENCE = timedelta(minutes=10)
"""The time that a collective waits. Agents notice lost peers within seconds, so this is for peers that hang."""
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def init_process_group(backend: str | None = None, *, timeout: timedelta | float | None = None, **options: Any) -> None:
    """Join the workers of this round, by ``torch.distributed.init_process_group`` with ``env://``.

    The group is destroyed at the end of the program, unless an exception ends it: then its peers have to learn of that,
    and not to wait for a farewell.

    Args:
        backend: torch's name of it; nccl where this worker has a GPU, which becomes its current device, and gloo else.
        timeout: Seconds, or a timedelta, that a collective waits for its peers; ten minutes by default.
        options: Passed on to torch.

    Raises:
        UsageError: This process is no worker of a launcher, or has no GPU of its own.
    """
    if "store" not in options and (missing := [name for name in _NEEDED if name not in os.environ]):
        raise UsageError(
            f"This process is no worker: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set.",
            hint="Start the script with: elastic run SCRIPT",
        )
    if backend is None:
        backend = "nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    if "nccl" in backend:
        torch.cuda.set_device(device_index(os.environ, torch.cuda.device_count()))
    if timeout is not None and not isinstance(timeout, timedelta):
        timeout = timedelta(seconds=timeout)
    if "store" not in options:
        options.setdefault("init_method", "env://")
    dist.init_process_group(backend, timeout=timeout or PATIENCE, **options)
    atexit.unregister(_leave)  # last in, first out: it comes before what was registered until now
    atexit.register(_leave)
    answer_requests()
    report(INITIALIZED)


def device_index(environ: Mapping[str, str], count: int) -> int:
    """Return a worker's GPU of ``count``: its local rank's, or the only one; raise UsageError if it has none."""
    local_rank = int(environ.get("LOCAL_RANK", "0"))
    if local_rank < count:
        return local_rank
    if count == 1 and "CUDA_VISIBLE_DEVICES" in environ:
        return 0  # each worker was given its own
    raise UsageError(
        f"LOCAL_RANK is {local_rank}, and this worker sees {count} GPU(s): there is none for it.",
        hint="Start no more workers than GPUs (--nproc_per_node=gpu), or choose init_process_group('gloo').",
    )


def _leave() -> None:
    """Destroy the group, without waiting for those who will never come."""
    if not dist.is_initialized():
        return
    if dist.get_backend() == "gloo":
        # Where DDP has the last reference, the group's destructor joins threads that may want the interpreter's lock
        # from the one who joins them (torch 2.13). So one reference stays until the process is gone.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))
    error = getattr(sys, "last_value", None)
    trace = getattr(error, "__traceback__", None)  # of one that ended the program it begins at the bottom of the stack
    if error is None or isinstance(error, KeyboardInterrupt) or (trace is not None and trace.tb_frame.f_back):
        dist.destroy_process_group()
