"""Agents as real processes, and what can be seen of them from outside.

A :class:`Rig` starts agents as users do, each in a session of its own, and collects what they and their workers
print. Workers report in JSON lines (``tests/workers/report.py``). Every process carries the rig's mark in its
environment, so that none can hide. All waiting is for something to happen, with a deadline that only a failing test
ever meets.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

WORKERS = Path(__file__).parents[1] / "workers"
EXAMPLES = Path(__file__).parents[2] / "examples"
MARK = "ELASTIC_TEST_MARK"
HAS_WARM_START = find_spec("elastic_warmstart") is not None
COLD = {"PET_WARM_START": "0"} if HAS_WARM_START else {}
"""Agents start workers fresh unless a test says otherwise: most of what tests run needs no torch."""
WARM = {"PET_WARM_START": "1"} if HAS_WARM_START else {}
FIRST_FAILURE_ENDS = {"PET_MAX_RESTARTS": "0"}
"""So it is in agents that tests start, unless a test says otherwise: most failures in tests are meant to be seen."""
PATIENCE = 60.0
"""Seconds after which a test gives up on something; far more than anything takes."""
END_MAX_SECONDS = 10.0
"""Seconds from the end of an agent within which its last process must have ended."""
PORTS = range(20000, 29000)
"""The ports of :func:`free_port`: beside those of ``redis_servers``, and below the defaults of torch."""


@dataclass(frozen=True, slots=True)
class Report:
    """A worker's report: a JSON line on its standard output."""

    event: str
    rank: int
    fields: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


@dataclass
class Agent:
    """One ``elastic run``, and every line that it and its workers have printed so far."""

    process: subprocess.Popen[str]
    changed: threading.Condition
    """Notified of every line, and of the end of the output; one for all agents of a rig."""
    lines: list[str] = field(default_factory=list)
    ended: bool = False
    """True if its output is at its end: neither it nor any worker of its can write there any more."""
    stopped: list[int] = field(default_factory=list)
    """The processes of it that are left after :meth:`vanish`."""

    def __post_init__(self) -> None:
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with self.changed:
                    self.lines.append(line.rstrip("\n"))
                    self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    @property
    def pid(self) -> int:
        """The agent's process id."""
        return self.process.pid

    @property
    def output(self) -> str:
        """Everything printed so far."""
        return "\n".join(self.lines)

    def wait_for(self, pattern: str, *, count: int = 1) -> str:
        """Wait for the ``count``-th line in which ``pattern`` is found."""

        def found() -> list[str]:
            return [line for line in self.lines if re.search(pattern, line)]

        self._wait(lambda: len(found()) >= count, f"{count} line(s) like {pattern!r}")
        return found()[count - 1]

    def reports(self, event: str, **fields: object) -> list[Report]:
        """Return what its workers have reported so far of this event, with these fields."""
        said = [report for line in list(self.lines) if (report := parse(line)) is not None]
        return [r for r in said if r.event == event and fields.items() <= r.fields.items()]

    def wait_for_report(self, event: str, *, count: int = 1, **fields: object) -> list[Report]:
        """Wait for the first ``count`` reports of this event with these fields."""
        self._wait(lambda: len(self.reports(event, **fields)) >= count, f"{count} report(s) {event} {fields}")
        return self.reports(event, **fields)[:count]

    def _wait(self, happened: Callable[[], object], what: str) -> None:
        with self.changed:
            self.changed.wait_for(lambda: happened() or self.ended, PATIENCE)
            assert happened(), f"{'no' if self.ended else f'not within {PATIENCE:.0f} s:'} {what} in:\n{self.output}"

    def exit_code(self, patience: float = PATIENCE) -> int:
        """Wait for the end, and for the end of the output: ``patience`` s at most."""
        try:
            code = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {patience:.0f} s:\n{self.output}") from None
        self.listen_to_the_end()
        return code

    def listen_to_the_end(self) -> None:
        """Wait for the end of the output, when all who could write to it are gone."""
        self._listener.join(PATIENCE)

    def signal(self, signum: int) -> None:
        """Send a signal to the agent alone."""
        self.process.send_signal(signum)

    def named(self, *parts: str) -> list[int]:
        """Return processes below it whose command line has all these parts; parents first.

        One that it has just forked, and that is to become another program, still has its own.
        """
        lines = {pid: command_line(pid) for pid in descendants(self.pid)}
        own = command_line(self.pid)
        return [pid for pid, line in lines.items() if line != own and all(part in line for part in parts)]

    def workers(self) -> dict[int, int]:
        """Return the process id of each rank that runs now."""
        found: dict[int, int] = {}
        for pid in descendants(self.pid):  # a worker's own children carry its rank too, and come after it
            if (rank := variable(pid, "RANK")) is not None:
                found.setdefault(int(rank), pid)
        return found

    def kill_worker(self, rank: int) -> None:
        """Kill one rank with SIGKILL."""
        os.kill(self.workers()[rank], signal.SIGKILL)

    def kill_node(self) -> None:
        """Kill the agent and everything that it started, at once; those beside it see from its slot that it is gone."""
        for pid in [self.pid, *descendants(self.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def vanish(self) -> None:
        """Kill all but its warden, which is stopped and holds the slot: as if it was on a machine of its own."""
        self.stopped = [pid for pid in descendants(self.pid) if name_of(pid) == "elastic-warden"]
        for pid in self.stopped:
            os.kill(pid, signal.SIGSTOP)
        for pid in [self.pid, *descendants(self.pid)]:
            if pid not in self.stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class Rig:
    """A test rig: it starts agents in a folder, and leaves nothing of them."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    agents: list[Agent] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def run(self, *arguments: object, env: Mapping[str, str] | None = None) -> Agent:
        """Start ``elastic run`` with these arguments."""
        return self.start([sys.executable, "-m", "elastic_core", "run", *map(str, arguments)], env=env)

    def start(self, command: list[str], *, env: Mapping[str, str] | None = None) -> Agent:
        """Start any launcher."""
        for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):  # a shell's background job ignores some
            if signal.getsignal(signum) is signal.SIG_IGN:
                signal.signal(signum, signal.SIG_DFL)
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        agent = Agent(process, self._changed)
        self.agents.append(agent)
        return agent

    def environment(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return a launcher's variables: this process's without settings for it, the mark, and ``env``."""
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "ELASTIC_", "SLURM_"))}
        return {**environ, "TERM": "xterm", MARK: self.mark, **COLD, **FIRST_FAILURE_ENDS, **(env or {})}

    def wait_until(self, happened: Callable[[], object], patience: float = PATIENCE) -> bool:
        """Wait until something that shows in the agents' output has happened; whether it did."""
        with self._changed:
            return bool(self._changed.wait_for(happened, patience))

    def processes(self) -> list[int]:
        """Every process that carries the rig's mark."""
        pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
        return [pid for pid in pids if variable(pid, MARK) == self.mark]

    def close(self) -> list[str]:
        """End the agents, politely; return what outlives them by END_MAX_SECONDS. Nothing is left either way."""
        for agent in self.agents:
            for pid in agent.stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if agent.process.poll() is None:
                agent.signal(signal.SIGTERM)
        for agent in self.agents:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.process.wait(PATIENCE / 2)
        names = [f"{pid}: {command_line(pid)}" for pid in still_there(self.processes(), within=END_MAX_SECONDS)]
        self.destroy()
        return names

    def destroy(self) -> None:
        """Kill whatever still runs."""
        while pids := still_there(self.processes(), within=0.0):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for agent in self.agents:
                agent.process.wait()
        for agent in self.agents:
            agent.process.wait()
            agent.listen_to_the_end()


def parse(line: str) -> Report | None:
    """Return a worker's report, if the line is one or ends in one: another worker's last line may lack its end.

    (Python writes a traceback's lines and their ends one after the other.)
    """
    text, start, said = line.partition('{"event"')
    if not start or text.endswith("]:"):  # what a console shows twice
        return None
    try:
        fields = json.loads(start + said)
    except ValueError:
        if not text:
            raise
        return None  # a traceback that quotes such a line's source
    return Report(fields["event"], fields["rank"], fields)


def descendants(pid: int) -> list[int]:
    """All that a process has started, directly or not, and that has not been orphaned; parents first."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                parent = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[1]
                children.setdefault(int(parent), []).append(int(entry))
    found = [pid]
    for member in found:
        found += children.get(member, [])
    return found[1:]


def variable(pid: int, name: str) -> str | None:
    """Return an environment variable of a process; None when it has none, or is not there any more."""
    try:
        environ = Path("/proc", str(pid), "environ").read_bytes()
    except OSError:
        return None
    prefix = name.encode() + b"="
    return next((item[len(prefix) :].decode() for item in environ.split(b"\0") if item.startswith(prefix)), None)


def name_of(pid: int) -> str:
    """Return the name that a process has given itself; '' when it is not there any more."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def command_line(pid: int) -> str:
    """Return a process's command, for messages."""
    with contextlib.suppress(OSError):
        return Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return "gone meanwhile"


def still_there(pids: Iterable[int], *, within: float) -> list[int]:
    """Those of the processes that have not ended after so many seconds."""
    deadline = time.monotonic() + within
    with contextlib.ExitStack() as stack:
        waiting: dict[int, int] = {}
        poll = select.poll()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                fd = os.pidfd_open(pid)
                stack.callback(os.close, fd)
                poll.register(fd, select.POLLIN)
                waiting[fd] = pid
        while waiting and (ended := poll.poll(max(0.0, deadline - time.monotonic()) * 1000)):
            for fd, _ in ended:
                poll.unregister(fd)
                del waiting[fd]
        return list(waiting.values())


def free_port() -> int:
    """Return a port of this host on which no process listens, from below those that the kernel hands out.

    A port that the kernel chose could be handed out again before the test uses it: to a worker's store, or to gloo.
    """
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError(f"none of 100 ports between {PORTS.start} and {PORTS.stop} is free")


def over(backend: str, folder: Path) -> list[str]:
    """Return the flags with which the nodes of one job meet over a backend."""
    endpoint = f"127.0.0.1:{free_port()}" if backend == "c10d" else str(folder)
    return [f"--rdzv_backend={backend}", f"--rdzv_endpoint={endpoint}", "--rdzv_id=job"]
