"""Asking every failure policy about an incident, without depending on any one of them.

A policy is foreign code that runs at the worst moment. So each is asked in a thread of its own, all at once, and one
that raises, answers nonsense or is not done in time is reported and abstains.
"""

from __future__ import annotations

import reprlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial

from elastic_core.events import Event, Level
from elastic_core.incidents import Action, History, Incident, Verdict, strictest
from elastic_core.plugins.observers import Implementation, failure_events
from elastic_core.protocol.roster import NodeInfo

LONGEST_REASON = 500
"""Characters of a verdict's reason: it becomes part of the ledger, and of what every node prints."""


def judge(
    policies: Sequence[Implementation],
    incident: Incident,
    history: History,
    *,
    timeout: float,
    report: Callable[[Event], None],
) -> Verdict:
    """The strictest verdict of all policies that give one within ``timeout`` seconds; blocks until then at most.

    Among equals the first in the order of ``policies`` gives its reason. ``report`` hears of each policy that failed.

    Raises:
        ValueError: No policy gave a verdict. (Core's own always does.)
    """
    answers = {policy: _ask(policy, incident, history) for policy in policies}
    wait(answers.values(), timeout=timeout)
    verdicts = []
    for policy, answer in answers.items():
        if not answer.done():
            report(_too_slow(policy, timeout))
        elif isinstance(exc := answer.exception(), Exception):
            for event in failure_events("policy_failed", policy, exc, "It abstains."):
                report(event)
        elif (verdict := answer.result()) is not None:
            verdicts.append(verdict)
    return strictest(verdicts)


def node_gone(
    plugins: Sequence[Implementation],
    node: NodeInfo,
    *,
    report: Callable[[Event], None],
    unanswered: dict[Implementation, Future[object]],
    timeout: float = 10.0,
) -> bool:
    """Whether some plugin vouches within ``timeout`` seconds that a node is gone for good; blocks until then at most.

    ``report`` hears of each plugin that failed. One that has not answered an earlier question, be it about another
    node, is not asked before it has: ``unanswered`` remembers these from one call to the next.
    """
    free = [plugin for plugin in plugins if plugin not in unanswered or unanswered[plugin].done()]
    answers = {plugin: _in_a_thread(plugin, partial(plugin, node=node)) for plugin in free}
    wait(answers.values(), timeout=timeout)
    vouches = False
    for plugin, answer in answers.items():
        unanswered.pop(plugin, None)
        if not answer.done():
            unanswered[plugin] = answer
            message = f"The plugin {plugin.plugin!r} did not say within {timeout:g} s whether {node} is gone."
            report(Event("plugin_timed_out", message, Level.WARNING, {"plugin": plugin.plugin, "timeout_s": timeout}))
        elif isinstance(exc := answer.exception(), Exception):
            for event in failure_events("plugin_failed", plugin, exc, f"Whether {node} is gone is not known."):
                report(event)
        elif answer.result() is True:
            message = f"The plugin {plugin.plugin!r} vouches that {node} is gone for good."
            report(Event("node_gone", message, fields={"plugin": plugin.plugin, "node": node.node_id}))
            vouches = True
    return vouches


def _in_a_thread(plugin: Implementation, question: Callable[[], object]) -> Future[object]:
    """The answer to come, from a daemon thread of its own: a plugin that hangs does not keep the agent alive."""
    answer: Future[object] = Future()

    def ask() -> None:
        try:
            if (said := question()) not in (True, False, None):
                raise TypeError(f"{reprlib.repr(said)} is neither True, False nor None")
            answer.set_result(said)
        except Exception as exc:
            answer.set_exception(exc)

    threading.Thread(target=ask, name=f"plugin {plugin.plugin}", daemon=True).start()
    return answer


def _ask(policy: Implementation, incident: Incident, history: History) -> Future[Verdict | None]:
    """The answer to come, from a daemon thread of its own: a policy that hangs does not keep the agent alive."""
    answer: Future[Verdict | None] = Future()

    def ask() -> None:
        try:
            answer.set_result(_checked(policy(incident=incident, history=history)))
        except Exception as exc:
            answer.set_exception(exc)

    threading.Thread(target=ask, name=f"policy {policy.plugin}", daemon=True).start()
    return answer


def _checked(verdict: object) -> Verdict | None:
    """A policy's answer, believed in nothing: a dataclass takes whatever it is given.

    Raises:
        TypeError: It is neither a Verdict nor None, or one of its fields is not of its type.
        ValueError: Its action is a number that no action has.
    """
    if verdict is None:
        return None
    if not isinstance(verdict, Verdict):
        raise TypeError(f"{reprlib.repr(verdict)} is neither a Verdict nor None")
    for name, kind in (("action", int), ("reason", str), ("requeue", bool)):
        value: object = getattr(verdict, name)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            wanted = "an Action" if kind is int else f"a {kind.__name__}"
            raise TypeError(f"the verdict's {name} is {reprlib.repr(value)}, which is not {wanted}")
    return Verdict(Action(verdict.action), verdict.reason[:LONGEST_REASON], verdict.requeue)


def _too_slow(policy: Implementation, timeout: float) -> Event:
    return Event(
        "policy_timed_out",
        f"The plugin {policy.plugin!r} gave no verdict within {timeout:g} s. It abstains.",
        Level.WARNING,
        {"plugin": policy.plugin, "timeout_s": timeout},
    )
