"""State that libraries set up when they are imported, and a fork would share, and the probe of torch's process group.

Libraries that are not imported are not touched, and no library is imported here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

WHILE_IMPORTING = {
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # torch counts devices without CUDA, which no fork survives
    "OPENBLAS_NUM_THREADS": "1",  # no fork gets its threads; each worker starts them itself
}
"""Additional variables of the fork server while it imports."""
CACHE = "TORCHINDUCTOR_CACHE_DIR"
_OPENBLAS = re.compile(r"/\S*openblas\S*\.so\S*$")
_SETTERS = tuple(
    f"{prefix}openblas_set_num_threads{suffix}" for prefix in ("", "scipy_") for suffix in ("", "64_", "_64")
)
"""The names of this function in distributions of OpenBLAS, as threadpoolctl has them."""


@contextlib.contextmanager
def without_empty_cache() -> Iterator[None]:
    """Import in here, and then remove the folder that ``torch._dynamo`` makes for compiled code when it is imported.

    Many programs compile nothing, and the others make it again. A folder that is older, not empty or named by the user
    stays.
    """
    named, began = CACHE in os.environ, time.time()
    yield
    if named or CACHE not in os.environ:  # torch sets the variable when it makes the folder
        return
    with contextlib.suppress(OSError):  # it is in use
        if os.stat(os.environ[CACHE]).st_mtime >= began:
            os.rmdir(os.environ[CACHE])


class Libraries:
    """Functions of libraries that were found in the fork server, so that its forks need not look for them."""

    def __init__(self) -> None:
        self._blas = [setter for path in _mapped_openblas() if (setter := _setter(path)) is not None]

    def renew(self, environment: Mapping[str, str]) -> None:
        """In a worker: set libraries as an import in this environment would. :mod:`random` does so by itself."""
        threads = openblas_threads(environment, len(os.sched_getaffinity(0)))
        for set_threads in self._blas if threads > 1 else ():
            set_threads(threads)
        if (numpy_random := sys.modules.get("numpy.random")) is not None:
            numpy_random.seed()
        if (torch := sys.modules.get("torch")) is not None:
            torch.random.default_generator.seed()  # not torch.seed, which also seeds devices
        if (process := sys.modules.get("multiprocessing.process")) is not None:
            process.current_process().authkey = os.urandom(32)


def objection() -> str | None:
    """In a worker: return why it must be started fresh, which cannot be seen before the fork; None if not."""
    for name in ("torch.cuda", "torch.xpu"):
        module = sys.modules.get(name)
        if module is not None and getattr(module, "_is_in_bad_fork", bool)():
            return f"what was preloaded has asked {name} for devices, which a fork cannot use then"
    return None


def openblas_threads(environment: Mapping[str, str], cpus: int) -> int:
    """Return OpenBLAS' number of threads in this environment (``blas_get_cpu_number`` in its ``driver/others``)."""
    for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"):
        number = re.match(r"\s*\+?(\d+)", environment.get(name, ""))  # as atoi
        if number and int(number[1]) > 0:
            return min(int(number[1]), cpus)
    return cpus


def _mapped_openblas() -> list[str]:
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        return sorted({found[0] for line in file if (found := _OPENBLAS.search(line.rstrip("\n")))})


def _setter(path: str) -> Callable[[int], Any] | None:
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None
    return next((found for name in _SETTERS if (found := getattr(library, name, None)) is not None), None)


COUNTER_HOME, COUNTER = "torch.distributed.c10d_logger", "_WaitCounter"
"""The module and the name of the counter's class, as the decorator finds it. A torch without it is not watched."""
COUNTED_CALL = "pytorch.wait_counter.c10d.init_process_group"


def watch_process_group(tell: Callable[[], object]) -> None:
    """Call ``tell`` once, as soon as a call of ``init_process_group`` has succeeded. Without torch nothing happens."""
    home = sys.modules.get(COUNTER_HOME)
    make = getattr(home, COUNTER, None)
    if make is None:
        return

    def on_success() -> None:
        setattr(home, COUNTER, make)
        tell()

    def make_watched(name: str) -> Any:
        return _Counter(make(name), on_success) if name == COUNTED_CALL else make(name)

    setattr(home, COUNTER, make_watched)


class _Counter:
    """torch's counter and its guard; calls ``on_success`` when the guard is left without an exception."""

    def __init__(self, counter: Any, on_success: Callable[[], None]) -> None:
        self._guard: Any = counter.guard()
        self._on_success = on_success

    def guard(self) -> _Counter:
        """Return the context manager of the call."""
        return self

    def __enter__(self) -> None:
        self._guard.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._guard.__exit__(kind, error, at)
        if kind is None:
            self._on_success()
