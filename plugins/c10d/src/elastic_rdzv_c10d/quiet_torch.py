"""The one place that imports torch: on a single thread, and leaving the agent's environment as it was.

On a single thread, because the store's process is forked afterwards, and a fork takes along only
the thread that called it. The environment stays as it was because every worker inherits it.

A program that launches from Python may have imported torch before. Its C++ log level is set here then.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
_FATAL = 3


@contextmanager
def _environment_for_import() -> Iterator[None]:
    """Set the variables that torch reads when it is loaded, and never again."""
    before = dict(os.environ)
    # An extension module that is being loaded can swallow a KeyboardInterrupt, and then Ctrl-C was pressed in vain.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.environ.update(ONE_THREAD)
    # Else every wait that times out, which most do, is two lines of warnings, and a lost store is a C++ backtrace.
    os.environ.setdefault(LOG_LEVEL, "FATAL")
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _log_fatal_errors_only() -> None:
    """Set the level of a torch that was loaded before this module, unless the user has set it.

    The level is a variable of torch's library, and nothing in Python sets it. Where a build of torch has no such
    variable, the warnings stay.
    """
    file = sys.modules["torch"].__file__
    if LOG_LEVEL in os.environ or file is None:
        return
    with suppress(OSError, ValueError):
        library = ctypes.CDLL(str(Path(file).parent / "lib" / "libc10.so"))
        ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level").value = _FATAL


if "torch" in sys.modules:
    _log_fatal_errors_only()
with _environment_for_import():
    from torch._C._distributed_c10d import TCPStore  # where it is documented, torch.distributed, does not export it
    from torch.distributed import DistNetworkError, DistStoreError

__all__ = ["DistNetworkError", "DistStoreError", "TCPStore"]
