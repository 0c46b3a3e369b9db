"""Virtual time: greenlets as threads, clocks that drift, and a hub that schedules them.

The drivers under test are written for threads that block. Here each of their threads is a greenlet; where it would
block, it switches to the :class:`Hub`, which runs the next event that is due. Real time plays no part, and the hub
breaks ties by order of arrival, so one plan always leads to one course of events.
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
"""Seconds by which timers are late, so that rounding never makes one early and its waiter spin."""


MOST_EVENTS = 150_000
"""The most events of one plan."""


class Livelock(Exception):
    """A thread repeats the same events without end."""


class Clock:
    """One host's monotonic clock: it starts at any value, drifts, and stops while its machine is suspended."""

    __slots__ = ("hub", "lost", "offset", "rate")

    def __init__(self, hub: Hub, offset: float, rate: float) -> None:
        self.hub, self.offset, self.rate, self.lost = hub, offset, rate, 0.0

    def now(self) -> float:
        """Return the host's monotonic time in seconds, which means nothing to other hosts."""
        return self.offset + (self.hub.now - self.lost) * self.rate


class Process:
    """The state that the threads of one agent share: a clock, and the process's own state."""

    __slots__ = ("clock", "dead", "deferred", "frozen", "host", "lag", "name", "tasks")

    def __init__(self, name: str, clock: Clock, host: Any = None) -> None:
        self.name, self.clock, self.host = name, clock, host
        self.dead = self.frozen = False
        self.lag = 0.0
        """The most seconds by which its threads run late on a busy host."""
        self.deferred: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.tasks: list[Task] = []

    def resume(self, hub: Hub) -> None:
        """Run everything that was deferred."""
        self.frozen = False
        deferred, self.deferred = self.deferred, []
        for function, args in deferred:
            hub.at(hub.now, function, *args)


class Task:
    """One simulated thread."""

    __slots__ = ("done", "glet", "hub", "process", "ticket", "waiters")

    def __init__(self, hub: Hub, process: Process, body: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.hub, self.process = hub, process
        self.ticket = 0
        """Number of times that it has blocked; a wake-up with an earlier number is ignored."""
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
        """Block until :meth:`wake`; return the value passed there."""
        if self.hub.over:
            raise GreenletExit
        value = self.hub.glet.switch()
        self.ticket += 1
        return value

    def wake(self, ticket: int, value: object = None) -> None:
        """Continue, if it still waits with this ticket; called by the hub only."""
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
    """The event loop, and the only source of randomness while a plan runs."""

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
        """Call a function at an instant; calls at one instant run in the order of their registration."""
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
        """Run the events that are due, until an instant, or until ``finished`` returns True.

        Raises:
            Livelock: The plan has more events than any job needs.
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
        """End every thread at its current position."""
        self.over = True
        for process in self._processes:
            for task in process.tasks:
                if not task.done and task.glet:
                    self.current = task
                    task.glet.throw(GreenletExit)
        self._due.clear()


class Condition:
    """Replacement of ``threading.Condition``. Threads switch only where they block, so its lock is always free."""

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
        """Wake ``n`` waiters."""
        hub = self._hub
        while n > 0 and self._waiting:
            task, ticket = self._waiting.popleft()
            if ticket == task.ticket and not task.done:
                n -= 1
                hub.at(hub.now + scheduling_delay(hub, task.process), task.wake, ticket, True)

    def notify_all(self) -> None:
        """Wake all waiters."""
        self.notify(len(self._waiting))


class Event:
    """Replacement of ``threading.Event``."""

    def __init__(self, hub: Hub) -> None:
        self._set, self._condition = False, Condition(hub)

    def is_set(self) -> bool:
        """Return True if it is set."""
        return self._set

    def set(self) -> None:
        """Set it, and wake all waiters."""
        self._set = True
        self._condition.notify_all()

    def clear(self) -> None:
        """Reset it."""
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it is set."""
        if not self._set:
            self._condition.wait(timeout)
        return self._set


class Thread:
    """Replacement of ``threading.Thread``; it belongs to the process of the thread that starts it."""

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
    """Replacement of ``concurrent.futures.Future``: the result of ``function``, which runs on a thread of its own."""

    def __init__(
        self, hub: Hub, function: Callable[[], Any], *, then: Callable[[Any], object] | None = None, name: str = ""
    ) -> None:
        self._done = Event(hub)
        self._function, self._then, self._value = function, then, None
        Thread(hub, self._run, name=name).start()

    def _run(self) -> None:
        self._value = self._function()
        if self._then is not None:
            self._then(self._value)
        self._done.set()

    def done(self) -> bool:
        """Return True once the function has returned."""
        return self._done.is_set()

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the result."""
        if not self._done.wait(timeout):
            raise TimeoutError
        return self._value

    def exception(self) -> None:
        """Wait for the end; a simulated function raises nothing."""
        self._done.wait()


def expire_after(hub: Hub, task: Task, seconds: float, value: object) -> None:
    """Wake a task that is about to block after so many seconds of its host's clock."""
    clock = task.process.clock
    deadline = clock.now() + seconds
    hub.at(hub.now + max(0.0, seconds) / clock.rate + TICK, task.expire, task.ticket, deadline, value)


def scheduling_delay(hub: Hub, process: Process) -> float:
    """Return the seconds by which a thread runs late; 0 unless its host is busy."""
    return process.lag * hub.random.random() if process.lag else 0.0
