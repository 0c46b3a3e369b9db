"""Admission: whether a node may join the run that it finds under its job id, or opens the next one (rule S6).

Job ids are used again. The scheduler's uid tells a latecomer of a run from the first node of the next one; without a
uid, it matters whether a node of the old run is alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from enum import Enum, auto

from elastic_core.config.run import Timing
from elastic_core.errors import RendezvousRefusedError
from elastic_core.exit_codes import ExitCode
from elastic_core.protocol.entries import Closed
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.settings import Settings


class Admission(Enum):
    """The next step of a node that finds a run, unless that is over and the node reports its verdict."""

    JOIN = auto()
    OPEN_NEXT = auto()
    CLOSE_AND_OPEN_NEXT = auto()  # no node of the run is alive: it was abandoned


def needs_liveness(ledger: Ledger, uid: str | None) -> bool:
    """Return True if :func:`admit` needs to know which nodes are alive, which takes as long as to lose a node."""
    if ledger.closed is not None:
        return uid is None or ledger.opened.scheduler_uid is None
    return uid is not None and uid != ledger.opened.scheduler_uid


def has_only_waited(closed: Closed) -> bool:
    """Return True if a run has ended since too few nodes were there, and nothing had failed: the next node begins anew.

    A scheduler may bring the nodes of one run one by one, and the last one after the others have given up.
    """
    return closed.exit_code == ExitCode.TOO_FEW_NODES and closed.incident is None


def admit(ledger: Ledger, uid: str | None, alive: Sequence[str]) -> Admission | Closed:
    """Return what a node with scheduler uid ``uid`` does about the run of ``ledger``, whose hosts ``alive`` are alive.

    If the node belongs to that run, and it is over, that is to report its verdict and to exit with its code.

    Raises:
        RendezvousRefusedError: Nodes are alive under another uid, or nodes of the closed run are still there.
    """
    same = uid is not None and uid == ledger.opened.scheduler_uid
    if ledger.closed is not None:
        if same and not has_only_waited(ledger.closed):
            return ledger.closed
        if alive and (uid is None or ledger.opened.scheduler_uid is None):
            raise RendezvousRefusedError(
                f"Run {ledger.head.run} under this job id is over ({ledger.closed.why}), and its nodes are still "
                f"leaving: {', '.join(alive)}.",
                hint="Start again when they are gone, or use another --rdzv_id.",
            )
        return Admission.OPEN_NEXT
    if same or uid is None:
        return Admission.JOIN
    if alive:
        raise RendezvousRefusedError(
            f"Another run, {ledger.opened.scheduler_uid or 'started without a run_uid'}, is alive under this job id on "
            f"{', '.join(alive)}; this one is {uid}.",
            hint="Use another --rdzv_id, or join that run with --rdzv_conf run_uid=….",
        )
    return Admission.CLOSE_AND_OPEN_NEXT


def settings_refusal(
    opener: Settings, mine: Settings, *, allow_version_mismatch: bool, unnamed: bool
) -> RendezvousRefusedError | None:
    """Return the error for a node whose settings differ from the run's: it names what differs and both nodes.

    Agreements must be equal, and versions unless a mismatch is allowed. Nodes of one role must run the same program. A
    job that is ``unnamed`` has no id, so only an equal command shows that a node belongs to it: all its nodes must run
    the same program, with the same arguments.
    """
    if (refusal := program_refusal(opener, mine, unnamed=unnamed)) is not None:
        return refusal
    if (difference := mine.agreement.difference(opener.agreement)) is not None:
        return RendezvousRefusedError(
            f"{mine.host} cannot join the run that {opener.host} opened: they differ in {difference}.",
            hint="Start every node of a job with the same flags, or use another --rdzv_id for another job.",
        )
    if mine.versions != opener.versions and not allow_version_mismatch:
        return RendezvousRefusedError(
            f"{mine.host} has {mine.versions}, but {opener.host}, which opened the run, has {opener.versions}.",
            hint="Install the same versions on both, or pass --allow_version_mismatch if you know that they fit.",
        )
    return None


def program_refusal(opener: Settings, mine: Settings, *, unnamed: bool) -> RendezvousRefusedError | None:
    """Return the error for a node whose program differs from the run's; None if both are equal, or one is unknown."""
    theirs, own = opener.command, mine.command
    if theirs.role != own.role and not unnamed:
        return None
    if theirs.name and own.name and theirs.name != own.name:
        return RendezvousRefusedError(
            f"{mine.host} is to run {own.name!r}, but the job with this id, which {opener.host} opened, runs "
            f"{theirs.name!r}.",
            hint="Give each job an --rdzv_id of its own. If this is one job, which runs several programs, give each "
            "program a --role of its own, and the job an --rdzv_id.",
        )
    if unnamed and _arguments_differ(opener, mine):
        return RendezvousRefusedError(
            f"{mine.host} and {opener.host}, which opened the job, run {own.name!r} with different arguments, and "
            f"neither has an --rdzv_id: these may be two jobs.",
            hint="Give each job an --rdzv_id of its own. Nodes of one job with the same --rdzv_id may differ in "
            "arguments.",
        )
    return None


def _arguments_differ(opener: Settings, mine: Settings) -> bool:
    theirs, own = opener.command.arguments, mine.command.arguments
    return bool(theirs and own) and theirs != own


def describe_differences(opener: Settings, mine: Settings) -> list[str]:
    """Describe, in a sentence each, what differs between the opener and a node without keeping the node out."""
    found = []
    pairs = {item.name: (getattr(mine.timing, item.name), getattr(opener.timing, item.name)) for item in fields(Timing)}
    others = [f"{name} is {own:g} here, {theirs:g} there" for name, (own, theirs) in pairs.items() if own != theirs]
    if others:
        found.append(
            f"--rdzv_conf differs from that of {opener.host}, which opened the run: {'; '.join(others)} (seconds). "
            f"The run's values count, which are those of {opener.host}."
        )
    if opener.release and mine.release and opener.release != mine.release:
        found.append(
            f"elastic-core is {mine.release} here and {opener.release} on {opener.host}, which opened the run: both "
            "speak one protocol version, and what only one of them knows has no effect."
        )
    if opener.command.role == mine.command.role and _arguments_differ(opener, mine):
        found.append(
            f"{mine.command.name!r} has other arguments here than on {opener.host}, which opened the run. If this is "
            "another job, stop it and give it an --rdzv_id of its own."
        )
    return found
