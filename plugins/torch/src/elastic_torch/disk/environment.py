"""What the environment of the process says to the disk tier: run, round, and the user's choice."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from elastic_core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Identity:
    """Who saves.

    Attributes:
        uid: The run's own random id.
        round: The round's number within the run.
        who: The process for people: job, host and pid.
    """

    uid: str
    round: int
    who: str


def identity(environ: Mapping[str, str] = os.environ) -> Identity:
    """Who this process is, from ``ELASTIC_RUN_UID`` and ``ELASTIC_ROUND``.

    Elsewhere (torchrun, a plain script) each start of the workers counts as a run of its own, under a random uid:
    runs are ordered by when they begin to save, so that comes to the same.
    """
    job = environ.get("TORCHELASTIC_RUN_ID")
    who = f"{f'job {job!r} on ' if job else ''}{socket.gethostname()}, pid {os.getpid()}"
    if "ELASTIC_RUN_UID" in environ:
        return Identity(environ["ELASTIC_RUN_UID"], int(environ.get("ELASTIC_ROUND", "0")), who)
    return Identity(secrets.token_hex(6), 0, who)


def is_restart(environ: Mapping[str, str]) -> bool:
    """Whether this is a later round, or a restart: there may be more to lose in memory than a disk has."""
    return int(environ.get("ELASTIC_ROUND") or 0) > 1 or int(environ.get("TORCHELASTIC_RESTART_COUNT") or 0) > 0


def is_set(environ: Mapping[str, str], name: str) -> bool:
    """Whether a variable says yes.

    Raises:
        UsageError: It says neither that nor no.
    """
    value = environ.get(name, "")
    if value.lower() in ("1", "true", "yes", "on"):
        return True
    if value.lower() in ("", "0", "false", "no", "off"):
        return False
    raise UsageError(f"{name}={value!r}: it is 1 or 0.")
