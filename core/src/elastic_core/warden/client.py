"""The agent's side of the warden: starts it, sends requests, receives events. ``process.py`` is the process itself.

Nothing here blocks but :meth:`Warden.finish` and :meth:`Warden.close`; all of it is called from one thread. A launch
waits for the imports of this module, so ``messages``, which only events need, is imported when the first of them comes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from elastic_core.config.environment import inheritable
from elastic_core.errors import ResourceError
from elastic_core.host.processes import descendants, session_of
from elastic_core.warden.channel import Channel, Message
from elastic_core.warden.linux import kill

if TYPE_CHECKING:
    from elastic_core.errors import PluginError
    from elastic_core.starter import Starter
    from elastic_core.warden.messages import Fenced, StopCompleted, WardenEvent

CLOSING = 2.0  # seconds that a warden gets at the end; after that it goes on by itself
PROGRAM = f"""
import sys
sys.path.append({os.path.abspath(f"{__file__}/../../..")!r})
from elastic_core.warden.process import main
main()
"""
"""The program of the process. Python compiles it anew at each start, so the rest is imported, compiled already. Without
site, only this entry of the path leads to the package; it is the last, so that it hides no module."""
_DEATH_MAX_SECONDS = 1.0  # from the end of a warden's connection to its death


class SpawnRequest(NamedTuple):
    """The program that :meth:`Warden.spawn` starts; JSON.

    With ``warm`` the starter forks it once it is ready (:meth:`Warden.begin_starter`), if its command is the starter's
    but for the program's arguments. Else StartedFresh, with the reason, comes before Spawned.
    """

    argv: Sequence[str]  # looked for on the PATH of ``env``
    env: dict[str, str]
    cwd: str | None = None  # None for the agent's
    cpus: Sequence[int] | None = None  # that it may run on; None for the agent's
    ignored: Sequence[int] = ()  # the signals that it ignores until it sets another disposition
    warm: bool = False
    startup: Sequence[str] = ()  # files that a Python program executes first (elastic_worker_startup)


class Warden:
    """A running warden. Its owner should be a subreaper itself (:func:`become_subreaper`)."""

    def __init__(self, *, alone: bool = True) -> None:
        """Start the process.

        ``alone`` tells that nothing else in this process starts processes. If so, and the warden is killed, every new
        descendant of this process counts as the warden's and is killed; otherwise only those in a worker's session.

        Raises:
            ResourceError: No process could be made.
        """
        ours, theirs = socket.socketpair()
        self._others = frozenset(descendants(os.getpid()))
        self._alone = alone
        try:
            with theirs:
                given = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 3)  # a number that no standard stream can have
                command = [sys.executable, "-I", "-S", "-c", PROGRAM, str(given)]
                try:
                    # It needs a separate session: Ctrl-C goes to all of a terminal's foreground group.
                    self._process = subprocess.Popen(
                        command, env=inheritable(os.environ), pass_fds=[given], start_new_session=True
                    )
                finally:
                    os.close(given)
        except OSError as exc:
            ours.close()
            raise ResourceError(
                f"The process that starts the workers could not be started: {exc}.",
                hint="Check the limits of processes and open files (ulimit -u, ulimit -n).",
            ) from exc
        self._channel = Channel(ours)
        self._workers: set[int] = set()  # all since the last stop; each led a session
        self._stops = self._answered = 0  # the number of the newest stop, and of the newest that was answered
        self._fences = 0
        self._died = False
        self.starter: Starter | None = None  # as it was begun
        self.starter_problem: PluginError | None = None  # why the one that is installed was not begun
        # One descriptor for the agent's loop: readable when the socket is, or has room for pending messages.
        self._ready = select.epoll()
        self._ready.register(self._channel, select.EPOLLIN)

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`receive` is to be called."""
        return self._ready.fileno()

    def keep_off(self) -> None:
        """Take the present descendants of this process that are not the warden's for others, not to be killed."""
        self._others |= {process for process in descendants(os.getpid(), without={self.pid}) if process[0] != self.pid}

    def hold(self, slot: int) -> None:
        """Have it keep the node's slot open until its last descendant has ended, and every worker inherit a copy."""
        self._send("hold", {"slot": slot})

    def spawn(
        self,
        tag: int,
        request: SpawnRequest,
        *,
        stdin: int | None = None,  # a descriptor, which the caller may close at once; None for the agent's
        stdout: int | None = None,
        stderr: int | None = None,
        control: int | None = None,  # one more for it to inherit, whose number it finds in ``ELASTIC_CONTROL_FD``
    ) -> None:
        """Start a worker: Spawned or SpawnFailed will come, with ``tag``. While a stop is under way it fails."""
        streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr, "control": control}
        given = {name: fd for name, fd in streams.items() if fd is not None}
        # How many fences the caller has handled: a request that crosses a Fenced belongs to a round that is over.
        self._send("spawn", given, tag=tag, fences=self._fences, **request._asdict())

    def begin_starter(self, starter: Starter | None) -> None:
        """Start the starter: StarterReady or StarterFailed will come, and StarterDied whenever it is started
        again. If a StarterReady is not complete, another one will follow.

        Before it is used, another one may replace it; the same one changes nothing, and None ends what there is.
        It begins in the agent's directory.
        """
        if starter is not None or self.starter is not None:
            self._send("starter", settings={} if starter is None else starter.request())
        self.starter = starter

    def complete_starter(self) -> None:
        """Have a ready starter import the rest at once; by default it leaves the CPUs to workers that start."""
        self._send("complete_starter")

    def serve(
        self, tag: int, entry: str, arguments: Mapping[str, Any], *, descriptors: Mapping[str, int] | None = None
    ) -> None:
        """Have the starter fork a process that calls a function; if it may not fork, start a fresh interpreter
        (``warden/service.py``). ServiceEnded will come, at its end or if it could not be started.

        A stop does not end it. It has the starter's environment and streams, and leads a session. ``tag`` is the
        caller's name for it, among services. ``entry`` is ``package.module:function``, ``arguments`` are its keyword
        arguments, JSON. At most 15 ``descriptors`` are more of these; the caller may close them at once.
        """
        self._send("serve", descriptors, tag=tag, entry=entry, arguments=dict(arguments))

    def end_service(self, tag: int) -> None:
        """Kill a service, and the group that it leads."""
        self._send("end_service", tag=tag)

    def stop(
        self, *, grace: float, signum: int = signal.SIGTERM, ending: Collection[int] = (), patient: bool = False
    ) -> None:
        """Stop all: ``signum`` to the workers' process groups, SIGKILL to whatever is left after ``grace`` seconds.

        SIGTERM replaces a notice (``stop.NOTICES``) for which no worker has a handler, and follows any other signal in
        the last fifth of the grace, at most 5 s before its end. The workers ``ending`` get none of them: their programs
        have ended, and their exit codes are of interest.
        Processes that outlive the last worker are killed at once, except services; those in sessions of their own get
        SIGTERM and the rest of the grace, for which the answer does not wait. With ``patient`` all have the grace, and
        the answer waits. One StopCompleted answers all stops under way, of which the earliest deadline holds.
        """
        self._stops += 1
        self._send("stop", serial=self._stops, signum=int(signum), grace=grace, ending=[*ending], patient=patient)

    def finish(self, seconds: float) -> list[WardenEvent]:
        """Let the processes that the workers have left run for ``seconds`` at most; block, and return the events."""
        from elastic_core.warden.messages import StopCompleted  # see the top

        self.stop(grace=seconds, signum=0, patient=True)
        events, deadline = [], time.monotonic() + seconds + CLOSING
        while not self._died and (left := deadline - time.monotonic()) > 0:
            select.select([self], [], [], left)
            events += self.receive()
            if any(isinstance(event, StopCompleted) and self.is_over(event) for event in events):
                break
        return events

    def fence(self, seconds: float | None) -> None:
        """Kill all workers ``seconds`` from now, unless called again before; Fenced will come. None: never."""
        self._send("fence", seconds=seconds)

    def is_over(self, event: StopCompleted | Fenced) -> bool:
        """Return True if an event ends all requested workers; call it once for each event, when it is handled.

        Events come in batches, and other requests may have been sent since. A start that crosses a Fenced is refused.
        A stop that crosses one has its own answer, and only the answer to the newest stop counts.
        """
        from elastic_core.warden.messages import StopCompleted  # see the top

        if isinstance(event, StopCompleted):
            self._answered = event.serial
        else:
            self._fences += 1
        return self._answered == self._stops

    def sweep(self, path: str) -> None:
        """Remove this directory after the last process, should the agent not live to do it."""
        self._send("sweep", path=path)

    def wake(self) -> None:
        """Send SIGCONT, since a warden that SIGSTOP has stopped handles no request."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the warden: WardenDied will come, and its workers die with it."""
        self._process.kill()

    def receive(self) -> list[WardenEvent]:
        """Return the events since the last call."""
        self._channel.flush()
        events = [self._event(message) for message, _ in self._channel.receive()]
        if self._channel.closed and not self._died:
            self._died = True
            self._ready.unregister(self._channel)
            from elastic_core.warden.messages import warden_death  # see the top

            events.append(warden_death(self._kill_orphans()))
        self._watch()
        return events

    def close(self, timeout: float) -> None:
        """Kill everything below the warden, and wait for its end, for ``timeout`` seconds at most.

        After that it goes on alone: it holds the slot until its last descendant has ended. A second call does nothing.
        """
        if self._channel.closed and self._ready.closed:
            return
        self._send("spare")  # the agent is alive, and removes the directories itself
        self._channel.close()  # end-of-file has it kill its descendants
        try:
            self.wake()
            self._await_end(timeout)
        finally:
            self._ready.close()

    def _send(self, do: str, descriptors: Mapping[str, int] | None = None, **fields: Any) -> None:
        given = descriptors or {}
        self._channel.send({"do": do, **fields, "descriptors": list(given)}, list(given.values()))
        self._watch()

    def _watch(self) -> None:
        if not self._died:
            self._ready.modify(self._channel, select.EPOLLIN | (select.EPOLLOUT if self._channel.pending else 0))

    def _event(self, message: Message) -> WardenEvent:
        from elastic_core.warden.messages import Spawned, StopCompleted, parse_message  # see the top

        event = parse_message(message)
        if isinstance(event, Spawned):
            self._workers.add(event.pid)
        elif isinstance(event, StopCompleted):  # no process is left in the sessions of this round's workers
            self._workers.clear()
        return event

    def _kill_orphans(self) -> int | None:
        """Kill the orphans of a dead warden, whose workers died with it; return its exit code, None if it lives."""
        self._await_end(_DEATH_MAX_SECONDS)
        seen = set(self._others)
        while fresh := [process for process in descendants(os.getpid()) if process not in seen]:
            for process in fresh:
                if self._alone or session_of(process[0]) in self._workers:
                    kill(process)
            seen.update(fresh)
        return self._process.returncode

    def _await_end(self, timeout: float) -> None:
        if self._process.poll() is not None:
            return
        pidfd = os.pidfd_open(self._process.pid)
        try:
            select.select([pidfd], [], [], timeout)
        finally:
            os.close(pidfd)
        self._process.poll()
