"""The warden process: the parent of all workers of a node, and the end of all that they start.

It runs as ``python -I -S warden_main.py SOCKET_FD``, has one thread, and imports a little of the standard library and
two modules of ours. It is a child subreaper, so whatever a worker forks, however often and in whatever session, stays
among its descendants: *no child left* means *no descendant left*. It outlives the agent in order to clean up:
end-of-file on the socket is the order to kill everything and exit. Descriptors that it inherits, a seat's for instance,
it keeps until then.

Nothing in here blocks: the socket is buffered on both sides, and a child that hangs between fork and exec is one more
descriptor to poll. So the dead-man's switch works while the agent is frozen, and a frozen agent does not keep it from
its work.

Requests are ``spawn``, ``stop``, ``fence``, ``sweep`` and ``spare``; what it says is listed as events in
``warden.py``, the agent's side.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket
import sys
import time
from typing import NoReturn

if __name__ == "__main__":
    # Without site, where this file lies is the only way to the package. Last, so that it hides nothing.
    sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")))

from elastic_core.agent.channel import Channel, Message, close_all
from elastic_core.agent.processes import (
    Process,
    become_subreaper,
    descendants,
    die_with_parent,
    kill,
    name_of,
    open_standard_streams,
    signal_group,
    waits_in,
)

CONTROL_VARIABLE = "ELASTIC_CONTROL_FD"
STANDARD_STREAMS = ("stdin", "stdout", "stderr")
STUCK_AFTER = 15.0
"""Seconds after SIGKILL from which a process that is still there is reported (rule L3)."""
LONGEST_SLEEP = 86400.0
"""Seconds; the kernel does not count to any number of milliseconds."""
OOM_SCORE = 300
"""Added to a worker's oom_score_adj: when memory runs out, a worker dies before the agent and the warden do."""


# A worker's start ----------------------------------------------------------------------------------------------------


class Worker:
    """A child that was asked for, from its fork until it is reaped.

    Attributes:
        pipe: Says how the exec went: an error's text, or nothing but its end. None once that is known.
        started: Its program runs, or has run.
    """

    __slots__ = ("pid", "pipe", "started", "tag")

    def __init__(self, tag: int, pid: int, pipe: int) -> None:
        self.tag = tag
        self.pid = pid
        self.pipe: int | None = pipe
        self.started = False


def _fork(request: Message, descriptors: list[int]) -> Worker:
    """Fork a worker; whether it gets as far as exec will be told on its pipe.

    Raises:
        OSError: No process, or no descriptor, is left.
    """
    wanted = request["descriptors"]
    if len(descriptors) < len(wanted):
        raise OSError("no descriptors are left for its streams: raise the limit of open files (ulimit -n)")
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    warden = os.getpid()
    # Signals to the child while it is still the warden's copy, which ignores them, wait for its own dispositions.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become(request, dict(zip(wanted, descriptors, strict=True)), writing, warden)
    except OSError:
        os.close(reading)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(writing)
    return Worker(request["tag"], pid, reading)


def _become(request: Message, given: dict[str, int], pipe: int, warden: int) -> NoReturn:
    """In the child: become the program, or say why not. Every other descriptor is close-on-exec."""
    what = request["argv"][0]
    try:
        os.setsid()
        die_with_parent()
        if os.getppid() != warden:
            os._exit(127)  # it died before that was set
        for number, name in enumerate(STANDARD_STREAMS):
            if name in given:
                os.dup2(given[name], number)
        environment = request["env"]
        if "control" in given:
            os.set_inheritable(given["control"], True)
            environment[CONTROL_VARIABLE] = str(given["control"])
        _volunteer_for_oom()
        if request["cpus"] is not None:
            what = f"CPUs {request['cpus']}"
            os.sched_setaffinity(0, request["cpus"])
            what = request["argv"][0]
        for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if request["cwd"] is not None:
            what = request["cwd"]
            os.chdir(what)
            what = request["argv"][0]
        os.execvpe(what, request["argv"], environment)
    except OSError as exc:
        os.write(pipe, str(OSError(exc.errno, exc.strerror, what)).encode(errors="replace"))
    except BaseException as exc:  # a NUL in an argument, say; whatever it is must not get into a second warden's loop
        os.write(pipe, f"{what!r}: {exc}".encode(errors="replace"))
    finally:
        os._exit(127)


def _volunteer_for_oom() -> None:
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
        score = min(1000, int(file.read()) + OOM_SCORE)
        file.seek(0)
        file.write(str(score))


# The warden ----------------------------------------------------------------------------------------------------------


class Ending:
    """A stop under way.

    Attributes:
        deadline: When asking ends and killing begins.
        serial: The agent's number of the stop to answer, if it asked for one.
        fenced: The dead-man's switch went off.
        killed: What was sent SIGKILL and is still there, with the time of that; None until killing has begun.
        reported: Those of them that were reported as stuck.
    """

    __slots__ = ("deadline", "fenced", "killed", "reported", "serial")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.serial: int | None = None
        self.fenced = False
        self.killed: dict[Process, float] | None = None
        self.reported: set[Process] = set()

    def due(self) -> float:
        """When there is something to do that no event announces."""
        if self.killed is None:
            return self.deadline
        waiting = [since for process, since in self.killed.items() if process not in self.reported]
        return min(waiting, default=math.inf) + STUCK_AFTER

    def overdue(self, now: float) -> list[Process]:
        """Processes to report as stuck: each once."""
        killed = self.killed or {}
        late = [p for p, since in killed.items() if now >= since + STUCK_AFTER and p not in self.reported]
        self.reported.update(late)
        return late


class Warden:
    """The loop, and what it remembers."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._workers: dict[int, Worker] = {}
        self._ending: Ending | None = None
        self._fence_at = math.inf
        self._fences = 0
        self._sweep: list[str] = []
        self._wakeup = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler nothing is written there
        signal.set_wakeup_fd(self._wakeup[1], warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve until the agent is gone, and then until everything else is."""
        populated = False
        while populated or not self._channel.closed:
            self._sleep()
            self._channel.flush()
            for message, descriptors in self._channel.receive():
                self._obey(message, descriptors)
                close_all(descriptors)
            if self._channel.closed:
                self._stop(signal.SIGKILL, grace=0.0)
            for worker in self._workers.values():
                self._hear(worker)
            populated = self._advance()
        self._tidy()

    def _sleep(self) -> None:
        """Until a message, a dead child, an exec, room to send, or the next deadline."""
        poll = select.poll()
        poll.register(self._wakeup[0], select.POLLIN)
        if not self._channel.closed:
            poll.register(self._channel, select.POLLIN | (select.POLLOUT if self._channel.pending else 0))
        for worker in self._workers.values():
            if worker.pipe is not None:
                poll.register(worker.pipe, select.POLLIN)
        due = min(self._fence_at, self._ending.due() if self._ending else math.inf)
        seconds = min(max(0.0, due - time.monotonic()), LONGEST_SLEEP)
        poll.poll(math.ceil(seconds * 1000))
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup[0], 4096)

    def _obey(self, message: Message, descriptors: list[int]) -> None:
        match message["do"]:
            case "spawn":
                self._spawn(message, descriptors)
            case "stop":
                self._stop(message["signum"], message["grace"]).serial = message["serial"]
            case "fence":
                seconds = message["seconds"]
                self._fence_at = math.inf if seconds is None else time.monotonic() + seconds
            case "sweep":
                self._sweep.append(message["path"])
            case "spare":
                self._sweep.clear()

    def _spawn(self, message: Message, descriptors: list[int]) -> None:
        try:
            if self._ending is not None or message["fences"] != self._fences:  # the agent could not know that yet
                raise OSError("the workers of this node are being stopped")
            worker = _fork(message, descriptors)
        except OSError as exc:
            self._tell("spawn_failed", tag=message["tag"], error=str(exc))
        else:
            self._workers[worker.pid] = worker

    def _hear(self, worker: Worker) -> None:
        """Read from a worker's pipe how its exec went, if that is known by now."""
        if worker.pipe is None:
            return
        try:
            error = os.read(worker.pipe, 4096)
        except BlockingIOError:
            return
        os.close(worker.pipe)
        worker.pipe, worker.started = None, not error
        if error:
            self._tell("spawn_failed", tag=worker.tag, error=error.decode(errors="replace"))
        else:
            self._tell("spawned", tag=worker.tag, pid=worker.pid)

    def _advance(self) -> bool:
        """Reap, and take a stop as far as it goes now; whether any descendant is left."""
        now = time.monotonic()
        if now >= self._fence_at:
            self._fence_at = math.inf
            self._fences += 1
            self._stop(signal.SIGKILL, grace=0.0).fenced = True
        populated = self._reap()
        ending = self._ending
        if ending is not None and not populated:
            self._ending = None
            if ending.fenced:
                self._tell("fenced")
            if ending.serial is not None:
                self._tell("gone", serial=ending.serial)
        elif ending is not None and (ending.killed is not None or not self._workers or now >= ending.deadline):
            self._kill_all(ending, now)
        return populated

    def _reap(self) -> bool:
        """Collect the dead; whether a child is left, and with it any descendant: a subreaper inherits them all."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if (worker := self._workers.pop(pid, None)) is None:
                continue  # somebody's orphan
            self._hear(worker)
            # Whom the switch kills is nobody's failure: the agent hears Fenced alone.
            if worker.started and not (self._ending and self._ending.fenced):
                self._tell("exited", tag=worker.tag, pid=pid, returncode=os.waitstatus_to_exitcode(status))

    def _stop(self, signum: int, grace: float) -> Ending:
        """The one escalation: ask every worker's group; at the deadline, or once no worker is left, kill whatever is.

        A stop that is under way goes on, with the nearer of the two deadlines.
        """
        deadline = time.monotonic() + grace
        if self._ending is None:
            self._ending = Ending(deadline)
            if grace > 0 and self._workers:
                for pid in self._workers:
                    signal_group(pid, signum)
                    signal_group(pid, signal.SIGCONT)  # a stopped process handles nothing
                self._tell("signalled", signum=signum, pids=list(self._workers))
        self._ending.deadline = min(self._ending.deadline, deadline)
        return self._ending

    def _kill_all(self, ending: Ending, now: float) -> None:
        """SIGKILL to every descendant, until a look finds none that has not got it; each death brings another look."""
        alive = descendants(os.getpid())
        ending.killed = ending.killed or {}
        while fresh := [process for process in alive if process not in ending.killed]:
            pids = [process[0] for process in fresh if kill(process)]
            ending.killed.update(dict.fromkeys(fresh, now))
            self._tell("signalled", signum=int(signal.SIGKILL), pids=pids)
            for pid in self._workers:  # what its group has forked meanwhile, all at once: that cannot be outrun
                signal_group(pid, signal.SIGKILL)
            alive = descendants(os.getpid())
        left = set(alive)
        ending.killed = {process: since for process, since in ending.killed.items() if process in left}
        for pid, _ in ending.overdue(now):
            self._tell("stuck", pid=pid, name=name_of(pid), wchan=waits_in(pid))

    def _tidy(self) -> None:
        """Remove what the agent would have removed, had it not been killed."""
        if self._sweep:
            import shutil  # five times as much as all that the warden needs until now

            for path in self._sweep:
                shutil.rmtree(path, ignore_errors=True)

    def _tell(self, event: str, **facts: object) -> None:
        self._channel.send({"event": event, **facts})


def main() -> None:
    """Become the warden of whoever holds the other end of the socket."""
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, signal.SIG_IGN)  # it ends with its last descendant, and for no other reason
    become_subreaper()
    open_standard_streams()
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):  # the descriptor of this very listing is closed by now
                os.set_inheritable(int(name), False)
    with open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write("elastic-warden")
    Warden(Channel(socket.socket(fileno=int(sys.argv[1])))).run()


if __name__ == "__main__":
    main()
