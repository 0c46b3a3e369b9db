"""Everything about a process that the script in it can see, in groups; each fact is JSON, and the same in every run."""

from __future__ import annotations

import builtins
import codecs
import contextlib
import ctypes
import fcntl
import gc
import importlib
import inspect
import locale
import logging
import multiprocessing
import os
import pickle
import random
import re
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import tracemalloc
import typing
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tell import tell

LIBC = ctypes.CDLL(None)
LIBC.getenv.restype = ctypes.c_char_p
SIGNAL_SETS = ("SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt")
OWN = {"Pid", "PPid", "Tgid", "Ngid", "NStgid", "NSpid", "NSpgid", "NSsid", *SIGNAL_SETS}
"""Lines of ``/proc/self/status`` that only number the process, or are told elsewhere."""
MEMORY = ("Vm", "Rss", "Hugetlb", "FDSize", "Untag", "voluntary", "nonvoluntary", "SigQ", "Mems_allowed")
"""The prefixes of names that measure it, or list the machine."""
PRCTL = {"death signal": 2, "subreaper": 37}
"""Those of prctl's questions that write their answer where they are told."""


def program(main: Any) -> dict[str, Any]:
    spec = main.__spec__
    return {
        "name": main.__name__,
        "keys": list(vars(main)),
        "types": {key: type(value).__name__ for key, value in vars(main).items()},
        "repr": repr(main),
        "file": main.__file__,
        "package": main.__package__,
        "doc": main.__doc__,
        "cached": getattr(main, "__cached__", "(nothing)"),
        "loader": repr(main.__loader__),
        "spec": None if spec is None else {name: repr(value) for name, value in sorted(vars(spec).items())},
        "builtins": type(main.__builtins__).__name__,
        "is imported as": importlib.import_module("__main__") is main,
        "is what multiprocessing knows": sys.modules["__mp_main__"].__file__ == main.__file__,
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
    }


def paths(main: Any) -> dict[str, Any]:
    import neighbour

    return {
        "path": sys.path,
        "cwd": os.getcwd(),
        "executable": sys.executable,
        "prefixes": [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix],
        "neighbour": neighbour.__file__,
        "reloaded": importlib.reload(neighbour).WHERE,
        # A warm worker has two more: one records its imports, and one finds names that elastic-torchrun adds.
        "finders": [
            repr(finder)
            for finder in sys.meta_path
            if type(finder).__module__ not in ("elastic_core", "elastic_warmstart.learned_imports")
        ],
        "hooks": [getattr(hook, "__qualname__", repr(hook)) for hook in sys.path_hooks],
        "pycache_prefix": sys.pycache_prefix,
        "temporary": tempfile.gettempdir(),
    }


def interpreter(main: Any) -> dict[str, Any]:
    return {
        "flags": repr(sys.flags),
        "options": sys._xoptions,
        "warnings": sys.warnoptions,
        "filters": [[str(part) for part in entry] for entry in warnings.filters],
        "warns": [category.__name__ for category in (UserWarning, DeprecationWarning) if _raises(category)],
        "recursion limit": sys.getrecursionlimit(),
        "switch interval": sys.getswitchinterval(),
        "dlopen flags": sys.getdlopenflags(),
        "longest number": getattr(sys, "get_int_max_str_digits", lambda: None)(),
        "writes bytecode": not sys.dont_write_bytecode,
        "hash": hash("x") if os.environ.get("PYTHONHASHSEED") else None,
        "gc": [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks)],
        "traces memory": tracemalloc.is_tracing(),
        "faulthandler": importlib.import_module("faulthandler").is_enabled(),
        "at exit": importlib.import_module("atexit")._ncallbacks(),
        "builtins": sorted(vars(builtins)),
        "hooks": {
            name: getattr(sys, name) is getattr(sys, f"__{name}__")
            for name in ("excepthook", "unraisablehook", "displayhook", "breakpointhook")
        },
        "thread hook": threading.excepthook is getattr(threading, "__excepthook__", None),
        "tracers": [repr(sys.gettrace()), repr(sys.getprofile()), sys.get_coroutine_origin_tracking_depth()],
        "leftovers": [name for name in ("last_value", "last_exc", "ps1", "tracebacklimit") if hasattr(sys, name)],
        "handled": repr(sys.exc_info()),
        "log": [logging.root.level, repr(logging.root.handlers), sorted(logging.root.manager.loggerDict)],
    }


def stack(main: Any) -> dict[str, Any]:
    frame = sys._getframe()
    frames = []
    while frame is not None:
        frames.append(f"{frame.f_code.co_name} in {frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment] # until there is none
    return {"frames": frames, "inspected": len(inspect.stack()), "printed": traceback.format_stack()}


def text(main: Any) -> dict[str, Any]:
    return {
        "locale": locale.setlocale(locale.LC_ALL, None),
        "preferred": locale.getpreferredencoding(False),
        "files": [sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()],
        "default": sys.getdefaultencoding(),
        "strict": repr(codecs.lookup_error("strict")),
        "time zone": time.tzname,
        "streams": {name: _stream(getattr(sys, name), getattr(sys, f"__{name}__")) for name in STREAMS},
        "input": _outcome(input),
    }


STREAMS = ("stdin", "stdout", "stderr")


def _stream(stream: Any, original: Any) -> dict[str, Any]:
    names = ["name", "mode", "encoding", "errors", "line_buffering", "write_through", "newlines", "closed"]
    binary = stream.buffer
    raw = getattr(binary, "raw", binary)
    return {
        **{name: getattr(stream, name, "(nothing)") for name in names},
        "is the original": stream is original,
        "fileno": stream.fileno(),
        "terminal": stream.isatty(),
        "seekable": [stream.seekable(), raw.seekable(), _outcome(stream.tell)],
        "types": [type(part).__name__ for part in (stream, binary, raw)],
        "names": [getattr(part, "name", "(nothing)") for part in (stream, binary, raw)],
        "raw": [raw.mode, raw.closefd],
    }


def descriptors(main: Any) -> dict[str, Any]:
    """Each with its kind, its place if it has one that counts, and its flags; the listing's own is gone by then."""
    control = os.environ.get("ELASTIC_CONTROL_FD")
    found: dict[str, Any] = {}
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        with contextlib.suppress(OSError):
            kind = re.sub(r"\[\d+\]", "[N]", os.readlink(f"/proc/self/fd/{name}"))
            flags = [fcntl.fcntl(int(name), fcntl.F_GETFL), os.get_inheritable(int(name))]
            known = "control" if name == control else name if int(name) < 3 else f"other {len(found)}"
            found[known] = [kind, stat.filemode(os.fstat(int(name)).st_mode), *flags]
    return found


TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


def signals(main: Any) -> dict[str, Any]:
    status = _status()
    return {
        "handlers": {signum.name: repr(signal.getsignal(signum)) for signum in signal.Signals},
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "kernel": {name: status[name] for name in SIGNAL_SETS},
        "wakeup": _wakeup(),
        "timers": [signal.getitimer(timer) for timer in TIMERS],
        "interrupt": _outcome(lambda: signal.raise_signal(signal.SIGINT)),
    }


def _wakeup() -> int:
    descriptor = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(descriptor)
    return descriptor


LIMITS = [name for name in dir(resource) if name.startswith("RLIMIT_")]


def process(main: Any) -> dict[str, Any]:
    status, pid = _status(), os.getpid()
    answers = {}
    for name, question in PRCTL.items():
        LIBC.prctl(question, ctypes.byref(answer := ctypes.c_int(-1)), 0, 0, 0)
        answers[name] = answer.value
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "leads": [os.getsid(0) == pid, os.getpgid(0) == pid],
        "parent": _read(f"/proc/{os.getppid()}/comm"),
        "name": _read("/proc/self/comm"),
        "oom": _read("/proc/self/oom_score_adj"),
        "personality": _read("/proc/self/personality"),
        "cgroup": _read("/proc/self/cgroup"),
        "kernel": {n: value for n, value in status.items() if n not in OWN and not n.startswith(MEMORY)},
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "scheduler": [os.sched_getscheduler(0), sorted(os.sched_getaffinity(0))],
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in LIMITS},
        "prctl": {**answers, "dumpable": LIBC.prctl(3), "keeps": LIBC.prctl(7), "slack": LIBC.prctl(30)},
        "children": [_outcome(lambda: os.waitpid(-1, os.WNOHANG)), used.ru_utime, used.ru_maxrss],
    }


def threads(main: Any) -> dict[str, Any]:
    first = threading.main_thread()
    return {
        "all": [[thread.name, type(thread).__name__, thread.daemon] for thread in threading.enumerate()],
        "first": [first.name, first.ident == threading.get_ident(), first.native_id == os.getpid()],
        "current": threading.current_thread() is first,
        "stack size": threading.stack_size(),
        "kernel": len(os.listdir("/proc/self/task")),
        "next": threading.Thread().name,
    }


def environment(main: Any) -> dict[str, Any]:
    inherited = subprocess.run(["env", "-0"], stdout=subprocess.PIPE, check=True, close_fds=False).stdout
    return {
        "python": dict(os.environ),
        "c": {name: (LIBC.getenv(name.encode()) or b"(nothing)").decode() for name in os.environ},
        "inherited": dict(entry.split("=", 1) for entry in inherited.decode().split("\0") if entry),
    }


def language(main: Any) -> dict[str, Any]:
    point = main.Point(3)
    return {
        "source": inspect.getsource(main.double),
        "class source": inspect.getsource(main.Point),
        "defined in": [inspect.getsourcefile(main.double), inspect.getmodule(main.double) is main],
        "class": [repr(main.Point), main.Point.__module__, repr(point)],
        "hints": repr(typing.get_type_hints(main.Point)),
        "pickled": [pickle.loads(pickle.dumps(thing)) == thing for thing in (point, main.Point, main.double)],
        "pickle": repr(pickle.dumps(point, protocol=4)),
    }


def libraries(main: Any) -> dict[str, Any]:
    current = multiprocessing.current_process()
    random.seed(7)
    return {
        "multiprocessing": [
            current.name,
            current.daemon,
            repr(multiprocessing.parent_process()),
            multiprocessing.get_start_method(allow_none=True),
            repr(multiprocessing.active_children()),
            multiprocessing.Process().name,
        ],
        "random": [random.random(), random.getrandbits(64), random.sample(range(100), 5)],
    }


GROUPS: dict[str, Callable[[Any], dict[str, Any]]] = {
    function.__name__: function
    for function in (
        stack,  # before any other touches what it sees
        interpreter,
        program,
        paths,
        text,
        descriptors,
        signals,
        process,
        threads,
        environment,
        language,
        libraries,
    )
}


def tell_all() -> None:
    """Report every group, about the main program."""
    main: ModuleType = sys.modules["__main__"]
    tell(**{name: function(main) for name, function in GROUPS.items()})


def _status() -> dict[str, str]:
    lines = (line.partition(":") for line in _read("/proc/self/status").splitlines())
    return {name: value.strip() for name, _, value in lines}


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read().strip()


def _outcome(call: Callable[[], object]) -> str:
    try:
        return repr(call())
    except BaseException as exc:
        return repr(exc)


def _raises(category: type[Warning]) -> bool:
    try:
        warnings.warn("a test", category, stacklevel=2)
    except Warning:
        return True
    return False
