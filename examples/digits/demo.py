"""Two nodes train a CNN, are hurt on the way, recover, and finish: ``make demo``.

Each node is an agent of its own, started as a user would start it, and all of them run on this host. The kills are
real: SIGKILL, to one worker and then to every process of one node, and before that, over Redis and etcd, to the server
that leads. A recovery is timed from outside, from the kill to the moment when rank 0 has finished a training step,
which takes the gradients of all ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stores import Store, StoreFailed, store_for

TRAIN = Path(__file__).with_name("train.py")
WORKERS_PER_NODE = 2
PATIENCE = 60.0
"""Seconds without an epoch after which something has gone wrong; nothing takes a quarter of it on two cores."""
MARK = "ELASTIC_DEMO"
"""The variable by which every process of this demo is known, whichever process is its parent by now."""
GOAL = 0.97
AUDIT_LOG = "audit.jsonl"

STARTED = re.compile(r"(?P<workers>\d+) workers train from epoch (?P<epoch>\d+)")
EPOCH = re.compile(r"epoch (?P<epoch>\d+)/\d+: loss (?P<loss>\S+), (?P<workers>\d+) workers")
ACCURACY = re.compile(r"test accuracy (?P<accuracy>\S+) on")
AGENT = re.compile(r"\[elastic\] \S+ \S+: (?P<message>.*)")


class DemoFailed(Exception):
    """Something that the demo promises did not happen; says what."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line that a node printed, or None at the end of its output, with the time at which it came."""

    node: str
    text: str | None
    at: float


@dataclass(frozen=True, slots=True)
class Recovery:
    """A row of the table at the end."""

    event: str
    before: int
    after: int
    seconds: float | None
    """The time without training, in seconds; None if no worker stopped."""
    epoch: int


@dataclass
class Stage:
    """The nodes, what they print, and what the audience sees of it."""

    command: list[str]
    audit_log: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    agents: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    recoveries: list[Recovery] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    lines: queue.SimpleQueue[Line] = field(default_factory=queue.SimpleQueue)
    history: deque[str] = field(default_factory=lambda: deque(maxlen=40))
    workers: int = 0
    epoch: int = 0
    starts: int = 0
    """The number of times that workers have begun to train."""
    _shown: set[str] = field(default_factory=set)
    _quiet_until: float = 0.0

    def say(self, text: str) -> None:
        """Print one line for the audience."""
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)

    # Nodes -----------------------------------------------------------------------------------------------------------

    def start(self, name: str, *flags: str) -> None:
        """Start a node: its agent, in a session of its own, as if in another terminal."""
        agent = subprocess.Popen(
            [sys.executable, "-m", "elastic_core", "run", *flags, *self.command],
            env={**os.environ, MARK: self.mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.agents[name] = agent
        threading.Thread(target=self._listen, args=(name, agent), daemon=True).start()

    def _listen(self, name: str, agent: subprocess.Popen[str]) -> None:
        assert agent.stdout is not None
        with agent.stdout as lines:
            for text in lines:
                self.lines.put(Line(name, text.rstrip("\n"), time.monotonic()))
        self.lines.put(Line(name, None, time.monotonic()))

    def worker_pids(self, *names: str) -> list[int]:
        """Return the workers that run on these nodes now."""
        return [pid for name in names for pid in family(self.agents[name].pid) if is_worker(pid)]

    def kill_worker(self, name: str) -> float:
        """Kill the last worker of a node; return when that was."""
        pid = self.worker_pids(name)[-1]
        self.say(f"KILL     kill -9 {pid}: a worker on node {name}")
        os.kill(pid, signal.SIGKILL)
        return time.monotonic()

    def kill_node(self, name: str) -> float:
        """Kill every process of a node at once, its agent first; return when that was."""
        pids = family(self.agents[name].pid)
        self.say(f"KILL     kill -9 {' '.join(map(str, pids))}: node {name}, the agent and all that it started")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed_at = time.monotonic()
        self.agents.pop(name).wait()
        return killed_at

    # What they print -------------------------------------------------------------------------------------------------

    def wait_for(self, pattern: re.Pattern[str], what: str, **wanted: int) -> tuple[re.Match[str], float]:
        """Return the next line like ``pattern`` whose groups are at least as large as ``wanted``, and when it came.

        Raises:
            DemoFailed: It does not come, because the time is up or a node is out.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            line = self._next(deadline)
            if line is None:
                raise DemoFailed(f"{what} did not come, and no epoch either, for {PATIENCE:.0f} s")
            if line.text is None:
                if line.node in self.agents and self.agents[line.node].wait() != 0:
                    raise DemoFailed(f"node {line.node} ended with code {self.agents[line.node].returncode}")
                continue
            self._show(line.node, line.text)
            if EPOCH.search(line.text):
                deadline = line.at + PATIENCE
            found = pattern.search(line.text)
            if found and all(int(found[group]) >= least for group, least in wanted.items()):
                return found, line.at
            if ACCURACY.search(line.text):
                raise DemoFailed(f"the training ended before {what}; give it more --epochs")

    def _next(self, deadline: float) -> Line | None:
        remaining = deadline - time.monotonic()
        try:
            return self.lines.get(timeout=remaining) if remaining > 0 else None
        except queue.Empty:
            return None

    def _show(self, node: str, text: str) -> None:
        """Show a line to the audience, if it is worth it: what both agents say once, an epoch every few seconds."""
        self.history.append(f"{node}: {text}")
        now = time.monotonic()
        if found := EPOCH.search(text):
            self.epoch, self.workers = int(found["epoch"]), int(found["workers"])
            if now >= self._quiet_until:
                self._quiet_until = now + 2.0
                self.say(f"train    {text}")
        elif STARTED.search(text):
            self._quiet_until = 0.0
            self.starts += 1
            self.say(f"train    {text}")
        elif (found := AGENT.match(text)) and found["message"] not in self._shown:
            self._shown.add(found["message"])
            self.say(f"elastic  {textwrap.shorten(found['message'], 100, placeholder=' …')}")

    def recovered(self, event: str, since: float, workers: int) -> None:
        """Wait until ``workers`` ranks train again; note how long that took after ``since``."""
        before = self.workers
        while True:
            found, at = self.wait_for(STARTED, f"a training step of {workers} workers")
            if int(found["workers"]) == workers:
                break
        self.recoveries.append(Recovery(event, before, workers, at - since, int(found["epoch"])))
        self.say(f"BACK     {workers} workers train, {at - since:.1f} s later")

    def progress(self, epochs: int) -> None:
        """Wait until some more epochs are done."""
        self.wait_for(EPOCH, f"{epochs} more epochs", epoch=self.epoch + epochs)

    def undisturbed(self, event: str, store: Store) -> None:
        """Kill the server that leads; see that another one leads then, and that the same workers trained all the time.

        Raises:
            DemoFailed: They did not.
            StoreFailed: No other server leads.
        """
        workers, starts, epoch, leader = self.worker_pids(*self.agents), self.starts, self.epoch, store.leader()
        server = store.servers[leader]
        self.say(f"KILL     kill -9 {server.pid}: {store.title}, at port {leader}")
        server.kill()
        self.progress(5)
        heir = store.leader(after=leader)
        self.progress(5)
        if self.worker_pids(*self.agents) != workers or self.starts != starts:
            raise DemoFailed(f"workers were stopped when {store.title} was killed")
        self.recoveries.append(Recovery(event, self.workers, self.workers, None, self.epoch))
        epochs = self.epoch - epoch
        self.say(
            f"GO ON    workers never stopped: the same {len(workers)} have done {epochs} epochs since; {heir} leads now"
        )

    def finish(self) -> float:
        """Wait for the accuracy, and for the agents to end well."""
        found, _ = self.wait_for(ACCURACY, "the test accuracy")
        for name, agent in self.agents.items():
            try:
                code = agent.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                raise DemoFailed(f"node {name} did not end within {PATIENCE:.0f} s of the training") from None
            if code != 0:
                raise DemoFailed(f"node {name} ended with code {code}")
        return float(found["accuracy"])

    def audit(self) -> str:
        """Return the line of ``elastic audit-data`` that proves that each sample was used once an epoch.

        Raises:
            DemoFailed: It was not.
        """
        command = [sys.executable, "-m", "elastic_core", "audit-data", str(self.audit_log), "--finished"]
        audit = subprocess.run(command, capture_output=True, text=True)
        if audit.returncode != 0:
            raise DemoFailed(f"samples were skipped or repeated:\n{audit.stdout}{audit.stderr}")
        return audit.stdout.splitlines()[-1]

    def left_over(self) -> list[int]:
        """Return processes of this demo that still run; found by its mark, so none can hide."""
        pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
        return [pid for pid in pids if variable(pid, MARK) == self.mark]

    def clear(self) -> None:
        """Kill whatever still runs; there is nothing after a demo that went well."""
        while pids := self.left_over():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for agent in self.agents.values():
                agent.wait()


def family(pid: int) -> list[int]:
    """Return a process and all its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                parent = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[1]
                children.setdefault(int(parent), []).append(int(entry))
    found = [pid]
    for member in found:
        found += children.get(member, [])
    return found


def is_worker(pid: int) -> bool:
    """Return True if a process runs the script: not an agent, nor the fork server that workers are forked from."""
    try:
        command = Path("/proc", str(pid), "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False
    return TRAIN.name in command and "elastic" not in command.partition(TRAIN.name)[0]


def variable(pid: int, name: str) -> str | None:
    """Return an environment variable of a process; None when it has none, or is not there any more."""
    try:
        environ = Path("/proc", str(pid), "environ").read_bytes()
    except OSError:
        return None
    values = (item.partition(b"=")[2] for item in environ.split(b"\0") if item.startswith(name.encode() + b"="))
    return next((value.decode() for value in values), None)


@contextlib.contextmanager
def staged(backend: str, epochs: int) -> Iterator[tuple[Stage, Store]]:
    """Yield a stage in a temporary folder, and where its nodes meet; nothing is left of them.

    Raises:
        StoreFailed: There are no such servers here.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="elastic-demo-")))
        store = stack.enter_context(store_for(backend, folder))
        rendezvous = [f"--rdzv_backend={backend}", f"--rdzv_endpoint={store.endpoint}", "--rdzv_id=digits"]
        size = ["--nnodes=1:2", f"--nproc_per_node={WORKERS_PER_NODE}"]
        training = [os.path.relpath(TRAIN), f"--epochs={epochs}", f"--audit-log={folder / AUDIT_LOG}"]
        stage = Stage([*size, *rendezvous, *training], folder / AUDIT_LOG)
        try:
            yield stage, store
        finally:
            stage.clear()


def perform(stage: Stage, backend: str, store: Store) -> float:
    """Perform the whole play; return the test accuracy."""
    # Both agents come within seconds of each other, and once both are here neither waits for more.
    conf = ",".join(filter(None, ["--rdzv_conf=last_call_timeout=20", store.conf]))
    flags = {"A": conf, "B": conf}
    if backend == "c10d":  # the store lives in one of the agents; the node to be killed must be the other
        flags = {"A": f"{conf},is_host=true", "B": f"{conf},is_host=false"}
    print("Nodes A and B, each with two workers, all of them on this host:")
    print("  elastic run", *stage.command[:5], "\\\n    ", *stage.command[5:])
    stage.say("START    both nodes")
    began = time.monotonic()
    for name, flag in flags.items():
        stage.start(name, flag)
    stage.recovered("both nodes started", began, 2 * WORKERS_PER_NODE)

    if store.servers:
        stage.progress(5)
        stage.undisturbed("the leader killed", store)

    stage.progress(5)
    killed_at = stage.kill_worker("B")
    stage.recovered("a worker killed", killed_at, 2 * WORKERS_PER_NODE)

    stage.progress(5)
    killed_at = stage.kill_node("B")
    stage.recovered("node B killed", killed_at, WORKERS_PER_NODE)

    stage.progress(5)
    stage.say("START    node B again")
    began = time.monotonic()
    stage.start("B", flags["B"])
    stage.recovered("node B started again", began, 2 * WORKERS_PER_NODE)
    return stage.finish()


def print_table(stage: Stage, accuracy: float, proved: str) -> None:
    """Print what happened, how long each recovery took, and what came of the samples."""
    print(f"\n{'what happened':<24}{'workers':>10}{'training again after':>24}{'from epoch':>14}")
    for row in stage.recoveries:
        size = f"{row.before} -> {row.after}"
        again = "never stopped" if row.seconds is None else f"{row.seconds:.1f} s"
        print(f"{row.event:<24}{size:>10}{again:>24}{row.epoch:>14}")
    print(f"\nevery sample once an epoch? {proved}\ntest accuracy {accuracy:.1%}", flush=True)


def main() -> int:
    """Perform, print the table, and say whether everything came true."""
    parser = argparse.ArgumentParser(description="Two nodes train, are hurt, recover, and finish.")
    choices = ["c10d", "etcd", "file", "redis"]
    parser.add_argument("--rdzv_backend", "--rdzv-backend", choices=choices, default="c10d")
    parser.add_argument("--epochs", type=int, default=80)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    with contextlib.ExitStack() as stack:
        try:
            stage, store = stack.enter_context(staged(args.rdzv_backend, args.epochs))
        except StoreFailed as failed:
            print(f"The demo failed: {failed}.")
            return 1
        try:
            accuracy = perform(stage, args.rdzv_backend, store)
            left = stage.left_over()
            proved = stage.audit()
        except (DemoFailed, StoreFailed) as failed:
            print("\nthe last lines of the nodes:", *stage.history, f"\nThe demo failed: {failed}.", sep="\n")
            return 1
        print_table(stage, accuracy, proved)
        if accuracy <= GOAL:
            print(f"The demo failed: the accuracy is not above {GOAL:.0%}.")
            return 1
        if left:
            print(f"The demo failed: processes were left over: {', '.join(map(str, left))}.")
            return 1
        print(f"no process is left over; {time.monotonic() - stage.began:.0f} s in all", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
