"""Finds out whether the workers of a round that was stopped as planned had time to save their state."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from elastic_core.events import Event, Level, describe_duration
from elastic_core.monitors import PlannedStop


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToSave:
    """The outcome of saving the state of a round, as far as this node knows it. None: not known."""

    round: int  # the round
    had_s: float  # seconds that its workers had from the notice on
    took_s: float  # seconds from the notice until the last of them had ended
    step: int | None = None  # the newest step that a worker of this node had reached
    saved_step: int | None = None  # the step of the newest checkpoint or snapshot
    saved_s: float | None = None  # seconds from that checkpoint to the end; None also for a snapshot in memory
    in_memory: bool = False  # whether that is a snapshot in memory
    in_time: bool | None = None  # whether it was saved after the notice, or is of the last step
    lost_steps: int | None = None  # the steps since then

    def describe(self) -> str:
        """Return it in one line."""
        of = "" if self.saved_step is None else f" of step {self.saved_step}"
        age = describe_duration(self.saved_s or 0.0)
        if self.in_time is None:
            saved = "no checkpoint of them is known"
        elif self.in_memory:
            saved = f"the newest snapshot in memory is{of}"
        elif self.in_time:
            saved = f"a checkpoint{of} was saved {age} before the end"
        else:
            saved = f"they saved none then, and the newest{of} was {age} old at the end"
        lost = ""
        if self.in_memory and self.lost_steps == 0:
            lost = "; no step is lost while a node of the job runs"
        elif self.lost_steps is not None:
            lost = f"; {self.lost_steps} step(s) are lost" if self.lost_steps else "; no step is lost"
        took, had = describe_duration(self.took_s), describe_duration(self.had_s)
        return f"the workers of round {self.round} had {had} to save, and ended after {took}: {saved}{lost}"


def time_to_save(number: int, stop: PlannedStop) -> TimeToSave:
    """Return what became of the state of round ``number`` after a planned stop; the newest saved state counts."""
    saved, age = stop.checkpoint if stop.checkpoint is not None else (None, None)
    snapshot = stop.snapshot_step
    in_memory = snapshot is not None and (age is None or (saved is not None and snapshot > saved))
    if in_memory:
        saved, age = snapshot, None
    found = TimeToSave(round=number, had_s=round(stop.had_s, 3), took_s=round(stop.took_s, 3), step=stop.step)
    if saved is None and age is None:
        return found
    lost = None if stop.step is None or saved is None else max(0, stop.step - saved)
    return replace(
        found,
        saved_step=saved,
        saved_s=None if age is None else round(age, 3),
        in_memory=in_memory,
        in_time=lost == 0 or (age is not None and age <= stop.took_s),
        lost_steps=lost,
    )


def saved_event(found: TimeToSave) -> Event:
    """Return the event, which people see where anything is known."""
    level = Level.DEBUG if found.in_time is None else Level.INFO if found.in_time else Level.WARNING
    return Event("time_to_save", found.describe(), level, asdict(found))
