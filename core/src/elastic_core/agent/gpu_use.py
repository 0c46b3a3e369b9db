"""Which workers use a GPU, as ``nvidia-smi`` tells: a sign of life of workers that show no other.

Nothing is run where there is no ``nvidia-smi``, or while workers show other signs. It runs on a thread, one at a time,
since it takes seconds on a busy machine, and does not return where the driver is stuck.

The kernels of NCCL count too, while they wait for a peer: a rank that only waits for others uses its GPU. A hang is
found by the rank that they wait for.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from elastic_core.errors import in_one_line
from elastic_core.host.devices.smi import ask_smi

COMMAND = "nvidia-smi"
ARGUMENTS = "pmon", "-c", "1", "-s", "u"  # the use by each process, over the last second or so
LIMIT_SECONDS = 10.0  # for one run
LEAST_INTERVAL_SECONDS = 1.0  # between two runs
MOST_FAILURES = 3  # after so many in a row it is not run any more


@dataclass(frozen=True, slots=True)
class Use:
    """One line of ``nvidia-smi pmon``: a process uses a GPU."""

    gpu: int  # its index on this host
    pid: int


def parse(text: str) -> tuple[Use, ...]:
    """Return the processes of which the line shows a use of the GPU's processors."""
    found = []
    for line in text.splitlines():
        with suppress(ValueError):
            gpu, pid, _, share = line.split()[:4]  # a comment, or a GPU without a process, has no numbers there
            if int(share) > 0:
                found.append(Use(int(gpu), int(pid)))
    return tuple(found)


def users(uses: Collection[Use], workers: Mapping[int, int], exists: Callable[[int], bool]) -> frozenset[int]:
    """Return the workers among these, local ranks by pid, that use a GPU.

    In a container, ``nvidia-smi`` tells pids of the host, which are no processes here. Then the use of a GPU is taken
    for that of the local rank with the GPU's index.
    """
    pids = {use.pid for use in uses}
    if pids and not any(exists(pid) for pid in pids):
        return frozenset(pid for pid, local_rank in workers.items() if any(use.gpu == local_rank for use in uses))
    return frozenset(pids & workers.keys())


@dataclass(slots=True)
class GpuUse:
    """Finds out on a thread which workers use a GPU. For the agent's loop, which never waits here."""

    find: Callable[[], str | None] = lambda: shutil.which(COMMAND)
    now: Callable[[], float] = time.monotonic
    give_up: Callable[[str], None] = lambda _: None  # told once, by a look, why it is not run any more
    thread: threading.Thread | None = None  # of the run that is under way
    _uses: tuple[Use, ...] = ()
    _failures: int = 0
    _why: str = ""  # the error of the last failure
    _next_at: float = 0.0

    def look(self, interval: float) -> tuple[Use, ...]:
        """Return what the last run has told, once, and begin another if the last one is ``interval`` seconds ago."""
        if self.thread is not None and self.thread.is_alive():
            return ()
        told, self._uses, self.thread = self._uses, (), None
        if self._failures == MOST_FAILURES and self._why:
            self.give_up(self._why)
            self._why = ""
        if self._failures < MOST_FAILURES and self.now() >= self._next_at:
            self._next_at = self.now() + max(LEAST_INTERVAL_SECONDS, interval)
            if (command := self.find()) is None:
                self._failures, self._why = MOST_FAILURES, ""
            else:
                self.thread = threading.Thread(target=self._run, args=(command,), name="elastic-gpu", daemon=True)
                self.thread.start()
        return told

    def _run(self, command: str) -> None:
        try:
            done = ask_smi([command, *ARGUMENTS], LIMIT_SECONDS)
            done.check_returncode()
        except (OSError, subprocess.SubprocessError) as exc:
            self._why = in_one_line(exc)
            self._failures += 1
        else:
            self._failures, self._uses = 0, parse(done.stdout)
