"""The agent's event queue: events, and timers by the clock of its host."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from elastic_core.protocol.node_events import EntriesRead, HistoryReplaced
from simulator.engine import TICK, Task, scheduling_delay

if TYPE_CHECKING:
    from simulator.agent import SimAgent


class Inbox:
    """Replacement of the agent's event loop."""

    def __init__(self, agent: SimAgent) -> None:
        self._agent, self._hub = agent, agent.process_hub
        self._events: deque[object] = deque()
        self._taken: list[object] = []
        self._taker: tuple[Task, int] | None = None

    def post(self, event: object) -> None:
        """Add an event."""
        self._events.append(event)
        if self._taker is not None:
            (task, ticket), self._taker = self._taker, None
            self._hub.at(self._hub.now + scheduling_delay(self._hub, task.process), task.wake, ticket)

    def at(self, instant: float, event: object) -> None:
        """Deliver an event at an instant of this host's clock."""
        clock = self._agent.process.clock
        wait = max(0.0, instant - clock.now()) / clock.rate + TICK
        self._hub.at(self._hub.now + wait, self._due, instant, event)

    def later(self, seconds: float, event: object) -> None:
        """Deliver an event after so many seconds of this host's clock."""
        self.at(self._agent.process.clock.now() + seconds, event)

    def _due(self, instant: float, event: object) -> None:
        process = self._agent.process
        if process.dead:
            return
        if process.frozen:
            process.deferred.append((self._due, (instant, event)))
        elif process.clock.now() < instant:
            self.at(instant, event)
        else:
            self.post(event)

    def take(self) -> list[object]:
        """Block until there are events, and return them; the events returned before have been handled now."""
        for event in self._taken:
            if isinstance(event, EntriesRead):
                self._agent.host.world.checker.on_read(self._agent, event.entries)
            elif isinstance(event, HistoryReplaced):
                self._agent.host.world.checker.on_history_replaced(self._agent, event.ledger)
        self._agent.host.world.checker.on_events_handled(self._agent)
        if not self._events:
            task = self._hub.task()
            self._taker = (task, task.ticket)
            task.park()
        self._taken = list(self._events)
        self._events.clear()
        return self._taken

    def unwatch(self, _source: object) -> None:
        """Do nothing: no file descriptor is watched in the simulation."""
