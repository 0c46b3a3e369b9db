"""Asks plugins why a worker failed, what that is, for a verdict on it, whether a node is gone, what answers come to.

All plugins that implement the hook are called at once, each on a daemon thread. A plugin that raises, returns a value
of another type or takes too long is reported, and its answer does not count.
"""

from __future__ import annotations

import reprlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar, get_type_hints

from elastic_core.causes import MESSAGE_MAX_CHARACTERS, TEXT_MAX_CHARACTERS, Cause
from elastic_core.events import Event, Field, Level
from elastic_core.incidents import MAX_DELAY_SECONDS, MAX_EXCLUSION_SECONDS, Action, Explanation, IncidentKind, Verdict
from elastic_core.plugins.observers import Implementation, failure_events
from elastic_core.questions import REPORT_MAX_BYTES, encode
from elastic_core.threads import asked

T = TypeVar("T")

LONGEST_REASON = 500  # characters of a verdict's reason, which is written to the ledger and printed by every node
LONGEST_POLICY, LONGEST_NAME, LONGEST_ADVICE = 40, 100, 250  # characters of a policy's name, and of an explanation
LONGEST_PLACE = 1024  # characters of a path, and of a line of a program
CAUSES = (IncidentKind.WORKER_FAILED, IncidentKind.PORT_TAKEN)  # kinds that a plugin may find


def _checked(said: object, kind: type[T], wanted: str) -> T:
    """Return an answer; raise TypeError if it, or a field of it, is of another type: dataclasses take any."""
    if not isinstance(said, kind):
        raise TypeError(f"{reprlib.repr(said)} is neither {wanted} nor None")
    for name, of in get_type_hints(kind).items() if is_dataclass(kind) else ():
        if not isinstance(of, type) or of is float:
            continue  # of seconds, which _checked_seconds looks at
        value, fits = getattr(said, name), int if of is Action else of
        if not isinstance(value, fits) or (fits is int and isinstance(value, bool)):
            is_not = "an Action" if fits is int else f"a {of.__name__}"
            raise TypeError(f"the {kind.__name__.lower()}'s {name} is {reprlib.repr(value)}, which is not {is_not}")
    return said


def _checked_cause(said: object) -> Cause:
    cause = _checked(said, Cause, "a Cause")
    if cause.kind not in CAUSES:
        raise ValueError(f"the cause's kind is {cause.kind.value}, which is not one of a worker that has failed")
    return replace(
        cause,
        message=" ".join(cause.message.splitlines())[:MESSAGE_MAX_CHARACTERS],
        exception=cause.exception[:LONGEST_PLACE],
        text=cause.text[:TEXT_MAX_CHARACTERS],
        where=cause.where[:LONGEST_PLACE],
        checkpoint=cause.checkpoint[:LONGEST_PLACE],
    )


def _checked_explanation(said: object) -> Explanation:
    explanation = _checked(said, Explanation, "an Explanation")
    name, advice = (" ".join(text.split()) for text in (explanation.name, explanation.advice))
    return replace(explanation, name=name[:LONGEST_NAME], advice=advice[:LONGEST_ADVICE])


def _checked_verdict(said: object) -> Verdict:
    verdict = _checked(said, Verdict, "a Verdict")
    excludes = verdict.exclude_for is not None
    return Verdict(
        Action(verdict.action),
        verdict.reason[:LONGEST_REASON],
        verdict.requeue,
        delay=_checked_seconds("delay", verdict.delay, MAX_DELAY_SECONDS),
        exclude_for=_checked_seconds("exclude_for", verdict.exclude_for, MAX_EXCLUSION_SECONDS) if excludes else None,
        policy=verdict.policy[:LONGEST_POLICY],
    )


def _checked_seconds(name: str, value: object, most: float) -> float:
    """Return a duration of a verdict; raise TypeError for another type, ValueError for one that is out of range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"the verdict's {name} is {reprlib.repr(value)}, which is not a number of seconds")
    if not 0 <= value <= most:  # also for NaN
        raise ValueError(f"the verdict's {name} is {reprlib.repr(value)}; it must be from 0 to {most:.0f} seconds")
    return float(value)


@dataclass(frozen=True, slots=True)
class AwaitedHook:
    """A hook whose answers are awaited: the check of an answer, and the texts about plugins that give none."""

    kind: str  # of the plugins, in the names of events
    late: str  # what a plugin has not done in time
    failed: str  # the consequence if one has raised
    check: Callable[[Any], Any]  # returns what counts of an answer, or raises


AWAITED_HOOKS: Mapping[str, AwaitedHook] = {
    "elastic_find_cause": AwaitedHook(
        "plugin",
        "did not find a cause within {timeout:g} s. The failure is reported without it.",
        "The failure is reported without it.",
        _checked_cause,
    ),
    "elastic_explain_failure": AwaitedHook(
        "plugin",
        "did not explain a failure within {timeout:g} s.",
        "It does not explain the failure.",
        _checked_explanation,
    ),
    "elastic_judge_failure": AwaitedHook(
        "policy", "gave no verdict within {timeout:g} s. It abstains.", "It abstains.", _checked_verdict
    ),
    "elastic_node_gone": AwaitedHook(
        "plugin",
        "did not say within {timeout:g} s whether {node} is gone.",
        "Whether {node} is gone is not known.",
        partial(_checked, kind=bool, wanted="True, False"),
    ),
    "elastic_sum_up_answers": AwaitedHook(
        "plugin",
        "did not sum up answers within {timeout:g} s.",
        "It does not sum up the answers.",
        partial(encode, most=REPORT_MAX_BYTES),
    ),
}


def answers(
    plugins: Sequence[Implementation],
    facts: Mapping[str, Any],
    timeout: float,
    report: Callable[[Event], None],
    unanswered: dict[Implementation, Future[Any]],
    took: dict[Implementation, float] | None = None,
) -> list[tuple[str, Any]]:
    """Return the answers that plugins give within ``timeout`` seconds, with their names, in order, without None.

    Blocks until all have answered, or for so long. ``unanswered`` has the last question to each plugin: one that has
    yet to answer that is not asked. ``took`` has the seconds that each has taken so far, where ``timeout`` is for all
    questions: one that has taken longer is not asked. ``report`` is called for each plugin that failed.
    """
    took = {} if took is None else took
    questions = {
        plugin: asked(partial(_ask, plugin, facts, took), name=f"{AWAITED_HOOKS[plugin.hook].kind} {plugin.plugin}")
        for plugin in plugins
        if (plugin not in unanswered or unanswered[plugin].done()) and took.get(plugin, 0.0) < timeout
    }
    unanswered.update(questions)
    wait(questions.values(), timeout=timeout)
    found = []
    for plugin, answer in questions.items():
        hook, name = AWAITED_HOOKS[plugin.hook], plugin.plugin
        if not answer.done() or took.get(plugin, 0.0) >= timeout:
            message = f"The plugin {name!r} {hook.late.format(timeout=timeout, **facts)}"
            fields: dict[str, Field] = {"plugin": name, "timeout_s": timeout}
            report(Event(f"{hook.kind}_timed_out", message, Level.WARNING, fields))
        elif (exc := answer.exception()) is not None:
            for event in failure_events(f"{hook.kind}_failed", plugin, exc, hook.failed.format(**facts)):
                report(event)
        elif (said := answer.result()) is not None:
            found.append((name, said))
    return found


def _ask(plugin: Implementation, facts: Mapping[str, Any], took: dict[Implementation, float]) -> Any:
    began = time.monotonic()
    try:
        said = plugin(**facts)
    finally:
        took[plugin] = took.get(plugin, 0.0) + time.monotonic() - began
    return None if said is None else AWAITED_HOOKS[plugin.hook].check(said)
