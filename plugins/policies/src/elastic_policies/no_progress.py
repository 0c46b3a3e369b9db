"""No progress: a job that cannot succeed ends. ``hopeless`` has the rules."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_core.config import MAX_RESTARTS
from elastic_core.incidents import Action, History, Incident, Verdict
from elastic_core.protocol import MAX_FAILURES
from elastic_policies.durations import parse_count
from elastic_policies.hopeless import find_proof

NAME = "no_progress"
FORM = "N or N/M, such as 3/5: N equal failures in a row without progress end the job, or M where a limit was given"
PROOF_ROUNDS = 5  # the fewest rounds at one step that end a job whose failures come from outside the program


@dataclass(frozen=True, slots=True)
class NoProgress:
    """After how many equal failures in a row the job ends."""

    few: int  # where the user has given no number of restarts
    many: int | None = None  # where the user has; None if it makes no difference


def parse(text: str) -> NoProgress:
    """Return what ``3`` or ``3/5`` means; raise Wrong for another text."""
    few, slash, many = text.partition("/")
    found = parse_count(few, least=2, most=MAX_FAILURES)
    return NoProgress(found, parse_count(many, least=found, most=MAX_FAILURES) if slash else None)


def judge(incident: Incident, history: History, numbers: NoProgress) -> Verdict | None:
    """Give up if the failures in a row prove that the job cannot succeed.

    A job that ends so is not worth requeueing, whatever the failure: another run would end at the same point. A
    ``--max_restarts`` of 3 is the default, so it counts as not given; its fourth failure ends the job anyway.
    """
    limit_given = numbers.many is not None and history.max_restarts != MAX_RESTARTS
    many = numbers.many or max(numbers.few, PROOF_ROUNDS)
    proof = find_proof(incident, history, numbers.few, many, limit_given=limit_given)
    return None if proof is None else Verdict(Action.GIVE_UP, f"{proof.why} ({NAME}={proof.rounds})", policy=NAME)
