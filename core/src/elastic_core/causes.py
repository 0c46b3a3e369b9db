"""The cause of a worker's failure, and what a plugin gets to find it (``elastic_find_cause``)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.incidents import IncidentKind

if TYPE_CHECKING:
    from elastic_core.config.run import RunConfig
    from elastic_core.monitors import Assignment

MESSAGE_MAX_CHARACTERS = 500
TEXT_MAX_CHARACTERS = 1500
DETAIL_MAX_CHARACTERS = 4096
EXCEPTION_EXIT_CODE = 1  # of a program that an exception has ended

_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedWorker:
    """A worker that has failed, or that may be about to fail."""

    assignment: Assignment  # its place in the round
    config: RunConfig
    exit_code: int | None
    """As of :class:`subprocess.Popen`; :data:`EXCEPTION_EXIT_CODE` once it has sent the packet ``failed``; None while
    it runs and has sent none."""
    error_file: str = ""  # the path of the file in which its runtime may have recorded the failure; '' for none
    stderr: str = ""  # the end of its stderr in whole lines without colours, at most 16 KiB
    pid: int | None = None  # None for one that did not start
    seconds: float = 0.0  # since the start of the round
    sent: int = 0  # the last signal that the agent has sent it to end it; 0 for none
    records: bool = False
    """True if it has reported that it records the exception that ends it (the packet ``recording``). False after
    ``failed``, since the record may be missing on a full disk."""
    over: bool = False  # whether it has reported that its program has ended (``failed``, ``over``)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The cause of a worker's failure. A field without a text here is that of the ``Incident``."""

    message: str = ""
    exception: str = ""
    follows_peer: bool = False
    text: str = ""
    """The texts of the exception and of those that led to it, or what native code wrote last, for
    ``elastic_explain_failure``; at most 1,500 characters."""
    detail: str = ""  # the lines that the report shows; if empty, the end of stderr
    where: str = ""
    checkpoint: str = ""
    kind: IncidentKind = IncidentKind.WORKER_FAILED  # or PORT_TAKEN for a failure that spends no restart


def one_line(text: str) -> str:
    """Return the first line of a text that is not blank, in printable characters."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return "".join(char if char.isprintable() else " " for char in first).strip()


def headline(text: str) -> str:
    """Return the first line of a text that is not blank; after a colon also the next, or the last of a traceback."""
    lines = [line for line in _STYLE.sub("", text).splitlines() if line.strip()]
    first = one_line(lines[0]) if lines else ""
    if first.endswith(":") and len(lines) > 1:
        first = f"{first} {one_line(lines[-1 if lines[1].startswith('Traceback (') else 1])}"
    return first[:MESSAGE_MAX_CHARACTERS]


def last_line(text: str) -> str:
    """Return the last line of a text that is not blank, as :func:`one_line`, in at most 500 characters."""
    lines = [line for line in text.splitlines() if line.strip()]
    return one_line(lines[-1])[:MESSAGE_MAX_CHARACTERS] if lines else ""


def last_lines(data: bytes, limit: int) -> str:
    """Return the last whole lines of ``data`` in at most ``limit`` bytes; of a last line that is longer, its end."""
    end = data[-limit:]
    if len(data) > limit and data[-limit - 1 : -limit] != b"\n":
        end = end[end.find(b"\n", 0, -1) + 1 :]
    return end.decode(errors="replace")
