"""``elastic stacks``: a request in the roster, which the leader answers with two STACKS (rule L14)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from elastic_core.errors import RendezvousTimeoutError, UsageError
from elastic_core.protocol.entries import Stacks
from elastic_core.protocol.stacks import BRIEF, FULL
from elastic_core.rendezvous.backend import Cursor, RendezvousBackend
from elastic_core.session.drain_request import requested, running_job
from elastic_core.session.leave import readable
from elastic_core.session.ledger_reader import peek

WAIT_SECONDS = 30.0  # for the report: more than it takes to replace a leader that is gone
LOOK_SECONDS = 1.0  # how long one wait for the store takes


@dataclass(frozen=True, slots=True)
class Located:
    """The places of the ranks of a job.

    Attributes:
        report: The leader's report.
        texts: The whole stacks by rank, of the nodes whose rows had them; empty if only places were asked for.
    """

    report: Stacks
    texts: Mapping[int, str]


def ask(store: RendezvousBackend, job: str, *, full: bool = False, patience: float = WAIT_SECONDS) -> Located:
    """Ask all nodes of a job where their ranks are. No worker is stopped.

    Args:
        full: Whether the whole stacks are wanted, not only a line for each place.
        patience: How many seconds to wait for the report.

    Raises:
        UsageError: There is no such job, or it has no workers now.
        RendezvousTimeoutError: No agent of the job has answered.
        RendezvousConnectionError: The store cannot be reached.
        RendezvousStateError: The store holds something invalid.
    """
    ledger = running_job(store, job)
    if not ledger.is_live:
        what = "no round has begun yet" if ledger.halt is None else f"its round was halted: {ledger.halt.why}"
        raise UsageError(f"Job {job!r} has no workers now: {what}.", hint="See elastic status.")
    deadline, index = time.monotonic() + patience, ledger.head.index
    with requested(store, "stacks", wants_stacks=FULL if full else BRIEF) as request:
        while True:
            while (entry := peek(store, index + 1)) is not None:
                index += 1
                found = entry.body
                if isinstance(found, Stacks) and found.answers and request in found.requests:
                    return Located(found, _texts(store, found.answers) if full else {})
            if (left := deadline - time.monotonic()) <= 0:
                raise RendezvousTimeoutError(
                    f"No agent of job {job!r} has said within {patience:g} s where its ranks are.",
                    hint="See elastic status: its agents may be gone, or the round may have ended meanwhile.",
                )
            store.wait(Cursor(index), roster=False, timeout=min(left, LOOK_SECONDS))


def _texts(store: RendezvousBackend, question: int) -> dict[int, str]:
    """Return the whole stacks in the answers to a STACKS, by rank; they stand in the rows for a while."""
    answers = (seen.row.stacks for seen in readable(store.roster()))
    found = (answer.texts for answer in answers if answer is not None and answer.answers == question)
    return dict(sorted((int(rank), text) for texts in found for rank, text in texts.items()))
