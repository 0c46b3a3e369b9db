"""The callbacks of monitors: they answer questions, follow reports, speak before a stop, and find snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Generic, TypeVar

from elastic_core.errors import in_one_line
from elastic_core.events import Event, Level
from elastic_core.protocol.questions import decode
from elastic_core.questions import ANSWER_MAX_BYTES, encode
from elastic_core.threads import asked, bounded

LAST_WORDS_SECONDS, LAST_WORDS_MAX_CHARACTERS = 0.5, 400  # of a monitor, before workers are stopped
FOLLOW_SECONDS = 20.0  # how long a follower of reports may take


_Found = TypeVar("_Found")


class Guarded(Generic[_Found]):
    """Calls a monitor, until that raises: the error is published, and from then on each call returns None."""

    def __init__(self, call: Callable[..., _Found], publish: Callable[[Event], None]) -> None:
        self._call: Callable[..., _Found] | None = call
        self._publish = publish

    def __call__(self, *given: object) -> _Found | None:
        """Return what the monitor returns; None once it has raised."""
        if (call := self._call) is None:
            return None
        try:
            return call(*given)
        except Exception as exc:
            self._call = None
            message = f"a monitor raised, and is not called again in this round: {in_one_line(exc)}"
            self._publish(Event("plugin_failed", message, Level.WARNING))
            return None


class MonitorCallbacks:
    """The callbacks of all monitors of one round. For the agent."""

    def __init__(self, publish: Callable[[Event], None]) -> None:
        self._publish = publish
        self.finders: dict[str, Callable[[object], object]] = {}
        self.followers: list[tuple[str, Callable[[Any], object]]] = []
        self.last_words: list[tuple[Callable[[], object], float]] = []
        self.last_looks: list[Callable[[Any], Event | None]] = []  # each takes a PlannedStop
        self.snapshot_finders: list[Callable[[Mapping[str, int]], tuple[int, int] | None]] = []
        self._passed: Future[None] | None = None  # done once followers have taken the newest report

    def find_snapshot(self, held: Mapping[str, int]) -> tuple[int, int] | None:
        """Return the round and step of the newest snapshot in memory; None where no monitor knows one."""
        return self.snapshot_finders[0](held) if self.snapshot_finders else None

    def find(self, name: str, value: str) -> str:
        """Return the answer to a question, whose value is JSON, as JSON; ``null`` where no monitor has one."""
        find = self.finders.get(name)
        try:
            return encode(None if find is None else find(decode(value)), ANSWER_MAX_BYTES)
        except ValueError as exc:
            self._publish(_failed(f"a monitor's answer to {name!r} is left out: {in_one_line(exc)}"))
            return encode(None, ANSWER_MAX_BYTES)

    def take(self, name: str, report: object) -> None:
        """Pass a report to its followers, in order, in a separate thread."""
        if takers := [take for followed, take in self.followers if followed == name]:
            pass_on = partial(self._pass_on, name, report, takers, self._passed)
            self._passed = asked(pass_on, name="elastic-reports")

    def say_last(self) -> str:
        """Return what monitors say of workers that are about to be stopped; blocks as long as they may take."""
        said = []
        for call, within in self.last_words:
            try:
                said.append(bounded(call, within))
            except TimeoutError:
                continue
        return "; ".join(text[:LAST_WORDS_MAX_CHARACTERS] for text in said if isinstance(text, str) and text)

    def _pass_on(
        self, name: str, report: object, takers: Sequence[Callable[[Any], object]], former: Future[None] | None
    ) -> None:
        if former is not None:
            wait([former])
        for take in takers:
            try:
                bounded(partial(take, report), FOLLOW_SECONDS)
            except TimeoutError:
                self._publish(_failed(f"a monitor has taken the report on {name!r} for {FOLLOW_SECONDS:g} s"))


def _failed(message: str) -> Event:
    return Event("plugin_failed", message, Level.WARNING)
