"""The audit log: which samples each committed step took, as JSON lines for ``elastic audit-data``.

There are two kinds of lines. A *step* is written after each committed step: the facts that all ranks agree on, and this
rank's own share. A *resumption* is written when a state is loaded: where it goes on, and the facts of the last step
before. Those of a rank that died between its last update and its line are so known from the state that others held; it
can be at most one step behind, since the next one needs its gradients.

No torch in here: the command reads logs where none is installed.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

VERSION = 1
MARK = "elastic_audit"  # the key that every line has, with the version


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The facts of one step that all ranks agree on. Places are those of the epoch's order, half-open."""

    step: int  # steps committed before it, over all epochs
    epoch: int
    start: int
    stop: int
    world_size: int
    global_batch_size: int
    drop_last: bool
    length: int  # samples in the dataset
    seed: int
    order: str  # the name of the method that makes the order of seed and epoch

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Step:
        """Return a step from JSON, which may have other keys; raise ValueError, which says why, if it is none."""
        known: dict[str, Any] = {field.name: facts.get(field.name) for field in fields(cls)}
        kinds = {"order": str, "drop_last": bool}
        for name, value in known.items():
            if type(value) is not kinds.get(name, int):
                raise ValueError(f"{name} is {value!r}")
        step = cls(**known)
        if not (0 <= step.start < step.stop <= step.length and step.world_size > 0 and step.global_batch_size > 0):
            raise ValueError(f"it takes samples [{step.start}, {step.stop}) of {step.length}")
        return step


class AuditLog:
    """One rank's part of the log: appends lines, each of them in the file as soon as it is written.

    A line that cannot be written ends the log with a warning, not the training; what is missing is then reported by
    ``elastic audit-data`` as skipped. Lines are not synced to the disk one by one: a host that loses its power may lose
    its last ones.

    Args:
        path: The file, made when the first line is written, with the folders above it. Earlier rounds' lines stay.
        rank: Who writes.

    Attributes:
        run: The run's uid, from the environment that ``elastic run`` sets, or torchrun's job id.
        round: The round's number, from there too. torchrun has none: None.
    """

    def __init__(self, path: str | Path, *, rank: int) -> None:
        self.path = Path(path)
        self.rank = rank
        self.run = os.environ.get("ELASTIC_RUN_UID") or os.environ.get("TORCHELASTIC_RUN_ID", "")
        number = os.environ.get("ELASTIC_ROUND", "")
        self.round = int(number) if number.isdecimal() else None
        self._descriptor: int | None = None
        self._failed = False

    def step(self, step: Step, own: range) -> None:
        """Record that a step is committed, in which this rank took the places ``own``."""
        self._write({**asdict(step), "own": [own.start, own.stop]})

    def resumption(self, *, step: int, epoch: int, cursor: int, previous: Step | None) -> None:
        """Record that training goes on with ``step`` at place ``cursor`` of ``epoch``, after ``previous``."""
        before = None if previous is None else asdict(previous)
        self._write({"resumed": {"step": step, "epoch": epoch, "start": cursor, "previous": before}})

    def close(self) -> None:
        """Close the file, if it is open. A later line opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()

    def _write(self, facts: Mapping[str, Any]) -> None:
        if self._failed:
            return
        who = {MARK: VERSION, "run": self.run, "round": self.round, "rank": self.rank}
        line = json.dumps({**who, **facts}).encode("ascii") + b"\n"
        try:
            if self._descriptor is None:
                self._descriptor = _open(self.path)
            while line:
                line = line[os.write(self._descriptor, line) :]
        except OSError as exc:
            self._failed = True
            warnings.warn(f"The audit log {self.path} ends here: {exc}. Training goes on.", stacklevel=4)


def audit_log(path: str | Path, rank: int) -> AuditLog | None:
    """Return this rank's log: its own where the name has ``{rank}`` in it; else rank 0's, and None for others."""
    name = os.fspath(path)
    if "{rank}" in name:
        return AuditLog(name.replace("{rank}", str(rank)), rank=rank)
    return AuditLog(name, rank=rank) if rank == 0 else None


def _open(path: Path) -> int:
    """Open for appending, at the beginning of a line: a writer may have been killed within one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            os.write(descriptor, b"\n")
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
