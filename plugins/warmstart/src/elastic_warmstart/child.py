"""Turns a fork of the fork server into the requested worker: streams, environment, arguments, CPUs, ``__main__``.

The rest is as in a fresh interpreter; the package's docstring says why.
"""

from __future__ import annotations

import os
import signal
import sys
import types
import warnings
from collections.abc import Mapping
from typing import Any

from elastic_core.warden import Message, take_descriptors, volunteer_for_oom


def become(request: Message, given: Mapping[str, int], environment: Mapping[str, str]) -> None:
    """Take over the requested streams (as copies of the descriptors), environment, arguments and CPUs, without waiting.

    Raises:
        OSError: A copy cannot be made, or the CPUs do not exist.
    """
    replace_environment(environment)
    take_descriptors(given, os.environ)
    for number, stream in enumerate((sys.__stdin__, sys.__stdout__, sys.__stderr__)):
        if stream is not None:
            renew(stream, number)
    argv = request["argv"]
    count = len(sys.argv) - 1
    sys.argv[1:] = argv[len(sys.orig_argv) - count :]
    sys.orig_argv[:] = argv
    renew_main(dynamic_alias="-c" in sys.orig_argv)
    if (threading := sys.modules.get("threading")) is not None:
        threading.main_thread()._set_native_id()  # before Python 3.13 a fork keeps its parent's
    volunteer_for_oom()
    for signum in request["ignored"]:
        signal.signal(signum, signal.SIG_IGN)
    if request["cpus"] is not None:
        os.sched_setaffinity(0, request["cpus"])


def fork() -> int:
    """``os.fork`` without the warning about a second thread (Python 3.12), which the checks look for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


class _Alias(types.ModuleType):
    """The present main program: ``runpy.run_path`` puts another module there later."""

    def __getattr__(self, name: str) -> object:
        return getattr(sys.modules["__main__"], name)


def renew_main(*, dynamic_alias: bool) -> None:
    """Give the program a new module: the fork server's is frozen, and would never be cleared at the end.

    A preloaded module may have given it a second name (multiprocessing does), by which children look for its classes.
    """
    main = types.ModuleType("__main__")
    vars(main).update(vars(sys.modules["__main__"]))
    sys.modules["__main__"] = main
    if "__mp_main__" in sys.modules:
        sys.modules["__mp_main__"] = _Alias("__mp_main__") if dynamic_alias else main


def replace_environment(environment: Mapping[str, str]) -> None:
    """Make this the whole environment, also the C library's."""
    os.environ.clear()
    os.environ.update(environment)


def renew(stream: Any, number: int) -> None:
    """Make a standard stream anew over its descriptor, which is another file now, as ``create_stdio`` in CPython does.

    It stays the same object, since preloaded code may refer to it, as a log handler does.
    """
    encoding, errors, write_through = stream.encoding, stream.errors, stream.write_through
    old = getattr(stream.buffer, "raw", stream.buffer)
    buffer: Any = open(number, old.mode, 0 if old is stream.buffer else -1, closefd=False)  # noqa: SIM115  (it stays)
    raw = getattr(buffer, "raw", buffer)
    raw.name = old.name
    stream.__init__(
        buffer,
        encoding=encoding,
        errors=errors,
        newline="\n",
        line_buffering=not write_through and (raw.isatty() or number == 2),
        write_through=write_through,
    )
