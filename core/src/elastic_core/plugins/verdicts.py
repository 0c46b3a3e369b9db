"""Asks plugins for a verdict on a failure, whether a node is gone, or why a job hangs, and combines their answers.

All plugins that implement the hook are called at once, each on a daemon thread. A plugin that raises, returns a value
of another type or takes too long is reported, and its answer does not count.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from elastic_core.events import Event, Level
from elastic_core.incidents import (
    MAX_DELAY_SECONDS,
    MAX_EXCLUSION_SECONDS,
    Action,
    History,
    Incident,
    Verdict,
    strictest,
)
from elastic_core.plugins.observers import Implementation, failure_events
from elastic_core.protocol.roster import NodeInfo
from elastic_core.threads import asked

T = TypeVar("T")

LONGEST_REASON = 500  # characters of a verdict's reason, which is written to the ledger and printed by every node
LONGEST_EXPLANATION = 2000  # characters of what a plugin says of a hang
LONGEST_POLICY = 40  # characters of the name of the policy that gave it


def judge(
    policies: Sequence[Implementation],
    incident: Incident,
    history: History,
    *,
    timeout: float,
    report: Callable[[Event], None],
) -> Verdict:
    """Return the strictest verdict of all policies that give one within ``timeout`` seconds; blocks until then at most.

    Among equals the first in the order of ``policies`` gives its reason. ``report`` is called for each policy that
    failed.

    Raises:
        ValueError: No policy gave a verdict. (Core's own always does.)
    """
    ask = partial(_verdict_of, incident=incident, history=history)
    late, failed = f"gave no verdict within {timeout:g} s. It abstains.", "It abstains."
    given = _answers("policy", _ask("policy", policies, ask), timeout, report, late=late, failed=failed)
    return strictest(
        [replace(verdict, policy=verdict.policy or policy.plugin) for policy, verdict in given if verdict is not None]
    )


def node_gone(
    plugins: Sequence[Implementation],
    node: NodeInfo,
    *,
    report: Callable[[Event], None],
    unanswered: dict[Implementation, Future[bool | None]],
    timeout: float = 10.0,
) -> bool:
    """Whether some plugin vouches within ``timeout`` seconds that a node is gone for good; blocks until then at most.

    ``report`` is called for each plugin that failed. A plugin that has not answered an earlier question, also one about
    another node, is not asked again before it has; ``unanswered`` keeps these plugins from one call to the next.
    """
    free = [plugin for plugin in plugins if plugin not in unanswered or unanswered[plugin].done()]
    questions = _ask("plugin", free, partial(_is_gone, node=node))
    unanswered.update(questions)  # the next call drops those that have been answered by then
    late, failed = f"did not say within {timeout:g} s whether {node} is gone.", f"Whether {node} is gone is not known."
    vouches = False
    for plugin, gone in _answers("plugin", questions, timeout, report, late=late, failed=failed):
        if gone:
            message = f"The plugin {plugin.plugin!r} vouches that {node} is gone for good."
            report(Event("node_gone", message, fields={"plugin": plugin.plugin, "node": node.node_id}))
            vouches = True
    return vouches


def explain_hang(
    plugins: Sequence[Implementation],
    ranks: Mapping[int, int],
    world_size: int,
    directory: Path,
    *,
    report: Callable[[Event], None],
    timeout: float = 20.0,
) -> str:
    """Return what the plugins say within ``timeout`` seconds of a hang, '' for nothing; blocks until then at most.

    ``report`` is called for each plugin that failed.
    """
    questions = _ask("plugin", plugins, partial(_explain, ranks=ranks, world_size=world_size, directory=directory))
    late, failed = f"did not explain the hang within {timeout:g} s.", "It does not explain the hang."
    answers = _answers("plugin", questions, timeout, report, late=late, failed=failed)
    texts = ((text or "").strip() for _, text in answers)
    return "\n".join(text[:LONGEST_EXPLANATION] for text in texts if text)


def _ask(
    kind: str, plugins: Sequence[Implementation], question: Callable[[Implementation], T]
) -> dict[Implementation, Future[T]]:
    return {plugin: asked(partial(question, plugin), name=f"{kind} {plugin.plugin}") for plugin in plugins}


def _answers(
    kind: str,
    questions: Mapping[Implementation, Future[T]],
    timeout: float,
    report: Callable[[Event], None],
    *,
    late: str,
    failed: str,
) -> Iterator[tuple[Implementation, T]]:
    """Yield what each plugin has answered within ``timeout`` seconds, in order; report each that failed.

    Args:
        kind: With what the names of the events begin: ``policy`` or ``plugin``.
        questions: The plugins that were asked.
        timeout: Seconds for all of them together.
        report: Called for each failure.
        late: What a plugin has not done in time.
        failed: What follows if a plugin has raised.
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


def _explain(plugin: Implementation, ranks: Mapping[int, int], world_size: int, directory: Path) -> str | None:
    said: str | None = plugin(ranks=ranks, world_size=world_size, directory=directory)
    if not isinstance(said, str | None):
        raise TypeError(f"{reprlib.repr(said)} is neither a text nor None")
    return said


def _is_gone(plugin: Implementation, node: NodeInfo) -> bool | None:
    said: bool | None = plugin(node=node)
    if said not in (True, False, None):
        raise TypeError(f"{reprlib.repr(said)} is neither True, False nor None")
    return said


def _verdict_of(policy: Implementation, incident: Incident, history: History) -> Verdict | None:
    """Return a policy's verdict, once its fields are known to have the right types: a dataclass takes any value."""
    if (verdict := policy(incident=incident, history=history)) is None:
        return None
    if not isinstance(verdict, Verdict):
        raise TypeError(f"{reprlib.repr(verdict)} is neither a Verdict nor None")
    for name, kind in (("action", int), ("reason", str), ("requeue", bool), ("policy", str)):
        value: object = getattr(verdict, name)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            wanted = "an Action" if kind is int else f"a {kind.__name__}"
            raise TypeError(f"the verdict's {name} is {reprlib.repr(value)}, which is not {wanted}")
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
