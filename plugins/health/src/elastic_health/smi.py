"""Runs ``nvidia-smi`` with a limit of time, also where the driver is stuck.

A process in an uninterruptible sleep (state D) does not end by SIGKILL, so its end is not waited for:
``subprocess.run`` with a ``timeout`` would.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import BinaryIO

REAP_MAX_SECONDS = 1.0  # for the end of a process after SIGKILL


def ask_smi(command: Sequence[str], limit: float) -> subprocess.CompletedProcess[str]:
    """Run a command for ``limit`` seconds at most, and return what it wrote.

    Raises:
        subprocess.TimeoutExpired: It has not ended in time; it was killed, and may still be there.
        OSError: It cannot be run.
    """
    with _in_memory() as out, _in_memory() as err:  # the end of a pipe might never come
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(REAP_MAX_SECONDS)
            raise
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return subprocess.CompletedProcess(list(command), process.returncode, *texts)


def _in_memory() -> BinaryIO:
    return open(os.memfd_create("nvidia-smi"), "w+b")
