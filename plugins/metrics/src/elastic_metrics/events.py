"""The plugin ``events``: every event of this node as a JSON line in the run's log directory.

The file is ``events_HOST_NODE.jsonl``. The log directory may be shared by all nodes and outlive several agents of one
host, so the file is named after the node's id, which is never used again.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from elastic_core import JoinedRun, hookimpl
from elastic_core.errors import ElasticError
from elastic_core.events import Event, Field
from elastic_core.protocol import NodeInfo

KEPT = 1_000
"""The most events before the run starts, and with it a place to write them to; the oldest are dropped."""


class LineFile:
    """One writer's file, written without a buffer.

    ``descriptor`` is open for writing at the file's end, which is ours alone; it is closed with this object.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size

    @classmethod
    def create(cls, path: Path) -> LineFile:
        """Return a new file, with the folders above it; raise OSError if it cannot be made, or is there already."""
        path.parent.mkdir(parents=True, exist_ok=True)
        return cls(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o640))

    def append(self, record: Mapping[str, object]) -> None:
        """Write one line. Where that fails, the file ends with the line before.

        Raises:
            OSError: The disk is full, or the file cannot be written for another reason.
        """
        line = encoded(record)
        left = memoryview(line)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(line)

    def close(self) -> None:
        """Close it, for good."""
        os.close(self._descriptor)


class EventsNotWrittenError(ElasticError):
    """The file cannot be made or written. Elastic reports it and switches the plugin off."""

    def __init__(self, path: Path, cause: OSError) -> None:
        super().__init__(
            f"No more events are written to {str(path)!r}: {cause.strerror or cause}.",
            hint="Name a --log_dir that can be written to and has room.",
        )


class EventLines:
    """Writes each event when it happens; without a log directory, none."""

    def __init__(
        self,
        *,
        open: Callable[[Path], LineFile] = LineFile.create,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open, self._wall, self._monotonic = open, wall, monotonic
        self._early: deque[Event] | None = deque(maxlen=KEPT)
        self._path: Path | None = None
        self._file: LineFile | None = None

    @hookimpl
    def elastic_run_starts(self, run: JoinedRun) -> None:
        """Make the file, and write down which run and node it is about."""
        early = self._early
        self.elastic_run_ends()  # the agent may have entered the job again, as another node
        if run.log_dir is None:
            return
        node, self._path = run.node, run.log_dir / file_name(run.node)
        try:
            self._file = self._open(self._path)
        except OSError as exc:
            raise EventsNotWrittenError(self._path, exc) from exc
        fields: dict[str, Field] = {
            "job": run.config.rdzv_id,
            "run": run.run_uid,
            "node": str(node),
            "node_id": node.node_id,
            "host": node.host,
            "slot": node.slot,
            "role": node.role,
            "local_world_size": node.local_world_size,
            "backend": run.config.rdzv_backend,
        }
        at = early[0].at if early else self._monotonic()
        for event in (Event("run_starts", f"{node} is in run {run.run_uid}", fields=fields, at=at), *(early or ())):
            self._write(event)

    @hookimpl
    def elastic_observe(self, event: Event) -> None:
        """Write the event, or keep it until there is a file."""
        if self._early is not None:
            self._early.append(event)
        elif self._file is not None:
            self._write(event)

    @hookimpl
    def elastic_run_ends(self) -> None:
        """Close the file."""
        self._early = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, event: Event) -> None:
        assert self._file is not None
        assert self._path is not None
        happened = self._wall() - (self._monotonic() - event.at)
        try:
            self._file.append(
                {
                    "time": iso(happened),
                    "monotonic": round(event.at, 6),
                    "name": event.name,
                    "level": event.level.name,
                    "message": event.message,
                    "fields": event.fields,
                }
            )
        except OSError as exc:
            self._file.close()
            self._file = None
            raise EventsNotWrittenError(self._path, exc) from exc


def file_name(node: NodeInfo) -> str:
    """Return the file of one node, in a folder that other nodes may write to as well."""
    host = re.sub(r"[^A-Za-z0-9._-]", "_", node.host)
    return f"events_{host}_{node.node_id}.jsonl"


def iso(epoch: float) -> str:
    """Return an instant, given in seconds since the epoch, as ``2026-01-31T12:34:56.789012Z``, in UTC."""
    micros = round(epoch * 1e6)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(micros // 1_000_000)) + f".{micros % 1_000_000:06d}Z"


def encoded(record: Mapping[str, object]) -> bytes:
    """Return one line of JSON, in ASCII; a value that JSON lacks, such as infinity, becomes text."""
    return json.dumps(_plain(record)).encode("ascii") + b"\n"


def _plain(value: object) -> Any:
    match value:
        case None | bool() | str() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
    return str(value)
