"""Asks plugins what a failure is, for a verdict on it, whether a node is gone, or what answers come to.

All plugins that implement the hook are called at once, each on a daemon thread. A plugin that raises, returns a value
of another type or takes too long is reported, and its answer does not count.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from elastic_core.events import Event, Level
from elastic_core.incidents import (
    MAX_DELAY_SECONDS,
    MAX_EXCLUSION_SECONDS,
    Action,
    Explanation,
    FailureClass,
    History,
    Incident,
    Verdict,
    strictest,
)
from elastic_core.plugins.observers import Implementation, failure_events
from elastic_core.protocol.roster import NodeInfo
from elastic_core.questions import REPORT_MAX_BYTES, encode
from elastic_core.threads import asked

T = TypeVar("T")
Report: TypeAlias = "Callable[[Event], None]"  # called for each plugin that failed
Unanswered: TypeAlias = "dict[Implementation, Future[Any]]"  # the question that a plugin has to answer first

LONGEST_REASON = 500  # characters of a verdict's reason, which is written to the ledger and printed by every node
LONGEST_POLICY, LONGEST_NAME, LONGEST_ADVICE = 40, 100, 250  # characters of a policy's name, and of an explanation
FIELDS: Mapping[type, Sequence[tuple[str, type]]] = {
    Explanation: (("failure_class", FailureClass), ("name", str), ("advice", str), ("hosts_fault", bool)),
    Verdict: (("action", int), ("reason", str), ("requeue", bool), ("policy", str)),
}  # the types of their fields


def explain_failure(
    plugins: Sequence[Implementation],
    incident: Incident,
    text: str,
    report: Report,
    unanswered: Unanswered,
    timeout: float,
) -> Incident:
    """Return the incident with the first explanation, in the order of ``plugins``, within ``timeout`` seconds."""
    ask = partial(_explanation_of, incident=incident, text=text)
    late, failed = f"did not explain a failure within {timeout:g} s.", "It does not explain the failure."
    answers = [*_answers("plugin", _ask("plugin", plugins, ask, unanswered), timeout, report, late=late, failed=failed)]
    return replace(incident, explanation=next((told for _, told in answers if told), incident.explanation))


def judge(
    policies: Sequence[Implementation], incident: Incident, history: History, *, timeout: float, report: Report
) -> Verdict:
    """Return the strictest verdict of all policies that give one within ``timeout`` seconds; blocks until then at most.

    Among equals the first in the order of ``policies`` gives its reason.

    Raises:
        ValueError: No policy gave a verdict. (Core's own always does.)
    """
    ask = partial(_verdict_of, incident=incident, history=history)
    late, failed = f"gave no verdict within {timeout:g} s. It abstains.", "It abstains."
    answers = _answers("policy", _ask("policy", policies, ask), timeout, report, late=late, failed=failed)
    return strictest([replace(one, policy=one.policy or policy.plugin) for policy, one in answers if one is not None])


def node_gone(
    plugins: Sequence[Implementation], node: NodeInfo, *, report: Report, unanswered: Unanswered, timeout: float = 10.0
) -> bool:
    """Return whether a plugin vouches within ``timeout`` seconds that a node is gone for good; blocks until then."""
    ask = partial(_said, kind=bool, wanted="True, False", node=node)
    late, failed = f"did not say within {timeout:g} s whether {node} is gone.", f"Whether {node} is gone is not known."
    answers = _answers("plugin", _ask("plugin", plugins, ask, unanswered), timeout, report, late=late, failed=failed)
    vouching = [plugin.plugin for plugin, gone in answers if gone]
    for name in vouching:
        message = f"The plugin {name!r} vouches that {node} is gone for good."
        report(Event("node_gone", message, fields={"plugin": name, "node": node.node_id}))
    return bool(vouching)


def sum_up_answers(
    plugins: Sequence[Implementation],
    told: Mapping[str, Any],
    *,
    report: Report,
    unanswered: Unanswered,
    timeout: float = 3.0,
) -> str:
    """Return the first report, as JSON, that a plugin makes of what it is ``told``, the arguments of the hook.

    It is 'null' for none within ``timeout`` seconds.
    """
    ask = partial(_report_of, **told)
    late, failed = f"did not sum up answers within {timeout:g} s.", "It does not sum up the answers."
    found = [*_answers("plugin", _ask("plugin", plugins, ask, unanswered), timeout, report, late=late, failed=failed)]
    return next((text for _, text in found if text != "null"), "null")


def _ask(
    kind: str,
    plugins: Sequence[Implementation],
    ask: Callable[[Implementation], T],
    unanswered: Unanswered | None = None,
) -> dict[Implementation, Future[T]]:
    before = {} if unanswered is None else unanswered
    free = [plugin for plugin in plugins if plugin not in before or before[plugin].done()]
    questions = {plugin: asked(partial(ask, plugin), name=f"{kind} {plugin.plugin}") for plugin in free}
    before.update(questions)
    return questions


def _answers(
    kind: str, questions: Mapping[Implementation, Future[T]], timeout: float, report: Report, *, late: str, failed: str
) -> Iterator[tuple[Implementation, T]]:
    """Yield what each plugin has answered within ``timeout`` seconds, in order; report each that failed.

    ``late`` says what a plugin has not done in time, ``failed`` what follows if one has raised; ``kind`` names events.
    """
    wait(questions.values(), timeout=timeout)
    for plugin, answer in questions.items():
        if not answer.done():
            message = f"The plugin {plugin.plugin!r} {late}"
            event = Event(f"{kind}_timed_out", message, Level.WARNING, {"plugin": plugin.plugin, "timeout_s": timeout})
            report(event)
        elif (exc := answer.exception()) is not None:
            for event in failure_events(f"{kind}_failed", plugin, exc, failed):
                report(event)
        else:
            yield plugin, answer.result()


def _said(plugin: Implementation, kind: type[T], wanted: str, **facts: object) -> T | None:
    """Return a plugin's answer; raise TypeError if it, or a field of it, is of another type: dataclasses take any."""
    said = plugin(**facts)
    if not isinstance(said, kind | None):
        raise TypeError(f"{reprlib.repr(said)} is neither {wanted} nor None")
    for name, of in () if said is None else FIELDS.get(kind, ()):
        if not isinstance(value := getattr(said, name), of) or (of is int and isinstance(value, bool)):
            is_not = "an Action" if of is int else f"a {of.__name__}"
            raise TypeError(f"the {kind.__name__.lower()}'s {name} is {reprlib.repr(value)}, which is not {is_not}")
    return said


def _explanation_of(plugin: Implementation, incident: Incident, text: str) -> Explanation | None:
    """Return a plugin's explanation, once its fields are known to have the right types."""
    if (said := _said(plugin, Explanation, "an Explanation", incident=incident, text=text)) is None:
        return None
    name, advice = (" ".join(text.split()) for text in (said.name, said.advice))
    return replace(said, name=name[:LONGEST_NAME], advice=advice[:LONGEST_ADVICE])


def _verdict_of(policy: Implementation, incident: Incident, history: History) -> Verdict | None:
    """Return a policy's verdict, once its fields are known to have the right types."""
    if (verdict := _said(policy, Verdict, "a Verdict", incident=incident, history=history)) is None:
        return None
    excludes = verdict.exclude_for is not None
    return Verdict(
        Action(verdict.action),
        verdict.reason[:LONGEST_REASON],
        verdict.requeue,
        delay=_checked_seconds("delay", verdict.delay, MAX_DELAY_SECONDS),
        exclude_for=_checked_seconds("exclude_for", verdict.exclude_for, MAX_EXCLUSION_SECONDS) if excludes else None,
        policy=verdict.policy[:LONGEST_POLICY],
    )


def _report_of(plugin: Implementation, **given: Any) -> str:
    return encode(plugin(**given), REPORT_MAX_BYTES)


def _checked_seconds(name: str, value: object, most: float) -> float:
    """Return a duration of a verdict; raise TypeError for another type, ValueError for one that is out of range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"the verdict's {name} is {reprlib.repr(value)}, which is not a number of seconds")
    if not 0 <= value <= most:  # also for NaN
        raise ValueError(f"the verdict's {name} is {reprlib.repr(value)}; it must be from 0 to {most:.0f} seconds")
    return float(value)
