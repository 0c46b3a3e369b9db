"""``elastic stacks``: a question to all nodes of a job (rule L14), asked by a request in the roster."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from elastic_core.errors import RendezvousTimeoutError, UsageError
from elastic_core.protocol import Answers, Ask, decode
from elastic_core.rendezvous import Cursor, RendezvousBackend
from elastic_core.session import peek, readable, requested, running_job
from elastic_hangs.judgement import FULL_STACKS, STACKS, LocalStacks, Report

WAIT_SECONDS = 30.0  # for the report: more than it takes to replace a leader that is gone
LOOK_SECONDS = 1.0  # how long one wait for the store takes


@dataclass(frozen=True, slots=True)
class Located:
    """The places of the ranks of a job."""

    report: Report  # the leader's report
    texts: Mapping[int, str]
    """The whole stacks by rank, of the nodes whose rows had them; empty if only places were asked for."""


def ask(store: RendezvousBackend, job: str, *, full: bool = False, patience: float = WAIT_SECONDS) -> Located:
    """Ask all nodes of a job where their ranks are. No worker is stopped.

    ``patience`` is in seconds.

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
    name = FULL_STACKS if full else STACKS
    with requested(store, "stacks", asks=(Ask(name, "{}", index),), epoch=ledger.head.epoch):
        while True:
            while (entry := peek(store, index + 1)) is not None:
                index += 1
                found = entry.body
                if isinstance(found, Answers) and found.name == name:
                    if (report := decode(found.report)) is None:
                        raise RendezvousTimeoutError(
                            f"The leader of job {job!r} has summed up no answers.",
                            hint="Its node needs elastic-hangs, which is off there or failed; see its output.",
                        )
                    return Located(Report(**report), _texts(store, found.question) if full else {})
            if (left := deadline - time.monotonic()) <= 0:
                raise RendezvousTimeoutError(
                    f"No agent of job {job!r} has said within {patience:g} s where its ranks are.",
                    hint="See elastic status: its agents may be gone, or the round may have ended meanwhile.",
                )
            store.wait(Cursor(index), roster=False, timeout=min(left, LOOK_SECONDS))


def _texts(store: RendezvousBackend, question: int) -> dict[int, str]:
    """Return the whole stacks in the answers to a question, by rank; they stand in the rows for a while."""
    answers = (seen.row.answer for seen in readable(store.roster()))
    found = [LocalStacks.from_json(decode(one.text)) for one in answers if one is not None and one.to == question]
    return dict(sorted((int(rank), text) for answer in found for rank, text in answer.texts.items()))
