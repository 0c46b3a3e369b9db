"""The worker's part where no NCCL group answers: a thread that writes a dump when the agent asks for one."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

import torch

from elastic_torch.flight_recorder.plugin import FILES, PIPE


def answer_requests() -> bool:
    """Begin to answer, once in a process; return whether it does.

    It does not where no agent asks, where torch has no recorder for this kind of group, or where a group answers by
    itself, which has made the pipe then. The thread takes the interpreter's lock, so a rank that holds it in native
    code does not answer.
    """
    pipe_prefix, file_prefix = os.environ.get(PIPE), next(filter(None, map(os.environ.get, FILES)), None)
    rank = os.environ.get("RANK", "0")
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace", None)
    if not pipe_prefix or not file_prefix or dump is None:
        return False
    pipe, file = f"{pipe_prefix}{rank}.pipe", f"{file_prefix}{rank}"
    try:
        os.mkfifo(pipe, 0o600)
        descriptor = os.open(pipe, os.O_RDWR | os.O_CLOEXEC)  # for writing too, or a reader finds its end at once
    except OSError:
        return False
    threading.Thread(target=_serve, args=(descriptor, file, dump), name="elastic-flight-recorder", daemon=True).start()
    return True


def _serve(descriptor: int, file: str, dump: Callable[..., bytes]) -> None:
    while os.read(descriptor, 4096):
        with contextlib.suppress(Exception):  # a full disk, or a recorder that another version of torch changed
            content = dump(includeStackTraces=False)  # with them it imports half of torch, which takes many seconds
            with open(f"{file}.part", "wb") as part:
                part.write(content)
            os.replace(f"{file}.part", file)
