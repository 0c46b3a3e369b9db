"""The processes for which the next workers wait: those of Elastic runs that still hold memory of this node's GPUs.

The warden has seen all processes of the last round end before the next one starts. What is left are processes that
escaped to another parent, of an earlier job, or of another user. Those of another run, zombies, and those that have
ended are about to let the memory go; others share the GPU, and are only named.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from elastic_core.host.devices import Machine
from elastic_core.warden import Process, descendants, running_process, state_of
from elastic_health.gpu_memory import Gpu, GpuError, Source, describe_holder, find_source, visible_uuids

SHOWN = 8  # holders that are named, at most
WAITED_SECONDS = 9.0  # a process for which workers have waited for so long, in all, holds up no other round
MOST_FAILURES = 3  # after so many in a row the GPUs are not asked any more


def no_nvml() -> None:
    """Load no library of the driver: a call to it that hangs would keep the agent from its end."""


MACHINE = Machine(nvml=no_nvml)


class MemoryWait:
    """Says for whom workers wait; called on one thread at a time.

    A process that outlasts one wait is not waited for again: it stays, or shares the GPU on purpose.
    """

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        find: Callable[[Mapping[str, str]], Source | None] = find_source,
        note: Callable[[str], None] = lambda _: None,
        give_up: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Look for the GPUs of this node with ``find``."""
        self._environ, self._note, self._give_up = environ, note, give_up
        self._failures = 0  # in a row
        self._source = find(environ)
        self._gpus: list[Gpu] = []  # they are asked for once
        self._seen: dict[int, Process] = {}  # holders that were alive here: others are pids of the host
        self._noted: set[Process] = set()
        self._waited: dict[Process, tuple[int, float]] = {}  # the last round that waited, and the seconds of all
        self._asked = (0, 0.0)  # the round of the last question, and how long its workers had waited

    def reason(self, round: int, run_uid: str, waited: float) -> str | None:
        """Return who holds memory that the workers of a round may need; None if they need not wait.

        ``waited`` says for how many seconds the workers of this round have waited; 0 before they are to start.
        """
        if self._source is None:
            return None
        try:
            self._gpus = self._gpus or self._source.gpus()
            visible = visible_uuids(self._gpus, self._environ, MACHINE)
            holders = [one for one in self._source.holders() if one.gpu in visible or not one.gpu.startswith("GPU-")]
        except GpuError as exc:  # here no process is known to hold memory
            self._failures += 1
            if self._failures == MOST_FAILURES:
                self._source = None
                self._give_up(str(exc))
            return None
        self._failures = 0
        last_round, before = self._asked
        more, self._asked = max(0.0, waited - (before if last_round == round else 0.0)), (round, waited)
        own, found = {pid for pid, _ in descendants(os.getpid())} | {os.getpid()}, []
        for one in holders:
            seen = self._process(one.pid)
            if seen is None or one.pid in own or is_of_round(one.pid, run_uid, round):
                continue
            if not is_ending(one.pid):
                if seen not in self._noted:
                    self._noted.add(seen)
                    self._note(describe_holder(one))
            elif self._is_waited_for(seen, round, more):
                found.append(one)
        return "; ".join(describe_holder(one) for one in found[:SHOWN]) or None

    def _process(self, pid: int) -> Process | None:
        """Return the process that has, or had, this pid; None if none was ever seen here: in a container, a host's."""
        if (process := running_process(pid)) is not None:
            self._seen[pid] = process
        elif state_of(pid):  # a zombie
            self._seen.setdefault(pid, (pid, 0))
        return self._seen.get(pid)

    def _is_waited_for(self, process: Process, round: int, more: float) -> bool:
        """Count ``more`` seconds of waiting for a process, unless earlier rounds have waited long enough for it."""
        last, seconds = self._waited.get(process, (round, 0.0))
        if seconds >= WAITED_SECONDS and last != round:
            return False
        self._waited[process] = (round, seconds + more) if more else (last, seconds)
        return True


def is_ending(pid: int) -> bool:
    """Return True if a process has ended, or is of a run of Elastic's, so that its memory may soon be free."""
    if state_of(pid) in ("", "Z", "X"):
        return True
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:
        return False
    except OSError:  # it is gone
        return True
    return b"\0ELASTIC_RUN_UID=" in b"\0" + environ


def is_of_round(pid: int, run_uid: str, round: int, proc: Path = Path("/proc")) -> bool:
    """Return True if a process belongs to this round of the run or a later one: a worker of another agent here."""
    with contextlib.suppress(OSError, ValueError):
        environ = (proc / str(pid) / "environ").read_bytes().split(b"\0")
        named = dict(part.split(b"=", 1) for part in environ if b"=" in part)
        same = named.get(b"ELASTIC_RUN_UID") == run_uid.encode()
        return same and int(named.get(b"ELASTIC_ROUND", b"0")) >= round
    return False
