"""Virtual time: threads that are greenlets, clocks that are wrong, and a hub that decides who runs next.

The drivers under test are written for threads that block. Here each of their threads is a greenlet; where it would
block, it hands control to the :class:`Hub`, which goes on with whatever is due next. Nothing ever waits for real, and
since the hub breaks ties by order of arrival, one plan leads to one course of events, always.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import TimeoutError
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

TICK = 1e-6
"""Seconds: timers are this late, so that rounding never makes one early and whoever waits for it spin."""


MOST_EVENTS = 150_000
"""In one plan."""


class Livelock(Exception):
    """Some thread does the same again and again."""


class Clock:
    """One host's monotonic clock: it begins anywhere, drifts, and stands still while its machine is suspended."""

    __slots__ = ("hub", "lost", "offset", "rate")

    def __init__(self, hub: Hub, offset: float, rate: float) -> None:
        self.hub, self.offset, self.rate, self.lost = hub, offset, rate, 0.0

    def now(self) -> float:
        """Seconds, monotonic, of no meaning to any other host."""
        return self.offset + (self.hub.now - self.lost) * self.rate


class Process:
    """What the threads of one agent share: a clock, and whether they run at all."""

    __slots__ = ("clock", "dead", "deferred", "frozen", "host", "lag", "name", "tasks")

    def __init__(self, name: str, clock: Clock, host: Any = None) -> None:
        self.name, self.clock, self.host = name, clock, host
        self.dead = self.frozen = False
        self.lag = 0.0
        """Seconds by which its threads may run late: the host is busy."""
        self.deferred: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.tasks: list[Task] = []

    def resume(self, hub: Hub) -> None:
        """Let everything happen that was held up."""
        self.frozen = False
        deferred, self.deferred = self.deferred, []
        for function, args in deferred:
            hub.at(hub.now, function, *args)


class Task:
    """One thread."""

    __slots__ = ("done", "glet", "hub", "process", "ticket", "waiters")

    def __init__(self, hub: Hub, process: Process, body: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.hub, self.process = hub, process
        self.ticket = 0
        """Counts the times that it blocked; a wake-up for an earlier one comes too late."""
        self.done = False
        self.waiters: list[Callable[[], None]] = []

        def run(_value: object) -> None:
            try:
                body(*args)
            finally:
                self.done = True
                for wake in self.waiters:
                    wake()

        self.glet = greenlet(run, hub.glet)
        process.tasks.append(self)

    def park(self) -> Any:
        """Block until :meth:`wake`; returns what that was given."""
        if self.hub.over:
            raise GreenletExit
        value = self.hub.glet.switch()
        self.ticket += 1
        return value

    def wake(self, ticket: int, value: object = None) -> None:
        """Run on, if it still waits for this; called by the hub only."""
        if ticket != self.ticket or self.done or self.process.dead:
            return
        if self.process.frozen:
            self.process.deferred.append((self.wake, (ticket, value)))
            return
        self.hub.current = self
        self.glet.switch(value)

    def expire(self, ticket: int, deadline: float, value: object) -> None:
        """Wake a task at a deadline by the process's clock, unless it was woken before."""
        if ticket != self.ticket or self.done or self.process.dead:
            return
        if self.process.frozen:
            self.process.deferred.append((self.expire, (ticket, deadline, value)))
            return
        left = deadline - self.process.clock.now()
        if left > 0:
            self.hub.at(self.hub.now + left / self.process.clock.rate + TICK, self.expire, ticket, deadline, value)
        else:
            self.wake(ticket, value)


class Hub:
    """The event loop, and the only source of chance while a plan runs."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self.glet = getcurrent()
        self.current: Task | None = None
        self.over = False
        self.events = 0
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._processes: list[Process] = []

    def at(self, when: float, function: Callable[..., None], *args: Any) -> None:
        """Call a function at an instant; of two at one instant the one that was asked for first."""
        heapq.heappush(self._due, (when, next(self._order), function, args))

    def task(self) -> Task:
        """Return the task of the thread that is running."""
        assert self.current is not None, "only a simulated thread may block"
        return self.current

    def start(self, process: Process, body: Callable[..., None], *args: Any) -> Task:
        """Start a thread of a process."""
        if process not in self._processes:
            self._processes.append(process)
        task = Task(self, process, body, args)
        self.at(self.now, task.wake, 0)
        return task

    def run(self, until: float, finished: Callable[[], bool]) -> None:
        """Let happen what is due, until an instant, or until ``finished`` after some event.

        Raises:
            Livelock: More happened than any job has reason for.
        """
        due = self._due
        while due and due[0][0] <= until and not finished():
            self.now, _, function, args = heapq.heappop(due)
            self.events += 1
            if self.events > MOST_EVENTS:
                raise Livelock(f"{MOST_EVENTS} events")
            function(*args)
        if not finished():
            self.now = until

    def close(self) -> None:
        """End every thread where it stands."""
        self.over = True
        for process in self._processes:
            for task in process.tasks:
                if not task.done and task.glet:
                    self.current = task
                    task.glet.throw(GreenletExit)
        self._due.clear()


class Condition:
    """In place of ``threading.Condition``. Threads switch only where they block, so its lock is always free."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._waiting: deque[tuple[Task, int]] = deque()

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        return None

    def wait(self, timeout: float | None = None) -> bool:
        """Block until notified, or for ``timeout`` seconds of this host's clock."""
        hub, task = self._hub, self._hub.task()
        self._waiting.append((task, task.ticket))
        if timeout is not None:
            expire_after(hub, task, timeout, False)
        return bool(task.park())

    def notify(self, n: int = 1) -> None:
        """Wake ``n`` of those that wait."""
        hub = self._hub
        while n > 0 and self._waiting:
            task, ticket = self._waiting.popleft()
            if ticket == task.ticket and not task.done:
                n -= 1
                hub.at(hub.now + scheduling_delay(hub, task.process), task.wake, ticket, True)

    def notify_all(self) -> None:
        """Wake all."""
        self.notify(len(self._waiting))


class Event:
    """In place of ``threading.Event``."""

    def __init__(self, hub: Hub) -> None:
        self._set, self._condition = False, Condition(hub)

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._set

    def set(self) -> None:
        """Set it, and wake who waits."""
        self._set = True
        self._condition.notify_all()

    def clear(self) -> None:
        """Make it as it was."""
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it is set."""
        if not self._set:
            self._condition.wait(timeout)
        return self._set


class Thread:
    """In place of ``threading.Thread``; it belongs to the process of the thread that starts it."""

    def __init__(
        self,
        hub: Hub,
        target: Callable[..., None],
        args: tuple[Any, ...] = (),
        name: str = "",
        daemon: bool = True,
    ) -> None:
        self._hub, self._target, self._args = hub, target, args
        self.name, self.daemon = name, daemon
        self._task: Task | None = None

    @property
    def ident(self) -> int | None:
        """None until it is started."""
        return None if self._task is None else 1

    def start(self) -> None:
        """Start it."""
        self._task = self._hub.start(self._hub.task().process, self._target, *self._args)

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        task = self._task
        if task is None or task.done:
            return
        condition = Condition(self._hub)
        task.waiters.append(condition.notify_all)
        condition.wait(timeout)


class Future:
    """In place of a ``concurrent.futures.Future``: what ``function`` will return, on a thread of its own."""

    def __init__(self, hub: Hub, function: Callable[[], Any], name: str = "") -> None:
        self._done = Event(hub)
        self._function, self._value = function, None
        Thread(hub, self._run, name=name).start()

    def _run(self) -> None:
        self._value = self._function()
        self._done.set()

    def done(self) -> bool:
        """Whether it has returned."""
        return self._done.is_set()

    def result(self, timeout: float | None = None) -> Any:
        """Wait for it."""
        if not self._done.wait(timeout):
            raise TimeoutError
        return self._value

    def exception(self) -> None:
        """Wait for it; what is simulated raises nothing there."""
        self._done.wait()


def expire_after(hub: Hub, task: Task, seconds: float, value: object) -> None:
    """Wake a task that is about to block after so many seconds of its host's clock."""
    clock = task.process.clock
    deadline = clock.now() + seconds
    hub.at(hub.now + max(0.0, seconds) / clock.rate + TICK, task.expire, task.ticket, deadline, value)


def scheduling_delay(hub: Hub, process: Process) -> float:
    """How much later than it could a thread runs, in seconds: nothing, unless its host is busy."""
    return process.lag * hub.random.random() if process.lag else 0.0
