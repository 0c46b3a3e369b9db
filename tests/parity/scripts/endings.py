"""Ways to end: each life ends in the way that its place among the arguments names.

A job in which every life fails goes through the names by restarts (``lives``); one in which all succeed, by ranks
(``ranks``).
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import io
import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from tell import LIFE, RANK, tell


class OfItsOwn(Exception):
    """An exception of the main program."""


class Leaving:
    """Says when it is collected."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __del__(self) -> None:
        print("collected", self.name, "while finalizing", sys.is_finalizing())


def fail() -> NoReturn:
    raise OfItsOwn("three layers", 3)


def leave_with(code: Any) -> Callable[[], NoReturn]:
    return lambda: sys.exit(code)


def send(signum: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), signum)


def chained() -> NoReturn:
    try:
        fail()
    except OfItsOwn as exc:
        try:
            raise KeyError("on the way") from exc
        except KeyError:
            raise RuntimeError("in the end\nof all")  # noqa: B904 # both kinds of chain are to be seen


def recursion() -> None:
    recursion()


def hook_of_its_own() -> NoReturn:
    def hook(kind: type[BaseException], exc: BaseException, where: TracebackType | None) -> None:
        depth = 0
        while where is not None:
            depth, where = depth + 1, where.tb_next
        print("hook", kind.__name__, exc, depth, "frames", file=sys.stderr)

    sys.excepthook = hook
    fail()


def hook_that_fails() -> NoReturn:
    def hook(*_: object) -> None:
        raise ValueError("in the hook")

    sys.excepthook = hook
    fail()


def exit_in_finally() -> None:
    try:
        fail()
    finally:
        print("finally")
        sys.exit(9)


def register_two() -> None:
    atexit.register(print, "registered first")
    atexit.register(lambda: print("registered last, finalizing", sys.is_finalizing()))


def exit_after_registering() -> NoReturn:
    register_two()
    fail()


def os_exit_after_registering() -> NoReturn:
    register_two()
    os._exit(5)


def failing_exit_handler() -> None:
    register_two()
    atexit.register(fail)


def broken_pipe() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    os.dup2(writing, 1)
    print("nobody reads this")


def broken_pipe_at_the_end() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    sys.stdout = io.TextIOWrapper(os.fdopen(writing, "wb"))
    print("nobody reads this")


def segmentation_fault() -> None:
    ctypes.string_at(0)


def dumped() -> None:
    faulthandler.dump_traceback(all_threads=False)


def collected_at_the_end() -> None:
    globals()["last"] = Leaving("a global")
    cycle: list[object] = [Leaving("in a cycle")]
    cycle.append(cycle)


def failing_destructor() -> None:
    class Failing:
        def __del__(self) -> None:
            fail()

    Failing()


def in_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def thread_hook_of_its_own() -> None:
    threading.excepthook = lambda args: print("hook", args.exc_type.__name__, args.thread and args.thread.name)
    in_thread(fail)


def unraisable_hook_of_its_own() -> None:
    sys.unraisablehook = lambda args: print("hook", args.exc_type.__name__)
    failing_destructor()


def thread_that_outlives_main() -> None:
    def wait() -> None:
        threading.main_thread().join()
        print("after the main thread")
        tell(outlived=True)

    threading.Thread(target=wait).start()


def daemon_thread() -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def unwritten() -> None:
    globals()["left_open"] = os.fdopen(os.dup(1), "w")
    globals()["left_open"].write("written while everything ends\n")


def unwritten_of_a_module() -> None:
    vars(json)["left_open"] = os.fdopen(os.dup(1), "w")
    vars(json)["left_open"].write("written while a preloaded module goes\n")


def stdout_of_its_own() -> None:
    sys.stdout = io.TextIOWrapper(os.fdopen(os.dup(1), "wb"), encoding="utf-8")
    print("still in a buffer", end="")


def warned() -> None:
    warnings.warn("once", UserWarning, stacklevel=1)
    warnings.warn("and deprecated", DeprecationWarning, stacklevel=1)


FAILURES: dict[str, Callable[[], object]] = {
    "exit 3": leave_with(3),
    "exit 256 and 3": leave_with(259),
    "exit -1": leave_with(-1),
    "exit beyond int": leave_with(2**70),
    "exit text": leave_with("a reason — of its own"),
    "exit True": leave_with(True),
    "exit list": leave_with([1, "two"]),
    "exit exception": leave_with(OfItsOwn("as a value")),
    "exit in finally": exit_in_finally,
    "exit while registered": exit_after_registering,
    "os._exit": os_exit_after_registering,
    "exception": fail,
    "chained": chained,
    "recursion": recursion,
    "hook": hook_of_its_own,
    "hook that fails": hook_that_fails,
    "KeyboardInterrupt": lambda: signal.raise_signal(signal.SIGINT),
    "SIGTERM": send(signal.SIGTERM),
    "SIGHUP": send(signal.SIGHUP),
    "SIGKILL": send(signal.SIGKILL),
    "segmentation fault": segmentation_fault,
    "abort": os.abort,
    "broken pipe": broken_pipe,
    "broken pipe at the end": broken_pipe_at_the_end,
}
SUCCESSES: dict[str, Callable[[], object]] = {
    "end": lambda: None,
    "exit None": leave_with(None),
    "exit 0": leave_with(0),
    "exit False": leave_with(False),
    "exit 256": leave_with(256),
    "exit handlers": register_two,
    "failing exit handler": failing_exit_handler,
    "collected": collected_at_the_end,
    "destructor": failing_destructor,
    "thread": lambda: in_thread(fail),
    "thread exits": lambda: in_thread(leave_with(4)),
    "thread hook": thread_hook_of_its_own,
    "unraisable hook": unraisable_hook_of_its_own,
    "thread outlives main": thread_that_outlives_main,
    "daemon thread": daemon_thread,
    "unwritten file": unwritten,
    "unwritten file of a module": unwritten_of_a_module,
    "own stdout": stdout_of_its_own,
    "warnings": warned,
    "dump": dumped,
}

if __name__ == "__main__":
    by, *names = sys.argv[1:]
    chosen = names[LIFE if by == "lives" else RANK]
    tell(chosen=chosen)
    (FAILURES if by == "lives" else SUCCESSES)[chosen]()
