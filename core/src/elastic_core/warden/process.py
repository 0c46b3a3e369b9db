"""The warden process: the parent of all workers of a node. It kills every process that they have started.

It runs as ``python -I -S -c PROGRAM SOCKET_FD``, has one thread, and imports little. It is a child subreaper, so every
descendant of a worker stays among its own: *no child left* means *no descendant left*. On end-of-file of the socket it
kills all processes and exits; until then it holds the node's slot, of which each worker inherits a copy (rule S8).
Nothing in here blocks, so the dead-man's switch works while the agent is frozen. Requests and PROGRAM come from
``client``, events are in ``messages``; ``docs/internals/agent.md`` has the details.
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
from collections.abc import Collection, Sequence
from signal import SIGKILL

from elastic_core.host.processes import Process, catches, children, descendants, name_of, session_of, waits_in
from elastic_core.warden.channel import Channel, Message, close_all
from elastic_core.warden.linux import (
    REQUESTS_TO_END,
    become_subreaper,
    ignore_requests_to_end,
    kill,
    open_standard_streams,
    signal_group,
)
from elastic_core.warden.spawn import Child, Kind, start
from elastic_core.warden.starter import FORK_MAX_SECONDS, FORK_MAX_SECONDS_WHILE_STOPPING, StarterClient
from elastic_core.warden.stop import NOTICES, Helpers, StopInProgress

POLL_MAX_SECONDS = 86400.0  # the kernel limits the timeout of one ``poll``
STOPPING_REASON = "the workers of this node are being stopped"


class WardenProcess:
    """The loop of the warden, and its state."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._children: dict[int, Child] = {}
        self._starting: list[Child] = []  # not known yet whether their program runs
        self._starter = StarterClient(self._send_event)
        self._childless = True
        self._stopping: StopInProgress | None = None
        self._helpers = Helpers()
        self._ended: set[int] = set()  # the children that have ended since the last stop was completed
        self._fence_at = math.inf
        self._fences = 0
        self._directories: list[str] = []
        self._slot: int | None = None
        self._wakeup = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, _note)
        signal.set_wakeup_fd(self._wakeup[1], warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve requests until the agent is gone, and then until no child is left."""
        while not (self._channel.closed and self._childless):
            self._wait()
            self._channel.flush()
            for message, descriptors in self._channel.receive():
                self._handle_request(message, descriptors)
            if self._channel.closed:
                self._stop(SIGKILL, grace=0.0)
            self._receive_from_starter()
            for child in self._starter.take_released():
                self._start_warm(child)
            self._read_starts()
            self._run_deadlines()
        if self._directories:  # a killed agent could not remove them
            import shutil  # five times the size of all other modules of the warden

            for path in self._directories:
                shutil.rmtree(path, ignore_errors=True)

    def _wait(self) -> None:
        """Block until a message, the death of a child, progress of a start, room to send, or the next deadline."""
        poll = select.poll()
        poll.register(self._wakeup[0], select.POLLIN)
        for channel in (self._channel, self._starter.channel):
            if channel is not None and not channel.closed:
                poll.register(channel, select.POLLIN | (select.POLLOUT if channel.pending else 0))
        for child in self._starting:
            if child.pipe is not None:
                poll.register(child.pipe, select.POLLIN)
        deadlines = [self._fence_at, self._starter.next_deadline(), *map(self._fork_deadline, self._unforked())]
        deadlines.append(self._helpers.next_deadline(time.monotonic()))
        if self._stopping:
            deadlines.append(self._stopping.next_deadline())
        seconds = min(max(0.0, min(deadlines) - time.monotonic()), POLL_MAX_SECONDS)
        poll.poll(math.ceil(seconds * 1000))
        with contextlib.suppress(BlockingIOError):
            for signum in sorted({*os.read(self._wakeup[0], 4096)}.intersection(REQUESTS_TO_END)):
                self._send_event("warden_signalled", signum=signum)

    def _handle_request(self, message: Message, descriptors: list[int]) -> None:
        match message["do"]:
            case "spawn":
                child = Child(Kind.WORKER, message, descriptors, self._slot)
                if self._is_obsolete(child):
                    self._report_failure(child, STOPPING_REASON)
                else:
                    (self._start_warm if message["warm"] else self._start_fresh)(child)
            case "stop":
                self._read_starts()  # a worker that has just started may have a handler
                self._reap()  # a worker that has ended before is not among those that get a signal
                stop = self._stop(self._handled(message["signum"]), message["grace"], ending=message["ending"])
                stop.serial, stop.patient = message["serial"], message["patient"]
            case "fence":
                seconds = message["seconds"]
                self._fence_at = math.inf if seconds is None else time.monotonic() + seconds
            case "sweep":
                self._directories.append(message["path"])
            case "hold":
                if not descriptors:
                    raise SystemExit("elastic: too many files are open to start workers: raise the limit (ulimit -n)")
                self._slot = descriptors.pop()  # this process never closes it
            case "starter":
                self._add_child(self._starter.start(message["settings"]))
            case "complete_starter":
                self._starter.complete()
            case "serve":
                self._start_warm(Child(Kind.SERVICE, message, descriptors))
            case "end_service":
                self._end_service(message["tag"])
            case "spare":
                self._directories.clear()

    # Starts ----------------------------------------------------------------------------------------------------------

    def _start_warm(self, child: Child) -> None:
        """Have the starter fork it; where that is not possible, start it fresh."""
        if refusal := self._starter.refusal():
            self._start_unforked(child, refusal)
            return
        try:
            self._starter.request_fork(child)
        except OSError as exc:
            self._start_unforked(child, str(exc))
        if child.pipe is not None:
            self._starting.append(child)

    def _start_unforked(self, child: Child, why: str) -> None:
        """Start it fresh, because the starter does not fork it.

        A service is not started once its fork has run and failed, it was cancelled, or the agent is gone.
        """
        fresh = None
        if child.kind is Kind.SERVICE:
            if not (child.cancelled or self._channel.closed or child.pid is not None):
                fresh = self._starter.fresh_service(child)
        elif self._is_obsolete(child):
            why = STOPPING_REASON
        else:
            self._send_event("started_fresh", tag=child.tag, why=why)
            fresh = child.renew()
        if fresh is None:
            self._report_failure(child, why)
        else:
            self._start_fresh(fresh)

    def _start_fresh(self, child: Child) -> None:
        try:
            start(child)
        except OSError as exc:
            self._report_failure(child, str(exc))
        else:
            self._add_child(child)

    def _add_child(self, child: Child | None) -> None:
        if child is not None and child.pid is not None:
            self._children[child.pid] = child
            self._starting.append(child)

    def _receive_from_starter(self) -> None:
        self._starter.receive()
        if (starter := self._starter.process) is not None and starter.pid is not None:
            self._children[starter.pid] = starter  # under its old pid too, until that is reaped

    def _is_obsolete(self, child: Child) -> bool:
        """Return True if a worker's round is over or being stopped, which the agent did not know."""
        return child.kind is Kind.WORKER and (self._stopping is not None or child.request["fences"] != self._fences)

    def _report_failure(self, child: Child, error: str) -> None:
        close_all(child.descriptors)
        if child.kind is Kind.SERVICE:
            self._send_event("service_ended", tag=child.tag, returncode=None, error=error)
        elif not (self._stopping and self._stopping.fenced):  # as in _report_end
            self._send_event("spawn_failed", tag=child.tag, error=error)

    def _read_starts(self) -> None:
        for child in self._starting[:]:
            self._read_start(child)

    def _read_start(self, child: Child) -> None:
        """Read how the start of a child has gone so far."""
        unforked = child.pid is None
        ended = child.read_start()
        if unforked and child.pid is not None:
            self._children[child.pid] = child
            if child.cancelled:
                child.kill()
            elif self._stopping is not None and self._stopping.killed is None and child.kind is Kind.WORKER:
                self._signal_workers([child.pid], self._stopping.signum)  # the signal that it has missed
        if not ended:
            return
        self._starting.remove(child)
        if child.started:
            close_all(child.descriptors)
            if child.kind is Kind.WORKER:
                self._send_event("spawned", tag=child.tag, pid=child.pid, warm=child.forked, unlearned=child.unlearned)
        else:
            self._handle_failed_start(child, "the process that forks workers died, or what it had forked")

    def _handle_failed_start(self, child: Child, why: str) -> None:
        """Report a failed start, or try a fresh one. The reason is the child's own, or else ``why``."""
        if child.kind is Kind.STARTER:
            self._starter.start_failed(child, child.reason() or why)
        elif child.forked:
            self._start_unforked(child, child.reason() or why)
        else:
            self._report_failure(child, child.reason())

    def _unforked(self) -> list[Child]:
        """Return the children that the starter was asked for and has not forked yet."""
        return [child for child in self._starting if child.pid is None]

    def _fork_deadline(self, child: Child) -> float:
        """Return when the starter must have forked this child."""
        usual, early = child.requested_at + FORK_MAX_SECONDS, child.requested_at + FORK_MAX_SECONDS_WHILE_STOPPING
        return usual if self._stopping is None else min(usual, max(self._stopping.deadline, early))

    def _end_service(self, tag: int) -> None:
        for child in [*self._starting, *self._starter.waiting, *self._children.values()]:
            if child.kind is Kind.SERVICE and child.tag == tag:
                child.cancelled = True
                child.kill()

    # Ends ------------------------------------------------------------------------------------------------------------

    def _run_deadlines(self) -> None:
        """Do what is due now: the fence, late forks, dead children, and the next step of a stop."""
        now = time.monotonic()
        if now >= self._fence_at:
            self._fence_at = math.inf
            # If the fence goes off again before the workers are gone, it counts once, and one ``fenced`` event is sent.
            self._fences += self._stopping is None or not self._stopping.fenced
            self._stop(SIGKILL, grace=0.0, fenced=True)
        for child in [child for child in self._unforked() if now >= self._fork_deadline(child)]:
            if child.requested_of is not None:
                child.requested_of.kill()
            self._read_start(child)
            if child in self._starting and child.pid is None:  # a killed starter may not die, and keep the pipe
                self._starting.remove(child)
                child.close_pipe()
                self._handle_failed_start(child, "the process that forks workers does not answer")
        self._reap()
        now = time.monotonic()  # the fence's stop has begun since
        if expired := self._helpers.take_expired(now):
            self._kill({}, now, expired)
        stop = self._stopping
        if stop is None:
            return
        if now >= stop.sigterm_at and stop.is_sigterm_due():
            stop.signum = signal.SIGTERM
            self._signal_workers(self._workers(), signal.SIGTERM)
            if stop.patient:
                self._signal(self._find_killable(), signal.SIGTERM)
        left = self._has_workers_left()
        orphaned = left and not (stop.patient or self._workers() or self._unforked())
        if orphaned and stop.killed is None and now < stop.deadline:
            helpers = self._helpers.admit(self._find_killable(), self._ended, now, stop.deadline)
            self._signal(helpers, signal.SIGTERM)
            stop.killed, left = {}, self._has_workers_left()
        if not left:
            self._stopping = None
            self._ended.clear()
            if stop.fenced:
                self._send_event("fenced")
            if stop.serial is not None:
                self._send_event("stop_completed", serial=stop.serial)
            if self._channel.closed:  # only services are left; the next stop finds the processes that they have started
                for child in self._children.values():
                    child.kill()
        elif stop.killed is not None or now >= stop.deadline:
            self._kill_all(stop, now)

    def _reap(self) -> None:
        """Reap dead children, and report their ends."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return
            self._childless = False
            if pid == 0:
                return
            self._read_starts()  # a forked worker may have died before its pid was read
            self._receive_from_starter()  # its last message may name the process that replaces it
            if pid in self._children:
                self._ended.add(pid)
                child = self._children.pop(pid)
                if child.pid == pid:
                    self._report_end(child, os.waitstatus_to_exitcode(status))

    def _report_end(self, child: Child, returncode: int) -> None:
        match child.kind:
            case Kind.STARTER:
                self._add_child(self._starter.handle_death(child, returncode, closing=self._channel.closed))
            case Kind.SERVICE if child.started:
                self._send_event("service_ended", tag=child.tag, returncode=returncode, error="")
            case Kind.WORKER if child.started and not (self._stopping and self._stopping.fenced):
                # Workers that the fence has killed did not fail: only Fenced is sent.
                self._send_event("exited", tag=child.tag, pid=child.pid, returncode=returncode, at=time.monotonic())

    def _workers(self) -> list[int]:
        return [pid for pid, child in self._children.items() if child.kind is Kind.WORKER]

    def _services(self) -> set[int]:
        return {pid for pid, child in self._children.items() if child.kind is not Kind.WORKER}

    def _has_workers_left(self) -> bool:
        """Return whether any descendant is left besides services, helpers and their descendants.

        Every descendant has an ancestor among our children, since a subreaper inherits them all.
        """
        if self._workers() or any(child.kind is Kind.WORKER for child in self._unforked()):
            return True
        others = [] if self._childless else [pid for pid in children() if pid not in self._services()]
        now = time.monotonic()
        return not all(self._helpers.outlives_stop(pid, now) for pid in others)

    def _stop(self, signum: int, grace: float, *, fenced: bool = False, ending: Sequence[int] = ()) -> StopInProgress:
        """Begin a stop: signal every worker's group; kill what is left at the deadline or after the last worker.

        Helpers live on until the deadline. With a ``grace`` of 0 all processes are killed. The workers
        ``ending`` end by themselves, and are only killed.

        A stop that is under way goes on with the nearer of the two deadlines, and keeps its signal: a worker may be
        saving its state.
        """
        now = time.monotonic()
        if grace == 0:
            self._helpers.clear()
        if self._stopping is None:
            self._stopping = StopInProgress(signum, grace, now, fenced)
            for child in self._starter.drop_waiting_workers():
                self._report_failure(child, STOPPING_REASON)
            if grace > 0:
                self._signal_workers([pid for pid in self._workers() if pid not in ending], signum)
        self._stopping.deadline = min(self._stopping.deadline, now + grace)
        self._stopping.fenced = self._stopping.fenced or fenced
        return self._stopping

    def _handled(self, signum: int) -> int:
        """Return the signal, or SIGTERM for a notice of a scheduler for which no worker has a handler."""
        running = [pid for pid in self._workers() if self._children[pid].started]  # before, it has our handlers
        return signum if signum not in NOTICES or any(catches(pid, signum) for pid in running) else signal.SIGTERM

    def _signal_workers(self, workers: list[int], signum: int) -> None:
        for pid in workers:
            signal_group(pid, signum)
            signal_group(pid, signal.SIGCONT)  # a stopped process handles nothing
        if workers:
            self._send_event("signalled", signum=signum, pids=workers, names=[])

    def _signal(self, processes: list[Process], signum: int) -> None:
        names = {pid: name_of(pid) for pid, _ in processes}
        if pids := [process[0] for process in processes if kill(process, signum)]:
            self._send_event("signalled", signum=int(signum), pids=pids, names=[names[pid] for pid in pids])

    def _kill_all(self, stop: StopInProgress, now: float) -> None:
        """Send SIGKILL to every descendant. Each death leads to a new search."""
        stop.killed = stop.killed or {}
        left = self._kill(stop.killed, now)
        stop.killed = {process: since for process, since in stop.killed.items() if process in left}
        for pid, _ in stop.take_stuck(now):
            self._send_event("stuck", pid=pid, name=name_of(pid), wchan=waits_in(pid))

    def _kill(self, killed: dict[Process, float], now: float, numbers: Collection[int] = ()) -> set[Process]:
        """Send SIGKILL to the processes of :meth:`_find_killable`, until no new one is found; return the last found.

        Those that have got it are in ``killed``, with the time.
        """
        while True:
            found = self._find_killable(numbers)
            if not (fresh := [process for process in found if process not in killed]):
                return set(found)
            self._signal(fresh, SIGKILL)
            killed.update(dict.fromkeys(fresh, now))
            for pid in () if numbers else self._workers():  # at once, so that its group cannot fork faster
                signal_group(pid, SIGKILL)

    def _find_killable(self, numbers: Collection[int] = ()) -> list[Process]:
        """Return every descendant but services, theirs, and helpers that have time; of ``numbers`` if given."""
        searched = False
        while not searched:
            known = set(self._children)
            found = descendants(os.getpid(), without=self._services())
            self._read_starts()  # the pid of a service forked just now is still in its pipe
            self._receive_from_starter()
            searched = known == set(self._children)  # else one was forked after the search, and nothing tells of it
        if numbers:
            return [one for one in found if one[0] in numbers or session_of(one[0]) in numbers]
        return [one for one in found if not self._helpers.has_time(one[0])]

    def _send_event(self, event: str, **facts: object) -> None:
        self._channel.send({"event": event, **facts})


def _note(_signum: int, _frame: object) -> None:
    """Python writes a signal to the wake-up descriptor only if the signal has a handler."""


def main() -> None:
    """Run the warden of the agent at the other end of the socket."""
    ignore_requests_to_end(_note)  # it ends with its last descendant
    become_subreaper()
    open_standard_streams()
    os.set_inheritable(channel := int(sys.argv[1]), False)  # the only one that it inherits
    with open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write("elastic-warden")
    WardenProcess(Channel(socket.socket(fileno=channel))).run()
