"""Starts a process of the warden: fork and exec, and a pipe on which the child reports whether it started.

A worker that starts warm is forked by the starter (``starter``), not here, but reports on the same kind of pipe, and is
prepared alike. The warden process imports this module: it must stay cheap.

The starter, and a worker for which plugins have files (``elastic_worker_startup``), is a Python process that imports
our ``sitecustomize`` before its program.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import json
import os
import signal
from collections.abc import Mapping, MutableMapping, Sequence

from elastic_core.warden.channel import Message, close_all
from elastic_core.warden.linux import die_with_parent, signal_group
from elastic_core.worker.channel import CONTROL_VARIABLE

TYPE_CHECKING = False  # typing's: see channel
if TYPE_CHECKING:
    from typing import NoReturn

OUT_OF_THE_WAY = 48
"""The least number of a control channel: a script's files have numbers from 3 on, a shell's near 63 and 255."""
SLOT_DESCRIPTOR = 200  # the least number of the node's slot: below 255, where bash keeps its script
SERVICE_VARIABLE = "ELASTIC_SERVICE"
"""Holds the call of a service that starts fresh (``warden/service.py``): JSON with the entry, the arguments, and
the numbers of the descriptors by name."""
STANDARD_STREAMS = ("stdin", "stdout", "stderr")
OOM_SCORE = 300
"""Added to a worker's oom_score_adj: when memory runs out, the kernel kills workers before agent and warden."""
STAGE = "ELASTIC_STARTUP"  # the variable by which our ``sitecustomize`` recognizes the process
PREPARE_WORKER = "worker"  # the stage of a worker that starts fresh; the files follow that it executes first
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STARTUP = os.path.join(PACKAGE, "worker", "startup")  # the directory of our ``sitecustomize``


class Kind(enum.Enum):
    """The kinds of a child of the warden."""

    WORKER = enum.auto()
    SERVICE = enum.auto()  # started by name, ended by name; a round's stop does not touch it
    STARTER = enum.auto()  # the service that forks the others


class Child:
    """A requested process, from the request until it is reaped."""

    def __init__(self, kind: Kind, request: Message, descriptors: list[int], slot: int | None = None) -> None:
        self.kind = kind
        self.request = request  # the agent's message
        self.descriptors = descriptors  # for as long as a fresh start may need them
        self.slot = slot  # the warden's descriptor of the node's slot, of which a worker inherits a copy (S8)
        self.tag: int | None = request.get("tag")
        self.forked = False  # whether the starter forks it
        self.pid: int | None = None  # None until it is known
        self.pipe: int | None = None  # of its reports; None before the request for a fork, and after end-of-file
        self.requested_at = 0.0  # when its fork was last requested
        self.requested_of: Child | None = None  # the starter that was asked to fork it
        self.started = False  # whether its program runs, or has run
        self.unlearned = 0  # modules that an earlier worker imported and its starter has not
        self.cancelled = False  # whether it was ended before it began
        self._report = b""

    def renew(self, **request: object) -> Child:
        """Return a child that is to start fresh instead of this one, with these changes to the request."""
        descriptors, self.descriptors = self.descriptors, []
        return Child(self.kind, {**self.request, **request}, descriptors, self.slot)

    def named_descriptors(self) -> dict[str, int]:
        """Return its descriptors by name; OSError if some of them did not arrive."""
        names = self.request["descriptors"]
        if len(self.descriptors) < len(names):
            raise OSError("no descriptors are left for its streams: raise the limit of open files (ulimit -n)")
        given = dict(zip(names, self.descriptors, strict=True))
        return given if self.slot is None else {**given, "slot": self.slot}

    def read_start(self) -> bool:
        """Read its reports; return whether its start is over.

        A child that the starter forks writes ``pid N``, and in the end ``ok N UNLEARNED``, or ``no`` and the
        reason. One that the warden forks writes the text of an error, or only end-of-file if its program runs.
        """
        if self.pipe is None:
            return False
        while True:
            try:
                received = os.read(self.pipe, 65536)
            except BlockingIOError:
                return False
            self._report += received
            ok = False
            while self.forked and self._report.startswith((b"pid ", b"ok ")) and b"\n" in self._report:
                line, self._report = self._report.split(b"\n", 1)
                word, number, *more = line.split()
                # Both lines have the same number: the first fork, which writes "pid", may be killed before.
                # After "ok" no end-of-file is awaited: the starter may hold the other end a little longer.
                self.pid, ok = int(number), word == b"ok"
                self.unlearned = int(more[0]) if more else 0
            if ok or not received:
                self.close_pipe()
                self.started = ok or not (self.forked or self._report)
                return True

    def close_pipe(self) -> None:
        """Close its pipe. A fork that has not yet reported "ok" cannot do so any more, and ends."""
        if self.pipe is not None:
            os.close(self.pipe)
            self.pipe = None

    def kill(self) -> None:
        """Kill it, and the group that it leads: of a starter also the fork that it is about to make."""
        if self.pid is not None:
            signal_group(self.pid, signal.SIGKILL)

    def reason(self) -> str:
        """Return why it did not start, as it has reported, or ''."""
        return self._report.decode(errors="replace").removeprefix("no ")


def start(child: Child) -> None:
    """Fork and exec a child, and close its descriptors. OSError if no process, or no descriptor, is left.

    The child's pipe reports whether exec succeeds.
    """
    try:
        given, warden = child.named_descriptors(), os.getpid()
        child.pipe, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # Signals to the child stay blocked until it has its own dispositions: the warden's copy ignores them.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            if (pid := os.fork()) == 0:
                _become(child, given, writing, warden)
            child.pid = pid
        except OSError:
            child.close_pipe()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(writing)
    finally:
        close_all(child.descriptors)


def take_descriptors(given: Mapping[str, int], environment: MutableMapping[str, str]) -> None:
    """In a worker: make the given descriptors its standard streams, its control channel and its copy of the slot.

    Raises:
        OSError: No descriptor is left.
    """
    for number, name in enumerate(STANDARD_STREAMS):
        if name in given:
            os.dup2(given[name], number)
    if "control" in given:
        environment[CONTROL_VARIABLE] = str(inheritable(given["control"]))
    if "slot" in given:
        inheritable(given["slot"], SLOT_DESCRIPTOR)


def inheritable(descriptor: int, number: int = OUT_OF_THE_WAY) -> int:
    """Return a copy that the program inherits, with this number or the next free one, if the limit allows that.

    Raises:
        OSError: No descriptor is left.
    """
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD, number)
    except OSError:  # beyond the limit
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD, 3)


def volunteer_for_oom() -> None:
    """Have the kernel kill this process before others when memory runs out."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
        score = min(1000, int(file.read()) + OOM_SCORE)
        file.seek(0)
        file.write(str(score))


def prepare_worker(argv: Sequence[str], environment: MutableMapping[str, str], files: Sequence[str]) -> None:
    """Have a Python program execute ``files`` first (``elastic_worker_startup``), if it takes our ``sitecustomize``.

    The program finds the variables that it would have had without that.
    """
    given = environment.get("PYTHONPATH")
    if files and given != "" and _takes_sitecustomize(argv):  # '' could not be told from none later
        environment["PYTHONPATH"] = STARTUP if given is None else os.pathsep.join([STARTUP, given])
        environment[STAGE] = os.pathsep.join([PREPARE_WORKER, *files])


def _takes_sitecustomize(argv: Sequence[str]) -> bool:
    """Return True if a command is a Python that imports a ``sitecustomize`` from PYTHONPATH (not -E, -I or -S)."""
    if os.path.basename(argv[0]).rstrip("0123456789.") != "python":
        return False
    rest = iter(argv[1:])
    for argument in rest:
        if not argument.startswith("-"):
            break
        for at, letter in enumerate(argument[1:], 2):
            if letter in "EIS":
                return False
            if letter in "cm":
                return True
            if letter in "WX":  # it has a value: the rest, or the next argument
                if not argument[at:]:
                    next(rest, None)
                break
    return True


def _become(child: Child, given: Mapping[str, int], pipe: int, warden: int) -> NoReturn:
    """Become the program, or report why not; in the child. Every other descriptor is close-on-exec."""
    request = child.request
    environment, what = request["env"], request["argv"][0]
    try:
        os.setsid()
        die_with_parent()
        if os.getppid() != warden:
            os._exit(127)  # the warden died before the signal was set
        take_descriptors(given, environment)
        if child.kind is Kind.SERVICE:
            numbers = {name: inheritable(fd) for name, fd in given.items()}
            call = {"entry": request["entry"], "arguments": request["arguments"], "descriptors": numbers}
            environment[SERVICE_VARIABLE] = json.dumps(call)
        if child.kind is Kind.WORKER:
            volunteer_for_oom()
            prepare_worker(request["argv"], environment, request["startup"])
        for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(signum, signal.SIG_IGN if signum in request.get("ignored", ()) else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if request.get("cpus") is not None:
            what = f"CPUs {request['cpus']}"
            os.sched_setaffinity(0, request["cpus"])
        if request.get("cwd") is not None:
            what = request["cwd"]
            os.chdir(what)
        what = request["argv"][0]
        os.execvpe(what, request["argv"], environment)
    except OSError as exc:
        os.write(pipe, str(OSError(exc.errno, exc.strerror, what)).encode(errors="replace"))
    except BaseException as exc:  # such as a NUL in an argument; the child must never return to the warden's loop
        os.write(pipe, f"{what!r}: {exc}".encode(errors="replace"))
    finally:
        os._exit(127)
