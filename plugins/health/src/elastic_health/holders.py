"""Which processes the next workers wait for: those that hold memory of this node's GPUs and are not the agent's.

The warden has seen all processes of the last round end before the next one starts. What is left are processes that
escaped to another parent, of an earlier job, or of another user.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from elastic_core.warden.linux import Process, descendants, running_process
from elastic_health.gpu_memory import GpuError, Holder, Source, describe_holder, find_source, visible_uuids

SHOWN = 8  # holders that are named, at most


class MemoryWait:
    """Says for whom workers wait; called on one thread at a time.

    A process for which one round has waited is not waited for again: it stays, or shares the GPU on purpose.
    """

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        find: Callable[[Mapping[str, str]], Source | None] = find_source,
    ) -> None:
        self._environ, self._find = environ, find
        self._source: Source | None = None
        self._looked = False
        self._since: dict[Process, int] = {}  # for which round each process was first waited for

    def reason(self, round: int, run_uid: str) -> str | None:
        """Return who holds memory that the workers of a round may need; None if they need not wait."""
        if not self._looked:
            self._source, self._looked = self._find(self._environ), True
        if self._source is None:
            return None
        try:
            visible = visible_uuids(self._source.gpus(), self._environ)
            holders = [one for one in self._source.holders() if one.gpu in visible or not one.gpu.startswith("GPU-")]
        except GpuError:
            return None  # the check ``gpu`` says so before a node enters; here no process holds memory
        own = {pid for pid, _ in descendants(os.getpid())} | {os.getpid()}
        held = [one for one in holders if one.pid not in own and not is_of_round(one.pid, run_uid, round)]
        waited_for = [one for one in held if self._since.setdefault(_process(one), round) == round]
        return "; ".join(describe_holder(one) for one in waited_for[:SHOWN]) or None


def _process(holder: Holder) -> Process:
    return running_process(holder.pid) or (holder.pid, 0)


def is_of_round(pid: int, run_uid: str, round: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process belongs to this round of the run, or a later one: a worker of another agent on this host."""
    with contextlib.suppress(OSError, ValueError):
        environ = (proc / str(pid) / "environ").read_bytes().split(b"\0")
        named = dict(part.split(b"=", 1) for part in environ if b"=" in part)
        same = named.get(b"ELASTIC_RUN_UID") == run_uid.encode()
        return same and int(named.get(b"ELASTIC_ROUND", b"0")) >= round
    return False
