"""The failure of one process, with the fields of ``torch.distributed.elastic.multiprocessing.ProcessFailure``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from elastic_core.agent import as_torchs, error_file_data, recorded_cause
from elastic_core.exit_codes import describe_exit, signal_name
from elastic_core.incidents import Incident
from elastic_core.worker import NO_MESSAGE, error_data

NOT_AVAILABLE = "<N/A>"  # torch's text for the name of no signal
_NO_DATA: Mapping[str, Any] = MappingProxyType({"message": NO_MESSAGE})


@dataclass(slots=True)
class ProcessFailure:
    """The failure of one process; reads its error file when it is made, as torch's does.

    ``message``, ``timestamp`` and ``error_file_data`` are for one without a valid file that explains its exit code.
    """

    local_rank: int
    pid: int  # 0 for a process that did not start
    exitcode: int  # the exit code, or a signal's number, negative
    error_file: str  # ``<N/A>`` where the process has written none
    error_file_data: Mapping[str, Any] = field(default_factory=lambda: _NO_DATA, kw_only=True)  # as torch's @record's
    message: str = field(default="", kw_only=True)  # one line: the exception, or how the process ended
    timestamp: int = field(default_factory=lambda: int(time.time()), kw_only=True)  # seconds since 1970, of the record

    def __post_init__(self) -> None:
        self.message = self.message or describe_exit(self.exitcode)
        data = error_file_data(Path(self.error_file))
        shown = as_torchs(data, self.exitcode)
        if not shown or (recorded := recorded_cause(data, "")) is None:
            self.error_file = NOT_AVAILABLE
            return
        self.error_file_data, self.timestamp = shown, _recorded_at(data)
        self.message = recorded.message or self.message

    def signal_name(self) -> str:
        """``SIGKILL``; ``<N/A>`` where no signal ended it."""
        return signal_name(-self.exitcode) if self.exitcode < 0 else NOT_AVAILABLE

    def timestamp_isoformat(self) -> str:
        """Return the local time, as ``2026-05-01_12:00:00``."""
        return datetime.fromtimestamp(self.timestamp).isoformat(sep="_")


def failure_of(incident: Incident) -> ProcessFailure:
    """Return the failure of a worker of any node, without its error file, which stays on that node."""
    message = incident.message or incident.cause()
    return ProcessFailure(
        local_rank=-1 if incident.local_rank is None else incident.local_rank,
        pid=incident.pid or 0,
        exitcode=incident.exit_code or 1,
        error_file=NOT_AVAILABLE,
        error_file_data=error_data(message, incident.detail),
        message=message,
    )


def _recorded_at(data: Mapping[str, Any]) -> int:
    """Return the time of the record in seconds since 1970, where torch's handler wrote it; else the time now."""
    message = data.get("message")
    extra = message.get("extraInfo") if isinstance(message, dict) else data
    try:
        return int(extra["timestamp"])  # type: ignore[index]  # or it raises
    except (TypeError, ValueError, LookupError):
        return int(time.time())
