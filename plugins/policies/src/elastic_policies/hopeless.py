"""Policies against restarts that would fail again: a diverged training, a wrong program, a job without progress.

``no_progress`` judges by these rules (:func:`find_proof`).

A round that failed is *alike* another one if its failure has the same exception (without one: the same exit code) at
the same line of the program, with the same message but for numbers, on whatever rank; or if both lost a peer, or a rank
in both ended early. A round *progressed* if it reached a newer step than all rounds before it, or saved a newer
checkpoint. The newest rounds in a row that are alike are looked at. A preempted round is passed over, unless it
progressed: then the row begins after it.

========================================  ==========================  ========================================
what is known of the rounds in the row    no limit was given          ``--max_restarts`` or a budget was given
========================================  ==========================  ========================================
steps; the program failed                 3 rounds without progress   5 rounds at one step
steps; a peer, a host, the network or     5 rounds at one step        5 rounds at one step
storage failed
no step, and nothing moved in their       3 rounds of one length      5 rounds of one length
output; the program failed
the same; a peer was lost                 5 rounds of one length,     5 rounds of one length,
                                          60 s at least               60 s at least
no step; something moved, or a host, the  no number of rounds         no number of rounds
network or storage failed
========================================  ==========================  ========================================

At one step: within one hundredth, 10 steps at most, since output shows steps only now and then; the first of these
rounds may have progressed, no other one. Of one length: the longest round took at most a quarter and 10 s more than the
shortest, and none progressed. A program that fails at one point takes about as long each time; what fails outside of it
comes at any time, and a network that is down at the start of a round ends it soon.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

from elastic_core.config import MAX_RESTARTS
from elastic_core.config.parse import Wrong
from elastic_core.exit_codes import describe_exit
from elastic_core.incidents import PEER_LOST, Action, Failure, FailureClass, History, Incident, Verdict, is_same_step
from elastic_core.protocol import MAX_FAILURES, as_record
from elastic_policies.durations import parse_count
from elastic_policies.past import is_preemption, since_progress

PROOF_ROUNDS = 5  # the fewest rounds at one step that end a job whose failures come from outside the program
Judged: TypeAlias = tuple[Failure, bool]  # a round that failed, and whether it progressed

OUTSIDE = frozenset({FailureClass.INFRASTRUCTURE, FailureClass.PEER})
"""Classes of failures that have their cause outside the program, mostly: only its step shows that it is the program."""
LENGTH_FACTOR = 1.25
LENGTH_SECONDS = 10.0
PEER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class NanLoss:
    """A training that has diverged is not restarted, since it would diverge again."""

    NAME: ClassVar = "nan_loss"
    FORM: ClassVar = "stop"

    @classmethod
    def parse(cls, text: str) -> NanLoss:
        """Return the policy for ``stop``, the only way; raise Wrong for another text."""
        if text != cls.FORM:
            raise Wrong(f"has {text!r} where {cls.FORM!r} is wanted")
        return cls()

    def judge(self, incident: Incident, history: History) -> Verdict | None:
        """Give up if the reported loss was not a number."""
        if incident.exception.rpartition(".")[2] != "NanLoss":
            return None
        return Verdict(Action.GIVE_UP, "the loss is not a number, and a restart would repeat it (nan_loss)")


@dataclass(frozen=True, slots=True)
class Classification:
    """A program that is wrong is not restarted again and again."""

    NAME: ClassVar = "classification"
    FORM: ClassVar = "N, such as 2: the job ends at the N-th equal failure of the class 'script'"
    most: int

    @classmethod
    def parse(cls, text: str) -> Classification:
        """Return the policy for a number of equal failures; raise Wrong for another text."""
        return cls(parse_count(text, least=1, most=MAX_FAILURES))

    def judge(self, incident: Incident, history: History) -> Verdict | None:
        """Give up at the N-th equal failure of the program itself: syntax, names, types, shapes, misuse of CUDA."""
        if incident.failure_class is not FailureClass.SCRIPT:
            return None
        alike = as_record(incident).signature
        equal = 1 + sum(failure.signature == alike for failure in since_progress(history, incident))
        if equal < self.most:
            return None
        what, times = incident.exception or "the failure", "" if equal == 1 else f", {equal} times"
        return Verdict(Action.GIVE_UP, f"{what} is an error of the program (classification={self.most}){times}")


@dataclass(frozen=True, slots=True)
class NoProgress:
    """The job ends after ``few`` equal failures in a row, or ``many`` where the user has given a number of restarts."""

    NAME: ClassVar = "no_progress"
    FORM: ClassVar = (
        "N or N/M, such as 3/5: N equal failures in a row without progress end the job, or M where a limit was given"
    )
    few: int
    many: int | None = None  # None if a given number makes no difference

    @classmethod
    def parse(cls, text: str) -> NoProgress:
        """Return the policy for ``3`` or ``3/5``; raise Wrong for another text."""
        few, slash, many = text.partition("/")
        found = parse_count(few, least=2, most=MAX_FAILURES)
        return cls(found, parse_count(many, least=found, most=MAX_FAILURES) if slash else None)

    def judge(self, incident: Incident, history: History) -> Verdict | None:
        """Give up if the failures in a row prove that the job cannot succeed.

        A job that ends so is not worth requeueing, whatever the failure: another run would end at the same point. A
        ``--max_restarts`` of 3 is the default, so it counts as not given; its fourth failure ends the job anyway.
        """
        limit_given = self.many is not None and history.max_restarts != MAX_RESTARTS
        many = self.many or max(self.few, PROOF_ROUNDS)
        if (proof := find_proof(incident, history, self.few, many, limit_given=limit_given)) is None:
            return None
        rounds, why = proof
        return Verdict(Action.GIVE_UP, f"{why} (no_progress={rounds})")


def find_proof(
    incident: Incident, history: History, few: int, many: int, *, limit_given: bool
) -> tuple[int, str] | None:
    """Return the number of rounds in a row that prove that a job cannot succeed, and why; None if it may.

    ``few`` rounds prove it where the user has given no number of restarts, ``many`` where the user has, or where
    the cause is mostly outside the program.
    """
    failure_class = incident.failure_class
    if failure_class is FailureClass.PREEMPTION:
        return None
    newest = replace(as_record(incident), new_checkpoint=history.new_checkpoint, moved=history.moved)
    row = _alike_in_a_row([*history.failures, newest])
    outside = failure_class in OUTSIDE
    if not any(failure.step is not None for failure, _ in row):
        wanted = many if limit_given or outside else few
        last = row[-wanted:]
        if failure_class is FailureClass.INFRASTRUCTURE or len(last) < wanted or not _fails_at_one_point(last):
            return None
        if outside and any((failure.after or 0.0) < PEER_SECONDS for failure, _ in last):
            return None
        return _proof(incident, last, "and no step or checkpoint")
    if newest.step is None:
        row = row[:-1]  # the ranks that say steps are on another node, and what it says may be old
    last = row[-few:]
    if not limit_given and not outside and len(last) == few and not any(progressed for _, progressed in last):
        return _proof(incident, last, "and no newer step or checkpoint")
    last = row[-many:]
    if len(last) < many or not _is_at_one_step(last):
        return None
    return _proof(incident, last, f"each at step {_span(last)}")


def _alike_in_a_row(rounds: Sequence[Failure]) -> list[Judged]:
    """Return the newest rounds whose failures are alike, oldest first, each with whether it progressed."""
    found: list[Judged] = []
    for failure, progressed in reversed([*zip(rounds, _find_progress(rounds), strict=True)]):
        preempted = is_preemption(failure)
        if preempted and not progressed:
            continue
        if preempted or (found and failure.signature != found[0][0].signature):
            break
        found.insert(0, (failure, progressed))
    return found


def _find_progress(rounds: Sequence[Failure]) -> Iterator[bool]:
    newest = 0
    for failure in rounds:
        step = failure.step or 0
        yield failure.new_checkpoint or step > newest
        newest = max(newest, step)


def _is_at_one_step(rounds: Sequence[Judged]) -> bool:
    """Return True if rounds ended at one step, without progress after the first of them."""
    steps = [failure.step for failure, _ in rounds]
    progressed = any(progressed for _, progressed in rounds[1:])
    return not progressed and all(is_same_step(steps[0], step) for step in steps)


def _fails_at_one_point(rounds: Sequence[Judged]) -> bool:
    """Return True if rounds without a step took about as long, and nothing moved in any; an unknown length fits all."""
    times = [failure.after for failure, _ in rounds if failure.after is not None]
    if any(progressed or failure.moved for failure, progressed in rounds):
        return False
    return not times or max(times) <= LENGTH_FACTOR * min(times) + LENGTH_SECONDS


def _span(rounds: Sequence[Judged]) -> str:
    steps = [failure.step for failure, _ in rounds if failure.step is not None]
    return f"{min(steps)}" if min(steps) == max(steps) else f"{min(steps)} to {max(steps)}"


def _proof(incident: Incident, rounds: Sequence[Judged], lack: str) -> tuple[int, str]:
    hosts = {failure.host for failure, _ in rounds}
    where = f" on {len(hosts)} hosts" if len(hosts) > 1 else ""
    what = _describe(incident, rounds[-1][0])
    return len(rounds), f"{what} in {len(rounds)} rounds in a row{where}, {lack}"


def _describe(incident: Incident, failure: Failure) -> str:
    place = f" at {incident.place}" if incident.place else ""
    if failure.digest == PEER_LOST:
        return "a peer was lost"
    if incident.exception:
        return f"the same {incident.exception}{place}"
    if incident.exit_code is None:
        return incident.cause()
    return f"a worker {describe_exit(incident.exit_code)}{place}"
