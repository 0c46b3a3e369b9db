"""Delivers notices to the observers, without ever waiting for one of them.

Each observing plugin has a queue and a thread. A plugin that raises is switched off, and the other observers receive an
event about it. A plugin that stalls loses the oldest notices of its queue. Neither delays the job or another observer.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from elastic_core.errors import in_one_line
from elastic_core.events import Event, Level

QUEUE_LIMIT = 10_000  # how many notices may wait for one observer before its oldest are dropped


@dataclass(frozen=True, slots=True)
class Implementation:
    """One plugin's function for one hook."""

    plugin: str  # the plugin's name
    hook: str
    function: Callable[..., Any]
    argnames: tuple[str, ...]  # those of the hook's arguments that the function takes

    def __call__(self, **facts: object) -> Any:
        """Call it with the arguments that it takes."""
        return self.function(*(facts[name] for name in self.argnames))


class Observers:
    """The observing plugins of this node, each of which receives all notices in order."""

    def __init__(self, implementations: Iterable[Implementation], *, limit: int = QUEUE_LIMIT) -> None:
        by_plugin: dict[str, list[Implementation]] = {}
        for implementation in implementations:
            by_plugin.setdefault(implementation.plugin, []).append(implementation)
        self._lanes = [_Lane(name, hooks, self._publish, limit) for name, hooks in by_plugin.items()]
        for lane in self._lanes:
            lane.thread.start()

    def tell(self, hook: str, **facts: object) -> None:
        """Queue a notice for all plugins that implement ``hook``. Never blocks; from any thread."""
        for lane in self._lanes:
            lane.put(hook, facts)

    def close(self, timeout: float) -> tuple[str, ...]:
        """Deliver the queued notices, for ``timeout`` seconds at most; return the plugins that are not done by then."""
        deadline = time.monotonic() + timeout
        for lane in self._lanes:
            lane.close()
        for lane in self._lanes:
            lane.thread.join(max(0.0, deadline - time.monotonic()))
        return tuple(lane.plugin for lane in self._lanes if lane.thread.is_alive())

    def _publish(self, event: Event) -> None:
        self.tell("elastic_observe", event=event)


class _Lane:
    """One observer: its queue, its thread, and whether it is still on."""

    def __init__(
        self, plugin: str, hooks: Iterable[Implementation], report: Callable[[Event], None], limit: int
    ) -> None:
        self.plugin = plugin
        self.thread = threading.Thread(target=self._deliver, name=f"observer {plugin}", daemon=True)
        self._hooks = {implementation.hook: implementation for implementation in hooks}
        self._report = report
        self._waiting: deque[tuple[Implementation, dict[str, object]]] = deque(maxlen=limit)
        self._dropped = 0
        self._open = True
        self._changed = threading.Condition()

    def put(self, hook: str, facts: dict[str, object]) -> None:
        """Queue a notice, if this observer implements its hook and is on."""
        implementation = self._hooks.get(hook)
        with self._changed:
            if implementation is None or not self._open:
                return
            self._dropped += len(self._waiting) == self._waiting.maxlen
            self._waiting.append((implementation, facts))
            self._changed.notify()

    def close(self) -> None:
        """Take no more notices; the thread ends once it has delivered those of the queue."""
        with self._changed:
            self._open = False
            self._changed.notify()

    def _deliver(self) -> None:
        while (notice := self._next()) is not None:
            implementation, facts = notice
            try:
                implementation(**facts)
            except Exception as exc:
                self._switch_off(implementation, exc)
                return

    def _next(self) -> tuple[Implementation, dict[str, object]] | None:
        """Return the next notice; blocks for it. None when there will be none."""
        with self._changed:
            dropped = 0 if self._waiting else self._dropped
            self._dropped -= dropped
        if dropped:
            message = f"The observer {self.plugin!r} fell behind; {dropped} notices were not delivered to it."
            self._report(
                Event("observer_fell_behind", message, Level.WARNING, {"plugin": self.plugin, "dropped": dropped})
            )
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or not self._open)
            return self._waiting.popleft() if self._waiting else None

    def _switch_off(self, implementation: Implementation, exc: Exception) -> None:
        with self._changed:
            self._open = False
            self._waiting.clear()
        consequence = "It is switched off; the job goes on."
        for event in failure_events("observer_switched_off", implementation, exc, consequence):
            self._report(event)


def failure_events(
    name: str, implementation: Implementation, exc: BaseException, consequence: str
) -> tuple[Event, Event]:
    """Return the events for a plugin that raised: a warning, and the traceback at level DEBUG."""
    fields = {"plugin": implementation.plugin, "hook": implementation.hook}
    message = f"The plugin {implementation.plugin!r} raised in {implementation.hook}: {in_one_line(exc)}"
    return (
        Event(name, f"{message} {consequence}", Level.WARNING, fields),
        Event(f"{name}_traceback", "".join(traceback.format_exception(exc)).rstrip(), Level.DEBUG, fields),
    )
