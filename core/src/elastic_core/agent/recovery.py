"""How long one interruption of training took on this node, and what the time went into."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_core.events import Event, Field, Level


@dataclass(slots=True)
class Recovery:
    """From the first trouble until the workers of the next round run. Seconds on the monotonic clock.

    What happens meanwhile overlaps: while the old workers are being stopped, the chair decides. So each part is told by
    when it was over, counted from the beginning.

    Attributes:
        began: When the worker ended that failed first; else when this node learned that the round is over.
        detected: When this node knew.
        decided: When it read of the next round.
        stopped: When no process of the old one was left.
    """

    began: float
    detected: float
    decided: float | None = None
    stopped: float | None = None

    def event(self, number: int, running: float) -> Event:
        """The workers of round ``number`` run since ``running``: the breakdown, for people and programs."""
        ends = {"detected": self.detected, "decided": self.decided, "stopped": self.stopped, "running": running}
        took = {name: round(at - self.began, 6) for name, at in ends.items() if at is not None}
        told = ", ".join(f"{name} after {seconds:.3f}" for name, seconds in took.items())
        fields: dict[str, Field] = {"round": number, **{f"{name}_s": seconds for name, seconds in took.items()}}
        return Event("recovered", f"round {number} runs: {told} s", Level.DEBUG, fields)
