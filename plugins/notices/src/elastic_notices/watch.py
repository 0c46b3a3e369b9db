"""The loop that asks a source again and again, and says what is new. Trouble is reported once, and never raised."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from elastic_core.events import Event, Level
from elastic_notices.notice import Notice, Source

INTERVAL_SECONDS = 5.0  # what Amazon recommends; one or two small requests to the own host
MAX_INTERVAL_SECONDS = 10.0  # of a service that does not answer: a third of the shortest notice, GCP's and Azure's
EARLIER_SECONDS = 5.0  # by how much a deadline has to be earlier than the one before, to be news


class Watch:
    """Watches one source, on a thread of its own.

    Two requests begin ``interval`` seconds apart, or more if the source waits by itself. ``named`` says that the user
    has named the cloud, and so has to know if its service has never answered.
    """

    def __init__(
        self,
        source: Source,
        leave: Callable[[str, float], None],
        publish: Callable[[Event], None],
        interval: float = INTERVAL_SECONDS,
        *,
        named: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._leave, self._publish = source, leave, publish
        self._interval, self._now, self._stopped = interval, now, threading.Event()
        self._deadline: float | None = None
        self._hints: set[str] = set()
        self._troubled, self._unproven = False, named
        self._pause = interval

    def start(self) -> None:
        """Begin, on a daemon thread: a request that hangs never holds up the end of the agent."""
        threading.Thread(target=self._run, name="elastic-notices", daemon=True).start()

    def stop(self) -> None:
        """Ask no more. Returns at once."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            began = self._now()
            self.look()
            self._stopped.wait(max(0.0, self._pause - (self._now() - began)))

    def look(self) -> None:
        """Ask once, and say what is new."""
        try:
            found = self._source.look()
        except Exception as exc:  # whatever a service answers, the job goes on
            self._pause = min(2 * self._pause, max(MAX_INTERVAL_SECONDS, self._interval))
            if not self._troubled and not self._stopped.is_set():
                self._troubled = True
                message = (
                    f"no notices of a preemption: {self._source.name} does not answer as it should ({exc}); "
                    f"it is asked again, at least every {max(MAX_INTERVAL_SECONDS, self._interval):g} s"
                )
                if self._unproven:
                    text = f"{message}. {self._source.advice} --notices=none asks nothing"
                    self._publish(Event("notices_off", text, Level.WARNING))
                else:
                    self._publish(Event("notices_off", message, Level.DEBUG))
            return
        self._pause, self._troubled, self._unproven = self._interval, False, False
        if found is None:
            message = f"no notices of a preemption: {self._source.name} says that this is not a spot machine"
            self._publish(Event("notices_off", message, Level.DEBUG))
            self.stop()
            return
        for notice in found:
            self._tell(notice)

    def _tell(self, notice: Notice) -> None:
        if self._stopped.is_set():
            return
        if notice.seconds is None:
            if notice.what not in self._hints:
                self._hints.add(notice.what)
                self._publish(Event("host_at_risk", f"{notice.what}: the job goes on here"))
            return
        deadline = self._now() + notice.seconds
        if self._deadline is None or deadline < self._deadline - EARLIER_SECONDS:
            self._deadline = deadline
            fields = {"left_s": round(notice.seconds, 1)}
            self._publish(Event("host_ends", f"{notice.what}, in {notice.seconds:.0f} s", Level.WARNING, fields))
            self._leave(notice.what, notice.seconds)
