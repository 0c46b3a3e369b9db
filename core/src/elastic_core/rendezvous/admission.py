"""May this node join, and as what? The answer to the run that it finds under its job id (rule S6).

Job ids are used again and again. What tells a latecomer of the present run from the first node of the next one is the
scheduler's own uid of the run, and, for the user who just typed the command again, whether anybody of the old run is
alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from elastic_core.errors import RendezvousRefusedError
from elastic_core.rendezvous.ledger import Closed, Ledger
from elastic_core.rendezvous.settings import Settings


@dataclass(frozen=True, slots=True)
class Join:
    """Take part in the run that is there."""


@dataclass(frozen=True, slots=True)
class OpenNext:
    """Open the next run; ``abandoned`` says that the one before must be closed first."""

    abandoned: bool


@dataclass(frozen=True, slots=True)
class Report:
    """The run is over, and this node belongs to it: report its verdict and exit with its code."""

    closed: Closed


Admission: TypeAlias = "Join | OpenNext | Report"


def needs_liveness(ledger: Ledger, uid: str | None) -> bool:
    """Whether :func:`admit` depends on who of the run is alive; finding that out takes as long as losing a node."""
    if ledger.closed is not None:
        return uid is None or ledger.scheduler_uid is None
    return uid is not None and uid != ledger.scheduler_uid


def admit(ledger: Ledger, uid: str | None, alive: Sequence[str]) -> Admission:
    """What a node with scheduler uid ``uid`` does with the run of ``ledger``, of which the hosts ``alive`` are alive.

    Raises:
        RendezvousRefusedError: Others are alive under another uid, or the closed run's nodes are still there.
    """
    same = uid is not None and uid == ledger.scheduler_uid
    if ledger.closed is not None:
        if same:
            return Report(ledger.closed)
        if alive and (uid is None or ledger.scheduler_uid is None):
            raise RendezvousRefusedError(
                f"Run {ledger.head.run} under this job id is over ({ledger.closed.why}), and its nodes are still "
                f"leaving: {', '.join(alive)}.",
                hint="Start again when they are gone, or use another --rdzv_id.",
            )
        return OpenNext(abandoned=False)
    if same or uid is None:
        return Join()
    if alive:
        raise RendezvousRefusedError(
            f"Another run, {ledger.scheduler_uid or 'started without a run_uid'}, is alive under this job id on "
            f"{', '.join(alive)}; this one is {uid}.",
            hint="Use another --rdzv_id, or join that run with --rdzv_conf run_uid=….",
        )
    return OpenNext(abandoned=True)


def check_settings(opener: Settings, mine: Settings, *, allow_version_mismatch: bool) -> None:
    """Refuse a node whose settings differ from the run's.

    Raises:
        RendezvousRefusedError: They differ, or the versions do and that was not allowed; names the field and both
        nodes.
    """
    if (difference := mine.agreement.difference(opener.agreement)) is not None:
        raise RendezvousRefusedError(
            f"{mine.host} cannot join the run that {opener.host} opened: they differ in {difference}.",
            hint="Start every node of a job with the same flags, or use another --rdzv_id for another job.",
        )
    if mine.versions != opener.versions and not allow_version_mismatch:
        raise RendezvousRefusedError(
            f"{mine.host} has {mine.versions}, but {opener.host}, which opened the run, has {opener.versions}.",
            hint="Install the same versions on both, or pass --allow_version_mismatch if you know that they fit.",
        )
