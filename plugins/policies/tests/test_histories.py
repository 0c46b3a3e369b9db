"""Histories of jobs that must survive, and of jobs that must end, played to the judge as it is shipped.

``data/histories.json`` has them: the situation, where it is from, the flags, and one row for each failed round or for
several. A list in such a row has the values for one round after the other, again and again. ``minutes`` is how long a
round lasted; ``since`` says from which round on a job is hopeless, and ``tries`` how many it may take from there.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import elastic_core.plugins.manager
from elastic_causes.find import is_peer_loss
from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import MAX_RESTARTS, RunConfig
from elastic_core.incidents import Action, Failure, History, Incident, IncidentKind, Verdict
from elastic_core.plugins.manager import Plugins
from elastic_core.protocol.counters import as_record
from elastic_core.protocol.limits import MAX_FAILURES
from elastic_policies.command import Judged, replay
from elastic_policies.composition import parse_policies
from elastic_policies.flags import has_budget
from elastic_policies.known_failures import explain

TRACES = Path(__file__).parents[3] / "tests" / "data" / "traces"
STORIES = json.loads((Path(__file__).parent / "data" / "histories.json").read_text(encoding="utf-8"))
TRIES = 5
STEPS_AN_HOUR = 120


@dataclass(frozen=True)
class Flags:
    """The flags of the user."""

    failure_policy: str = ""
    max_restarts: int | None = MAX_RESTARTS

    @classmethod
    def parse(cls, flags: list[str]) -> Flags:
        given = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
        policy = given.get("failure_policy", "")
        if "max_restarts" in given:
            return cls(policy, int(given["max_restarts"]))
        return cls(policy, None if has_budget(policy) else MAX_RESTARTS)

    def plugins(self) -> Plugins:
        program = Program(ProgramKind.SCRIPT, "train.py")
        settings = {"failure_policy": self.failure_policy} if self.failure_policy else {}
        config = RunConfig(program=program, settings=settings, max_restarts=self.max_restarts)
        return elastic_core.plugins.manager.load(config)


def losses(trace: str) -> list[float]:
    """The minutes at which a trace of spot instances loses some."""
    rows = csv.reader((TRACES / trace).read_text(encoding="utf-8").splitlines())
    return sorted({int(at) / 60_000 for at, what, _ in rows if what == "remove"})


def recorded(message: str) -> dict[str, Any]:
    """Return an agent's record of an exception with this message, from a collective if it is a peer's loss."""
    name = re.match(r"[\w.]+(?=: )", message)
    follows = is_peer_loss(message, "/torch/distributed/distributed_c10d.py")
    return {"exception": "" if name is None else name[0], "follows_peer": follows}


def rounds(story: dict[str, Any]) -> Iterator[tuple[Incident, dict[str, Any], float]]:
    """The failed rounds: the incident, what else History says of it, and the seconds for which it lasted."""
    number = 0
    for row in story["lives"]:
        values = dict(row)
        if trace := values.pop("trace", None):
            at = losses(trace)
            values["minutes"] = [after - before for before, after in zip([0.0, *at], at, strict=False)]
            values |= {"step": [int(STEPS_AN_HOUR * one / 60) for one in at], "times": len(at)}
            values["host"] = [f"spot-{number}" for number in range(len(at))]
        times = values.pop("times", 1)
        for time in range(times):
            number += 1
            facts = {name: one[time % len(one)] if isinstance(one, list) else one for name, one in values.items()}
            seconds = 60.0 * facts.pop("minutes")
            known = {name: facts.pop(name) for name in ("new_checkpoint", "moved") if name in facts}
            kind = IncidentKind(facts.pop("kind", IncidentKind.WORKER_FAILED))
            facts = {"host": "n0", "rank": 0, "exit_code": 1, **recorded(facts.get("message", "")), **facts}
            failed = Incident(kind=kind, round=number, node_id="", after=seconds, **facts)
            yield replace(failed, explanation=explain(failed)), known, seconds


def play(story: dict[str, Any]) -> list[Judged]:
    """Return the failures up to the one after which the job is not restarted."""
    flags = Flags.parse(story["flags"])
    plugins, found, past, at = flags.plugins(), list[Judged](), list[tuple[float, Failure]](), 0.0
    for incident, known, seconds in rounds(story):
        at += seconds
        failures = tuple(replace(failure, seconds_ago=at - then) for then, failure in past)[-MAX_FAILURES:]
        history = History(
            restarts=len(past),
            max_restarts=flags.max_restarts,
            rounds_without_progress=0,
            failures=failures,
            **known,
        )
        verdict = plugins.judge(incident, history)
        found.append(Judged(at, incident, history, verdict))
        if verdict.action is Action.GIVE_UP:
            break
        past.append((at, replace(as_record(incident), **known)))
    return found


def verdicts(found: list[Judged]) -> list[tuple[Action, str, bool]]:
    return [_key(one.verdict) for one in found]


def _key(verdict: Verdict) -> tuple[Action, str, bool]:
    return verdict.action, verdict.reason, verdict.requeue


def named(kind: str) -> list[Any]:
    return [pytest.param(story, id=story["story"]) for story in STORIES[kind]]


def test_there_are_enough_of_both() -> None:
    assert min(len(STORIES["survives"]), len(STORIES["ends"])) >= 30
    for stories in STORIES.values():
        assert len({story["story"] for story in stories}) == len(stories)
        assert sum(not story["source"].startswith("a variant") for story in stories) >= 20


@pytest.mark.parametrize("story", named("survives"))
def test_a_job_that_can_succeed_is_restarted(story: dict[str, Any]) -> None:
    found = play(story)
    last = found[-1]
    assert last.verdict.action is not Action.GIVE_UP, f"failure {len(found)}: {last.verdict.reason}"
    if "no host is left out" in story["story"]:
        assert all(one.verdict.action is Action.RESTART for one in found), "no host is left out"


@pytest.mark.parametrize("story", named("ends"))
def test_a_hopeless_job_ends_after_a_few_tries_and_is_not_requeued(story: dict[str, Any]) -> None:
    found = play(story)
    last = found[-1].verdict
    assert last.action is Action.GIVE_UP, f"it is restarted after {len(found)} failures"
    assert len(found) - story.get("since", 1) < story.get("tries", TRIES), last.reason
    assert not last.requeue


@pytest.mark.parametrize("story", [*named("survives"), *named("ends")])
def test_a_replay_of_the_events_agrees_with_the_judge(story: dict[str, Any]) -> None:
    found = play(story)
    compared = replay(found, parse_policies(Flags.parse(story["flags"]).failure_policy))
    assert [_key(one.verdict) for one in compared] == verdicts(found)
