"""The warden process: the parent of all workers of a node, and the end of all that they start.

It runs as ``python -I -S process.py SOCKET_FD``, has one thread, and imports a little of the standard library and
two modules of ours. It is a child subreaper, so whatever a worker forks, however often and in whatever session, stays
among its descendants: *no child left* means *no descendant left*. It outlives the agent in order to clean up:
end-of-file on the socket is the order to kill everything and exit. It holds the node's slot until then. Each worker
inherits a copy of the slot's descriptor, so that the slot stays taken also where the warden itself is killed and a
process that a worker has started lives on (rule S8).

Workers start fresh (``spawning``) or are forked by the fork server (``nursery``). The fork server and what else is to
outlive a round, *services*, are left alone by a stop; they end by name, or last of all.

Nothing in here blocks: the sockets are buffered on both sides, and a child that hangs before its program runs is one
more descriptor to poll. So the dead-man's switch works while the agent is frozen, and a frozen agent does not keep it
from its work.

Requests are ``hold``, ``spawn``, ``stop``, ``fence``, ``sweep``, ``spare``, ``preload``, ``preload_rest``, ``serve``
and ``end_service``; what it says is listed in ``warden_events.py``.
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

if __name__ == "__main__":
    # Without site, where this file lies is the only way to the package. Last, so that it hides nothing.
    sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")))

from elastic_core.warden.channel import Channel, Message, close_all
from elastic_core.warden.fork_server import ANSWER_A_STOP_WITHIN, ANSWER_WITHIN, Nursery
from elastic_core.warden.linux import (
    Process,
    become_subreaper,
    children,
    descendants,
    ignore_requests_to_end,
    kill,
    name_of,
    open_standard_streams,
    signal_group,
    waits_in,
)
from elastic_core.warden.spawn import Child, Kind, start
from elastic_core.warden.stop import Ending

LONGEST_SLEEP = 86400.0
"""Seconds; the kernel does not count to any number of milliseconds."""
BEING_STOPPED = "the workers of this node are being stopped"


class Warden:
    """The loop, and what it remembers."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._children: dict[int, Child] = {}
        self._young: list[Child] = []  # those who have not said yet how their start went
        self._nursery = Nursery(self._tell)
        self._childless = True
        self._ending: Ending | None = None
        self._fence_at = math.inf
        self._fences = 0
        self._sweep: list[str] = []
        self._slot: int | None = None
        self._wakeup = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler nothing is written there
        signal.set_wakeup_fd(self._wakeup[1], warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve until the agent is gone, and then until everything else is."""
        while not (self._channel.closed and self._childless):
            self._sleep()
            self._channel.flush()
            for message, descriptors in self._channel.receive():
                self._obey(message, descriptors)
                close_all(descriptors)
            if self._channel.closed:
                self._stop(signal.SIGKILL, grace=0.0)
            self._nursery.listen()
            self._nursery.listen_to_successor()
            for child in self._nursery.released():
                self._start_warm(child)
            if (successor := self._nursery.successor()) is not None:
                self._young.append(successor)
            for child in self._young[:]:
                self._hear(child)
            self._advance()
        self._tidy()

    def _sleep(self) -> None:
        """Until a message, a dead child, news of a start, room to send, or the next deadline."""
        poll = select.poll()
        poll.register(self._wakeup[0], select.POLLIN)
        for channel in (self._channel, *self._nursery.channels):
            if not channel.closed:
                poll.register(channel, select.POLLIN | (select.POLLOUT if channel.pending else 0))
        for child in self._young:
            if child.pipe is not None:
                poll.register(child.pipe, select.POLLIN)
        dues = [self._fence_at, self._nursery.due(), *(self._patience(child) for child in self._unborn())]
        if self._ending:
            dues.append(self._ending.due())
        seconds = min(max(0.0, min(dues) - time.monotonic()), LONGEST_SLEEP)
        poll.poll(math.ceil(seconds * 1000))
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup[0], 4096)

    def _obey(self, message: Message, descriptors: list[int]) -> None:
        match message["do"]:
            case "spawn":
                child = Child(Kind.WORKER, message, descriptors[:], self._slot)
                descriptors.clear()  # they are the child's
                if not message["warm"]:
                    self._start_fresh(child)
                else:
                    self._start_warm(child)
            case "stop":
                self._stop(message["signum"], message["grace"]).serial = message["serial"]
            case "fence":
                seconds = message["seconds"]
                self._fence_at = math.inf if seconds is None else time.monotonic() + seconds
            case "sweep":
                self._sweep.append(message["path"])
            case "hold":
                if not descriptors:
                    raise SystemExit("elastic: too many files are open to start workers: raise the limit (ulimit -n)")
                self._slot = descriptors.pop()  # this process never closes it
            case "preload":
                self._adopt(self._nursery.begin(message))
            case "preload_rest":
                self._nursery.complete(message["modules"])
            case "serve":
                child = Child(Kind.SERVICE, message, descriptors[:])
                descriptors.clear()
                self._start_warm(child)
            case "end_service":
                self._end_service(message["tag"])
            case "spare":
                self._sweep.clear()

    # A start ---------------------------------------------------------------------------------------------------------

    def _start_warm(self, child: Child) -> None:
        """Have it forked by the fork server, or else started fresh."""
        if self._nursery.refusal:
            self._do_without(child, self._nursery.refusal)
        elif self._is_late(child):
            self._fail(child, BEING_STOPPED)
        elif self._nursery.late():
            self._do_without(child, "the preloaded process takes too long to import")
        else:
            try:
                self._nursery.ask(child)
            except OSError as exc:
                self._do_without(child, str(exc))
            if child.pipe is not None:
                self._young.append(child)

    def _do_without(self, child: Child, why: str) -> None:
        """No fork server forks this one."""
        if child.kind is Kind.SERVICE:
            self._serve_without(child, why)
        elif self._is_late(child):
            self._fail(child, BEING_STOPPED)
        else:
            self._tell("started_fresh", tag=child.tag, why=why)
            fresh = Child(child.kind, child.request, child.descriptors[:], child.slot)
            child.descriptors.clear()
            self._start_fresh(fresh)

    def _serve_without(self, child: Child, why: str) -> None:
        """Start a service fresh, unless what the fork server had forked says that it cannot be, or it is too late."""
        over = child.unwanted or self._channel.closed or child.pid is not None
        fresh = None if over else self._nursery.fresh_service(child)
        if fresh is None:
            self._fail(child, why)
        else:
            self._start_fresh(fresh)

    def _start_fresh(self, child: Child) -> None:
        try:
            if self._is_late(child):
                raise OSError(BEING_STOPPED)
            start(child)
        except OSError as exc:
            self._fail(child, str(exc))
        else:
            self._adopt(child)

    def _adopt(self, child: Child | None) -> None:
        if child is not None and child.pid is not None:
            self._children[child.pid] = child
            self._young.append(child)

    def _is_late(self, child: Child) -> bool:
        """Whether it belongs to a round that is over, or is being stopped: the agent could not know that yet."""
        return child.kind is Kind.WORKER and (self._ending is not None or child.request["fences"] != self._fences)

    def _fail(self, child: Child, error: str) -> None:
        close_all(child.descriptors)
        if child.kind is Kind.WORKER and self._ending is not None and self._ending.fenced:
            return  # as in _bury
        self._tell("service_failed" if child.kind is Kind.SERVICE else "spawn_failed", tag=child.tag, error=error)

    def _hear(self, child: Child) -> None:
        """Take in how a start goes, as far as that is known by now."""
        unborn = child.pid is None
        ended = child.hear()
        if unborn and child.pid is not None:
            self._children[child.pid] = child
            if child.unwanted:
                signal_group(child.pid, signal.SIGKILL)
            elif self._ending is not None and self._ending.killed is None and child.kind is Kind.WORKER:
                self._ask_to_end([child.pid], self._ending.signum)  # what it would have got, had it been there
        if not ended:
            return
        self._young.remove(child)
        if child.started:
            close_all(child.descriptors)
            if child.kind is Kind.WORKER:
                self._tell("spawned", tag=child.tag, pid=child.pid, warm=child.forked, unlearned=child.unlearned)
            elif child.kind is Kind.SERVICE:
                self._tell("service_started", tag=child.tag, pid=child.pid)
        else:
            self._not_started(child, "the preloaded process died, or what it had forked")

    def _not_started(self, child: Child, why: str) -> None:
        """Its own words say why, or else ``why`` does."""
        if child.kind is Kind.FORK_SERVER:
            self._nursery.not_started(child, child.complaint() or why)
        elif child.forked:
            self._do_without(child, child.complaint() or why)
        else:
            self._fail(child, child.complaint())

    def _unborn(self) -> list[Child]:
        """Those whom the fork server was asked for, and has not forked yet."""
        return [child for child in self._young if child.pid is None]

    def _patience(self, child: Child) -> float:
        """Until when the fork server may take its time to fork this one."""
        if self._ending is None:
            return child.since + ANSWER_WITHIN
        return min(child.since + ANSWER_WITHIN, max(self._ending.deadline, child.since + ANSWER_A_STOP_WITHIN))

    def _end_service(self, tag: int) -> None:
        for child in [*self._young, *self._nursery.waiting, *self._children.values()]:
            if child.kind is Kind.SERVICE and child.tag == tag:
                child.unwanted = True
                if child.pid is not None:
                    signal_group(child.pid, signal.SIGKILL)

    # The end of processes --------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Reap, and take a stop as far as it goes now."""
        now = time.monotonic()
        if now >= self._fence_at:
            self._fence_at = math.inf
            # One Fenced answers all that go off before everything is gone.
            self._fences += self._ending is None or not self._ending.fenced
            self._stop(signal.SIGKILL, grace=0.0, fenced=True)
        for child in [child for child in self._unborn() if now >= self._patience(child)]:
            self._nursery.kill(child.asked)
            self._hear(child)
            if child in self._young and child.pid is None:  # killed or not, it may never die, nor let go of the pipe
                self._young.remove(child)
                child.give_up()
                self._not_started(child, "the preloaded process does not answer")
        self._reap()
        ending = self._ending
        if ending is None:
            return
        if now >= ending.sigterm_at and ending.sigterm_follows():
            ending.signum = signal.SIGTERM
            self._ask_to_end(self._workers(), signal.SIGTERM)
        if not self._populated():
            self._ending = None
            if ending.fenced:
                self._tell("fenced")
            if ending.serial is not None:
                self._tell("gone", serial=ending.serial)
            if self._channel.closed:
                self._kill_services()
        elif ending.killed is not None or not (self._workers() or self._unborn()) or now >= ending.deadline:
            self._kill_all(ending, now)

    def _reap(self) -> None:
        """Collect the dead."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return
            self._childless = False
            if pid == 0:
                return
            for child in self._young[:]:  # a worker of the fork server's may have lived too short to be known by now
                self._hear(child)
            if pid in self._children:
                self._bury(self._children.pop(pid), os.waitstatus_to_exitcode(status))

    def _bury(self, child: Child, returncode: int) -> None:
        match child.kind:
            case Kind.FORK_SERVER:
                self._adopt(self._nursery.died(child, returncode, closing=self._channel.closed))
            case Kind.SERVICE if child.started:
                self._tell("service_ended", tag=child.tag, returncode=returncode)
            case Kind.WORKER if child.started and not (self._ending and self._ending.fenced):
                # Whom the switch kills is nobody's failure: the agent hears Fenced alone.
                self._tell("exited", tag=child.tag, pid=child.pid, returncode=returncode, at=time.monotonic())

    def _workers(self) -> list[int]:
        return [pid for pid, child in self._children.items() if child.kind is Kind.WORKER]

    def _services(self) -> set[int]:
        return {pid for pid, child in self._children.items() if child.kind is not Kind.WORKER}

    def _populated(self) -> bool:
        """Whether any descendant is left but services and what is below them: each has an ancestor among our children,
        since a subreaper inherits them all.
        """
        if self._workers() or any(child.kind is Kind.WORKER for child in self._unborn()):
            return True
        return not self._childless and not self._services().issuperset(children())

    def _stop(self, signum: int, grace: float, *, fenced: bool = False) -> Ending:
        """The one escalation: ask every worker's group; at the deadline, or once no worker is left, kill whatever is.

        A stop that is under way goes on, with the nearer of the two deadlines, and keeps its signal: a worker may be
        saving its state.
        """
        now = time.monotonic()
        if self._ending is None:
            self._ending = Ending(signum, grace, now, fenced)
            for child in self._nursery.dismiss():
                self._fail(child, BEING_STOPPED)
            if grace > 0:
                self._ask_to_end(self._workers(), signum)
        self._ending.deadline = min(self._ending.deadline, now + grace)
        self._ending.fenced = self._ending.fenced or fenced
        return self._ending

    def _ask_to_end(self, workers: list[int], signum: int) -> None:
        for pid in workers:
            signal_group(pid, signum)
            signal_group(pid, signal.SIGCONT)  # a stopped process handles nothing
        if workers:
            self._tell("signalled", signum=signum, pids=workers)

    def _kill_all(self, ending: Ending, now: float) -> None:
        """SIGKILL to every descendant, until a look finds none that has not got it; each death brings another look."""
        alive = self._strays()
        ending.killed = ending.killed or {}
        while fresh := [process for process in alive if process not in ending.killed]:
            pids = [process[0] for process in fresh if kill(process)]
            ending.killed.update(dict.fromkeys(fresh, now))
            self._tell("signalled", signum=int(signal.SIGKILL), pids=pids)
            for pid in self._workers():  # what its group has forked meanwhile, all at once: that cannot be outrun
                signal_group(pid, signal.SIGKILL)
            alive = self._strays()
        left = set(alive)
        ending.killed = {process: since for process, since in ending.killed.items() if process in left}
        for pid, _ in ending.overdue(now):
            self._tell("stuck", pid=pid, name=name_of(pid), wchan=waits_in(pid))

    def _strays(self) -> list[Process]:
        """Every descendant but services and what is below them."""
        found = descendants(os.getpid(), without=self._services())
        for child in self._young[:]:  # a service that was born just now is known by its own word only
            self._hear(child)
        return [process for process in found if process[0] not in self._services()]

    def _kill_services(self) -> None:
        """The last that are left; what they leave behind, the next stop finds."""
        for pid in self._services():
            signal_group(pid, signal.SIGKILL)

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
    ignore_requests_to_end()  # it ends with its last descendant
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
